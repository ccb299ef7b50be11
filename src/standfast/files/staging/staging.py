"""Staging: memory that a state is copied into, so that it may change while the copy is written.

It is taken once and kept from one save to the next. `SharedStaging` is memory without a name that
another process can map as well; it is gone when nobody has it any more, however they ended.
"""

from __future__ import annotations

import errno
import mmap
import os
import tempfile
import threading
import weakref
from collections.abc import Collection, Sequence
from contextlib import suppress
from typing import Final

import numpy as np

from standfast.errors import ClosedFile, WriteFailed
from standfast.files.digests import worker_count
from standfast.files.mapping import POPULATE_READ, POPULATE_WRITE, populate
from standfast.files.staging.device_copies import PINNED_AT_ONCE, Underway, shares
from standfast.files.staging.host_copies import HostCopies
from standfast.files.staging.layout import Copy, Summed, laid_out, staged_size, with_sums
from standfast.files.threads import Threads
from standfast.tensors import Source, TensorSpec
from standfast.tensors.devices import Device, device_under
from standfast.tensors.sources import Bytes

_STEP: Final = 16 << 20
"""What is touched at a time: for as long, a `close` waits, and whoever else maps memory."""


class SharedStaging:
    """Memory for one state at a time, whose owner sees to it that it is free.

    Another process reads it through `fileno`, with `Staged`.
    """

    def __init__(self) -> None:
        self._fd = _nameless_file()
        self._memory: Bytes = np.empty(0, np.uint8)
        self._pinned: list[tuple[Device, Bytes]] = []
        self._underway: Underway | None = None
        """What was copied last: until it is, the memory is nobody else's."""
        self._guard = threading.Lock()
        self._closed = False
        _alive.add(self)

    @property
    def size(self) -> int:
        """How many bytes it has, all of them touched."""
        return self._memory.size

    def fileno(self) -> int:
        """The number of the file that the memory is, for another process to map."""
        return self._fd

    def reserve(self, size: int) -> None:
        """Have room for this many bytes, touched; what was touched before stays so."""
        with self._guard:
            if self._closed:
                raise _closed()
            if size > self._memory.size:
                self._grow(-(-size // mmap.PAGESIZE) * mmap.PAGESIZE)

    def _grow(self, size: int) -> None:
        pinned_for = self._pinned[0][0] if self._pinned else None
        try:
            os.ftruncate(self._fd, size)
            memory = np.frombuffer(mmap.mmap(self._fd, size), np.uint8)
            self._touch(memory)
        except OSError as error:
            os.ftruncate(self._fd, self._memory.size)
            raise WriteFailed(
                error.errno,
                f"there are no {size:,} bytes of memory for the copy of the state that is written "
                f"in the background ({error.strerror}): save synchronously, or free some memory",
            ) from error
        self._unpin()
        self._memory = memory
        if pinned_for is not None:
            with suppress(OSError):  # then it is slower, which was worth a word at the first save
                self._pin(pinned_for)

    def _touch(self, memory: Bytes) -> None:
        """Let all of it be there, before a save needs it."""

        def touch(start: int) -> None:
            if self._closed:
                raise _closed()
            _touch(memory[start : start + _STEP])

        with Threads(max(1, worker_count() // 4)) as pool:
            for _ in pool.map(touch, range(0, memory.size, _STEP)):
                pass

    def pin(self, device: Device) -> None:
        """Let a device copy into it by itself, and go on doing so as it grows.

        Raises OSError, and leaves nothing pinned, if that cannot be.
        """
        with self._guard:
            if self._closed:
                raise _closed()
            if not self._pinned:
                self._pin(device)

    def _pin(self, device: Device) -> None:
        try:
            for start in range(0, self._memory.size, PINNED_AT_ONCE):
                if self._closed:
                    raise _closed()
                part = self._memory[start : start + PINNED_AT_ONCE]
                device.pin(part)
                self._pinned.append((device, part))
        except BaseException:
            self._unpin()
            raise

    def _unpin(self) -> None:
        while self._pinned:
            device, part = self._pinned.pop()
            device.unpin(part)

    def stage(self, sources: Sequence[Source]) -> list[Source]:
        """Copy them, in their order; returns the copies, which are good until the next call.

        When this returns or raises, nobody reads the sources any more.
        """
        return self.begin(sources)[0]

    def begin(
        self, sources: Sequence[Source], overlapped: Collection[int] = ()
    ) -> tuple[list[Source], Underway]:
        """The same, but the copies of those `overlapped` may still be under way; see `Underway`.

        They are some of the tensors that lie on devices.
        """
        self._drain()
        on_devices = shares(sources, overlapped)
        summed = [[*share.now, *share.later] for share in on_devices if share.later]
        specs = with_sums([source.spec for source in sources], summed)
        self.reserve(staged_size(specs))
        copies = laid_out(self._memory, specs)
        underway = self._underway = Underway(sources, copies, self._memory, summed)
        host = [n for n, source in enumerate(sources) if device_under(source) is None]
        try:
            for share in on_devices:
                underway.begin(share)
            HostCopies([sources[n] for n in host], [copies[n].memory for n in host]).run()
            if not summed:
                underway.wait()
        except BaseException:
            underway.drain()
            raise
        return [*copies[: len(sources)]], underway

    def _drain(self) -> None:
        """Wait for copies that somebody began and, interrupted, did not wait for."""
        if self._underway is not None:
            self._underway.drain()
        self._underway = None

    def empty(self) -> None:
        """Give the memory back, and stay good for another state."""
        with self._guard:
            self._drain()
            self._unpin()
            self._memory = np.empty(0, np.uint8)
            if self._fd >= 0:
                os.ftruncate(self._fd, 0)

    def close(self) -> None:
        """Give the memory back, as soon as nobody uses it any more. May be called several times."""
        self._closed = True
        with self._guard:
            self._drain()
            self._unpin()
            self.let_go()

    def let_go(self) -> None:
        """Close the file; in a forked child this leaves the parent's memory alone."""
        self._closed = True
        self._pinned.clear()
        self._underway = None
        self._memory = np.empty(0, np.uint8)
        if self._fd >= 0:
            fd, self._fd = self._fd, -1
            os.close(fd)

    def __del__(self) -> None:
        if hasattr(self, "_underway"):
            self._drain()
            self._unpin()
            self.let_go()


class Staged:
    """What another process has staged, seen through a mapping that is kept while it suffices."""

    def __init__(self, fd: int) -> None:
        self._fd = fd
        self._memory: Bytes = np.empty(0, np.uint8)

    def copies(self, specs: Sequence[TensorSpec], summed: Summed = ()) -> list[Copy]:
        """The copies of tensors of these specs, in the order in which they were staged, and sums.

        The sums, of some of them, come last.
        """
        specs = with_sums(specs, summed)
        if self._memory.size < staged_size(specs):
            self.map()
        return laid_out(self._memory, specs)

    def map(self) -> None:
        """See all that there is by now; for gigabytes this takes its time, so do it ahead."""
        size = os.fstat(self._fd).st_size
        if size > self._memory.size:
            self._memory = np.frombuffer(
                mmap.mmap(self._fd, size, access=mmap.ACCESS_READ), np.uint8
            )
            populate(self._memory, POPULATE_READ)  # where that cannot be, it comes page by page


def room_for(sources: Sequence[Source]) -> int:
    """How many bytes the copies of these take at most, in whole pages."""
    summed = [share.later for share in shares(sources, range(len(sources))) if share.later]
    size = staged_size(with_sums([source.spec for source in sources], summed))
    return -(-size // mmap.PAGESIZE) * mmap.PAGESIZE


def _touch(part: Bytes) -> None:
    """Let each page of fresh memory be there; raises OSError if there is none."""
    error = populate(part, POPULATE_WRITE)
    if error in (errno.EINVAL, errno.ENOSYS):  # a system without it
        part[:: mmap.PAGESIZE] = 0
    elif error:
        raise OSError(error, os.strerror(error))


def _nameless_file() -> int:
    """A file in memory that no name leads to; where there is none, one on the disk."""
    if hasattr(os, "memfd_create"):
        return os.memfd_create("standfast-staging", os.MFD_CLOEXEC)
    with tempfile.TemporaryFile(prefix="standfast-staging") as file:
        return os.dup(file.fileno())


def _closed() -> ClosedFile:
    return ClosedFile("the staging was closed: make another one to save again")


_alive: weakref.WeakSet[SharedStaging] = weakref.WeakSet()


def _forget() -> None:
    """In a forked child: the staging is its parent's, and shall not live on with it."""
    for staging in list(_alive):
        staging.let_go()


os.register_at_fork(after_in_child=_forget)
