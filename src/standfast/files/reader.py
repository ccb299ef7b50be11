"""The one reader: a file and its index become verified bytes, mapped or read."""

from __future__ import annotations

import mmap
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack
from itertools import chain
from typing import Any, Final

import numpy as np
from isal.isal_zlib import crc32

from standfast.errors import BadOption, DigestMismatch, UnreadableFile
from standfast.files.digests import (
    CHUNK,
    DIGEST,
    Chunk,
    batches,
    chunks_of,
    digest,
    worker_count,
)
from standfast.files.forms import LoadedSource, as_source
from standfast.files.input.file import SourceFile
from standfast.files.input.memory import SourceMemory
from standfast.files.input.ranges import SourceRanges
from standfast.files.input.stream import SourceStream
from standfast.files.layout import Index
from standfast.files.mapping import Prefetch, as_bytes, map_file, on_network
from standfast.files.threads import Threads
from standfast.tensors import ArraySource, Source, TensorSpec
from standfast.tensors.sources import PIECE, Bytes, aligned_bytes

Opened = SourceFile | SourceStream | SourceMemory | SourceRanges
"""What bytes are read from."""
Progress = Callable[[int], None]
"""Told of the bytes of each batch that is done, from any thread."""
_WAITING: Final = 4
"""How many threads read and wait, besides those that hash."""
_FETCHING: Final = 12
"""How many threads read and hash if it is a server that they wait for."""
_GAP: Final = 4096
"""What lies between two tensors is fetched along with them if it is no more than this."""


def check_verify(verify: Any) -> None:
    """Raise BadOption for what is neither True nor False: any text would mean True."""
    if not isinstance(verify, bool):
        raise BadOption(f"verify={verify!r}: expected True or False")


class Reader:
    """Hands out the bytes of a file's tensors, each chunk verified before its first use.

    `mapped=None` maps unless the file lies on a network file system. With `writable`, mapped
    bytes may be changed; the changes stay in this process. Unmapped bytes are fresh memory.
    """

    def __init__(
        self,
        file: Opened,
        index: Index,
        *,
        mapped: bool | None = None,
        writable: bool = False,
        verify: bool = True,
    ) -> None:
        check_verify(verify)
        self._file = file
        self._index = index
        self._verifies = verify and index.digests is not None
        self._crcs = list(index.crcs) if verify and not self._verifies and index.crcs else None
        self._checked = bytearray(index.first_chunks[-1] if self._verifies else 0)
        self._held_by_threads = threading.local()
        self._memory: mmap.mmap | None = None
        self._map: Bytes | None
        if file.memory is not None:
            self._map = file.memory
            return
        if mapped is None or isinstance(file, SourceRanges):
            mapped = not isinstance(file, SourceRanges) and not on_network(file.fd)
        try:
            self._memory = map_file(file.fd, file.size, writable) if mapped else None
            self._map = as_bytes(self._memory) if mapped else None
        except UnreadableFile as error:
            raise UnreadableFile(error.errno, f"{file.path}: {error.strerror}") from error

    @property
    def is_mapped(self) -> bool:
        """Whether bytes are handed out where they lie, and take no memory of their own."""
        return self._map is not None

    def tensor(self, row: int) -> Bytes:
        """All bytes of one tensor."""
        return self.tensors([row])[0]

    def tensors(self, rows: Sequence[int], progress: Progress | None = None) -> list[Bytes]:
        """All bytes of these tensors."""
        self._file.check_unchanged()
        sizes, starts = self._index.sizes, self._index.starts
        buffers = {row: self._buffer(row, 0, int(sizes[row])) for row in rows}
        chunks = [
            chunk
            for row in sorted(rows, key=lambda row: int(starts[row]))
            for chunk in chunks_of(row, int(sizes[row]))
        ]
        self._fill(chunks, buffers, progress)
        if self._crcs:
            self._check_crcs(buffers)
        return list(buffers.values())

    def part(self, row: int, ranges: Iterable[tuple[int, int]]) -> tuple[Bytes, int]:
        """A stretch of a tensor in which these byte ranges are filled, and where it starts.

        Only the chunks that they touch are read and verified, or, with nothing to verify
        against, only the ranges themselves.
        """
        self._file.check_unchanged()
        size = int(self._index.sizes[row])
        if self._verifies:
            touched = {n for a, b in ranges for n in range(a // CHUNK, -(-b // CHUNK))}
            ranges = [(n * CHUNK, min((n + 1) * CHUNK, size)) for n in sorted(touched)]
        chunks = [Chunk(row, a, b) for a, b in ranges]
        start = min((chunk.start for chunk in chunks), default=0)
        stop = max((chunk.stop for chunk in chunks), default=0)
        stretch = self._buffer(row, start, stop)
        self._fill(chunks, {row: stretch}, base=start)
        return stretch, start

    def source(self, row: int) -> Source:
        """A tensor as a source. One that has digests is not verified: who copies it hashes it."""
        spec, form = self._index.spec(row), self._index.forms.get(row)
        if self._crcs and (form is None or not form.deflated):
            self._check_crc(row)
        if form is None or form.record is not None:
            return self._plain_source(row, spec)
        if self._map is None or (form.deflated and not form.streams):
            return LoadedSource(
                spec, lambda: as_source(self.tensor(row), spec, form), self._held_by_threads
            )
        return as_source(self.tensor(row), spec, form)

    def check(self, row: int) -> None:
        """Verify a tensor, chunk by chunk, whatever it will be read for."""
        for _, start, stop in chunks_of(row, int(self._index.sizes[row])):
            self.part(row, [(start, stop)])

    def streams(self, row: int) -> bool:
        """Whether a tensor lies there as it is, with digests or nothing to verify it by."""
        return row not in self._index.forms and not self._crcs

    def span(self, row: int) -> tuple[int, int]:
        """Where in the file a tensor begins, and how many bytes of it it takes."""
        return int(self._index.starts[row]), int(self._index.sizes[row])

    def check_unchanged(self) -> None:
        """Raise ChangedFile if the file was written to since it was opened."""
        self._file.check_unchanged()

    def read_block(self, block: Bytes, start: int, size: int) -> Bytes:
        """Bytes of the file, not verified, in a block that has two pages more than they need."""
        if isinstance(self._file, SourceFile):
            return self._file.read_block(block, start, size)
        out = block[:size]
        self._file.read_into(out, start)
        return out

    def is_intact(self, chunk: Chunk, data: Bytes) -> bool:
        """Whether bytes are what was saved as this chunk, or there is nothing to tell by."""
        if not self._verifies:
            return True
        number = self._number(chunk)
        digests = self._index.digests
        assert digests is not None
        return digest(data) == digests[number * DIGEST : (number + 1) * DIGEST]

    def _plain_source(self, row: int, spec: TensorSpec) -> Source:
        if self._map is None:
            return _ReadSource(self._file, int(self._index.starts[row]), spec)
        return ArraySource(self._buffer(row, 0, int(self._index.sizes[row])), spec)

    def _check_crc(self, row: int) -> None:
        assert self._crcs is not None
        crc, expected = self._crcs[row]
        size = int(self._index.sizes[row])
        source = self._plain_source(row, TensorSpec("uint8", (size,)))
        if (data := source.contiguous()) is not None:
            crc = crc32(data.data, crc)
        else:
            scratch = np.empty(min(PIECE, size), np.uint8)
            for start in range(0, size, PIECE):
                piece = scratch[: size - start]
                source.copy_to(piece, start)
                crc = crc32(piece.data, crc)
        if crc != expected:
            raise self.mismatch([row])

    def expect_in_order(self) -> None:
        """Let the system read far ahead of a caller who goes through the file front to back."""
        if self._memory is not None:
            self._memory.madvise(mmap.MADV_SEQUENTIAL)

    def give_back(self) -> None:
        """Let the pages go that were read; they come again, from the file, when they are used.

        Only before anybody has written to them: what was written would be lost.
        """
        if self._memory is not None and hasattr(mmap, "MADV_DONTNEED"):
            self._memory.madvise(mmap.MADV_DONTNEED)

    def _buffer(self, row: int, start: int, stop: int) -> Bytes:
        if self._map is None:
            return aligned_bytes(stop - start)
        at = int(self._index.starts[row])
        return self._map[at + start : at + stop]

    def _fill(
        self,
        chunks: list[Chunk],
        buffers: Mapping[int, Bytes],
        progress: Progress | None = None,
        base: int = 0,
    ) -> None:
        """Read what is not mapped, verify what was not yet.

        The chunks are in the order of the file; `base` is where the buffers start in theirs.
        """
        if self._map is not None:
            chunks = [c for c in chunks if self._verifies and not self._checked[self._number(c)]]
        if not chunks:
            return

        def fill(batch: list[Chunk], prefetch: Prefetch | None) -> list[int]:
            damaged = []
            if prefetch:
                prefetch.wait_for(self._offset(batch[-1]) + batch[-1].stop - batch[-1].start)
                if prefetch.failed:
                    raise self._file.unreadable()
            outs = [buffers[c.tensor][c.start - base : c.stop - base] for c in batch]
            if isinstance(self._file, SourceRanges):
                self._fetch(self._file, batch, outs)
            for chunk, out in zip(batch, outs, strict=True):
                if self._map is None and not isinstance(self._file, SourceRanges):
                    self._file.read_into(out, self._offset(chunk))
                if self._verifies and not self._check(chunk, out):
                    damaged.append(chunk.tensor)
            if progress:
                progress(sum(chunk.stop - chunk.start for chunk in batch))
            return damaged

        work = list(batches(chunks))
        if len(work) == 1:
            damaged = fill(work[0], None)
        else:
            # More threads than processors, because some of them wait for the disk, and all do in
            # turn where nobody fetches ahead of them.
            threads = worker_count(-1 if self._memory else -_WAITING)
            if isinstance(self._file, SourceRanges):
                threads = _FETCHING
            with ExitStack() as stack:
                pool = stack.enter_context(Threads(threads))
                prefetch = stack.enter_context(self._prefetch(chunks)) if self._memory else None
                damaged = list(
                    chain.from_iterable(pool.map(lambda batch: fill(batch, prefetch), work))
                )
        if damaged:
            raise self.mismatch(list(dict.fromkeys(damaged)))

    def _fetch(self, file: SourceRanges, batch: list[Chunk], outs: list[Bytes]) -> None:
        """Fill the buffers of chunks; those that follow each other in the file come together."""
        first = 0
        for i, chunk in enumerate(batch, 1):
            end = self._offset(chunk) + chunk.stop - chunk.start
            if i < len(batch) and 0 <= self._offset(batch[i]) - end <= _GAP:
                continue
            places = map(self._offset, batch[first:i])
            file.read_together(list(zip(places, outs[first:i], strict=True)))
            first = i

    def _prefetch(self, chunks: list[Chunk]) -> Prefetch:
        last = chunks[-1]
        stop = self._offset(last) + last.stop - last.start
        return Prefetch(self._file.fd, self._file.size, self._offset(chunks[0]), stop)

    def _offset(self, chunk: Chunk) -> int:
        return int(self._index.starts[chunk.tensor]) + chunk.start

    def _number(self, chunk: Chunk) -> int:
        return int(self._index.first_chunks[chunk.tensor]) + chunk.start // CHUNK

    def _check(self, chunk: Chunk, data: Bytes) -> bool:
        """Whether the chunk is what was saved; one that is need not be checked again."""
        intact = self.is_intact(chunk, data)
        self._checked[self._number(chunk)] = intact
        return intact

    def _check_crcs(self, buffers: Mapping[int, Bytes]) -> None:
        """Check the sums that other programs leave; a tensor that is inflated checks itself."""
        crcs = self._crcs
        assert crcs is not None

        def is_damaged(row: int) -> bool:
            before, expected = crcs[row]
            return crc32(buffers[row].data, before) != expected

        rows = [row for row in buffers if row not in self._index.forms or not self._deflated(row)]
        with Threads(worker_count()) as pool:
            damaged = [
                row for row, bad in zip(rows, pool.map(is_damaged, rows), strict=True) if bad
            ]
        if damaged:
            raise self.mismatch(damaged)

    def _deflated(self, row: int) -> bool:
        return self._index.forms[row].deflated is not None

    def mismatch(self, damaged: list[int]) -> DigestMismatch:
        """The error that tells of these rows, which are not what was saved."""
        names = list(self._index.rows)
        tensors = tuple(names[row] for row in damaged)
        first, at = damaged[0], int(self._index.starts[damaged[0]])
        more = f" and {len(damaged) - 1} more" if len(damaged) > 1 else ""
        return DigestMismatch(
            f"{self._file.path}: tensor {names[first]!r}{more} is damaged: its "
            f"{int(self._index.sizes[first]):,} bytes at offset {at:,} do not match the "
            f"{'CRC-32' if self._crcs else 'digest'} that was saved with them; restore the file "
            "from a copy, or read what is left with verify=False",
            tensors,
        )


class _ReadSource:
    """A stretch of a file that is not mapped as a source."""

    sequential = False

    def __init__(self, file: Opened, start: int, spec: TensorSpec) -> None:
        self.spec = spec
        self._file = file
        self._start = start

    def contiguous(self) -> Bytes | None:
        return None

    def copy_to(self, out: Bytes, start: int) -> None:
        self._file.read_into(out, self._start + start)
