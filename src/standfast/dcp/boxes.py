"""Whether the boxes that a tensor was cut into fill it."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from itertools import product
from typing import Final

from standfast.errors import BadRange, LimitExceeded
from standfast.tensors.shards import Box

MAX_CORNERS: Final = 1 << 24
"""Of all boxes of one tensor; a thousand boxes have them when they are cut along 14 dimensions."""


def check_filled(shape: tuple[int, ...], boxes: Sequence[Box], where: str) -> None:
    """Raise unless the boxes, each within a tensor of this shape, fill it without an overlap.

    The corners of all boxes, each counted with the sign of its parity, add up to those of the
    whole exactly when every element is in one box; those of an empty box cancel out. That is so
    for every way to cut, and each box is looked at once.
    """
    if not math.prod(shape):
        return
    cut = [axis for axis, n in enumerate(shape) if any(box.shape[axis] != n for box in boxes)]
    if (len(boxes) + 1) << len(cut) > MAX_CORNERS:
        raise LimitExceeded(f"{where}: {len(boxes):,} chunks, cut along {len(cut)} dimensions")
    corners: Counter[tuple[int, ...]] = Counter()
    for box in boxes:
        _add_corners(corners, box, cut, 1)
    _add_corners(corners, Box((0,) * len(shape), shape), cut, -1)
    if any(corners.values()):
        raise BadRange(
            f"{where}: its {len(boxes):,} chunks overlap or do not fill its shape {list(shape)}"
        )


def _add_corners(corners: Counter[tuple[int, ...]], box: Box, axes: list[int], sign: int) -> None:
    ends = [((box.offsets[axis], 1), (box.offsets[axis] + box.shape[axis], -1)) for axis in axes]
    for corner in product(*ends):
        corners[tuple([at for at, _ in corner])] += sign * math.prod([each for _, each in corner])
