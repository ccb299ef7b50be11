"""The elements of a tensor, read a stretch at a time; of a large one, only some stretches.

What is read is verified chunk by chunk wherever there are digests, and never takes more memory
than a few chunks.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Final, Protocol

import numpy as np

from standfast.errors import BadOption
from standfast.files.digests import CHUNK
from standfast.files.forms import LoadedSource
from standfast.files.paths import is_url
from standfast.store.load.box_reading import parts_of
from standfast.store.load.reading import Data
from standfast.store.query.view import CheckpointView
from standfast.store.schema.boxes import slices, within
from standfast.store.tree.aliases import c_order
from standfast.tensorfile.open import TensorFile
from standfast.tensors import TensorSpec
from standfast.tensors.shards import Box
from standfast.tensors.sources import Bytes
from standfast.tensors.sources import Source as Bytewise

Source = CheckpointView | TensorFile
"""Where a tensor is."""

LOOKED: Final = 64 << 20
"""So many bytes of a tensor are looked at, at most."""
WHOLE: Final = 256 << 20
"""What cannot be read in parts is read whole up to here, and refused beyond."""


class Elements(Protocol):
    """The bytes of one tensor, in C order, packed elements as they are packed."""

    spec: TensorSpec
    shift: int
    """How many bytes of its first chunk come before the tensor."""
    cheap: bool
    """Whether reading much of it takes time alone: it is on this machine, chunk by chunk."""

    def read(self, start: int, stop: int) -> Bytes:
        """These bytes; only to be looked at."""
        ...


@contextmanager
def elements_of(source: Source, name: str) -> Iterator[Elements]:
    """A tensor to be read from; raises TensorNotFound, and BadOption for what is out of reach."""
    if isinstance(source, TensorFile):
        yield _in_file(source, name)
    else:
        with _in_checkpoint(source, name) as found:
            yield found


def stretches(elements: Elements, most: int = LOOKED) -> list[tuple[int, int]]:
    """The byte ranges to look at, a chunk each: all of them, or some that are spread evenly.

    They begin and end with an element, and are the same each time.
    """
    spec, shift = elements.spec, elements.shift
    total = -(-(shift + spec.nbytes) // CHUNK)
    wanted = total if spec.nbytes <= most else min(total, max(1, most // CHUNK))
    unit = unit_of(spec)

    def edge(number: int) -> int:
        return min(max(0, number * CHUNK - shift) // unit * unit, spec.nbytes)

    numbers = [(2 * i + 1) * total // (2 * wanted) for i in range(wanted)]
    ranges = [(edge(n), edge(n + 1) if n + 1 < total else spec.nbytes) for n in numbers]
    return [(start, stop) for start, stop in ranges if start < stop]


def unit_of(spec: TensorSpec) -> int:
    """The bytes of an element, or of as few packed ones as fill whole bytes."""
    bits = spec.kind.bits
    return math.lcm(bits, 8) // 8


class Chunked:
    """A tensor whose chunks are read one by one; the last one is kept."""

    cheap = True

    def __init__(
        self,
        spec: TensorSpec,
        chunk: Callable[[int], Bytes],
        shift: int = 0,
        done: Callable[[], None] = lambda: None,
    ) -> None:
        self.spec = spec
        self.shift = shift
        self._chunk = chunk
        self._done = done
        self._last: tuple[int, Bytes] | None = None

    def read(self, start: int, stop: int) -> Bytes:
        """These bytes, where they lie if they lie in one chunk."""
        begin, end = start + self.shift, stop + self.shift
        pieces = [
            self._at(number)[max(0, begin - number * CHUNK) : end - number * CHUNK]
            for number in range(begin // CHUNK, -(-end // CHUNK))
        ]
        return pieces[0] if len(pieces) == 1 else np.concatenate([np.empty(0, np.uint8), *pieces])

    def _at(self, number: int) -> Bytes:
        if self._last is None or self._last[0] != number:
            self._last = None  # before the next one takes its memory
            self._done()
            self._last = number, self._chunk(number)
        return self._last[1]


class _Streamed:
    """A tensor that a file gives from any byte on, though best from its start to its end."""

    shift = 0
    cheap = True

    def __init__(self, source: Bytewise) -> None:
        self.spec = source.spec
        self._source = source

    def read(self, start: int, stop: int) -> Bytes:
        flat = self._source.contiguous()
        if flat is not None:
            return flat[start:stop]
        copied = np.empty(stop - start, np.uint8)
        self._source.copy_to(copied, start)
        return copied


class _InBoxes:
    """A tensor of a checkpoint that many ranks saved, each some boxes of it."""

    shift = 0
    cheap = False

    def __init__(self, data: Data, tensor: int) -> None:
        self.spec = data.record.specs[tensor]
        self._data = data
        self._tensor = tensor

    def read(self, start: int, stop: int) -> Bytes:
        width, dtype = self.spec.kind.numpy.itemsize, self.spec.kind.numpy
        found = np.empty((stop - start) // width, dtype)
        at = 0
        for box in boxes_of(self.spec.shape, start // width, stop // width):
            size = math.prod(box.shape)
            array = found[at : at + size].reshape(box.shape)
            for part, values in parts_of(self._data, self._tensor, box):
                array[slices(within(part, box))] = values
            at += size
        return found.view(np.uint8)


class _InMemory:
    """A tensor that was read whole."""

    shift = 0
    cheap = True

    def __init__(self, spec: TensorSpec, array: np.ndarray[Any, Any]) -> None:
        self.spec = spec
        self._bytes = np.ascontiguousarray(array).reshape(-1).view(np.uint8)

    def read(self, start: int, stop: int) -> Bytes:
        return self._bytes[start:stop]


def boxes_of(shape: Sequence[int], first: int, stop: int) -> Iterator[Box]:
    """The elements from `first` on, counted in C order, up to `stop`, as boxes in their order."""
    if first >= stop:
        return
    if not shape:
        yield Box((), ())
        return
    inner = math.prod(shape[1:])
    row, rest = divmod(first, inner)
    if rest or stop - first < inner:  # a part of one row
        end = min(stop, (row + 1) * inner)
        for offsets, extents in boxes_of(shape[1:], rest, end - row * inner):
            yield Box((row, *offsets), (1, *extents))
        yield from boxes_of(shape, end, stop)
        return
    rows = (stop - first) // inner
    yield Box((row, *(0 for _ in shape[1:])), (rows, *shape[1:]))
    yield from boxes_of(shape, first + rows * inner, stop)


def _in_file(file: TensorFile, name: str) -> Elements:
    spec = file.spec(name)
    chunk = file.chunks(name)
    if chunk is not None:
        # What a mapped file has in memory is let go before more of it comes.
        large = spec.nbytes > CHUNK
        found = Chunked(spec, chunk, done=file.give_back if large else lambda: None)
        found.cheap = not is_url(file.path)
        return found
    if file.has_digests:
        file.check(name)
    source = file.source(name)
    if isinstance(source, LoadedSource) and spec.nbytes > WHOLE:
        raise BadOption(
            f"{name!r} can only be read whole as it lies in the file, and is too large for that"
        )
    return _Streamed(source)


@contextmanager
def _in_checkpoint(source: CheckpointView, name: str) -> Iterator[Elements]:
    checkpoint, number = source._checkpoint, source._number(name)
    record, spec = checkpoint.record, source.spec(name)
    view = record.views.get(number)
    stored = number if view is None else view.base
    in_order = view is None or view.strides == c_order(spec)
    if stored in record.boxes:
        with checkpoint.data(tensors=[number]) as data:
            if view is None:
                yield _InBoxes(data, number)
            else:
                _check_whole(name, record.specs[stored].nbytes)
                yield _InMemory(spec, data.array(number))
    elif in_order:
        # Not mapped: memory that is let go, and stays as it was when it was verified.
        with checkpoint.data(tensors=[stored], mapped=False) as data:
            shift = 0 if view is None else view.offset
            found = Chunked(spec, lambda each: data.chunk(stored, each), shift)
            found.cheap = not is_url(checkpoint.store.url)
            yield found
    else:
        _check_whole(name, record.specs[stored].nbytes)
        with checkpoint.data(tensors=[number]) as data:
            yield _InMemory(spec, data.array(number))


def _check_whole(name: str, nbytes: int) -> None:
    if nbytes > WHOLE:
        raise BadOption(
            f"{name!r} is a part of a tensor of {nbytes:,} bytes, which would have to be read whole"
        )
