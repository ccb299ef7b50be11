"""A file on its way into a folder: beside its place, under a name that nobody looks for."""

from __future__ import annotations

import errno
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final, Self

import numpy as np

from standfast.errors import AlreadyExists, FileError, WriteFailed
from standfast.files import disk
from standfast.files.libc import MISSING
from standfast.tensors.sources import Bytes

SUFFIX: Final = ".standfast"
_NAME: Final = re.compile(r"\.([0-9a-f]{16}\.)?[0-9a-f]{8}" + re.escape(SUFFIX))

NO_LINKS: Final = frozenset(
    {
        errno.EPERM,
        errno.EXDEV,
        errno.EMLINK,
        errno.EOPNOTSUPP,
        errno.ENOTSUP,
        errno.ENOSYS,
    }
)
"""What a file system answers that makes no hard link."""

_HINTS: Final = {
    errno.ENOSPC: "; free some space and try again",
    errno.EDQUOT: "; free some of your quota and try again",
    errno.EROFS: "; the store can be read there, not written",
    errno.EACCES: "; you need the right to write into its folder",
}


class Aside:
    """A new file that is locked by this process, so that a sweeper lets it be, until it is placed.

    What was not placed is removed on leaving the `with`, and when the object is dropped.
    """

    def __init__(self, target: Path, direct: bool = True) -> None:
        self._target = target
        self._process = os.getpid()
        self._fd = -1
        self._is_there = False
        """Whether `path` is a file of ours that has to be removed."""
        while self._fd < 0:
            self.path = target.parent / aside_name()
            try:
                self._is_there = True  # before it is: Ctrl-C may come right after it
                self._fd = disk.LOCAL.create(self.path, direct)
            except FileExistsError:
                self._is_there = False
            except BaseException:
                self.discard()
                raise

    def reserve(self, size: int) -> None:
        """Take this much space now, where that is possible; raises WriteFailed if there is none."""
        with writing(self._target):
            disk.LOCAL.reserve(self._fd, size)

    def write(self, data: Bytes, offset: int) -> None:
        """Write a block; from any thread. Offsets and lengths are multiples of the alignment."""
        with writing(self._target):
            disk.LOCAL.write(self._fd, data, offset)

    def finish(self, size: int) -> None:
        """Cut the file to its size and make its content durable."""
        with writing(self._target):
            disk.LOCAL.truncate(self._fd, size)
            disk.LOCAL.sync(self._fd)

    def fill(self, data: bytes) -> None:
        """Write all of a small file, durably."""
        with writing(self._target):
            disk.LOCAL.write(self._fd, np.frombuffer(data, np.uint8), 0)
            disk.LOCAL.sync(self._fd)

    def check_exclusive(self) -> None:
        """Raise WriteFailed now if `place` cannot be exclusive on this file system."""
        with writing(self._target):
            old, new = self.path, self.path.with_name(aside_name())
            linked = self._add_name(new)
            self.path = new
            if linked:
                self._remove(old)

    def place(self, over: bool = False) -> None:
        """Give the file its name; `over` another one, or AlreadyExists if there is one."""
        with writing(self._target):
            if over:
                disk.LOCAL.rename(self.path, self._target)
                self._is_there = False
            else:
                self._is_there = self._add_name(self._target)
        self.discard()

    def _add_name(self, path: Path) -> bool:
        """Give the file a name that is free; returns whether it keeps the one that it had."""
        try:
            disk.LOCAL.link(self.path, path)
        except FileExistsError as error:
            # An NFS client that lost the answer asks again, and is told that the name exists.
            if not os.path.samestat(os.lstat(path), os.fstat(self._fd)):
                raise taken(path) from error
        except OSError as error:
            if error.errno not in NO_LINKS:
                raise
            self._rename_to(path)
            return False
        return True

    def _rename_to(self, path: Path) -> None:
        try:
            disk.LOCAL.rename_new(self.path, path)
        except FileExistsError as error:
            raise taken(path) from error
        except OSError as error:
            if error.errno not in MISSING:
                raise
            raise WriteFailed(
                errno.ENOTSUP,
                f"cannot write {self._target}: this file system has neither hard links nor "
                "renames that fail if the target exists, so two programs could overwrite each "
                "other's checkpoints; a store on it can be read, not written",
            ) from error

    def discard(self) -> None:
        """Forget the file, if it was not placed. May be called several times."""
        try:
            # A forked child has this object too, but the file is its parent's.
            if self._is_there and self._process == os.getpid():
                self._remove(self.path)
                self._is_there = False
        finally:
            if self._fd >= 0:
                fd, self._fd = self._fd, -1
                with suppress(OSError):  # what counts was synced
                    disk.LOCAL.close(fd)

    @staticmethod
    def _remove(path: Path) -> None:
        with suppress(OSError):  # a sweep will find it
            try:
                disk.LOCAL.remove(path)
            except KeyboardInterrupt:
                disk.LOCAL.remove(path)
                raise

    def __del__(self) -> None:
        self.discard()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.discard()


def aside_name() -> str:
    """A name for a file that has no place yet."""
    return f".{os.urandom(4).hex()}{SUFFIX}"


def is_aside(name: str) -> bool:
    """Whether this is the name of a file that we make aside, here or in a plain save."""
    return _NAME.fullmatch(name) is not None


def taken(path: Path) -> AlreadyExists:
    """The error for a name that is in use."""
    return AlreadyExists(errno.EEXIST, f"{path} exists already, and must not be replaced")


@contextmanager
def writing(path: Path, verb: str = "write") -> Iterator[None]:
    """Say which file it was when the system refuses to change it."""
    try:
        yield
    except FileError:
        raise
    except OSError as error:
        hint = _HINTS.get(error.errno or 0, "")
        raise WriteFailed(
            error.errno, f"cannot {verb} {path}: {error.strerror or error}{hint}"
        ) from error
