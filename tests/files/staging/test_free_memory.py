"""How much memory is left: of the machine, or of the least of the groups that a process is in."""

from __future__ import annotations

from pathlib import Path

import pytest

from standfast.files.staging.free_memory import available
from tests.kit.seams import Seams


@pytest.fixture
def system(tmp_path: Path, seams: Seams) -> Path:
    """A machine with 9,000 KiB, and a process in no group."""
    (tmp_path / "meminfo").write_text("MemTotal: 10000 kB\nMemAvailable: 9000 kB\n")
    seams.bound("file of free memory", tmp_path / "meminfo")
    seams.bound("cgroup of this process", tmp_path / "cgroup")
    seams.bound("folder of cgroups", tmp_path / "groups")
    return tmp_path


def limit(system: Path, group: str, most: str, used: int, names: tuple[str, str]) -> None:
    folder = system / "groups" / group
    folder.mkdir(parents=True, exist_ok=True)
    (folder / names[0]).write_text(f"{most}\n")
    (folder / names[1]).write_text(f"{used}\n")


NEW = ("memory.max", "memory.current")
OLD = ("memory.limit_in_bytes", "memory.usage_in_bytes")


def test_without_groups_the_machine_counts(system: Path) -> None:
    assert available() == 9000 << 10
    (system / "cgroup").write_text("nonsense\n0::\n:::\n")
    limit(system, "", "many", 2, NEW)
    assert available() == 9000 << 10
    (system / "meminfo").unlink()
    assert available() is None


def test_a_container_has_what_its_root_has(system: Path) -> None:
    (system / "cgroup").write_text("0::/\n")
    limit(system, "", "5000", 2000, NEW)
    assert available() == 3000


def test_a_job_of_a_scheduler_has_what_the_least_of_its_groups_has(system: Path) -> None:
    (system / "cgroup").write_text("0::/slurm/job_7/step_0\n")
    limit(system, "slurm", "max", 90, NEW)
    limit(system, "slurm/job_7", "7000", 3000, NEW)
    limit(system, "slurm/job_7/step_0", "max", 10, NEW)
    assert available() == 4000


def test_groups_of_older_kernels_count_too(system: Path) -> None:
    (system / "cgroup").write_text("5:cpu,cpuacct:/x\n9:memory:/docker/a\n0::/\n")
    limit(system, "memory/docker/a", "6000", 1000, OLD)
    limit(system, "memory", str((1 << 63) - 4096), 10, OLD)
    assert available() == 5000
