"""Which blocks are refined and which are coarsened: worked out before anything is changed.

It follows from places and gradients alone, so that all ranks, which have both of all blocks, come
to the same, however the blocks are shared out.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from standfast.amr.ghosts.neighbours import beside_finer
from standfast.amr.ghosts.places import NOWHERE, Indices, Places
from standfast.errors import BadBlock


@dataclass(frozen=True)
class Adaption:
    """What to do with a mesh, and what it is then."""

    refined: list[Places]
    """The blocks that each pass refines."""
    families: Indices
    """[family, child]: siblings that become their parent, as they were numbered at the start."""
    places: Places
    """Where the blocks are then, sorted by key."""
    owners: Indices


@dataclass(frozen=True)
class _Mesh:
    """A mesh on its way: for each block its owner, and its number at the start, if it had one."""

    places: Places
    owners: Indices
    start: Indices

    def refined(self, chosen: Indices) -> _Mesh:
        """The chosen blocks give way to their children."""
        children = self.places.children(self.places.origins[chosen])
        count = children.shape[1]
        return self._replaced(
            chosen,
            children.reshape(-1, children.shape[2]),
            np.repeat(self.places.levels[chosen] + 1, count),
            np.repeat(self.owners[chosen], count),
        )

    def coarsened(self, families: Indices) -> _Mesh:
        """Families give way to their parents, whose owner is that of the first child."""
        first = families[:, 0]
        return self._replaced(
            families.ravel(),
            self.places.parents(self.places.origins[first]),
            self.places.levels[first] - 1,
            self.owners[first],
        )

    def _replaced(self, gone: Indices, origins: Any, levels: Any, owners: Any) -> _Mesh:
        stays = np.ones(len(self.places), bool)
        stays[gone] = False
        places = self.places.like(
            np.concatenate((self.places.origins[stays], origins)),
            np.concatenate((self.places.levels[stays], levels)),
        )
        new = np.full(len(levels), NOWHERE)
        return _Mesh(
            places,
            np.concatenate((self.owners[stays], owners)),
            np.concatenate((self.start[stays], new)),
        )


def plan_adaption(
    places: Places, owners: Indices, steep: Any, flat: Any, max_level: int
) -> Adaption:
    """Refine what is steep, then what is next to much finer blocks; coarsen what is flat.

    A block is refined because of its own field once at most. Raises BadBlock for blocks that lie
    in others, and for children that the keys of the tree have no room for.
    """
    _refuse_overlaps(places)
    mesh = _Mesh(places, owners, np.arange(len(places)))
    refined = []
    chosen = np.flatnonzero(steep & (places.levels < max_level))
    while True:
        if len(chosen):
            parents = mesh.places.like(mesh.places.origins[chosen], mesh.places.levels[chosen])
            _refuse_misfits(parents)
            refined.append(parents)
            mesh = mesh.refined(chosen)
        chosen = beside_finer(mesh.places, 2)
        if not len(chosen):
            break
    families = []
    # From the finest: what becomes coarser there may let its neighbours become coarser.
    for level in reversed(places.present()):
        found = _families(mesh, level, flat)
        families.append(mesh.start[found])
        mesh = mesh.coarsened(found)
    children = np.zeros((0, 2**places.frontend.nd), np.int64)
    order = mesh.places.order()
    return Adaption(
        refined,
        np.concatenate((children, *families)),
        places.like(mesh.places.origins[order], mesh.places.levels[order]),
        mesh.owners[order],
    )


def _families(mesh: _Mesh, level: int, flat: Any) -> Indices:
    """The siblings of a level that are all there, flat, and beside nothing finer."""
    places, count = mesh.places, 2**mesh.places.frontend.nd
    willing = (places.levels == level) & (mesh.start != NOWHERE)
    willing &= flat[mesh.start]
    willing[beside_finer(places, 1)] = False
    first = np.flatnonzero(willing & (places.child_numbers(places.origins) == 0) & (level > 0))
    origins = places.children(places.parents(places.origins[first]))
    found = places.find(origins.reshape(-1, origins.shape[2]), level).reshape(-1, count)
    return found[np.all((found != NOWHERE) & willing[found], axis=1)]


def _refuse_overlaps(places: Places) -> None:
    for level in places.present():
        blocks = places.at(level)
        ancestors = places.origins[blocks]
        for coarser in range(level - 1, -1, -1):
            ancestors = places.parents(ancestors)
            found = places.find(ancestors, coarser)
            if np.any(found != NOWHERE):
                inner = blocks[found != NOWHERE][0]
                raise BadBlock(
                    f"the block at {tuple(places.origins[inner].tolist())} of level {level} lies "
                    f"in one of level {coarser}: a mesh that adapts has one block at each place"
                )


def _refuse_misfits(parents: Places) -> None:
    """Raise BadBlock if a child would begin where keys do not reach."""
    ends = (2 * parents.origins // parents.frontend.block_size + 1) >> parents.bits_per_dim
    misfits = np.flatnonzero(np.any(ends > 0, axis=1))
    if len(misfits):
        raise BadBlock(
            f"the block at {tuple(parents.origins[misfits[0]].tolist())} of level "
            f"{parents.levels[misfits[0]]} is too far out to be refined with "
            f"bits_per_dim={parents.bits_per_dim}: give the tree more bits"
        )
