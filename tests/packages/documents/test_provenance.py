"""Provenance: the libraries, the git revision of the program, the checkpoint."""

import importlib.metadata
import os
import platform
import subprocess
import sys
import time
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest

from standfast.packages.documents.manifest import git_state, program_folder, provenance


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


def test_the_revision_is_dirty_if_a_file_changed(repository):
    (repository / "new.txt").write_text("new")
    revision = git(repository, "rev-parse", "HEAD")
    assert git_state(repository / "src") == {"revision": revision, "dirty": False}
    (repository / "src" / "train.py").write_text("print(2)\n")
    assert git_state(repository) == {"revision": revision, "dirty": True}


def test_it_names_python_the_platform_the_libraries_and_the_checkpoint(seams):
    found = provenance()
    assert found["python"] == platform.python_version()
    assert found["platform"] == platform.platform()
    assert found["libraries"]["standfast"] == version("standfast")
    assert found["libraries"]["torch"] == version("torch")
    assert "checkpoint" not in found
    checkpoint = {"store": "experiments", "run": "gpt", "step": 3, "digest": "00"}
    assert provenance(checkpoint)["checkpoint"] == checkpoint

    def without_torch(version: Any, name: str) -> str:
        if name == "torch":
            raise importlib.metadata.PackageNotFoundError(name)
        return str(version(name))

    seams.system(importlib.metadata, version=without_torch)
    del found["libraries"]["torch"]
    assert provenance()["libraries"] == found["libraries"]


def test_a_folder_without_git_or_a_commit_has_no_revision(repository, tmp_path, monkeypatch, seams):
    with monkeypatch.context() as patch:
        patch.setenv("GIT_DIR", str(repository / ".git"))  # of a hook that runs: it does not count
        patch.setenv("GIT_WORK_TREE", str(repository))
        assert git_state(tmp_path) is None
    assert git_state(tmp_path / "missing") is None
    (tmp_path / "program.py").touch()
    seams.system(sys, argv=[str(tmp_path / "program.py")])
    assert "git" not in provenance()
    git(tmp_path, "init", "-q")
    assert git_state(tmp_path) is None
    monkeypatch.setenv("PATH", str(tmp_path))
    assert git_state(repository) is None


def test_nothing_that_the_repository_names_is_run(repository):
    trap = repository / "trap.sh"
    trap.write_text(f"#!/bin/sh\ntouch {repository / 'sprung'}\n")
    trap.chmod(0o755)
    git(repository, "config", "core.fsmonitor", str(trap))
    subprocess.run(["git", "-C", str(repository), "status"], check=True, capture_output=True)
    assert (repository / "sprung").exists()  # the trap is one
    (repository / "sprung").unlink()
    assert git_state(repository) is not None
    assert not (repository / "sprung").exists()


def test_a_git_that_hangs_is_given_up_with_all_it_started(tmp_path, monkeypatch, seams):
    fake = tmp_path / "bin" / "git"
    fake.parent.mkdir()
    fake.write_text(f"#!/bin/sh\nsleep 600 & echo $! > {tmp_path / 'child'}\nwait\n")
    fake.chmod(0o755)
    monkeypatch.setenv("PATH", f"{fake.parent}{os.pathsep}{os.environ['PATH']}")
    seams.bound("patience with git", 1)
    assert git_state(tmp_path) is None
    child = Path("/proc") / (tmp_path / "child").read_text().strip() / "stat"
    deadline = time.monotonic() + 60
    while child.exists() and child.read_text().rpartition(")")[2].split()[0] != "Z":
        assert time.monotonic() < deadline
        time.sleep(0.01)


@pytest.mark.parametrize("arguments", [["train.py"], ["-c"], [""], []], ids=str)
def test_a_program_is_where_its_file_is_or_else_where_it_runs(
    tmp_path, monkeypatch, seams, arguments
):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").touch()
    seams.system(sys, argv=arguments)
    assert program_folder().resolve() == tmp_path.resolve()
