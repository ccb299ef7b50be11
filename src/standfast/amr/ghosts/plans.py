"""What is worked out once about a tree's blocks, and kept until they change."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, TypeVar
from weakref import WeakKeyDictionary

import numpy as np

from standfast.amr.ghosts.places import NOWHERE, Indices, Places
from standfast.errors import RanksDisagree
from standfast.parallel import together

if TYPE_CHECKING:
    from standfast.amr.mesh.tree import AMRTree
    from standfast.amr.shard import ShardContext

Plan = TypeVar("Plan")


@dataclass(frozen=True)
class Partition:
    """Where all blocks are, and which of them are in this tree.

    Without a shard they are the tree's live blocks, and all of them are here.
    """

    places: Places
    owners: Indices
    """[place]: the rank that has the block."""
    rank: int
    size: int
    rows: Indices
    """[place]: which of the tree's live blocks, in the order of its list, it is, or NOWHERE."""
    live: Indices
    """[row]: the index in the tree's list."""


@dataclass
class _Kept:
    blocks: bytes
    shared: tuple[Any, ...]
    """Of the shard all that a partition follows from; its owners may be written to, as a copy."""
    partition: Partition
    plans: dict[str, Any]


_KEPT: Final[WeakKeyDictionary[AMRTree, _Kept]] = WeakKeyDictionary()


def partition_of(tree: AMRTree) -> Partition:
    """Where the blocks of a tree, or of all ranks' trees, are; raises RanksDisagree.

    With a shard the tree must have exactly the blocks that the shard gives to this rank.
    """
    return _kept(tree).partition


def plan_of(tree: AMRTree, name: str, make: Callable[[Partition], Plan]) -> Plan:
    """What `make` made of the partition when the blocks were last changed."""
    kept = _kept(tree)
    if name not in kept.plans:
        kept.plans[name] = make(kept.partition)
    return kept.plans[name]  # type: ignore[no-any-return]


def jointly(tree: AMRTree, action: Callable[[], Plan]) -> Plan:
    """Collective if the tree has a shard: do something that fails on all ranks or on none."""
    return action() if tree.shard is None else together(tree.shard.comm, action)


def exchanged(tree: AMRTree, messages: Mapping[int, bytes]) -> list[bytes]:
    """Collective if the tree has a shard: what each rank sent to this one."""
    if tree.shard is None:
        return []
    ranks = range(tree.shard.size)
    return tree.shard.comm.exchange([messages.get(rank, b"") for rank in ranks])


def _kept(tree: AMRTree) -> _Kept:
    blocks = tree.blocks.tobytes()
    shared = _shared(tree.shard)
    kept = _KEPT.get(tree)
    if kept is None or kept.blocks != blocks or kept.shared != shared:
        kept = _KEPT[tree] = _Kept(blocks, shared, _partition(tree), {})
    return kept


def _shared(shard: ShardContext | None) -> tuple[Any, ...]:
    if shard is None:
        return ()
    # Places are compared by identity, and kept: no other can take that of these.
    return shard.places, shard.rank, shard.size, np.asarray(shard.owners, np.int64).tobytes()


def _partition(tree: AMRTree) -> Partition:
    live = tree.live.astype(np.int64)
    own = Places.of(tree)
    shard = tree.shard
    if shard is None:
        return Partition(own, np.zeros(len(own), np.int64), 0, 1, np.arange(len(own)), live)
    owners = shard.checked_owners()
    found = shard.places.find_all(own.origins, own.levels)
    here = np.all(found != NOWHERE) and np.all(owners[found] == shard.rank)
    if not here or len(found) != np.count_nonzero(owners == shard.rank):
        raise RanksDisagree(
            f"the tree's {len(own):,} blocks are not the {shard.count(shard.rank):,} that the "
            "shard gives to this rank: after a change of the tree call shard.refresh(tree), and "
            "move_blocks(tree, arena, shard) if blocks are not where they belong"
        )
    rows = np.full(len(shard.places), NOWHERE, np.int64)
    rows[found] = np.arange(len(found))
    return Partition(shard.places, owners, shard.rank, shard.size, rows, live)
