"""The fields or links of a saved tree as items of equal size, read a stretch at a time.

An item is a slot of the arena, or the links of one block. Whoever goes through all of them reads
window by window: what lies in one is verified together, and only a few are in memory at once.
"""

from __future__ import annotations

import threading
from bisect import bisect_right
from collections.abc import Sequence
from itertools import accumulate
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import numpy as np

from standfast.files.digests import CHUNK, DIGEST
from standfast.tensorfile.open import TensorFile
from standfast.tensors.sources import Bytes

if TYPE_CHECKING:
    from standfast.store.load.reading import Data

Array = np.ndarray[Any, Any]


class Window(NamedTuple):
    """Items that are best read together, and the digest of their bytes if it is known."""

    start: int
    stop: int
    digest: bytes | None


class Items(Protocol):
    """`count` items of `nbytes` each; they are asked for from several threads."""

    count: int
    nbytes: int

    @property
    def windows(self) -> Sequence[Window]:
        """All items, in their order."""
        ...

    def read(self, start: int, stop: int) -> Array:
        """The bytes of these items, [item, byte], verified where there are digests."""
        ...


class FileItems:
    """Items in a section of an open file."""

    def __init__(self, file: TensorFile, section: str, count: int, nbytes: int) -> None:
        self.count = count
        self.nbytes = nbytes
        self._chunk = file.chunks(section)
        self._source = None if self._chunk else file.source(section)
        self._digests = file.stored_digests().get(section)

    @property
    def windows(self) -> Sequence[Window]:
        """As many whole items at a time as fit into a chunk of the file's digests."""
        size = _window(self.nbytes)
        stretches = ((at, min(at + size, self.count)) for at in range(0, self.count, size))
        return [Window(start, stop, self._digest(start, stop)) for start, stop in stretches]

    def _digest(self, start: int, stop: int) -> bytes | None:
        begin, end = start * self.nbytes, stop * self.nbytes
        whole = begin % CHUNK == 0 and (end % CHUNK == 0 or stop == self.count)
        if self._digests is None or not whole:
            return None
        return self._digests[begin // CHUNK * DIGEST : -(-end // CHUNK) * DIGEST]

    def read(self, start: int, stop: int) -> Array:
        """The bytes of these items, where they lie if they lie in one chunk."""
        data = self._bytes(start * self.nbytes, stop * self.nbytes)
        return data.reshape(stop - start, self.nbytes)

    def _bytes(self, begin: int, end: int) -> Bytes:
        if self._source is not None:
            data = self._source.contiguous()
            if data is not None:
                return data[begin:end]
            copied = np.empty(end - begin, np.uint8)
            self._source.copy_to(copied, begin)
            return copied
        assert self._chunk is not None
        pieces = [
            self._chunk(number)[max(0, begin - number * CHUNK) : end - number * CHUNK]
            for number in range(begin // CHUNK, -(-end // CHUNK))
        ]
        return pieces[0] if len(pieces) == 1 else np.concatenate([_nothing(), *pieces])


class SlabItems:
    """Items in tensors of a checkpoint, some in each; `data` has these tensors open."""

    def __init__(self, data: Data, slabs: Sequence[int], nbytes: int) -> None:
        self.nbytes = nbytes
        self._data = data
        self._slabs = slabs
        self._reading = threading.Lock()
        sizes = [data.record.specs[slab].nbytes // nbytes for slab in slabs] if nbytes else []
        self._starts = [0, *accumulate(sizes)]
        self.count = self._starts[-1]

    @property
    def windows(self) -> Sequence[Window]:
        """The items of each slab."""
        return [
            Window(self._starts[i], self._starts[i + 1], self._digest(slab))
            for i, slab in enumerate(self._slabs)
        ]

    def _digest(self, slab: int) -> bytes | None:
        record = self._data.record
        return None if slab in record.views else record.chunk_digests(slab)

    def read(self, start: int, stop: int) -> Array:
        """The bytes of these items, where they lie if they lie in one slab."""
        pieces = []
        at = start
        while at < stop:
            i = bisect_right(self._starts, at) - 1
            end = min(stop, self._starts[i + 1])
            first = self._starts[i]
            with self._reading:  # which keeps the last tensor, for those that are views of one
                slab = self._data.array(self._slabs[i])
            rows = np.ascontiguousarray(slab).reshape(-1).view(np.uint8).reshape(-1, self.nbytes)
            pieces.append(rows[at - first : end - first])
            at = end
        if len(pieces) == 1:
            return pieces[0]
        return np.concatenate([_nothing().reshape(0, self.nbytes), *pieces])


class MemoryItems:
    """Items in an array of a running program."""

    def __init__(self, array: Array, nbytes: int) -> None:
        self.count = len(array)
        self.nbytes = nbytes
        data = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
        self._rows = data.reshape(self.count, nbytes)

    @property
    def windows(self) -> Sequence[Window]:
        """Some items at a time."""
        size = _window(self.nbytes)
        return [Window(at, min(at + size, self.count), None) for at in range(0, self.count, size)]

    def read(self, start: int, stop: int) -> Array:
        """The bytes of these items, where they lie."""
        return self._rows[start:stop]


def _window(nbytes: int) -> int:
    return max(1, CHUNK // max(1, nbytes))


def _nothing() -> Bytes:
    return np.empty(0, np.uint8)
