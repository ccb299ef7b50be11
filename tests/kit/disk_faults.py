"""Disks that go wrong, to be put in the place of the real one."""

import os
import signal
import threading
from collections.abc import Callable
from typing import Any

from standfast.files.disk import Disk

OPERATIONS = """
abandoned abandoned_folders create reserve write truncate set_mode sync rename rename_new exchange
link close make_folder lock_folder remove_folder sync_folder remove open_lock free
""".split()


class FaultyDisk(Disk):
    """A disk on which something happens at the n-th operation, and never again.

    `seams.disk` puts it in place: objects of tests before have released their locks by then.
    """

    def __init__(self, at: int = 0, fault: Callable[[], None] = lambda: None) -> None:
        self._guard = threading.Lock()
        self.arm(at, fault)
        for name in OPERATIONS:
            setattr(self, name, self._guarded(name, getattr(self, name)))

    def arm(self, at: int, fault: Callable[[], None]) -> None:
        """Count anew, and let this happen at the n-th operation from now; at none for 0."""
        self.count = 0
        self.struck: str | None = None
        self._at = at
        self._fault = fault

    def _guarded(self, name: str, operation: Callable[..., Any]) -> Callable[..., Any]:
        def guarded(*args: Any, **options: Any) -> Any:
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


def raising(error: BaseException) -> Callable[[], None]:
    def fault() -> None:
        raise error

    return fault


def kill() -> None:
    os.kill(os.getpid(), signal.SIGKILL)
