"""Blocks brought to the ranks that own them, with their fields and links."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from standfast.amr.ghosts.places import NOWHERE, Indices, Mask, Places
from standfast.amr.mesh.arena import INVALID, FieldArena
from standfast.amr.mesh.gauge import GaugeTree
from standfast.amr.mesh.restriction import Field
from standfast.amr.regrid.draft import Draft
from standfast.amr.shard import (
    ShardContext,
    distinct,
    even_owners,
    gather_places,
    weighted_owners,
)
from standfast.errors import BadBlock, BadOption, RanksDisagree
from standfast.parallel import Communicator, agree, communicator, together

if TYPE_CHECKING:
    from standfast.amr.mesh.tree import AMRTree


def move_blocks(tree: AMRTree, arena: FieldArena, shard: ShardContext) -> None:
    """Collective: bring every block to the rank that owns it, and attach the shard to the tree.

    Where several ranks have a block, its owner's is kept, or else that of the lowest of them. The
    others let theirs die and give its slot back. New blocks come in the order of their keys.
    """
    tree.check_idle()
    owners = together(shard.comm, shard.checked_owners)
    agree(shard.comm, "the owners of blocks", hashlib.sha256(owners.data).hexdigest())
    every, holders = gather_places(tree, shard.comm)

    def plan() -> tuple[Draft, Indices, Mask]:
        which = shard.places.find_all(every.origins, every.levels)
        present = np.bincount(which[which != NOWHERE], minlength=len(shard.places))
        if np.any(which == NOWHERE) or not np.all(present):
            raise RanksDisagree(
                "the blocks of the ranks are not those of the shard: call shard.refresh(tree) first"
            )
        at_owner = holders == owners[which]
        sources = np.full(len(shard.places), shard.size)
        np.minimum.at(sources, which, holders)
        sources[which[at_owner]] = holders[at_owner]
        spare = np.zeros(len(shard.places), bool)
        spare[which[(holders == shard.rank) & ~at_owner]] = True
        return Draft(tree, arena), sources, spare

    draft, sources, spare = together(shard.comm, plan)
    carry(draft, shard.comm, shard.places, sources, owners, spare)
    together(shard.comm, draft.prepare)
    draft.commit()  # nothing has changed until here, and nothing fails from here
    tree.attach_shard(shard)


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
    parts = ranks.all_gather(local)

    def plan() -> ShardContext:
        places, which = distinct(every)
        costs = np.frombuffer(b"".join(parts))
        if not len(costs):
            owners = even_owners(len(places), ranks.size)
            return ShardContext(ranks, "morton_contiguous", places, owners)
        if len(costs) != len(every):
            raise RanksDisagree("some ranks gave weights for their blocks, and some gave none")
        each = np.zeros(len(places))
        np.maximum.at(each, which, costs)
        return ShardContext(ranks, "manual", places, weighted_owners(each, ranks.size))

    shard = together(ranks, plan)
    move_blocks(tree, arena, shard)
    return shard


def carry(
    draft: Draft,
    comm: Communicator,
    places: Places,
    sources: Indices,
    targets: Indices,
    spare: Any = False,
) -> None:
    """Collective: draft a move of blocks, sorted by key, each from a rank that has it to another.

    What is `spare` here dies on this rank, too: another has the same.
    """
    me = comm.rank

    def pack() -> tuple[Places, Indices, Indices, list[bytes]]:
        coming = np.flatnonzero((sources != me) & (targets == me))
        leaving = (sources == me) & (targets != me)
        new = places.like(places.origins[coming], places.levels[coming])
        _refuse_too_fine(draft.tree, new)
        indices = draft.find(places)
        to = [indices[leaving & (targets == rank)] for rank in range(comm.size)]
        messages = [_packed(draft, chosen) for chosen in to]
        return new, sources[coming], indices[leaving | spare], messages

    new, origins, dying, messages = together(comm, pack)
    arrived = comm.exchange(messages)

    def unpack() -> None:
        _settle(draft, dying, new, _unpacked(draft.tree, arrived, origins))

    together(comm, unpack)


def _refuse_too_fine(tree: AMRTree, new: Places) -> None:
    """Raise BadBlock for a block of a level that no block could be inserted at."""
    for block in np.flatnonzero(new.levels > tree.max_level)[:1]:
        raise BadBlock(
            f"the block at {tuple(new.origins[block].tolist())} is of level {new.levels[block]}, "
            f"and the highest is {tree.max_level}: set max_level before blocks are moved"
        )


class _Content(NamedTuple):
    """What belongs to blocks."""

    has_field: Mask
    """[block]: whether it has a field."""
    fields: Field
    """[row, site, …]: the fields of those that have one."""
    links: Any
    """[block, link, N, N]; None in a tree without links."""


def _settle(draft: Draft, dying: Indices, new: Places, content: _Content) -> None:
    """Let blocks die and give their slots back, and append others."""
    freed = [slot for slot in draft.slots(dying) if slot != INVALID]
    while draft.free.count + len(freed) < len(content.fields):
        draft.free.grow()
    for slot in freed:
        draft.free.give_back(slot)
    draft.kill(dying)
    slots = [draft.free.take() if taken else INVALID for taken in content.has_field.tolist()]
    draft.append(new.origins, new.levels, slots, content.fields, content.links)


def _packed(draft: Draft, indices: Indices) -> bytes:
    """Which blocks have a field; the fields; all links."""
    has_field = np.array(draft.slots(indices), np.uint64) != INVALID
    parts = [has_field.tobytes(), draft.fields(indices[has_field]).tobytes()]
    if isinstance(draft.tree, GaugeTree):
        parts.append(draft.tree.links[indices].tobytes())
    return b"".join(parts)


def _unpacked(tree: AMRTree, messages: list[bytes], sources: Indices) -> _Content:
    """What belongs to blocks, each of which comes from the rank `sources` says, in their order."""
    frontend = tree.frontend
    blocks = [np.flatnonzero(sources == rank) for rank in range(len(messages))]
    has_field = np.zeros(len(sources), bool)
    for message, here in zip(messages, blocks, strict=True):
        has_field[here] = np.frombuffer(message[: len(here)], bool)
    rows = np.cumsum(has_field) - 1
    shape = int(has_field.sum()), frontend.block_volume, *frontend.field_shape
    fields = np.empty(shape, frontend.dtype)
    links = None
    if isinstance(tree, GaugeTree):
        links = np.empty((len(sources), *tree.frontend.link_shape), np.complex128)
    block_bytes = frontend.block_volume * frontend.field_bytes
    for data, here in zip(messages, blocks, strict=True):
        view, with_field = memoryview(data), rows[here[has_field[here]]]
        end = len(here) + len(with_field) * block_bytes
        fields[with_field] = _rows(view[len(here) : end], fields)
        if links is not None:
            links[here] = _rows(view[end:], links)
    return _Content(has_field, fields, links)


def _rows(data: memoryview, like: Any) -> Any:
    return np.frombuffer(data, like.dtype).reshape(-1, *like.shape[1:])


def _weights(tree: AMRTree, weights: Any) -> bytes:
    """A number for each live block, or none at all."""
    if weights is None:
        return b""
    given = np.asarray(weights, np.float64)
    if given.shape != tree.live.shape or not np.all(np.isfinite(given) & (given >= 0)):
        raise BadOption(
            f"weights: expected a number of at least 0 for each of the {len(tree.live):,} live "
            f"blocks, and found {given.shape}"
        )
    return given.tobytes()
