"""Disks that go wrong, to be put in the place of the real one."""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Callable
from types import FrameType
from typing import Any

from standfast.files.disk import Disk

OPERATIONS = (
    "abandoned",
    "abandoned_folders",
    "create",
    "reserve",
    "write",
    "truncate",
    "set_mode",
    "sync",
    "rename",
    "rename_new",
    "exchange",
    "link",
    "close",
    "make_folder",
    "lock_folder",
    "remove_folder",
    "sync_folder",
    "remove",
    "open_lock",
    "free",
)


class FaultyDisk(Disk):
    """A disk on which something happens at the n-th operation, and never again.

    It does not happen to a thread that writes the manifest of a store, nor to an object whose end
    has come: such a one may be another test's, and comes at any moment.
    """

    def __init__(self, at: int, fault: Callable[[], None]) -> None:
        self.count = 0
        self.struck: str | None = None
        self._at = at
        self._fault = fault
        self._guard = threading.Lock()
        for name in OPERATIONS:
            setattr(self, name, self._guarded(name, getattr(self, name)))

    def _guarded(self, name: str, operation: Callable[..., Any]) -> Callable[..., Any]:
        def guarded(*args: Any, **options: Any) -> Any:
            if _is_of_another_test():
                return operation(*args, **options)
            with self._guard:
                self.count += 1
                strikes = self.count == self._at
            if not strikes:
                return operation(*args, **options)
            self.struck = name
            if name == "close":
                operation(*args)  # a close that reports an error has closed the file all the same
            if name == "write":
                fd, data, offset = args
                operation(fd, data[: data.size // 2 // 512 * 512], offset)
            self._fault()
            raise AssertionError("the fault did not strike")

        return guarded


def _is_of_another_test() -> bool:
    """Whether a thread that writes a manifest, or the end of an unused object, does this."""
    frame: FrameType | None = sys._getframe()
    while frame is not None:
        code = frame.f_code
        if code.co_name == "__del__" or code.co_qualname == "Manifest._keep":
            return True
        frame = frame.f_back
    return False


def raising(error: BaseException) -> Callable[[], None]:
    def fault() -> None:
        raise error

    return fault


def kill() -> None:
    os.kill(os.getpid(), signal.SIGKILL)
