"""Files into tensors on a device: read and verified by threads, copied in by the device itself.

The bytes go through a few blocks. Each is read and hashed by a thread, is then on its way to the
device, and is read into again when it has arrived there. The calling thread hands the blocks
around: it gives a batch of chunks its block before a thread knows of it, and takes what was read
in the order of the files, so that nobody ever waits for a block that will not come free.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from typing import Any, Final, NamedTuple

from standfast.errors import CopyFailed, DigestMismatch
from standfast.files.blocks import Blocks, borrowed_blocks
from standfast.files.digests import CHUNK, Chunk, chunks_of
from standfast.files.disk import ALIGNMENT
from standfast.files.reader import Progress, Reader
from standfast.files.threads import Task, Threads
from standfast.tensors.devices import Copies, Device, Incoming
from standfast.tensors.sources import Bytes

_MOST_THREADS: Final = 16
"""More than hash elsewhere: a device takes what as many of them read."""
_WAITING: Final = 4
"""How many threads there are besides one for each processor: some wait for the disk."""
_COPYING: Final = 4
"""How many blocks are on their way to the device while others are read."""
_GAP: Final = ALIGNMENT
"""What is not asked for is read along up to here: less than another read would cost."""
_PATIENCE: Final = 1000
"""As often may whoever waits be interrupted: a device that is broken is not asked for ever."""
_MOST_PIECES: Final = 4096
"""Tiny tensors in one batch: more would keep one thread busy for long."""


class Stretch(NamedTuple):
    """All bytes of one row of a file, and where on a device they go."""

    reader: Reader
    row: int
    """One that the reader `streams`."""
    target: Any
    """A tensor of the framework, in C order, on the device."""
    start: int
    """The byte of the tensor, as it was saved, that they begin at."""
    dtype: str
    """What they are elements of; `uint8` for bytes, which are never cast."""


class _Piece(NamedTuple):
    """A chunk of a stretch, and where it lies in the file."""

    stretch: Stretch
    chunk: Chunk
    begin: int
    end: int


class _Batch(NamedTuple):
    """Pieces that lie next to each other in a file and are read at once."""

    reader: Reader
    begin: int
    end: int
    pieces: list[_Piece]


class _Read(NamedTuple):
    """What a thread has made of a batch."""

    incoming: list[Incoming]
    damaged: list[int]
    """The rows of which a chunk is not what was saved."""


def stream(
    device: Device,
    stretches: Sequence[Stretch],
    progress: Progress | None = None,
    damaged: Callable[[Reader], None] | None = None,
) -> None:
    """Fill tensors on a device, in the order of the files; returns when all is there.

    Each chunk is verified before it is copied. Raises DigestMismatch, which names all tensors
    that were found damaged, after `damaged` was told of each file that holds one; or CopyFailed.
    Whatever is raised: the tensors hold any part of the bytes, and nothing is under way.
    """
    for reader in dict.fromkeys(stretch.reader for stretch in stretches):
        reader.check_unchanged()
    work = list(_batches(_pieces(stretches)))
    if not work:
        return
    threads = min(_thread_count(), len(work))
    with borrowed_blocks(device, min(threads + _COPYING, len(work))) as blocks:
        streaming = _Streaming(device, blocks, threads, progress)
        streaming.run(work)
    if streaming.damaged:
        raise _mismatch(streaming.damaged, damaged)


class _Streaming:
    """The blocks of one load, and what is under way in each of them."""

    def __init__(
        self, device: Device, blocks: Blocks, threads: int, progress: Progress | None
    ) -> None:
        self.damaged: dict[Reader, list[int]] = {}
        """The rows that are not what was saved, of each file; nothing is copied after the first."""
        self._device = device
        self._blocks = blocks
        self._progress = progress
        self._free = list(blocks)
        self._reading: deque[tuple[_Batch, Task[_Read], Bytes]] = deque()
        self._copying: deque[tuple[_Batch, Copies, Bytes]] = deque()
        self._pool = Threads(threads)

    def run(self, work: Sequence[_Batch]) -> None:
        """Go through all batches, or up to the first one that is damaged."""
        try:
            for batch in work:
                block = self._free_block()
                if self.damaged:
                    break
                self._reading.append((batch, self._pool.submit(_read, batch, block), block))
            while self._reading:
                self._pass_on()
            while self._copying:
                self._reclaim()
        except BaseException:
            self._drain()
            raise
        self._pool.shutdown()

    def _free_block(self) -> Bytes:
        """A block to read into; the oldest is waited for."""
        while not self._free:
            if self._reading and len(self._copying) < _COPYING:
                self._pass_on()
            else:
                self._reclaim()
        return self._free.pop()

    def _pass_on(self) -> None:
        """Wait for the oldest batch that is read, and hand it to the device."""
        batch, task, block = self._reading[0]
        read = task.result()
        self._reading.popleft()
        if read.damaged:
            self.damaged.setdefault(batch.reader, []).extend(read.damaged)
        if self.damaged:
            self._free.append(block)
            return
        # Not before threads read into the other blocks: meanwhile they touch what is pinned.
        self._blocks.pin(self._device)
        self._copying.append((batch, self._device.copy_in(read.incoming), block))
        while self._copying and self._copying[0][1].is_done():
            self._reclaim()

    def _reclaim(self) -> None:
        """Wait until the oldest batch that is copied has arrived: its block is free again."""
        batch, copies, block = self._copying[0]
        copies.wait()
        self._copying.popleft()
        self._free.append(block)
        if self._progress:
            self._progress(sum(piece.end - piece.begin for piece in batch.pieces))

    def _drain(self) -> None:
        """Wait until nothing is under way, however often the user presses Ctrl-C.

        The files are closed after this, and the memory of the tensors may be another's.
        """
        interrupt: BaseException | None = None
        for _ in range(_PATIENCE):
            try:
                self._pool.shutdown(cancel=True)
                self._wait_for_copies()
                break
            except BaseException as error:  # also what a handler of signals raises
                interrupt = error
        if interrupt:
            raise interrupt

    def _wait_for_copies(self) -> None:
        while self._copying:
            if not self._copying[0][1].is_done():
                with suppress(CopyFailed):
                    self._copying[0][1].wait()
            self._copying.popleft()
        with suppress(CopyFailed):
            # An interrupt may have come before the last copies were noted down. The device makes
            # all of them in their order, so that none is left when one more is done.
            self._device.copy_in([]).wait()


def _thread_count() -> int:
    if hasattr(os, "sched_getaffinity"):
        processors = len(os.sched_getaffinity(0))
    else:
        processors = os.cpu_count() or 1
    return min(_MOST_THREADS, processors + _WAITING)


def _pieces(stretches: Sequence[Stretch]) -> list[_Piece]:
    """All chunks, file by file, in the order in which they lie there."""
    order: dict[Reader, int] = {}
    pieces = []
    for stretch in stretches:
        order.setdefault(stretch.reader, len(order))
        at, size = stretch.reader.span(stretch.row)
        for chunk in chunks_of(stretch.row, size):
            pieces.append(_Piece(stretch, chunk, at + chunk.start, at + chunk.stop))
    return sorted(pieces, key=lambda piece: (order[piece.stretch.reader], piece.begin))


def _batches(pieces: Sequence[_Piece]) -> Iterator[_Batch]:
    batch: list[_Piece] = []
    begin = end = 0
    for piece in pieces:
        joins = (
            batch
            and batch[0].stretch.reader is piece.stretch.reader
            and piece.begin - end < _GAP
            and max(end, piece.end) - begin <= CHUNK
            and len(batch) < _MOST_PIECES
        )
        if joins:
            batch.append(piece)
            end = max(end, piece.end)  # tensors may share their bytes
            continue
        if batch:
            yield _Batch(batch[0].stretch.reader, begin, end, batch)
        batch, begin, end = [piece], piece.begin, piece.end
    if batch:
        yield _Batch(batch[0].stretch.reader, begin, end, batch)


def _read(batch: _Batch, block: Bytes) -> _Read:
    """Read a batch into its block, and verify each chunk of it there."""
    read = _Read([], [])
    data = batch.reader.read_block(block, batch.begin, batch.end - batch.begin)
    for stretch, chunk, begin, end in batch.pieces:
        part = data[begin - batch.begin : end - batch.begin]
        if not batch.reader.is_intact(chunk, part):
            read.damaged.append(chunk.tensor)
        elif part.size:
            start = stretch.start + chunk.start
            read.incoming.append(Incoming(part, stretch.target, start, stretch.dtype))
    return read


def _mismatch(
    found: dict[Reader, list[int]], damaged: Callable[[Reader], None] | None
) -> DigestMismatch:
    mismatches = []
    for reader, rows in found.items():
        mismatches.append(reader.mismatch(list(dict.fromkeys(rows))))
        if damaged:
            damaged(reader)
    names = tuple(name for mismatch in mismatches for name in mismatch.tensors)
    return DigestMismatch(str(mismatches[0]), names)
