"""What this process has open and running. No thread of a test outlives it.

One that is left would act in the middle of another test. JAX has threads that never end, and warns
at every fork from then on: it is imported by programs that tests start, not by the tests.
"""

import _thread
import faulthandler
import gc
import os
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass

from standfast.store.index import manifest

PATIENCE = 30.0
"""Seconds that threads have to end after a test."""


@dataclass
class Check:
    """What is to be done at the end of a test."""

    waits: bool = True


@contextmanager
def threads_end() -> Iterator[Check]:
    """Fails if there are more threads at the end than at the beginning, and stay."""
    before, has_jax = _count(), "jax" in sys.modules
    check = Check()
    yield check
    assert has_jax or "jax" not in sys.modules, "use JAX in a program of its own"
    if _count() > before:
        _drop_manifests()
        _wait(before, 0.2 if check.waits else 0)
    if check.waits and _count() > before:
        gc.collect()  # some end with the object that they work for
        _wait(before, PATIENCE)
        if (left := _count() - before) > 0:
            faulthandler.dump_traceback()
            raise AssertionError(f"{left} threads are still there: close what began them")


def _count() -> int:
    """The threads that the product has started; those of servers and of tests are not its own."""
    others = (type(each) is not threading._DummyThread for each in threading.enumerate())
    return _thread._count() - sum(others) + 1


def _wait(count: int, seconds: float) -> None:
    deadline = time.monotonic() + seconds
    while _count() > count and time.monotonic() < deadline:
        time.sleep(0.001)


def _drop_manifests() -> None:
    """End the threads that would write a manifest later, once a minute, without writing it."""
    for each in list(manifest._manifests):
        with each._changed:
            each._is_old = False
            each._changed.notify_all()


def open_files(of: object) -> list[str]:
    """Where those of its descriptors lead in whose targets a text is found."""
    found = []
    for fd in os.listdir("/proc/self/fd"):
        with suppress(FileNotFoundError):  # that of the list itself
            found.append(os.readlink(f"/proc/self/fd/{fd}"))
    return sorted(target for target in found if str(of) in target)
