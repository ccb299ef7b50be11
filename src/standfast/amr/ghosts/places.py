"""Blocks found by where they are, many at a time."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from standfast.amr.mesh.frontends import Frontend
from standfast.amr.mesh.morton import Words, morton
from standfast.amr.mesh.topology import PERIODIC
from standfast.errors import BadOption

if TYPE_CHECKING:
    from standfast.amr.mesh.tree import AMRTree

Indices = np.ndarray[Any, np.dtype[np.int64]]
Mask = np.ndarray[Any, np.dtype[np.bool_]]

NOWHERE: Final = -1
"""Stands for a block that is not there."""


class Places:
    """The places of some blocks: of a tree, or of the trees of all ranks together."""

    def __init__(
        self,
        frontend: Frontend,
        base_spacing: float,
        bits_per_dim: int,
        origins: Any,
        levels: Any,
    ) -> None:
        self.frontend: Final = frontend
        self.base_spacing: Final = base_spacing
        self.bits_per_dim: Final = bits_per_dim
        self.origins: Final[Indices] = np.asarray(origins).astype(np.int64)
        """[block, dimension], counted in sites of the block's own level."""
        self.levels: Final[Indices] = np.asarray(levels).astype(np.int64)
        self.numbers: Final[Words] = self._numbers(self.origins, self.levels)
        """The Morton number of each; with the level it is the block's key."""
        self._sorted: Final = {level: self._sort(level) for level in self.present()}

    @classmethod
    def of(cls, tree: AMRTree) -> Places:
        """The places of a tree's live blocks, in the order of its list."""
        blocks = tree.blocks[tree.live]
        geometry = tree.frontend, tree.base_spacing, tree.bits_per_dim
        return cls(*geometry, blocks["origin"], blocks["level"])

    def like(self, origins: Any, levels: Any) -> Places:
        """Other blocks of the same mesh."""
        return Places(self.frontend, self.base_spacing, self.bits_per_dim, origins, levels)

    def __len__(self) -> int:
        return len(self.levels)

    def present(self) -> list[int]:
        """The levels that have blocks, from the coarsest."""
        return np.unique(self.levels).tolist()  # type: ignore[no-any-return]

    def at(self, level: int) -> Indices:
        """Which of the blocks are of a level."""
        return np.flatnonzero(self.levels == level).astype(np.int64)

    def order(self) -> Indices:
        """The blocks sorted by key."""
        return np.lexsort((self.levels, self.numbers)).astype(np.int64)

    def find(self, origins: Indices, level: int) -> Indices:
        """Which blocks of a level begin at these origins, [n, nd]; NOWHERE if none does."""
        found = np.full(len(origins), NOWHERE, np.int64)
        if level not in self._sorted or not len(origins):
            return found
        numbers, blocks = self._sorted[level]
        wanted = self._numbers(origins, np.full(len(origins), level))
        near = np.minimum(np.searchsorted(numbers, wanted), len(numbers) - 1)
        # Places too far out for a number of their own share that of another.
        same = np.all(self.origins[blocks[near]] == origins, axis=1)
        found[same] = blocks[near[same]]
        return found

    def find_all(self, origins: Indices, levels: Indices) -> Indices:
        """Which blocks are at these places, of several levels; NOWHERE if none is."""
        found = np.full(len(origins), NOWHERE, np.int64)
        for level in np.unique(levels).tolist():
            wanted = levels == level
            found[wanted] = self.find(origins[wanted], level)
        return found

    def beside(self, blocks: Indices, level: int, step: Sequence[int]) -> tuple[Indices, Mask]:
        """Where the neighbours of blocks of a level would begin, and which lie in the box.

        `step` counts blocks along each dimension.
        """
        topology, size = self.frontend.topology, self.frontend.block_size
        spacing = self.base_spacing / 2**level
        for d, sites in enumerate(topology.sites(spacing)):
            if topology.boundary[d] == PERIODIC and (sites < size or sites % size):
                raise BadOption(
                    f"the box has {sites:,} sites along the periodic dimension {d} at level "
                    f"{level}: to close on itself it must be some whole blocks of {size}"
                )
        origins = self.origins[blocks] + size * np.array(step, np.int64)
        wrapped, inside = topology.wrapped(origins, spacing)
        return wrapped, np.asarray(inside)

    def parents(self, origins: Indices) -> Indices:
        """Where the blocks begin, in their own sites, that blocks at `origins` are children of."""
        size = self.frontend.block_size
        return origins // (2 * size) * size

    def child_numbers(self, origins: Indices) -> Indices:
        """Which child of their parents blocks at `origins` are."""
        halves = origins // self.frontend.block_size & 1
        return halves @ (1 << np.arange(self.frontend.nd, dtype=np.int64))

    def children(self, origins: Indices) -> Indices:
        """Where the children begin, [n, child, nd], of blocks at `origins`."""
        nd, size = self.frontend.nd, self.frontend.block_size
        halves = np.arange(2**nd)[:, np.newaxis] >> np.arange(nd) & 1
        return 2 * origins[:, np.newaxis] + size * halves

    def _numbers(self, origins: Indices, levels: Indices) -> Words:
        size = self.frontend.block_size
        return morton(origins.astype(np.uint64), levels, size, self.bits_per_dim)

    def _sort(self, level: int) -> tuple[Words, Indices]:
        blocks = self.at(level)
        order = np.argsort(self.numbers[blocks], kind="stable")
        return self.numbers[blocks[order]], blocks[order]
