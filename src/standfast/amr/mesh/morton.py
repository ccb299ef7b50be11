"""The keys of blocks: where a block lies and how fine it is, as two numbers.

Bit `bit · nd + d` of a Morton number is bit `bit` of coordinate `d`, so that sorting by it goes
through space in a Z. The coordinates of a block count blocks, shifted by its level; their bits
beyond `bits_per_dim` and the level are dropped, so that blocks too far out share their numbers
with others.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

Words = np.ndarray[Any, np.dtype[np.uint64]]
Key = tuple[int, int]
"""A Morton number and a level."""


def key_of(origin: Sequence[int], level: int, block_size: int, bits_per_dim: int) -> Key:
    """The key of one block."""
    nd = len(origin)
    number = 0
    for d, value in enumerate(origin):
        coordinate = value // block_size << level
        for bit in range(min(bits_per_dim + level, 64 // nd)):
            number |= (coordinate >> bit & 1) << bit * nd + d
    return number, level


def morton(origins: Words, levels: Any, block_size: int, bits_per_dim: int) -> Words:
    """The Morton numbers of many blocks, [n] for origins [n, nd]."""
    nd = origins.shape[1]
    one, shifts = np.uint64(1), np.asarray(levels, np.uint64)
    bits = shifts + np.uint64(bits_per_dim)
    kept = (one << bits) - one  # a shift by 64 gives 0, and then this is all ones
    coordinates = (origins // np.uint64(block_size) << shifts[:, np.newaxis]) & kept[:, np.newaxis]
    numbers = np.zeros(len(origins), np.uint64)
    for bit in range(min(int(bits.max(initial=0)), 64 // nd)):
        for d in range(nd):
            value = coordinates[:, d] >> np.uint64(bit) & one
            numbers |= value << np.uint64(bit * nd + d)
    return numbers


def keys_of(blocks: Any, block_size: int, bits_per_dim: int) -> list[Key]:
    """The keys of blocks out of a tree's list, in their order."""
    levels = blocks["level"]
    numbers = morton(blocks["origin"], levels, block_size, bits_per_dim)
    return list(zip(numbers.tolist(), levels.tolist(), strict=True))
