"""A model larger than the memory there is: saved in shards, loaded again, and exported."""

import json
import os
import subprocess
import sys
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

_GROUPS = Path("/sys/fs/cgroup")


@contextmanager
def memory_group(limit: int) -> Iterator[Path | None]:
    """A control group of the kernel whose processes share `limit` bytes; None if none can be made.

    The memory of a group is that of its processes and of the files they read and write.
    """
    name = f"standfast-{uuid.uuid4().hex[:8]}"
    files = {_GROUPS / "memory": "memory.limit_in_bytes", _GROUPS: "memory.max"}
    for group, file in ((parent / name, file) for parent, file in files.items()):
        if not (group.parent / "cgroup.procs").exists():
            continue
        with suppress(OSError):
            group.mkdir()
        try:
            (group / file).write_text(str(limit))
            break
        except OSError:
            with suppress(OSError):
                group.rmdir()
    else:
        yield None
        return
    try:
        yield group
    finally:
        group.rmdir()


def run_within(group: Path | None, *arguments: str) -> str:
    """What the program prints as a member of a group."""

    def join() -> None:
        if group is not None:
            (group / "cgroup.procs").write_text(str(os.getpid()))

    command = [sys.executable, "-m", "tests.packages.larger_than_memory", *arguments]
    done = subprocess.run(command, preexec_fn=join, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, f"{done.returncode} {done.stderr}"
    return done.stdout


SHARD = 20_000_000
LIMIT = 450_000_000
"""Of which Python and torch take 250 million by themselves; the rest is one shard."""


@pytest.mark.parametrize("layers", [2, pytest.param(30, marks=pytest.mark.long)])
def test_a_model_larger_than_memory_is_saved_loaded_and_exported(layers, tmp_path):
    with memory_group(LIMIT) as group:
        found = json.loads(run_within(group, str(tmp_path / "w"), str(layers), "1024", str(SHARD)))
    assert found["size"] > 50_000_000 * layers
    assert found["shards"] >= found["size"] // SHARD
    assert found["saving"] < 80_000_000  # of its own, besides what is mapped
    assert found["loading"] < 20_000_000
    assert 0 < found["exporting"] < 100_000_000
    assert found["same"]
