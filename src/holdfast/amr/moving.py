"""Blocks brought to the ranks that own them, with their fields and links."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from holdfast.amr.arena import INVALID, FieldArena
from holdfast.amr.gauge import GaugeTree
from holdfast.amr.origins import check_origin
from holdfast.amr.places import NOWHERE, Indices, Places
from holdfast.amr.shard import (
    ShardContext,
    distinct,
    even_owners,
    gather_places,
    weighted_owners,
)
from holdfast.errors import BadBlock, BadOption, RanksDisagree
from holdfast.parallel import Communicator, communicator, together

if TYPE_CHECKING:
    from holdfast.amr.tree import AMRTree


def move_blocks(tree: AMRTree, arena: FieldArena, shard: ShardContext) -> None:
    """Collective: bring every block to the rank that owns it.

    Where several ranks have a block, its owner's is kept, or else that of the lowest of them. The
    others let theirs die and give its slot back. New blocks come in the order of their keys.
    """
    tree.check_idle()
    every, holders = gather_places(tree, shard.comm)
    which = shard.places.find_all(every.origins, every.levels)
    present = np.bincount(which[which != NOWHERE], minlength=len(shard.places))
    if np.any(which == NOWHERE) or not np.all(present):
        raise RanksDisagree(
            "the blocks of the ranks are not those of the shard: call shard.refresh(tree) first"
        )
    at_owner = holders == shard.owners[which]
    sources = np.full(len(shard.places), shard.size)
    np.minimum.at(sources, which, holders)
    sources[which[at_owner]] = holders[at_owner]
    spare = np.zeros(len(shard.places), bool)
    spare[which[(holders == shard.rank) & ~at_owner]] = True
    carry(tree, arena, shard.comm, shard.places, sources, shard.owners, spare)


def repartition(
    tree: AMRTree, arena: FieldArena, comm: Any = None, weights: Any = None
) -> ShardContext:
    """Collective: share the blocks out anew, move them, and attach the shard, which is returned.

    `weights` says what each of this rank's live blocks costs, in the order of the list; without
    them all blocks count the same. `comm` may be left out if the tree has a shard.
    """
    tree.check_idle()
    if comm is None and tree.shard is None:
        raise BadOption("repartition(comm=None): give a communicator, for the tree has no shard")
    ranks = tree.shard.comm if comm is None and tree.shard else communicator(comm)
    local = together(ranks, lambda: _weights(tree, weights))
    every, _ = gather_places(tree, ranks)
    places, which = distinct(every)
    costs = [np.frombuffer(part) for part in ranks.all_gather(local.tobytes())]
    if any(len(part) for part in costs):
        each = np.zeros(len(places))
        np.maximum.at(each, which, _joined(costs, len(every)))
        owners, kind = weighted_owners(each, ranks.size), "manual"
    else:
        owners, kind = even_owners(len(places), ranks.size), "morton_contiguous"
    shard = ShardContext(ranks, kind, places, owners)
    move_blocks(tree, arena, shard)
    tree.attach_shard(shard)
    return shard


def carry(
    tree: AMRTree,
    arena: FieldArena,
    comm: Communicator,
    places: Places,
    sources: Indices,
    targets: Indices,
    spare: Any = False,
) -> None:
    """Collective: move blocks, sorted by key, each from the rank that has it to another.

    What is `spare` here dies on this rank, too: another has the same.
    """
    me = comm.rank
    coming = (sources != me) & (targets == me)
    leaving = (sources == me) & (targets != me)
    indices = np.full(len(places), NOWHERE, np.int64)

    def pack() -> list[bytes]:
        rows = Places.of(tree).find_all(places.origins, places.levels)
        indices[rows != NOWHERE] = tree.live[rows[rows != NOWHERE]]
        for block in np.flatnonzero(coming).tolist():
            _refuse_misfit(tree, tuple(places.origins[block].tolist()), int(places.levels[block]))
        to = [leaving & (targets == rank) for rank in range(comm.size)]
        return [_packed(tree, arena, indices[chosen]) for chosen in to]

    arrived = comm.exchange(together(comm, pack))
    dying = indices[leaving | spare]

    def unpack() -> dict[int, tuple[Any, Any]]:
        content: dict[int, tuple[Any, Any]] = {}
        for rank, message in enumerate(arrived):
            blocks = np.flatnonzero(coming & (sources == rank)).tolist()
            content.update(zip(blocks, _unpacked(tree, message, len(blocks)), strict=True))
        needed = sum(field is not None for field, _ in content.values())
        freed = np.count_nonzero(tree.field_slots[dying] != INVALID)
        while arena.free_count + freed < needed:
            arena.grow()
        return content

    content = together(comm, unpack)  # nothing has changed until here, and nothing fails from here
    _drop(tree, arena, dying)
    for block in sorted(content):
        _insert(tree, arena, places, block, *content[block])


def _refuse_misfit(tree: AMRTree, origin: tuple[int, ...], level: int) -> None:
    """Raise BadBlock for a block, out of a file perhaps, that no tree would insert."""
    check_origin(origin, tree.frontend.block_size, tree.bits_per_dim)
    if level > tree.max_level:
        raise BadBlock(
            f"the block at {origin} is of level {level}, and the highest is {tree.max_level}: "
            "set max_level before blocks are moved"
        )


def _drop(tree: AMRTree, arena: FieldArena, indices: Any) -> None:
    for index in indices.tolist():
        slot = int(tree.field_slots[index])
        if slot != INVALID:
            arena.free(slot)
            tree.field_slots[index] = INVALID
        tree.invalidate_block(index)


def _insert(
    tree: AMRTree, arena: FieldArena, places: Places, block: int, field: Any, links: Any
) -> None:
    origin, level = places.origins[block].tolist(), int(places.levels[block])
    if field is None:
        index = tree.insert_block(origin, level)
    else:
        index = tree.insert_block_with_field(origin, level, arena)
        arena.storage[int(tree.field_slots[index])] = field
    if isinstance(tree, GaugeTree):
        tree.links[index] = links


def _packed(tree: AMRTree, arena: FieldArena, indices: Any) -> bytes:
    """Which blocks have a field; the fields; all links."""
    slots = tree.field_slots[indices]
    has_field = slots != INVALID
    parts = [has_field.tobytes(), arena.storage[slots[has_field]].tobytes()]
    if isinstance(tree, GaugeTree):
        parts.append(tree.links[indices].tobytes())
    return b"".join(parts)


def _unpacked(tree: AMRTree, message: bytes, count: int) -> list[tuple[Any, Any]]:
    """The field, or None, and the links of each block."""
    frontend = tree.frontend
    has_field = np.frombuffer(message, bool, count)
    shape = int(has_field.sum()), frontend.block_volume, *frontend.field_shape
    fields = np.frombuffer(message, frontend.dtype, int(np.prod(shape)), count).reshape(shape)
    links: Any = [None] * count
    if isinstance(tree, GaugeTree):
        rest = count + fields.nbytes
        links = np.frombuffer(message, np.complex128, offset=rest).reshape(
            count, *tree.frontend.link_shape
        )
    numbers = np.cumsum(has_field) - 1
    return [
        (fields[numbers[each]] if has_field[each] else None, links[each]) for each in range(count)
    ]


def _weights(tree: AMRTree, weights: Any) -> Any:
    """A number for each live block, or none at all."""
    if weights is None:
        return np.zeros(0)
    given = np.asarray(weights, np.float64)
    if given.shape != tree.live.shape or not np.all(np.isfinite(given) & (given >= 0)):
        raise BadOption(
            f"weights: expected a number of at least 0 for each of the {len(tree.live):,} live "
            f"blocks, and found {given.shape}"
        )
    return given


def _joined(costs: list[Any], total: int) -> Any:
    joined = np.concatenate(costs)
    if len(joined) != total:
        raise RanksDisagree("some ranks gave weights for their blocks, and some gave none")
    return joined
