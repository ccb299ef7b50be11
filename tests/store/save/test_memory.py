"""Saves and loads of a process that can have no more memory, or start no thread."""

import _thread
import subprocess
import sys
from contextlib import nullcontext

import pytest

from standfast.errors import OutOfMemory, within_memory
from tests.kit.cases import kept
from tests.kit.seams import Seams
from tests.store.save.memory_limited import OPERATIONS

SHORT = [("run-save", 8), ("training-with-helper", 3)]


@pytest.mark.guarantee("G1")
@pytest.mark.parametrize(
    ("operation", "nth"), kept([(name, 1) for name in OPERATIONS] + SHORT, *SHORT)
)
def test_without_memory_an_error_of_ours_is_raised_and_all_is_as_it_was(operation, nth, tmp_path):
    child = [sys.executable, "-m", "tests.store.save.memory_limited"]
    child += [operation, str(tmp_path), str(nth)]
    done = subprocess.run(child, check=False, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("operation", OPERATIONS)
def test_without_threads_the_caller_does_the_work(operation, tmp_path):
    asked = []

    def refuse(start: object, *_: object) -> int:
        asked.append(start)
        raise RuntimeError("can't start new thread")

    limited = OPERATIONS[operation](tmp_path)
    limited.prepare()
    with Seams.until_end() as seams:
        seams.system(_thread, start_new_thread=refuse)
        with pytest.raises(OutOfMemory) if limited.needs_threads else nullcontext():
            limited.act()
    limited.check(not limited.needs_threads)
    assert asked


def test_what_python_raises_without_memory_becomes_one_error():
    no_thread = RuntimeError("can't start new thread")
    for error in (MemoryError(), OSError(12, "Cannot allocate memory"), no_thread):
        with pytest.raises(OutOfMemory) as raised, within_memory():
            raise error
        assert raised.value.__cause__ is error
