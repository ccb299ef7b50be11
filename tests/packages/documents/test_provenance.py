"""Provenance: the libraries, the git revision of the program, the checkpoint."""

from __future__ import annotations

import os
import platform
import subprocess
import sys
import time
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import pytest

from standfast.packages.documents import manifest as module
from standfast.packages.documents.manifest import (
    git_state,
    library_versions,
    program_folder,
    provenance,
)


def git(folder: Path, *arguments: str) -> str:
    identity = ("-c", "user.name=Ada", "-c", "user.email=ada@example.org")
    command = ("git", "-C", str(folder), *identity, *arguments)
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    """A repository with one commit of one file."""
    folder = tmp_path / "project"
    (folder / "src").mkdir(parents=True)
    (folder / "src" / "train.py").write_text("print(1)\n")
    git(tmp_path, "init", "-q", str(folder))
    git(folder, "add", ".")
    git(folder, "commit", "-q", "-m", "first")
    return folder


def test_it_names_python_the_platform_and_the_libraries() -> None:
    found = provenance()
    assert found["python"] == platform.python_version()
    assert found["platform"] == platform.platform()
    assert found["libraries"]["standfast"] == version("standfast")
    assert found["libraries"]["numpy"] == version("numpy")
    assert "checkpoint" not in found


def test_the_checkpoint_is_told_as_it_was_given() -> None:
    checkpoint = {"store": "experiments", "run": "gpt", "step": 3, "digest": "00"}
    assert provenance(checkpoint)["checkpoint"] == checkpoint


def test_a_library_that_is_not_installed_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    def no_torch(name: str) -> str:
        if name == "torch":
            raise PackageNotFoundError(name)
        return "1.0"

    monkeypatch.setattr(module.metadata, "version", no_torch)
    assert library_versions() == {name: "1.0" for name in module.LIBRARIES if name != "torch"}


def test_the_revision_of_a_folder_is_found_from_below(repository: Path) -> None:
    revision = git(repository, "rev-parse", "HEAD")
    assert git_state(repository / "src") == {"revision": revision, "dirty": False}


def test_a_changed_file_makes_it_dirty_and_a_new_one_does_not(repository: Path) -> None:
    (repository / "new.txt").write_text("new")
    assert git_state(repository)["dirty"] is False  # type: ignore[index]
    (repository / "src" / "train.py").write_text("print(2)\n")
    assert git_state(repository)["dirty"] is True  # type: ignore[index]


def test_a_folder_without_git_has_no_revision(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "program_folder", lambda: tmp_path)
    assert git_state(tmp_path) is None
    assert git_state(tmp_path / "missing") is None
    assert "git" not in provenance()


def test_a_repository_without_a_commit_has_no_revision(tmp_path: Path) -> None:
    git(tmp_path, "init", "-q")
    assert git_state(tmp_path) is None


def test_the_folder_counts_and_not_the_repository_of_a_hook_that_runs(
    repository: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GIT_DIR", str(repository / ".git"))
    monkeypatch.setenv("GIT_WORK_TREE", str(repository))
    assert git_state(tmp_path) is None


def test_nothing_that_the_repository_names_is_run(repository: Path) -> None:
    trap = repository / "trap.sh"
    trap.write_text(f"#!/bin/sh\ntouch {repository / 'sprung'}\n")
    trap.chmod(0o755)
    git(repository, "config", "core.fsmonitor", str(trap))
    subprocess.run(["git", "-C", str(repository), "status"], check=True, capture_output=True)
    assert (repository / "sprung").exists()  # the trap is one
    (repository / "sprung").unlink()
    assert git_state(repository) is not None
    assert not (repository / "sprung").exists()


def test_a_git_that_hangs_is_given_up_with_all_it_started(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake = tmp_path / "bin" / "git"
    fake.parent.mkdir()
    fake.write_text(f"#!/bin/sh\nsleep 600 & echo $! > {tmp_path / 'child'}\nwait\n")
    fake.chmod(0o755)
    monkeypatch.setenv("PATH", f"{fake.parent}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setattr(module, "_PATIENCE", 3)
    started = time.monotonic()
    assert git_state(tmp_path) is None
    assert time.monotonic() - started < 60
    child = int((tmp_path / "child").read_text())
    assert _ends(child)


def _ends(process: int) -> bool:
    for _ in range(1200):
        try:
            state = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0]
        except OSError:
            return True
        if state == "Z":
            return True
        time.sleep(0.05)
    return False


def test_without_git_there_is_no_revision(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert git_state(tmp_path) is None


def test_the_program_is_where_its_file_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    script = tmp_path / "train.py"
    script.write_text("")
    monkeypatch.setattr(sys, "argv", [str(script)])
    assert program_folder() == Path(os.path.realpath(tmp_path))


@pytest.mark.parametrize("arguments", [["-c"], [""], []], ids=["command", "empty", "none"])
def test_a_program_without_a_file_is_where_it_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: list[str]
) -> None:
    monkeypatch.setattr(sys, "argv", arguments)
    monkeypatch.chdir(tmp_path)
    assert program_folder().resolve() == tmp_path.resolve()
