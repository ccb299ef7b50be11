"""What the ranks of a program have, for those that start programs: it imports no framework."""

from typing import Any

import numpy as np

SLABS = 100
SLAB = 65_536


def part(rank: int, step: int) -> dict[str, Any]:
    """The state of one rank: one of its hundred slabs is another at each step."""
    chance = np.random.default_rng(rank)
    slabs = [np.frombuffer(chance.bytes(SLAB), np.uint8).copy() for _ in range(SLABS)]
    slabs[0] = np.full(SLAB, 10 * rank + step, np.uint8)
    return {f"rank{rank}": {"slabs": slabs, "step": step}}


def union(count: int, step: int) -> dict[str, Any]:
    """The states of all ranks."""
    return {key: value for rank in range(count) for key, value in part(rank, step).items()}
