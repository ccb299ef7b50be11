"""The tree and the arena of a rank out of a snapshot, as they were, every byte verified."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np

from standfast.amr.ghosts.places import Places
from standfast.amr.mesh.arena import FieldArena
from standfast.amr.mesh.checks import check_state
from standfast.amr.mesh.frontends import Frontend, GaugeFrontend
from standfast.amr.mesh.gauge import GaugeTree
from standfast.amr.mesh.tree import AMRTree
from standfast.amr.shard import ShardContext
from standfast.amr.snapshot.parts import SavedParts, SavedRank, joined
from standfast.amr.sunc.checkpoint import TreeState
from standfast.errors import BadField, DamagedFile, IncompatibleCheckpoint
from standfast.formats.sunc.file import block_dtype
from standfast.parallel import Communicator
from standfast.store import Checkpoint
from standfast.store.load.making import tensors_in
from standfast.store.tree import tree

Array = np.ndarray[Any, Any]


def check_frontend(saved: Frontend, wanted: Frontend, ref: str) -> None:
    """Raise IncompatibleCheckpoint, which names what differs, unless they are the same."""
    found, expected = saved.describe(), wanted.describe()
    for name in dict.fromkeys([*expected, *found]):
        if found.get(name) != expected.get(name):
            raise IncompatibleCheckpoint(
                f"{ref}: {name}: expected {expected.get(name)!r}, found {found.get(name)!r}; make "
                "the frontend that it was saved with"
            )


def load_rank(parts: SavedParts, rank: int) -> TreeState[Any]:
    """What one rank saved, bit for bit."""
    saved, frontend = parts.rank(rank), parts.frontend
    numbers = [saved.blocks, saved.field_slots, saved.free_slots, *saved.storage, *saved.links]
    with parts.checkpoint.data(tensors=numbers) as data:
        arrays = data.arrays()
        blocks = records(arrays[saved.blocks], frontend)
        field_slots = arrays[saved.field_slots].copy()
        free_slots = arrays[saved.free_slots].copy()
        check_rank(parts, rank, saved, blocks, field_slots, free_slots)
        shape = (saved.max_blocks, frontend.block_volume, *frontend.field_shape)
        storage = joined([arrays[slab] for slab in saved.storage], frontend.dtype.name, shape)
        geometry = (saved.base_spacing, saved.bits_per_dim, saved.max_level)
        mesh: AMRTree
        if parts.is_gauge and isinstance(frontend, GaugeFrontend):
            of_links = (saved.block_count, *frontend.link_shape)
            links = joined([arrays[slab] for slab in saved.links], "complex128", of_links)
            mesh = GaugeTree.restored(frontend, *geometry, blocks, field_slots, links=links)
        else:
            mesh = AMRTree.restored(frontend, *geometry, blocks, field_slots)
    return TreeState(mesh, FieldArena.restored(frontend, storage, free_slots, saved.free_count))


def records(rows: Array, frontend: Frontend) -> Array:
    """The blocks of a tree, of their bytes, in memory of their own."""
    return np.ascontiguousarray(rows).copy().view(block_dtype(frontend.nd)).reshape(-1)


def check_rank(
    parts: SavedParts,
    rank: int,
    saved: SavedRank,
    blocks: Array,
    field_slots: Array,
    free_slots: Array,
) -> None:
    """Raise a DamagedFile unless this is the state of a tree."""
    try:
        check_state(
            parts.frontend,
            saved.base_spacing,
            saved.bits_per_dim,
            saved.max_level,
            blocks,
            field_slots,
            free_slots,
            saved.free_count,
            saved.max_blocks,
        )
    except DamagedFile as error:
        error.args = (f"{parts.checkpoint.ref}, rank {rank}: {error}", *error.args[1:])
        raise


def load_shard(parts: SavedParts, comm: Communicator) -> ShardContext | None:
    """Who owned which block, for as many ranks as there were; None if nobody said."""
    if parts.owners is None or parts.sharding is None:
        return None
    saved = parts.owners
    with parts.checkpoint.data(tensors=[saved.origins, saved.levels, saved.owners]) as data:
        arrays = {number: array.copy() for number, array in data.arrays().items()}
    owners = arrays[saved.owners].astype(np.int64)
    rank = parts.rank(comm.rank)
    geometry = parts.frontend, rank.base_spacing, rank.bits_per_dim
    places = Places(*geometry, arrays[saved.origins], arrays[saved.levels])
    _check_owners(parts, places, owners, rank.bits_per_dim)
    return ShardContext(comm, parts.sharding, places, owners)


def _check_owners(parts: SavedParts, places: Places, owners: Array, bits_per_dim: int) -> None:
    """Raise BadField unless each block is there once, sorted by key, and each owner is a rank."""
    ref, most = parts.checkpoint.ref, 64 // parts.frontend.nd - bits_per_dim
    if len(owners) and owners.max() >= parts.ranks:
        raise BadField(f"{ref}: owners: there is no rank {owners.max()}")
    if len(owners) and places.levels.max() > most:
        raise BadField(f"{ref}: owners: expected levels up to {most}, found {places.levels.max()}")
    same = np.diff(places.numbers) == 0
    is_sorted = places.numbers[1:] >= places.numbers[:-1]
    if not np.all(is_sorted & (~same | (np.diff(places.levels) > 0))):
        raise BadField(f"{ref}: owners: expected each block once, sorted by its key")


def load_random(parts: SavedParts, rank: int) -> dict[str, Any] | None:
    """The states of a rank's generators: its program's own by name, and the global ones.

    None if none were saved: the rank is a new one, or the snapshot was imported from files.
    """
    saved = parts.rank(rank).random if rank < parts.ranks else None
    if saved is None:
        return None
    states = load_values(parts.checkpoint, saved)
    if not isinstance(states, dict) or set(states) != {"own", "global"}:
        raise BadField(f"{parts.checkpoint.ref}, rank {rank}: random: expected own and global")
    if not isinstance(states["own"], dict):
        raise BadField(f"{parts.checkpoint.ref}, rank {rank}: random.own: expected a dict")
    return states


def load_values(checkpoint: Checkpoint, saved: Any) -> Any:
    """A part of a state that is neither tree nor arena, with its tensors."""
    numbers: list[int] = []
    tree.build(saved, numbers.append)
    with checkpoint.data(tensors=_distinct(numbers)) as data:
        return tree.build(saved, tensors_in(checkpoint.record, data))


def _distinct(numbers: Iterable[int]) -> list[int]:
    return list(dict.fromkeys(numbers))
