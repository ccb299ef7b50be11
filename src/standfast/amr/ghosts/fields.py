"""The layers of sites around blocks, out of their neighbours, on this rank or another.

Same level copies, coarse to fine injects, fine to coarse averages. Ghosts follow from fields and
blocks, and are never saved.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from standfast.amr.ghosts.neighbours import Neighbours, Pieces, find_neighbours
from standfast.amr.ghosts.places import Indices, Mask
from standfast.amr.ghosts.plans import Partition, exchanged, jointly, plan_of
from standfast.amr.ghosts.sites import sites_of
from standfast.amr.mesh.arena import INVALID, FieldArena
from standfast.amr.mesh.restriction import Field, averaged
from standfast.errors import BadBlock, BadOption, RanksDisagree

if TYPE_CHECKING:
    from standfast.amr.mesh.frontends import Frontend
    from standfast.amr.mesh.tree import AMRTree


@dataclass(frozen=True)
class Ghosts:
    """The layer of sites beyond each face of each live block, in the order of the list.

    Faces are +d0, −d0, +d1, …; the sites of a face run over the other dimensions, lowest fastest.
    """

    blocks: Indices
    """[row]: the index of the block."""
    layers: Field
    """[row, face, site of the face, component]; zeros where not valid."""
    valid: Mask
    """[row, face]: False at an open border, and where no block of a level one away at most is."""
    coarser: Mask
    """[row, face]: the neighbour is coarser, and its sites were injected."""


@dataclass(frozen=True)
class _Plan:
    """Who gives which pieces to whom; blocks are rows of this rank's tree."""

    blocks: Indices
    here: Neighbours
    """From this rank to itself."""
    sent: dict[int, Neighbours]
    """To each other rank; the targets are not of this tree."""
    received: dict[int, Neighbours]
    """From each other rank; the sources are not of this tree."""


def fill_ghosts(tree: AMRTree, arena: FieldArena) -> Ghosts:
    """The layers around every live block of a tree; collective, if it has a shard."""
    tree.check_idle()

    def prepare() -> tuple[_Plan, Any, dict[int, bytes]]:
        slots = field_slots(tree, arena)
        plan = plan_of(tree, "ghosts", _plan)
        return plan, slots, {to: _packed(arena, slots, plan.sent[to]) for to in plan.sent}

    plan, slots, messages = jointly(tree, prepare)
    arrived = exchanged(tree, messages)
    ghosts = _empty(plan.blocks, tree.frontend)
    _place(ghosts, plan.here, *_values(arena, slots, plan.here), tree.frontend)
    for rank, pieces in plan.received.items():
        _place(ghosts, pieces, *_unpacked(arrived[rank], pieces, tree.frontend), tree.frontend)
    return ghosts


def field_slots(tree: AMRTree, arena: FieldArena) -> Any:
    """The slots of the live blocks, each of which must have one of its own; raises BadBlock."""
    if arena.frontend != tree.frontend:
        raise BadOption("the arena is one of another frontend than the tree's")
    slots = tree.field_slots[tree.live]
    missing = np.flatnonzero(slots >= arena.max_blocks)
    if len(missing):
        block = tree.live[missing[0]]
        if slots[missing[0]] != INVALID:
            raise BadBlock(f"block {block} has a slot that this arena has not: is it the tree's?")
        raise BadBlock(
            f"block {block} has no field: give it one by tree.field_slots[{block}] = "
            "arena.alloc(), or insert it with insert_block_with_field"
        )
    arena.check_slots(tree)
    return slots.astype(np.int64)


def _plan(partition: Partition) -> _Plan:
    every = find_neighbours(partition.places)
    me = partition.rank
    others = [rank for rank in range(partition.size) if rank != me]
    return _Plan(
        partition.live,
        _between(every, partition, me, me),
        {rank: _between(every, partition, me, rank) for rank in others},
        {rank: _between(every, partition, rank, me) for rank in others},
    )


def _between(every: Neighbours, partition: Partition, source: int, target: int) -> Neighbours:
    """What one rank gives to another; on both of them in the same order."""

    def chosen(pieces: Pieces) -> Pieces:
        sources, targets = partition.owners[pieces.source], partition.owners[pieces.target]
        return pieces.where((sources == source) & (targets == target)).renumbered(partition.rows)

    return Neighbours(chosen(every.copies), chosen(every.means))


def _values(arena: FieldArena, slots: Any, pieces: Neighbours) -> tuple[Field, Field]:
    """The sites of whole faces, [piece, site, …], and those of quarters of faces."""
    nd, storage = arena.frontend.nd, arena.storage
    sites = sites_of(nd, arena.frontend.block_size)
    copies, means = pieces.copies, pieces.means
    across = sites.across[np.minimum(copies.part, 1), copies.face]
    copied = storage[
        slots[copies.source][:, np.newaxis], across + sites.part_offsets[copies.part][:, np.newaxis]
    ]
    covered = storage[slots[means.source][:, np.newaxis, np.newaxis], sites.pairs[means.face]]
    # As boxes of two sites along each dimension: so the sums are those of a restriction.
    boxes = covered.reshape(-1, *(2,) * nd, *arena.frontend.field_shape)
    mean = averaged(boxes, nd).reshape(*covered.shape[:2], *arena.frontend.field_shape)
    return copied, mean


def _place(
    ghosts: Ghosts, pieces: Neighbours, copied: Field, mean: Field, frontend: Frontend
) -> None:
    quarters = sites_of(frontend.nd, frontend.block_size).quarters
    copies, means = pieces.copies, pieces.means
    ghosts.layers[copies.target, copies.face] = copied
    rows, faces = means.target[:, np.newaxis], means.face[:, np.newaxis]
    ghosts.layers[rows, faces, quarters[means.part]] = mean
    ghosts.valid[copies.target, copies.face] = True
    ghosts.valid[means.target, means.face] = True
    ghosts.coarser[copies.target, copies.face] = copies.part > 0


def _empty(blocks: Indices, frontend: Frontend) -> Ghosts:
    faces = len(blocks), 2 * frontend.nd
    sites = frontend.block_volume // frontend.block_size
    layers = np.zeros((*faces, sites, *frontend.field_shape), frontend.dtype)
    return Ghosts(blocks, layers, np.zeros(faces, bool), np.zeros(faces, bool))


def _packed(arena: FieldArena, slots: Any, pieces: Neighbours) -> bytes:
    return b"".join(values.tobytes() for values in _values(arena, slots, pieces))


def _unpacked(message: bytes, pieces: Neighbours, frontend: Frontend) -> tuple[Field, Field]:
    face = frontend.block_volume // frontend.block_size
    quarter = face // 2 ** (frontend.nd - 1)
    copied = len(pieces.copies), face, *frontend.field_shape
    mean = len(pieces.means), quarter, *frontend.field_shape
    split = int(np.prod(copied))
    if len(message) != (split + int(np.prod(mean))) * frontend.dtype.itemsize:
        raise RanksDisagree(
            "a rank sent other layers than its neighbour expects: the ranks do not have the same "
            "shard; call shard.refresh(tree) on all of them"
        )
    values = np.frombuffer(message, frontend.dtype)
    return values[:split].reshape(copied), values[split:].reshape(mean)
