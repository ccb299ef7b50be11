"""A snapshot of some ranks on another number of them: the blocks are shared out anew.

Every rank reads the lists of blocks of all, which are small, works out which blocks are its own,
and reads the slabs in which their fields and links are. Dead blocks and the order of the list
stay behind: what comes back is the same mesh, block by block, and not the same bytes.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from standfast.amr.ghosts.places import NOWHERE, Places
from standfast.amr.mesh.arena import INVALID, FieldArena
from standfast.amr.mesh.frontends import GaugeFrontend
from standfast.amr.mesh.gauge import GaugeTree
from standfast.amr.mesh.tree import AMRTree
from standfast.amr.shard import ShardContext, even_owners
from standfast.amr.snapshot.parts import SavedParts, SavedRank, rows_per_slab
from standfast.amr.snapshot.restore import check_rank, load_shard, records
from standfast.amr.sunc.checkpoint import TreeState
from standfast.errors import BadField, DuplicateKey, RanksDisagree
from standfast.formats.sunc.file import block_dtype
from standfast.parallel import Communicator, SingleRank

Array = np.ndarray[Any, Any]


class _Blocks(NamedTuple):
    """The live blocks of all ranks, each once, sorted by key."""

    places: Places
    ranks: Array
    """The rank that saved each."""
    indices: Array
    """Its index in the list of that rank."""
    slots: Array
    """Its slot in the arena of that rank; INVALID if it has no field."""


def load_share(parts: SavedParts, comm: Communicator) -> TreeState[Any]:
    """This rank's share of the blocks of all ranks, with a shard if there are several."""
    saved = [parts.rank(rank) for rank in range(parts.ranks)]
    _check_geometry(saved, parts.checkpoint.ref)
    every = _all_blocks(parts, saved)
    owners = even_owners(len(every.places), comm.size)
    mine = np.flatnonzero(owners == comm.rank)
    own = _Blocks(
        every.places.like(every.places.origins[mine], every.places.levels[mine]),
        every.ranks[mine],
        every.indices[mine],
        every.slots[mine],
    )
    slots = -(-sum(each.max_blocks for each in saved) // comm.size)
    state = _built(parts, saved, own, slots)
    if comm.size > 1:
        state.tree.attach_shard(ShardContext(comm, "morton_contiguous", every.places, owners))
    return state


def _check_geometry(saved: Sequence[SavedRank], ref: str) -> None:
    for name in ("base_spacing", "bits_per_dim", "max_level"):
        if len({getattr(each, name) for each in saved}) > 1:
            raise BadField(f"{ref}: {name} is not the same on all ranks")


def _all_blocks(parts: SavedParts, saved: Sequence[SavedRank]) -> _Blocks:
    names = ("blocks", "field_slots", "free_slots")
    numbers = [getattr(each, name) for each in saved for name in names]
    found: list[tuple[Array, Array, Array]] = []
    with parts.checkpoint.data(tensors=numbers) as data:
        arrays = data.arrays()
        for rank, each in enumerate(saved):
            blocks = records(arrays[each.blocks], parts.frontend)
            slots = arrays[each.field_slots].copy()
            check_rank(parts, rank, each, blocks, slots, arrays[each.free_slots])
            live = np.flatnonzero(blocks["block_index"] != INVALID)
            found.append((blocks[live], live, slots[live]))
    blocks, indices, slots = (np.concatenate(column) for column in zip(*found, strict=True))
    ranks = np.repeat(np.arange(len(saved)), [len(live) for _, live, _ in found])
    geometry = parts.frontend, saved[0].base_spacing, saved[0].bits_per_dim
    places = Places(*geometry, blocks["origin"], blocks["level"])
    chosen = _each_once(places, ranks, load_shard(parts, SingleRank()), parts.checkpoint.ref)
    chosen_places = places.like(places.origins[chosen], places.levels[chosen])
    return _Blocks(chosen_places, ranks[chosen], indices[chosen], slots[chosen])


def _each_once(places: Places, ranks: Array, shard: ShardContext | None, ref: str) -> Array:
    """The blocks sorted by key; where several ranks have one, that of its owner."""
    elsewhere = np.zeros(len(places), bool)
    if shard is not None:
        which = shard.places.find_all(places.origins, places.levels)
        known = which != NOWHERE
        elsewhere[known] = shard.owners[which[known]] != ranks[known]
    order = np.lexsort((ranks, elsewhere, places.levels, places.numbers))
    numbers, levels = places.numbers[order], places.levels[order]
    new = np.ones(len(order), bool)
    new[1:] = (numbers[1:] != numbers[:-1]) | (levels[1:] != levels[:-1])
    origins = places.origins[order]
    apart = np.flatnonzero(~new[1:] & np.any(origins[1:] != origins[:-1], axis=1))
    if len(apart):
        one, other = origins[apart[0]].tolist(), origins[apart[0] + 1].tolist()
        raise DuplicateKey(
            f"{ref}: the blocks at {one} and {other}, on two ranks, have one key: load it on as "
            "many ranks as saved it, and let one of them die"
        )
    if shard is None and not new.all():
        place = tuple(origins[np.flatnonzero(~new)[0]].tolist())
        raise RanksDisagree(
            f"{ref}: the block at {place} was saved by several ranks, and nobody owns it: they "
            "had meshes of their own, which cannot be shared out as one"
        )
    return order[new]


def _built(
    parts: SavedParts, saved: Sequence[SavedRank], own: _Blocks, slots: int
) -> TreeState[Any]:
    frontend, count = parts.frontend, len(own.places)
    with_field = np.flatnonzero(own.slots != INVALID)
    arena = FieldArena(frontend, max(slots, len(with_field)))
    taken = np.array([arena.alloc() for _ in with_field], np.uint64)
    field_slots = np.full(count, INVALID, np.uint64)
    field_slots[with_field] = taken
    moves = _moves(own.ranks[with_field], taken, own.slots[with_field], len(saved))
    _copy_rows(parts, [each.storage for each in saved], moves, arena.storage)

    blocks = np.zeros(count, block_dtype(frontend.nd))
    blocks["origin"] = own.places.origins
    blocks["level"] = own.places.levels
    blocks["spacing"] = saved[0].base_spacing / 2.0**own.places.levels
    blocks["block_index"] = np.arange(count)
    geometry = saved[0].base_spacing, saved[0].bits_per_dim, saved[0].max_level
    if not parts.is_gauge or not isinstance(frontend, GaugeFrontend):
        return TreeState(AMRTree.restored(frontend, *geometry, blocks, field_slots), arena)
    links = np.empty((count, *frontend.link_shape), np.complex128)
    moves = _moves(own.ranks, np.arange(count), own.indices, len(saved))
    _copy_rows(parts, [each.links for each in saved], moves, links)
    tree = GaugeTree.restored(frontend, *geometry, blocks, field_slots, links=links)
    return TreeState(tree, arena)


def _moves(ranks: Array, to: Array, source: Array, count: int) -> list[tuple[Array, Array]]:
    """For each of so many ranks, the rows to be filled and those of the rank they are filled by."""
    return [(to[ranks == rank], source[ranks == rank]) for rank in range(count)]


def _copy_rows(
    parts: SavedParts,
    slabs: Sequence[Sequence[int]],
    moves: Sequence[tuple[Array, Array]],
    target: Array,
) -> None:
    """Copy rows out of the slabs of all ranks; no slab is read of which none is wanted."""
    rows = rows_per_slab(target.itemsize * math.prod(target.shape[1:]))
    needed = [np.unique(source // rows).tolist() for _, source in moves]
    numbers = [of_rank[slab] for of_rank, each in zip(slabs, needed, strict=True) for slab in each]
    with parts.checkpoint.data(tensors=numbers) as data:
        arrays = data.arrays()
        for of_rank, each, (to, source) in zip(slabs, needed, moves, strict=True):
            for slab in each:
                within = np.flatnonzero(source // rows == slab)
                target[to[within]] = arrays[of_rank[slab]][source[within] - slab * rows]
