"""Locks between processes that die with their process, whatever it has forked.

They are POSIX record locks, which a forked child does not inherit: a data-loader worker that
outlives its parent holds nothing. Of these locks one must know that a process never gets in its
own way, and that it loses its lock when it closes *any* descriptor of the file. So everything
here goes through one registry, and no file of a lock that is held is ever opened a second time.
"""

from __future__ import annotations

import errno
import fcntl
import os
import platform
import threading
import time
from contextlib import suppress
from pathlib import Path
from typing import Final, Self

import numpy as np

from standfast.errors import WriteFailed, printable
from standfast.files import disk

_PAUSE: Final = 0.02
_LONGEST_NOTE: Final = 300
_NO_LOCKS: Final = frozenset({errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP, errno.ENOTSUP})

_Identity = tuple[int, int]
"""A file by its device and inode: two paths may lead to it."""


class FileLock:
    """A lock on a file, held by this process until it is released or the process ends."""

    def __init__(self, path: Path, fd: int, identity: _Identity) -> None:
        self._path = path
        self._fd = fd
        self.passing = False
        """Whether the file goes with it: nobody else will ask for a lock of this name."""
        self._identity = identity
        self._process = os.getpid()
        self.note = _leave_note(fd)

    def is_held(self) -> bool:
        """Whether it still keeps others out: somebody may have deleted the file."""
        with _guard, suppress(OSError):
            return (
                self._fd >= 0
                and self._process == os.getpid()
                and _identity_at(self._path) == self._identity
                # Whoever opened and closed the file in this process, a backup for one, has
                # dropped the lock. It can be had again if nobody took it in between.
                and _lock(self._fd)
                and self.note in (None, _read_note(self._fd))
            )
        return False

    def release(self) -> None:
        """Let others have it. May be called several times."""
        with _guard:
            if self._fd < 0 or self._process != os.getpid():
                return
            try:
                _held.pop(self._identity, None)
                if self.passing and _identity_at(self._path) == self._identity:
                    with suppress(OSError):
                        disk.LOCAL.remove(self._path)
                elif self.note is not None and self.note == _read_note(self._fd):
                    with suppress(OSError):
                        disk.LOCAL.truncate(self._fd, 0)
            finally:
                self.let_go()

    def let_go(self) -> None:
        """Close the file; in a forked child this leaves the parent's lock alone."""
        if self._fd >= 0:
            fd, self._fd = self._fd, -1
            os.close(fd)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.release()


_guard = threading.RLock()  # an object that is collected in here releases its lock as well
_held: dict[_Identity, FileLock] = {}
"""The locks that this process holds."""


def take(path: Path, wait: float = 0.0, *, passing: bool = False) -> FileLock | None:
    """Lock a file, made if there is none; None if somebody has it for `wait` seconds more.

    The folder must be there. A file that is `passing` is deleted with the release. Raises
    WriteFailed where there can be no lock.
    """
    deadline = time.monotonic() + wait
    while True:
        try:
            with _guard:
                lock = _try(path)
        except OSError as error:
            hint = "; this file system has no locks" if error.errno in _NO_LOCKS else ""
            raise WriteFailed(
                error.errno, f"cannot lock {path}: {error.strerror or error}{hint}"
            ) from error
        left = deadline - time.monotonic()
        if lock is not None:
            lock.passing = passing
        if lock is not None or left <= 0:
            return lock
        time.sleep(min(_PAUSE, left))


def is_held(path: Path) -> bool:
    """Whether somebody holds the lock on the file of a passing lock; one that was left is deleted.

    What cannot be looked at may be held.
    """
    try:
        lock = take(path, passing=True)
    except WriteFailed:
        return True
    if lock is None:
        return True
    lock.release()
    return False


def holder(path: Path) -> str | None:
    """Who has the lock on a file, as "process 1234 on host"; None if that is not known."""
    with _guard:
        ours = _held.get(_identity_at(path) or (-1, -1))
        if ours is not None:
            return ours.note
        try:
            fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
        except OSError:
            return None
        try:
            return _read_note(fd)
        finally:
            os.close(fd)


def _try(path: Path) -> FileLock | None:
    while True:
        if _identity_at(path) in _held:
            return None
        fd = disk.LOCAL.open_lock(path)
        identity = _identity(os.fstat(fd))
        if identity in _held:  # moved here this moment: to close it would drop that lock
            return None
        lock = None
        try:
            locked = _lock(fd)
            # If the file was deleted in between, a lock on it excludes no other process.
            if locked and _identity_at(path) == identity:
                lock = _held[identity] = FileLock(path, fd, identity)
        finally:
            if lock is None:
                os.close(fd)
        if lock is not None or not locked:
            return lock


def _lock(fd: int) -> bool:
    """Whether this process has the lock now."""
    try:
        fcntl.lockf(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except (BlockingIOError, PermissionError):  # POSIX allows both
        return False
    return True


def _identity(status: os.stat_result) -> _Identity:
    return status.st_dev, status.st_ino


def _identity_at(path: Path) -> _Identity | None:
    try:
        return _identity(os.stat(path, follow_symlinks=False))
    except OSError:
        return None


def _leave_note(fd: int) -> str | None:
    """Say in the file who holds it; None if the disk is too full for that."""
    note = printable(f"process {os.getpid()} on {platform.node() or 'this machine'}")
    try:
        disk.LOCAL.truncate(fd, 0)
        disk.LOCAL.write(fd, np.frombuffer(note.encode(), np.uint8), 0)
    except OSError:
        return None
    return note


def _read_note(fd: int) -> str | None:
    try:
        text = os.pread(fd, _LONGEST_NOTE, 0)
    except OSError:
        return None
    return printable(text.decode("utf-8", "replace")) or None


def _forget() -> None:
    """In a forked child: it holds none of its parent's locks."""
    global _guard
    _guard = threading.RLock()
    for lock in _held.values():
        lock.let_go()
    _held.clear()


os.register_at_fork(after_in_child=_forget)
