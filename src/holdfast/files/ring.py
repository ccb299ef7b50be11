"""A ring of aligned blocks between memory and a disk: some are written while one is filled."""

from __future__ import annotations

import mmap
from collections import deque
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from types import TracebackType
from typing import Final, Self

import numpy as np

from holdfast.files.disk import ALIGNMENT, Disk
from holdfast.tensors import Source
from holdfast.tensors.sources import Bytes

BLOCK: Final = 8 << 20
BLOCKS: Final = 4
"""Three blocks on their way to the disk while a fourth is filled: 32 MiB, whatever is saved."""


class Ring:
    """Collects the bytes of sources into blocks and writes each block when it is full.

    Leaving the `with` writes what is left, with zeros up to the alignment, and waits for all
    writes; one that failed raises there or at the next `put`.
    """

    def __init__(self, fd: int, disk: Disk) -> None:
        self._fd = fd
        self._disk = disk
        self._free = [_new_block() for _ in range(BLOCKS)]
        self._writing: deque[tuple[Future[None], Bytes]] = deque()
        self._pool = ThreadPoolExecutor(BLOCKS - 1, "holdfast-write")
        self._block = self._free.pop()
        self._filled = 0
        self._offset = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        at: TracebackType | None,
    ) -> None:
        with self._pool:
            if kind is None:
                self._flush()
                for future, _ in self._writing:
                    future.result()
            else:
                self._pool.shutdown(cancel_futures=True)

    def seek(self, offset: int) -> None:
        """Go on at `offset`, a multiple of the alignment."""
        self._flush()
        self._offset = offset

    def put(self, source: Source) -> None:
        """Append the bytes of one source."""
        start, size = 0, source.spec.nbytes
        while start < size:
            length = min(size - start, BLOCK - self._filled)
            source.copy_to(self._block[self._filled : self._filled + length], start)
            start += length
            self._filled += length
            if self._filled == BLOCK:
                self._flush()

    def _flush(self) -> None:
        if not self._filled:
            return
        length = -(-self._filled // ALIGNMENT) * ALIGNMENT
        self._block[self._filled : length] = 0
        future = self._pool.submit(self._disk.write, self._fd, self._block[:length], self._offset)
        self._writing.append((future, self._block))
        self._offset += length
        self._filled = 0
        if self._free:
            self._block = self._free.pop()
        else:
            oldest, block = self._writing.popleft()
            oldest.result()
            self._block = block


def _new_block() -> Bytes:
    """Page-aligned memory in huge pages, of which a block that stays unused takes none.

    They are touched for the first time in a tenth of the time, and a device takes them in few
    large pieces: see docs/decisions/0002-huge-pages-in-the-ring.md.
    """
    memory = mmap.mmap(-1, BLOCK, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    if hasattr(mmap, "MADV_HUGEPAGE"):
        with suppress(OSError):  # a kernel without them
            memory.madvise(mmap.MADV_HUGEPAGE)
    return np.frombuffer(memory, np.uint8)
