"""Mapping files into memory: when, how, and ahead of whom."""

from __future__ import annotations

import ctypes
import errno
import mmap
import os
import threading
from typing import Final, Self

import numpy as np

from standfast.errors import ChangedFile, UnreadableFile
from standfast.files.threads import Task, Threads
from standfast.tensors.sources import Bytes

_NETWORK: Final = frozenset(
    "9p afs beegfs ceph cifs glusterfs gpfs lustre ncpfs nfs nfs4 smb3 smbfs".split()
)
_STEP: Final = 4 << 20
_PATIENCE: Final = 0.1
"""How many seconds a thread is given to start."""
POPULATE_READ: Final = 22
POPULATE_WRITE: Final = 23
"""Linux 5.14; Python 3.11 has no names for them."""


def map_file(fd: int, size: int, writable: bool) -> mmap.mmap | None:
    """Map a whole file; changes, if `writable`, stay private to this process. None if empty."""
    if size == 0:
        return None
    try:
        return mmap.mmap(fd, size, access=mmap.ACCESS_COPY if writable else mmap.ACCESS_READ)
    except ValueError as error:  # it is shorter by now
        raise ChangedFile(f"the file was cut while it was open ({error})") from error
    except OSError as error:
        raise UnreadableFile(
            error.errno, f"the file cannot be mapped ({error.strerror}); mapped=False reads it"
        ) from error


def as_bytes(memory: mmap.mmap | None) -> Bytes:
    """The bytes of a mapping, which lives as long as they are used."""
    return np.empty(0, np.uint8) if memory is None else np.frombuffer(memory, np.uint8)


def on_network(fd: int) -> bool:
    """Whether a file lies on a network file system.

    A mapping there is slow, and kills the process when the server goes away.
    """
    device = os.fstat(fd).st_dev
    number = f"{os.major(device)}:{os.minor(device)}"
    try:
        with open("/proc/self/mountinfo", encoding="utf-8", errors="replace") as mounts:
            for line in mounts:
                # 36 35 98:0 /root /mount options … - type source options
                before, _, after = line.partition(" - ")
                if before.split(" ", 3)[2] == number:
                    kind = after.split(" ", 1)[0]
                    return kind in _NETWORK or kind.startswith("fuse.")
    except OSError:
        pass  # macOS has no such file
    return False


class Prefetch:
    """Brings a stretch of a file into memory, in order, on a thread of its own.

    The threads that hash it wait for the part they need. Measured against hashing threads that
    let the pages come by themselves, this doubles the speed of a cold file: docs/benchmarks.md.
    """

    def __init__(self, fd: int, size: int, start: int, stop: int) -> None:
        # The kernel reads far ahead, in large pages, of a mapping that is marked sequential;
        # this one is apart, so that the mark does not stay on the caller's.
        memory = map_file(fd, size, writable=False)
        if memory is not None:
            memory.madvise(mmap.MADV_SEQUENTIAL)
        self._bytes = as_bytes(memory)
        self._reached = start - start % mmap.PAGESIZE
        self._stop = stop
        self._moved = threading.Condition()
        self.failed = False
        """Whether a part could not be read at all: to touch it would end the process."""
        self._threads = Threads(1)
        self._task: Task[None] | None = None

    def __enter__(self) -> Self:
        self._task = self._threads.submit(self._run)
        return self

    def __exit__(self, *error: object) -> None:
        self._stop = 0
        self._threads.shutdown()

    def wait_for(self, offset: int) -> None:
        """Return when the file is in memory up to `offset`, or will not be."""
        while self._task is not None:
            with self._moved:
                if self._moved.wait_for(lambda: self._reached >= offset, _PATIENCE):
                    return
            self._task.attempt()  # there may be no thread for it

    def _run(self) -> None:
        try:
            while self._reached < self._stop:
                error = populate(self._bytes[self._reached : self._reached + _STEP])
                if error:
                    # A kernel that does not know the advice is no reason not to go on.
                    self.failed = error != errno.EINVAL
                    return
                with self._moved:
                    self._reached += _STEP
                    self._moved.notify_all()
        finally:
            with self._moved:
                self._reached = self._bytes.size
                self._moved.notify_all()


def populate(part: Bytes, advice: int = POPULATE_READ) -> int:
    """Bring the pages of a part in without touching them; returns 0 or the number of the error.

    The part begins on a page. ctypes, because the `madvise` of Python's mmap holds the GIL while
    the disk is read.
    """
    size = ctypes.c_size_t(part.size)
    if _libc.madvise(ctypes.c_void_p(part.ctypes.data), size, advice) == 0:
        return 0
    return ctypes.get_errno()


_libc: Final = ctypes.CDLL(None, use_errno=True)
