"""A backend on which one operation goes wrong, and so for one rank alone."""

import errno
import os
import threading
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Any

from standfast.errors import UnreadableFile, WriteFailed
from standfast.store.backends.local import LocalBackend
from standfast.store.backends.new_file import Aside

CHANGES = ("new", "create", "replace", "delete", "delete_folder", "sync", "link", "lock")
OF_FILES = ("reserve", "write", "finish", "place")
QUESTIONS = ("exists", "size", "read", "open", "list", "folders", "version")
DONE = ("create", "replace", "delete", "sync", "finish")
"""What may have been done when an error is reported."""


class FaultyBackend(LocalBackend):
    """The n-th operation of these names strikes, before it is done or after, and no other.

    They are counted while it is `armed`.
    """

    def __init__(
        self,
        root: Path,
        at: int,
        strike: Callable[[str], None],
        among: Collection[str],
        after: bool = False,
    ) -> None:
        super().__init__(root)
        self.armed = False
        self.struck: str | None = None
        self._among = among
        self._count = 0
        self._at = at
        self._strike = strike
        self._after = after
        self._guard = threading.Lock()
        for name in (*CHANGES, *QUESTIONS):
            setattr(self, name, self._guarded(name, getattr(self, name)))

    def new(self, name: str) -> Aside:
        file = super().new(name)
        for operation in OF_FILES:
            setattr(file, operation, self._guarded(operation, getattr(file, operation)))
        return file

    def _guarded(self, name: str, operation: Callable[..., Any]) -> Callable[..., Any]:
        def guarded(*args: Any, **options: Any) -> Any:
            with self._guard:
                self._count += self.armed and name in self._among
                strikes = self._count == self._at and self.struck is None
            if strikes:
                self.struck = name
                if self._after:
                    operation(*args, **options)
                self._strike(name)
            return operation(*args, **options)

        return guarded


def fail(name: str) -> None:
    """What the disk does."""
    kind = UnreadableFile if name in QUESTIONS else WriteFailed
    raise kind(errno.EIO, f"injected in {name}: {os.strerror(errno.EIO)}")
