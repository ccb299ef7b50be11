"""The boxes that a tensor was cut into when many ranks saved it.

The bytes of such a tensor are those of its boxes, one box after the other, each in C order. If
that is the C order of the whole tensor, as it is when only rows were shared out, its bytes are
like those of any other.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from types import EllipsisType
from typing import Any, Final

import numpy as np

from standfast.errors import BadField, LimitExceeded
from standfast.files.digests import chunk_counts
from standfast.tensors import TensorSpec
from standfast.tensors.shards import Box

Numbers = np.ndarray[Any, np.dtype[np.int64]]

_FEW_CELLS: Final = 1 << 16
_CELLS_A_BOX: Final = 64
"""The cuts through a tensor make so many cells at most: what is checked of a record must not
take longer than its length lets one expect."""


def whole_box(spec: TensorSpec) -> Box:
    """The box that is all of a tensor."""
    return Box((0,) * len(spec.shape), spec.shape)


def box_nbytes(spec: TensorSpec, boxes: Sequence[Box]) -> list[int]:
    """How many bytes each box of a tensor takes."""
    width = spec.kind.numpy.itemsize
    return [math.prod(box.shape) * width for box in boxes]


def count_chunks(spec: TensorSpec, boxes: Sequence[Box]) -> int:
    """How many chunks the boxes have together: a box begins a new one."""
    return int(chunk_counts(np.array(box_nbytes(spec, boxes), np.int64)).sum())


def is_in_order(spec: TensorSpec, boxes: Sequence[Box]) -> bool:
    """Whether the bytes of the boxes, one box after the other, are those of the tensor."""
    at = 0
    for box in boxes:
        first, end = span(spec.shape, box)
        if first != at or end - first != math.prod(box.shape):
            return False
        at = end
    return at == spec.size


def span(shape: Sequence[int], box: Box) -> tuple[int, int]:
    """The first element of a box, counted in C order in a tensor of a shape, and its last plus 1.

    Of a box that is empty, 0 and 0.
    """
    if 0 in box.shape:
        return 0, 0
    first = last = 0
    for length, offset, extent in zip(shape, *box, strict=True):
        first = first * length + offset
        last = last * length + offset + extent - 1
    return first, last + 1


def common(one: Box, other: Box) -> Box | None:
    """What two boxes have in common, if anything."""
    offsets = tuple(map(max, one.offsets, other.offsets))
    ends = (
        min(a + n, b + m)
        for a, n, b, m in zip(one.offsets, one.shape, other.offsets, other.shape, strict=True)
    )
    shape = tuple(end - offset for end, offset in zip(ends, offsets, strict=True))
    return None if any(length <= 0 for length in shape) else Box(offsets, shape)


def within(box: Box, around: Box) -> Box:
    """The same box, counted from the corner of one around it."""
    offsets = tuple(a - b for a, b in zip(box.offsets, around.offsets, strict=True))
    return Box(offsets, box.shape)


def slices(box: Box) -> tuple[slice | EllipsisType, ...]:
    """A box as an index of an array, which gives an array of it and never a scalar."""
    return (*(slice(at, at + n) for at, n in zip(*box, strict=True)), ...)


def byte_ranges(shape: Sequence[int], box: Box, width: int, most: int) -> list[tuple[int, int]]:
    """Where the bytes of a box lie in those of an array: stretches in their order.

    If there are more than `most`, they are taken together.
    """
    first, end = span(shape, box)
    inner = len(shape)  # the dimensions from here on are taken whole
    while inner and box.shape[inner - 1] == shape[inner - 1]:
        inner -= 1
    run = math.prod(box.shape[max(inner - 1, 0) :])
    outer = box.shape[: max(inner - 1, 0)]
    if math.prod(outer) > most:
        return [(first * width, end * width)]
    strides = [math.prod(shape[axis + 1 :]) for axis in range(len(outer))]
    starts = np.array([first], np.int64)
    for length, stride in zip(outer, strides, strict=True):
        starts = (starts[:, None] + np.arange(length) * stride).reshape(-1)
    return [(int(at) * width, int(at + run) * width) for at in starts]


def check_boxes(spec: TensorSpec, boxes: Sequence[Box]) -> None:
    """Raise unless every element of a tensor lies in exactly one box; the boxes are from a file."""
    shape = spec.shape
    if spec.kind.bits < 8 or not boxes:
        raise BadField(f"a tensor of {spec.dtype} is in {len(boxes)} boxes")
    for number, box in enumerate(boxes):
        if not len(box.offsets) == len(box.shape) == len(shape):
            raise BadField(f"a box of {len(box.shape)} dimensions in a tensor of {len(shape)}")
        for offset, extent, length in zip(*box, shape, strict=True):
            if offset < 0 or extent < 1 or extent > length - offset:
                # Its numbers may have thousands of digits.
                raise BadField(f"box {number:,} is not in a tensor of {list(shape)}")
    cuts = [_cuts(boxes, axis) for axis in range(len(shape))]
    cells = [len(each) - 1 for each in cuts]
    if math.prod(cells) > max(_FEW_CELLS, _CELLS_A_BOX * len(boxes)):
        raise LimitExceeded(f"{len(boxes):,} boxes cut a tensor into {math.prod(cells):,} cells")
    if any((each[0], each[-1]) != (0, length) for each, length in zip(cuts, shape, strict=True)):
        raise BadField("the boxes leave out a part of the tensor")
    numbers = [{cut: number for number, cut in enumerate(each)} for each in cuts]
    places = [_cells(box, numbers) for box in boxes]
    seen = np.zeros(cells, np.uint8)
    # As many cells as there are, and each in a box: then none is in two. Looking at each box
    # before it is entered takes twice as long.
    if sum(math.prod(each.stop - each.start for each in place) for place in places) == seen.size:
        for place in places:
            seen[place] = 1
        if seen.all():
            return
        seen[...] = 0
    for box, place in zip(boxes, places, strict=True):
        if seen[place].any():
            raise BadField(f"a box {box_text(box)} overlaps another one")
        seen[place] = 1
    raise BadField("the boxes leave out a part of the tensor")


def _cells(box: Box, numbers: Sequence[Mapping[int, int]]) -> tuple[slice, ...]:
    """The cells that a box is made of, by the numbers of the cuts along each axis."""
    return tuple([slice(at[a], at[a + n]) for at, a, n in zip(numbers, *box, strict=True)])


def _cuts(boxes: Sequence[Box], axis: int) -> list[int]:
    starts = {box.offsets[axis] for box in boxes}
    return sorted(starts | {box.offsets[axis] + box.shape[axis] for box in boxes})


def box_text(box: Box) -> str:
    """A box as people write an index: `[0:4, 8:16]`."""
    ranges = (f"{at}:{at + length}" for at, length in zip(*box, strict=True))
    return f"[{', '.join(ranges)}]"


def as_columns(boxes: Mapping[int, Sequence[Box]]) -> list[Any]:
    """Boxes as a record has them."""
    return [
        [tensor, [[list(box.offsets), list(box.shape)] for box in each]]
        for tensor, each in sorted(boxes.items())
    ]


def renumbered(
    boxes: Mapping[int, Sequence[Box]], numbers: Mapping[int, int]
) -> dict[int, Sequence[Box]]:
    """Boxes of tensors that have other numbers now, without those that have none."""
    return {numbers[n]: each for n, each in boxes.items() if n in numbers}


def cut_by(sizes: Sequence[int], extents: Sequence[int]) -> Iterator[list[int]]:
    """The extents, by position, that each of several boxes has; sizes and extents in bytes."""
    at = 0
    for size in sizes:
        mine: list[int] = []
        left = size
        while left > 0 and at < len(extents):
            mine.append(at)
            left -= extents[at]
            at += 1
        yield mine
