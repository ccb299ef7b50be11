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
from collections.abc import Sequence
from typing import Final, Protocol

import numpy as np

from holdfast.errors import ClosedFile, WriteFailed
from holdfast.files.digests import batches_of, worker_count
from holdfast.files.mapping import POPULATE_READ, POPULATE_WRITE, populate
from holdfast.tensors import Source, TensorSpec
from holdfast.tensors.sources import ALIGNMENT, Bytes

_STEP: Final = 16 << 20
"""What is touched at a time: for as long, a `close` waits, and whoever else maps memory."""
_MOST_THREADS: Final = 4
"""More of them do not make memory any faster."""
_FEW: Final = 8 << 20
"""Less than this is copied by the caller alone, before another thread would have started."""


class Staging(Protocol):
    """Memory for one state at a time, whose owner sees to it that it is free."""

    @property
    def size(self) -> int:
        """How many bytes it has."""
        ...

    def reserve(self, size: int) -> None:
        """Have room for this many bytes, touched; raises WriteFailed if there is no memory."""
        ...

    def stage(self, sources: Sequence[Source]) -> list[Source]:
        """Copy them, in their order; returns the copies, which are good until the next call.

        When this returns or raises, nobody reads the sources any more.
        """
        ...

    def close(self) -> None:
        """Give the memory back; a `reserve` on another thread ends early, with ClosedFile."""
        ...


class SharedStaging:
    """Staging that another process reads through `fileno`, with `Staged`."""

    def __init__(self) -> None:
        self._fd = _nameless_file()
        self._memory: Bytes = np.empty(0, np.uint8)
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
        try:
            os.ftruncate(self._fd, size)
            memory = np.frombuffer(mmap.mmap(self._fd, size), np.uint8)
            for start in range(0, size, _STEP):
                if self._closed:
                    raise _closed()
                _touch(memory[start : start + _STEP])
        except OSError as error:
            os.ftruncate(self._fd, self._memory.size)
            raise WriteFailed(
                error.errno,
                f"there are no {size:,} bytes of memory for the copy of the state that is written "
                f"in the background ({error.strerror}): save synchronously, or free some memory",
            ) from error
        self._memory = memory

    def stage(self, sources: Sequence[Source]) -> list[Source]:
        """Copy them, in their order, on several threads, of which the caller's is one."""
        specs = [source.spec for source in sources]
        self.reserve(staged_size(specs))
        staged = _laid_out(self._memory, specs)
        _Copying(sources, [copy.memory for copy in staged]).run()
        return [*staged]

    def close(self) -> None:
        """Give the memory back, as soon as nobody uses it any more. May be called several times."""
        self._closed = True
        with self._guard:
            self.let_go()

    def let_go(self) -> None:
        """Close the file; in a forked child this leaves the parent's memory alone."""
        self._closed = True
        self._memory = np.empty(0, np.uint8)
        if self._fd >= 0:
            fd, self._fd = self._fd, -1
            os.close(fd)

    def __del__(self) -> None:
        if hasattr(self, "_fd"):
            self.let_go()


class Staged:
    """What another process has staged, seen through a mapping that is kept while it suffices."""

    def __init__(self, fd: int) -> None:
        self._fd = fd
        self._memory: Bytes = np.empty(0, np.uint8)

    def sources(self, specs: Sequence[TensorSpec]) -> list[Source]:
        """The copies of tensors of these specs, in the order in which they were staged."""
        if self._memory.size < staged_size(specs):
            size = os.fstat(self._fd).st_size
            self._memory = np.frombuffer(
                mmap.mmap(self._fd, size, access=mmap.ACCESS_READ), np.uint8
            )
            populate(self._memory, POPULATE_READ)  # where that cannot be, it comes page by page
        return [*_laid_out(self._memory, specs)]


def staged_size(specs: Sequence[TensorSpec]) -> int:
    """How many bytes tensors of these specs take in staging."""
    return sum(_aligned(spec.nbytes) for spec in specs)


class _Copy:
    """A tensor in staging."""

    __slots__ = ("memory", "spec")
    sequential = False

    def __init__(self, spec: TensorSpec, memory: Bytes) -> None:
        self.spec = spec
        self.memory = memory

    def contiguous(self) -> Bytes:
        """All the bytes."""
        return self.memory

    def copy_to(self, out: Bytes, start: int) -> None:
        """Fill `out` with the bytes that begin at `start`."""
        np.copyto(out, self.memory[start : start + out.size])


def _laid_out(memory: Bytes, specs: Sequence[TensorSpec]) -> list[_Copy]:
    """Each tensor where it lies: one after the other, aligned."""
    found = []
    start = 0
    for spec in specs:
        size = spec.nbytes
        found.append(_Copy(spec, memory[start : start + size]))
        start += _aligned(size)
    return found


def _aligned(size: int) -> int:
    return -(-size // ALIGNMENT) * ALIGNMENT


class _Copying:
    """One copy of all sources, by the caller and by threads that come to help."""

    def __init__(self, sources: Sequence[Source], targets: Sequence[Bytes]) -> None:
        self._sources = sources
        self._targets = targets
        self._work = iter(list(batches_of(sources)))
        self._failed: list[BaseException] = []
        self._changed = threading.Condition()
        self._helping = 0
        self._over = False

    def run(self) -> None:
        """Copy everything; when this returns or raises, no thread reads the sources any more."""
        try:
            self._call_help()
            self._copy()
        except BaseException as error:
            self._failed.append(error)
        self._drain()
        if self._failed:
            raise self._failed[0]

    def _call_help(self) -> None:
        large = sum(target.size for target in self._targets) >= _FEW
        for _ in range(min(_MOST_THREADS, worker_count()) - 1 if large else 0):
            try:
                threading.Thread(target=self._help, name="holdfast-copy", daemon=True).start()
            except RuntimeError:  # no more threads can be had: then with fewer
                return

    def _help(self) -> None:
        with self._changed:
            if self._over:  # too late
                return
            self._helping += 1
        try:
            self._copy()
        except BaseException as error:
            self._failed.append(error)
        finally:
            with self._changed:
                self._helping -= 1
                self._changed.notify_all()

    def _copy(self) -> None:
        for batch in self._work:
            for tensor, start, stop in batch:
                if self._failed:
                    return
                self._sources[tensor].copy_to(self._targets[tensor][start:stop], start)

    def _drain(self) -> None:
        """Wait until no thread copies any more, however often the user presses Ctrl-C."""
        while True:
            try:
                with self._changed:
                    self._over = True
                    self._changed.wait_for(lambda: not self._helping)
                return
            except BaseException as error:  # also what a handler of signals raises
                self._failed.append(error)


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
        return os.memfd_create("holdfast-staging", os.MFD_CLOEXEC)
    with tempfile.TemporaryFile(prefix="holdfast-staging") as file:
        return os.dup(file.fileno())


def _closed() -> ClosedFile:
    return ClosedFile("the staging was closed: make another one to save again")


_alive: weakref.WeakSet[SharedStaging] = weakref.WeakSet()


def _forget() -> None:
    """In a forked child: the staging is its parent's, and shall not live on with it."""
    for staging in list(_alive):
        staging.let_go()


os.register_at_fork(after_in_child=_forget)
