"""Blocks that give way to finer or coarser ones, many of them in one draft."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Final

import numpy as np

from standfast.amr.ghosts.places import NOWHERE, Indices, Places
from standfast.amr.ghosts.plans import Partition
from standfast.amr.ghosts.sites import sites_of
from standfast.amr.mesh.arena import FieldArena
from standfast.amr.mesh.restriction import Field, restrict_families
from standfast.amr.migration import carry
from standfast.amr.regrid.draft import Draft
from standfast.errors import MaxRefinementExceeded
from standfast.parallel import Communicator

if TYPE_CHECKING:
    from standfast.amr.mesh.tree import AMRTree

_AT_ONCE: Final = 16 << 20
"""How many bytes of fields are averaged at once; one family at least."""


def refined(tree: AMRTree, arena: FieldArena, passes: list[Places]) -> Draft:
    """A draft in which the blocks of each pass give way to their children.

    In the order of the list; each gives its slot back before its children take theirs.
    """
    draft = Draft(tree, arena)
    for chosen in passes:
        _refine(draft, chosen)
    return draft


def _refine(draft: Draft, chosen: Places) -> None:
    frontend, max_level = draft.tree.frontend, draft.tree.max_level
    found = draft.find(chosen)
    order = np.argsort(found)[np.count_nonzero(found == NOWHERE) :]
    parents, levels = found[order], chosen.levels[order]
    if np.any(levels >= max_level):
        raise MaxRefinementExceeded(
            f"a block of level {levels.max()} lies beside one finer by two levels, and the highest "
            f"level is {max_level}: set max_level before the mesh is adapted"
        )
    sites, count = sites_of(frontend.nd, frontend.block_size), 2**frontend.nd
    slots: list[int] = []
    for slot in draft.slots(parents):
        draft.free.give_back(slot)
        slots += [draft.free.take() for _ in range(count)]
    covering = sites.part_offsets[1:, np.newaxis] + sites.halved
    fields = np.take(draft.fields(parents), covering, axis=1)
    draft.kill(parents)
    draft.append(
        chosen.children(chosen.origins[order]).reshape(-1, frontend.nd),
        np.repeat(levels + 1, count),
        slots,
        fields.reshape(-1, *fields.shape[2:]),
    )


def bring_together(
    draft: Draft, comm: Communicator, partition: Partition, families: Indices
) -> None:
    """Collective: move siblings, [family, child], to where the first of them is."""
    places, owners = partition.places, partition.owners
    children = np.sort(families.ravel())
    targets = owners.copy()
    targets[families] = owners[families[:, :1]]
    moved = places.like(places.origins[children], places.levels[children])
    carry(draft, comm, moved, owners[children], targets[children])


def coarsen(draft: Draft, places: Places, families: Indices) -> None:
    """Let those of the families, [family, child], that are here give way to their parents.

    In the order in which their first blocks stand in the list; a parent takes its slot before its
    children give theirs back.
    """
    children = families.ravel()
    found = draft.find(places.like(places.origins[children], places.levels[children]))
    indices = found.reshape(families.shape)
    here = np.flatnonzero(indices[:, 0] != NOWHERE)
    order = here[np.argsort(indices[here].min(axis=1))]
    slots = []
    for family in draft.slots(indices[order]):
        slots.append(draft.free.take())
        for slot in family:
            draft.free.give_back(slot)
    first = families[order, 0]
    means = _means(draft, indices[order])
    draft.append(places.parents(places.origins[first]), places.levels[first] - 1, slots, means)
    draft.kill(indices[order].ravel())


def _means(draft: Draft, families: Indices) -> Field:
    """The fields of the parents, [family, site, …]."""
    storage, count = draft.arena.storage, families.shape[1]
    means = np.empty((len(families), *storage.shape[1:]), storage.dtype)
    step = max(1, _AT_ONCE // (count * math.prod(storage.shape[1:]) * storage.itemsize))
    for start in range(0, len(families), step):
        fields = draft.fields(families[start : start + step].ravel())
        grouped = fields.reshape(-1, count, *fields.shape[1:])
        means[start : start + step] = restrict_families(grouped, draft.tree.frontend)
    return means
