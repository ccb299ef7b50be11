"""Reads past the page cache, for files that are not in it.

A file that is read once, into memory of its own, would otherwise take its size twice: fresh pages
of the cache first, which take longer to touch than the disk takes to fill them.
"""

from __future__ import annotations

import errno
import os
import threading
from typing import Final

import numpy as np

from standfast.files.disk import ALIGNMENT, DIRECT
from standfast.files.ring import new_block
from standfast.tensors.sources import Bytes

LARGE: Final = 1 << 20
"""Less than this is not worth it."""
_STEP: Final = 1 << 20
"""What is read at once: it is still in the processor's cache when it is copied."""
_PROBES: Final = 8
_AT_ONCE: Final = 5
"""So many blocks are read at once: more of them only queue up, and slow each other down."""


class DirectReads:
    """The direct way into a file that is open, if there is one and it pays."""

    def __init__(self, fd: int, size: int) -> None:
        self._guard = threading.Lock()
        self._own = threading.local()
        self._turns = threading.Semaphore(_AT_ONCE)
        self._file = fd
        self._size = size
        self._fd: int | None = None
        """None until somebody asks; negative if there is no such way."""

    def read_into(self, out: Bytes, start: int) -> int:
        """Fill `out` as far as possible; returns how many bytes, 0 for another way to be taken."""
        fd = self._opened()
        if fd < 0:
            return 0
        done = self._read_straight(fd, out, start)
        while done < out.size:
            at, block = start + done, self._block()
            begin = at - at % ALIGNMENT
            length = min(_STEP, -(-(start + out.size - begin) // ALIGNMENT) * ALIGNMENT)
            try:
                count = os.preadv(fd, [block[:length].data], begin)
            except OSError:
                return done  # the plain way says what is wrong
            found = block[at - begin : min(count, start + out.size - begin)]
            if not found.size:
                return done
            out[done : done + found.size] = found
            done += found.size
        return done

    def _read_straight(self, fd: int, out: Bytes, start: int) -> int:
        """Fill whole pages of `out` without a copy, if the disk can; returns how many bytes."""
        done, whole = 0, out.size - out.size % ALIGNMENT
        if start % ALIGNMENT or out.ctypes.data % ALIGNMENT:
            return 0
        while done < whole:
            try:
                with self._turns:
                    count = os.preadv(fd, [out[done:whole].data], start + done)
            except OSError:
                return done
            done += count - count % ALIGNMENT
            if count < ALIGNMENT:
                break
        return done

    def read_block(self, block: Bytes, start: int, size: int) -> int:
        """Read all pages that hold these bytes, in one go; returns how many of the bytes came.

        They begin in the block where they begin in their page.
        """
        fd = self._opened()
        if fd < 0:
            return 0
        skip = start % ALIGNMENT
        length = -(-(skip + size) // ALIGNMENT) * ALIGNMENT
        try:
            with self._turns:
                count = os.preadv(fd, [block[:length].data], start - skip)
        except OSError:
            return 0  # the plain way says what is wrong
        return max(0, min(count - skip, size))

    def _block(self) -> Bytes:
        """Memory that begins on a page, for this thread alone."""
        block: Bytes | None = getattr(self._own, "block", None)
        if block is None:
            block = self._own.block = np.frombuffer(new_block(_STEP), np.uint8)
        return block

    def close(self) -> None:
        """Let go of the file."""
        with self._guard:
            if self._fd is not None and self._fd >= 0:
                os.close(self._fd)
            self._fd = -1

    def _opened(self) -> int:
        with self._guard:
            if self._fd is None:
                self._fd = -1 if self._is_cached() else self._open()
            return self._fd

    def _open(self) -> int:
        if not DIRECT:
            return -1
        try:  # the file that is open, whatever its name leads to by now
            return os.open(f"/proc/self/fd/{self._file}", os.O_RDONLY | os.O_CLOEXEC | DIRECT)
        except OSError:
            return -1

    def _is_cached(self) -> bool:
        """Whether the page cache has the file, by some places in it."""
        if not hasattr(os, "RWF_NOWAIT"):
            return True
        found = 0
        for number in range(_PROBES):
            try:
                found += os.preadv(
                    self._file, [bytearray(1)], self._size * number // _PROBES, os.RWF_NOWAIT
                )
            except OSError as error:
                if error.errno != errno.EAGAIN:
                    return True
        return 2 * found > _PROBES
