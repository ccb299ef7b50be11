"""Saves and loads of a process that can have no more memory, or start no thread."""

from __future__ import annotations

import _thread
import subprocess
import sys
from pathlib import Path

import pytest

from standfast.errors import OutOfMemory, within_memory
from tests.kit.cases import kept
from tests.store.save.memory_limited import OPERATIONS

HANGS = 300.0
"""So many seconds, and a child process is taken to hang."""


@pytest.mark.guarantee("G1")
@pytest.mark.parametrize("operation", kept(OPERATIONS, "run-save", "training-with-helper"))
def test_without_memory_an_error_of_ours_is_raised_and_all_is_as_it_was(
    operation: str, tmp_path: Path
) -> None:
    child = [sys.executable, "-m", "tests.store.save.memory_limited", operation, str(tmp_path)]
    done = subprocess.run(child, check=False, capture_output=True, text=True, timeout=HANGS)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("operation", OPERATIONS)
def test_where_no_thread_can_be_started_the_caller_does_the_work(
    operation: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = []

    def refuse(*_: object) -> int:
        asked.append(1)
        raise RuntimeError("can't start new thread")

    limited = OPERATIONS[operation](tmp_path)
    limited.prepare()
    with monkeypatch.context() as patched:
        patched.setattr(_thread, "start_new_thread", refuse)
        if limited.needs_threads:
            with pytest.raises(OutOfMemory):
                limited.act()
        else:
            limited.act()
    limited.check(not limited.needs_threads)
    assert asked


@pytest.mark.parametrize(
    "error",
    [MemoryError(), OSError(12, "Cannot allocate memory"), RuntimeError("can't start new thread")],
)
def test_what_python_raises_without_memory_becomes_one_error(error: Exception) -> None:
    with pytest.raises(OutOfMemory) as raised, within_memory():
        raise error
    assert raised.value.__cause__ is error
