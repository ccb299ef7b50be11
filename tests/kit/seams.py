"""The four places where a test may put something of its own: disk, backend, communicator, process.

    seams.disk(Faulty(7, kill))                    a disk of the kit
    seams.disk(free=lambda free, folder: 100)      one operation of the disk
    seams.backend(create=slowly)                   one operation of every local backend
    seams.backend(store.backend, lock=late)        one operation of this backend
    seams.system(os, scandir=refused)              a call of the interpreter or of a library
    seams.libc(allocate=refused)                   a call of the system
    seams.clock()                                  a clock that the test moves
    seams.bound("blocks of the ring", 32768)       a size or an interval of `tests/kit/bounds.py`
    with Seams.until_end() as seams:               for a part of a test only

A function that is put in gets the operation that it replaces as its first argument, so that it
can call it before or after what it does itself:

    def slowly(create, name, data):
        wait()
        create(name, data)

A communicator is passed as `comm=`: `tests/kit/rank_threads.py` has ranks in threads, on which a
call can fail. No test replaces a function of the product: `tests/test_seams.py` sees to it.
"""

from __future__ import annotations

import gc
import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from types import FunctionType, MethodType, ModuleType
from typing import Any, TypeVar

import pytest

import standfast
from standfast.files import disk as disks
from standfast.files import libc
from standfast.files.disk import Disk
from standfast.store.backends.local import LocalBackend
from standfast.store.index.manifest import Manifest
from tests.kit.bounds import BOUNDS

D = TypeVar("D", bound=Disk)


class Seams:
    """What a test puts in place, until its end or the end of the patch it is given."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self._patch = patch

    def disk(self, disk: D | None = None, **operations: Any) -> D:
        """Put a disk in the place of the real one, or replace some operations of the present one.

        Objects of tests before are released first, once a test, so that what they do at their end
        is not taken for an operation of this one.
        """
        if disk is not None:
            if _released != os.environ["PYTEST_CURRENT_TEST"]:
                _release()
            self._patch.setattr(disks, "LOCAL", disk)
        self._replace(disks.LOCAL, operations)
        return disks.LOCAL  # type: ignore[return-value]

    def backend(self, of: Any = LocalBackend, /, **operations: Any) -> None:
        """Replace operations of one backend, of a class of them, or of all on local disks."""
        self._replace(of, operations)

    def system(self, of: Any, /, **names: Any) -> None:
        """Replace what a module or class outside of the product has: `system(os, stat=…)`."""
        home = of.__name__ if isinstance(of, ModuleType) else type(of).__module__
        assert not home.startswith("standfast"), f"{home} is the product: use another seam"
        self._replace(of, names)

    def libc(self, **calls: Any) -> None:
        """Replace calls of the system for which Python has no function: `libc(allocate=…)`."""
        self._replace(libc, calls)

    def clock(self, start: float = 1_000_000_000.0) -> Clock:
        """Give all modules of the product a clock that stands still unless the test moves it."""
        clock = Clock(start)
        _ = standfast.Checkpointer  # its modules are imported when it is first asked for
        for name, module in list(sys.modules.items()):
            if name.startswith("standfast") and getattr(module, "time", None) is time:
                self._patch.setattr(module, "time", clock)
        return clock

    def bound(self, name: str, value: Any) -> None:
        """Make a size, a count or an interval of the product small enough for a test."""
        for target in BOUNDS[name].split():
            self._patch.setattr(target, value)

    def no_manifest(self) -> None:
        """Let no thread write manifests: its operations would come at another moment each time."""
        self._patch.setattr(Manifest, "refresh", Manifest.mark)

    @staticmethod
    @contextmanager
    def until_end() -> Iterator[Seams]:
        """Seams for a part of a test: all is as it was at the end of the `with`."""
        with pytest.MonkeyPatch.context() as patch:
            yield Seams(patch)

    def _replace(self, of: Any, new: dict[str, Any]) -> None:
        for name, value in new.items():
            old = getattr(of, name)
            if isinstance(value, FunctionType) and callable(old):
                value = _before(value, old, bound=isinstance(of, type))
            self._patch.setattr(of, name, value)


_released = ""
_modules = 0
"""How many were imported when the collector was last told to leave aside what there is."""


def _release() -> None:
    """Collect garbage, but not among the many objects of libraries: with torch that takes long."""
    global _released, _modules
    gc.collect()
    if len(sys.modules) > _modules + 100:
        gc.freeze()
        _modules = len(sys.modules)
    _released = os.environ["PYTEST_CURRENT_TEST"]


def _before(new: Callable[..., Any], old: Any, bound: bool) -> Callable[..., Any]:
    """A function that calls the new one, with the old one as its first argument."""
    if bound:

        @wraps(old)
        def method(self: Any, *args: Any, **options: Any) -> Any:
            return new(MethodType(old, self), *args, **options)

        return method

    @wraps(old)
    def function(*args: Any, **options: Any) -> Any:
        return new(old, *args, **options)

    return function


class Clock:
    """Stands in for the module `time`: only `advance` and `sleep` let time pass."""

    def __init__(self, start: float) -> None:
        self.now = start

    def advance(self, seconds: float) -> None:
        self.now += seconds

    sleep = advance

    def monotonic(self) -> float:
        return self.now

    time = perf_counter = process_time = thread_time = monotonic

    def time_ns(self) -> int:
        return int(self.now * 1e9)

    monotonic_ns = perf_counter_ns = time_ns

    def __getattr__(self, name: str) -> Any:
        return getattr(time, name)
