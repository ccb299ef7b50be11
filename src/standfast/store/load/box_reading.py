"""A box of a saved tensor: only the chunks that hold some of it are read, and verified."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any, Final

import numpy as np

from standfast.errors import DigestMismatch
from standfast.files.digests import chunks_of
from standfast.files.reader import Reader
from standfast.store.load.reading import Data, StoredBox, whole_names
from standfast.store.schema.boxes import byte_ranges, common, slices, span, within
from standfast.tensors import TensorSpec
from standfast.tensors.shards import Box
from standfast.tensors.sources import Bytes, aligned_bytes

Array = np.ndarray[Any, Any]

_MOST_RANGES: Final = 1 << 16
"""A part of a tensor that lies in more stretches is read from its first byte to its last."""


def parts_of(data: Data, tensor: int, box: Box) -> Iterator[tuple[Box, Array]]:
    """A box of a tensor, in the parts that it lies in: each a box, and what is in it."""
    stored = data.stored_boxes(tensor)
    if stored is None:
        yield box, data.array(tensor)[slices(box)]
        return
    for each in stored:
        part = common(box, each.box)
        if part is not None:
            yield part, _part(data, data.record.specs[tensor], each, within(part, each.box))


def copy_box(data: Data, tensor: int, box: Box, out: Bytes, block: Bytes) -> bool:
    """Copy a box of a tensor, chunk by chunk as each is verified; False if it is scattered.

    It is if it lies in more than one stretch in what is stored, or what is stored in it. `block`
    is for one chunk at a time: see `Blocks`.
    """
    stored, width = data.stored_boxes(tensor), data.record.specs[tensor].kind.numpy.itemsize
    found: list[tuple[int, int, int, StoredBox]] = []
    for each in stored or ():
        part = common(box, each.box)
        if part is None:
            continue
        start, stop = span(each.box.shape, within(part, each.box))
        at, end = span(box.shape, within(part, box))
        if not stop - start == end - at == math.prod(part.shape):
            return False
        found.append((at * width, end * width, start * width, each))
    for begin, end, start, each in found:
        _copy_stretch(data, each, start, out[begin:end], block)
    return stored is not None


def _copy_stretch(data: Data, stored: StoredBox, start: int, out: Bytes, block: Bytes) -> None:
    """Copy the bytes of a stored box that begin at `start`."""
    stop, first = start + out.size, 0
    for reader, row in stored.extents:
        offset, size = reader.span(row)
        for chunk in chunks_of(row, size):
            begin, end = first + chunk.start, first + chunk.stop
            if end <= start or begin >= stop:
                continue
            found = reader.read_block(block, offset + chunk.start, end - begin)
            if not reader.is_intact(chunk, found):
                raise _mismatch(data, reader, row)
            low, high = max(begin, start), min(end, stop)
            out[low - start : high - start] = found[low - begin : high - begin]
        first += size


def _mismatch(data: Data, reader: Reader, row: int) -> DigestMismatch:
    data.found_damaged(reader)
    error = reader.mismatch([row])
    error.tensors = whole_names(error.tensors)
    return error


def _part(data: Data, spec: TensorSpec, stored: StoredBox, box: Box) -> Array:
    """A box within one that is stored."""
    shape = stored.box.shape
    ranges = byte_ranges(shape, box, spec.kind.numpy.itemsize, _MOST_RANGES)
    found: list[tuple[int, Bytes]] = []
    first = 0
    for reader, row in stored.extents:
        _, size = reader.span(row)
        mine = [
            (max(a - first, 0), min(b - first, size))
            for a, b in ranges
            if a < first + size and b > first
        ]
        if mine:
            try:
                bytes_, start = reader.part(row, mine)
            except DigestMismatch:
                data.found_damaged(reader)
                raise
            found.append((first + start, bytes_))
        first += size
    whole = found[0][1] if len(found) == 1 else _laid_out(found)
    return _window(whole, ranges[0][0] - found[0][0], shape, box.shape, spec)


def _laid_out(found: Sequence[tuple[int, Bytes]]) -> Bytes:
    """Stretches of one array in memory of their own, as far from each other as they lie in it."""
    first = found[0][0]
    whole = aligned_bytes(found[-1][0] + found[-1][1].size - first)
    for start, data in found:
        whole[start - first : start - first + data.size] = data
    return whole


def _window(
    data: Bytes, at: int, around: Sequence[int], shape: Sequence[int], spec: TensorSpec
) -> Array:
    """A box of an array in C order, of which `data` has the bytes from its first element on."""
    width = spec.kind.numpy.itemsize
    strides = [width * math.prod(around[axis + 1 :]) for axis in range(len(around))]
    # As bytes first: where they lie they may not be aligned for what they are.
    window = np.lib.stride_tricks.as_strided(data[at:], (*shape, width), (*strides, 1))
    if window.ctypes.data % width:
        window = window.copy()
    array: Array = window.view(spec.kind.numpy)[..., 0]
    return array
