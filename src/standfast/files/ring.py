"""A ring of aligned blocks between memory and a disk: some are written while one is filled."""

from __future__ import annotations

import mmap
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from types import TracebackType
from typing import Final, Self

import numpy as np
from isal.isal_zlib import crc32

from standfast.errors import within_memory
from standfast.files.disk import ALIGNMENT
from standfast.files.threads import Task, Threads
from standfast.tensors import Source
from standfast.tensors.sources import Bytes

BLOCK: Final = 16 << 20
_SUMMED: Final = 256 << 10
"""What is copied and summed at a time: little enough for the cache of one processor."""
BLOCKS: Final = 3
"""Two blocks on their way to the disk while a third is filled: 48 MiB, whatever is saved."""


class Ring:
    """Collects the bytes of sources into blocks and has each written when it is full.

    Leaving the `with` writes what is left, with zeros up to the alignment, and waits for all
    writes; one that failed raises there or at the next `put`.
    """

    def __init__(self, write: Callable[[Bytes, int], None]) -> None:
        self._write = write
        self._blocks = [_take_block() for _ in range(BLOCKS)]
        self._free = [np.frombuffer(block, np.uint8) for block in self._blocks]
        self._writing: deque[tuple[Task[None], Bytes]] = deque()
        self._pool = Threads(BLOCKS - 1)
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
        try:
            if kind is None:
                self._flush()
                self.settle()
        finally:
            self._pool.drain()  # the file is closed after this: its number may be another's
        for block in self._blocks:
            _give_back(block)

    def seek(self, offset: int) -> None:
        """Go on at `offset`, a multiple of the alignment."""
        self._flush()
        self._offset = offset

    def settle(self, most: int = 0) -> None:
        """Wait until at most `most` writes are in progress; raises if one failed."""
        while len(self._writing) > most:
            self._writing[0][0].result()
            self._free.append(self._writing.popleft()[1])

    def put(self, source: Source, start: int = 0, stop: int | None = None) -> None:
        """Append the bytes of one source, or those from `start` to `stop`."""
        stop = source.spec.nbytes if stop is None else stop
        while start < stop:
            start += self._put_part(source, start, stop - start).size

    def put_summed(self, source: Source, crc: int) -> int:
        """Append the bytes of one source; returns the CRC-32 that `crc` becomes by them.

        The pieces are small enough to be in the processor's cache still when they are summed.
        """
        start, size = 0, source.spec.nbytes
        while start < size:
            part = self._put_part(source, start, min(_SUMMED, size - start))
            crc = crc32(part.data, crc)
            start += part.size
        return crc

    def put_bytes(self, data: bytes) -> None:
        """Append some bytes."""
        view = memoryview(data)
        while view:
            length = min(len(view), BLOCK - self._filled)
            self._block.data[self._filled : self._filled + length] = view[:length]
            view = view[length:]
            self._filled += length
            if self._filled == BLOCK:
                self._flush()

    def _put_part(self, source: Source, start: int, most: int) -> Bytes:
        part = self._block[self._filled : self._filled + most]
        source.copy_to(part, start)
        self._filled += part.size
        if self._filled == BLOCK:
            self._flush()
        return part

    def _flush(self) -> None:
        if not self._filled:
            return
        length = -(-self._filled // ALIGNMENT) * ALIGNMENT
        self._block[self._filled : length] = 0
        future = self._pool.submit(self._write, self._block[:length], self._offset)
        self._writing.append((future, self._block))
        self._offset += length
        self._filled = 0
        self.settle(BLOCKS - 1)
        self._block = self._free.pop()


_spare: list[mmap.mmap] = []
"""Blocks of earlier saves: memory that was touched before is worth keeping for the next one."""


def _take_block() -> mmap.mmap:
    with suppress(IndexError):
        if len(block := _spare.pop()) == BLOCK:
            return block
    return new_block(BLOCK)


def new_block(size: int) -> mmap.mmap:
    """Page-aligned memory in huge pages, of which a block that stays unused takes none.

    They are touched for the first time in a tenth of the time, and a device takes them in few
    large pieces: see docs/decisions/0002-huge-pages-in-the-ring.md. Raises OutOfMemory.
    """
    with within_memory():
        memory = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    _advise(memory, "MADV_HUGEPAGE")
    return memory


def _give_back(block: mmap.mmap) -> None:
    """Keep the block for the next save, unless the system runs short of memory before that."""
    if len(_spare) < BLOCKS:
        _advise(block, "MADV_FREE")
        _spare.append(block)


@contextmanager
def borrowed_block() -> Iterator[Bytes]:
    """A block for another use, while no ring needs it."""
    block = _take_block()
    yield np.frombuffer(block, np.uint8)
    _give_back(block)


def _advise(memory: mmap.mmap, advice: str) -> None:
    if hasattr(mmap, advice):
        with suppress(OSError):  # a kernel without it
            memory.madvise(getattr(mmap, advice))
