"""Where blocks may begin, and where their children and siblings do.

An origin counts sites of the block's own level, so that it doubles with each refinement.
"""

from __future__ import annotations

import operator
from collections.abc import Iterable, Mapping, Sequence

from standfast.errors import BadBlock

Origin = tuple[int, ...]


def whole_numbers(origin: Iterable[int], level: int, nd: int) -> tuple[Origin, int]:
    """An origin and a level as Python's integers; raises BadBlock for what can be none."""
    try:
        place, number = tuple(operator.index(value) for value in origin), operator.index(level)
    except TypeError:
        raise BadBlock(f"origin {origin!r}, level {level!r}: whole numbers expected") from None
    if len(place) != nd:
        raise BadBlock(f"origin {place}: {nd} numbers expected, one for each dimension")
    if not all(0 <= value < 1 << 64 for value in place) or not 0 <= number < 1 << 8:
        raise BadBlock(f"origin {place}, level {number}: no block can lie there")
    return place, number


def check_origin(place: Origin, block_size: int, bits_per_dim: int) -> None:
    """Raise BadBlock unless it is one of a whole block whose key is no other's."""
    if any(value % block_size for value in place):
        raise BadBlock(
            f"origin {place}: each number must be a multiple of the block size, {block_size}"
        )
    if any(value // block_size >> bits_per_dim for value in place):
        raise BadBlock(
            f"origin {place}: with bits_per_dim={bits_per_dim} a block begins below "
            f"{block_size << bits_per_dim:,} in each dimension; give the tree more bits"
        )


def child_origins(parent: Sequence[int], block_size: int) -> list[Origin]:
    """Where the children of a block begin; bit d of a child's number picks its half along d."""
    nd = len(parent)
    return [
        tuple(2 * parent[d] + (child >> d & 1) * block_size for d in range(nd))
        for child in range(2**nd)
    ]


def in_child_order(origins: Mapping[Origin, int], block_size: int) -> list[int] | None:
    """The indices of blocks of one level by the numbers of children; None if no siblings."""
    lowest = min(origins, default=())
    expected = child_origins([value // 2 for value in lowest], block_size)
    aligned = all(value % (2 * block_size) == 0 for value in lowest)
    if not lowest or not aligned or origins.keys() != set(expected):
        return None
    return [origins[origin] for origin in expected]
