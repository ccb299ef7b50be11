"""Which rank has which block, of trees that are parts of one mesh."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from standfast.amr.ghosts.places import NOWHERE, Indices, Places
from standfast.amr.mesh.morton import Key, Words
from standfast.errors import BadOption, BlockNotFound, RanksDisagree
from standfast.parallel import Communicator, agree, communicator, together

if TYPE_CHECKING:
    from standfast.amr.mesh.tree import AMRTree

KINDS: Final = ("morton_contiguous", "manual")


class ShardContext:
    """The blocks of all ranks and their owners; the same on each rank.

    >>> shard = ShardContext.from_tree(tree, comm, "morton_contiguous")
    >>> move_blocks(tree, arena, shard)      # or, if all are where they belong:
    >>> tree.attach_shard(shard)
    """

    def __init__(self, comm: Communicator, kind: str, places: Places, owners: Indices) -> None:
        self.comm: Final = comm
        self.rank: Final = comm.rank
        self.size: Final = comm.size
        self.kind = kind
        """`morton_contiguous`, or `manual` if blocks are owned by whoever has them."""
        self.places = places
        self.owners = owners
        """[block]: the rank that owns it, in the order of the keys."""

    def __repr__(self) -> str:
        return (
            f"<{self.kind} shard of {len(self.places):,} blocks, {self.count(self.rank):,} of them "
            f"on rank {self.rank} of {self.size}>"
        )

    @classmethod
    def from_tree(cls, tree: AMRTree, comm: Any, kind: str) -> ShardContext:
        """Collective: the blocks of the trees of all ranks, shared out.

        `morton_contiguous` cuts the blocks, sorted by key, into even parts, whoever has them now;
        several ranks may have the same. `manual` leaves each where it is; if two ranks have the
        same block, all raise RanksDisagree.
        """
        ranks = communicator(comm)
        return cls(ranks, kind, *_shared_out(tree, ranks, kind))

    def refresh(self, tree: AMRTree) -> None:
        """Collective: look again at which blocks there are, after a tree was changed by hand."""
        self.places, self.owners = _shared_out(tree, self.comm, self.kind)

    def kind_with(self, owners: Indices) -> str:
        """What kind of shard this is when blocks have other owners."""
        even = np.array_equal(owners, even_owners(len(owners), self.size))
        return self.kind if even else "manual"  # another shard of the trees would have to be that

    def adopt(self, kind: str, places: Places, owners: Indices) -> None:
        """Take a mesh, sorted by key, that all ranks have worked out, each the same."""
        self.kind, self.places, self.owners = kind, places, owners

    @property
    def keys(self) -> Words:
        """[block, 2]: Morton number and level of all blocks, sorted."""
        return np.stack((self.places.numbers, self.places.levels.astype(np.uint64)), axis=1)

    def owner(self, key: Key) -> int:
        """The rank that owns a block; raises BlockNotFound."""
        number, level = key
        low, high = (
            int(np.searchsorted(self.places.numbers, np.uint64(number), side))
            for side in ("left", "right")
        )
        found = low + np.flatnonzero(self.places.levels[low:high] == level)
        if not len(found):
            raise BlockNotFound(f"no rank has a block with the key {key}")
        return int(self.owners[found[0]])

    def owned_by(self, rank: int) -> Words:
        """The keys of a rank's blocks, [block, 2], sorted."""
        if not 0 <= rank < self.size:
            raise BadOption(f"there is no rank {rank} among {self.size}")
        keys: Words = self.keys[self.owners == rank]
        return keys

    def count(self, rank: int) -> int:
        """How many blocks a rank owns."""
        return int(np.count_nonzero(self.owners == rank))

    def checked_owners(self) -> Indices:
        """A copy of the owners; raises BadOption unless each block has a rank as its owner."""
        owners = np.asarray(self.owners)
        if owners.shape != self.places.levels.shape or owners.dtype.kind not in "iu":
            raise BadOption(
                f"owners: expected a rank for each of the {len(self.places):,} blocks, and found "
                f"{owners.dtype} of shape {owners.shape}"
            )
        strangers = owners[(owners < 0) | (owners >= self.size)]
        if len(strangers):
            raise BadOption(
                f"owners: {len(strangers):,} of {len(owners):,} blocks have an owner that is none "
                f"of the {self.size} ranks, the first of them {strangers[0]}"
            )
        return np.array(owners, np.int64, order="C")


def even_owners(total: int, size: int) -> Indices:
    """The owners of blocks in their order; the first ranks get one more, if some remain."""
    each, more = divmod(total, size)
    return np.repeat(np.arange(size), [each + (rank < more) for rank in range(size)])


def weighted_owners(weights: Any, size: int) -> Indices:
    """The owners of blocks in their order, so that all get about the same weight."""
    largest = weights.max(initial=0.0)
    if not largest:
        return even_owners(len(weights), size)
    # By a power of two, which changes no digit: the sum of numbers below 1 does not overflow.
    scaled = np.ldexp(weights, -np.frexp(largest)[1])
    middles = np.cumsum(scaled) - scaled / 2
    owners: Indices = np.minimum(middles / scaled.sum() * size, size - 1).astype(np.int64)
    return owners


def gather_places(tree: AMRTree, comm: Communicator) -> tuple[Places, Indices]:
    """Collective: the live blocks of all ranks, one rank after the other, and who has each."""
    frontend = tree.frontend
    facts = {name: getattr(tree, name) for name in ("base_spacing", "bits_per_dim", "max_level")}
    kind = {"tree": type(tree).__name__, "frontend": frontend.describe()}
    agree(comm, "the tree", kind | facts)
    parts = comm.all_gather(together(comm, lambda: tree.blocks[tree.live].tobytes()))

    def join() -> tuple[Places, Indices]:
        records: Any = np.frombuffer(b"".join(parts), tree.blocks.dtype)
        counts = [len(part) // tree.blocks.dtype.itemsize for part in parts]
        geometry = frontend, tree.base_spacing, tree.bits_per_dim
        places = Places(*geometry, records["origin"], records["level"])
        return places, np.repeat(np.arange(comm.size), counts)

    return together(comm, join)


def distinct(places: Places) -> tuple[Places, Indices]:
    """Each place once, sorted by key, and for each given one which of them it is."""
    order = places.order()
    numbers, levels = places.numbers[order], places.levels[order]
    new = np.ones(len(order), bool)
    new[1:] = (numbers[1:] != numbers[:-1]) | (levels[1:] != levels[:-1])
    which = np.full(len(order), NOWHERE, np.int64)
    which[order] = np.cumsum(new) - 1
    first = order[new]
    return places.like(places.origins[first], places.levels[first]), which


def _shared_out(tree: AMRTree, comm: Communicator, kind: str) -> tuple[Places, Indices]:
    agree(comm, "how blocks are shared out", str(kind))
    if kind not in KINDS:
        raise BadOption(f"kind={kind!r}: blocks are shared out as {' or '.join(KINDS)}")
    every, holders = gather_places(tree, comm)

    def share_out() -> tuple[Places, Indices]:
        if kind == "morton_contiguous":
            places, _ = distinct(every)
            return places, even_owners(len(places), comm.size)
        return manual_owners(every, holders, [f"rank {rank}" for rank in range(comm.size)])

    return together(comm, share_out)


def manual_owners(every: Places, holders: Indices, names: Sequence[str]) -> tuple[Places, Indices]:
    """Blocks sorted by key, each owned by its holder; raises RanksDisagree if it has two."""
    places, which = distinct(every)
    counts = np.bincount(which, minlength=len(places))
    if np.any(counts > 1):
        twice = int(np.flatnonzero(counts > 1)[0])
        found = " and ".join(names[holder] for holder in holders[which == twice].tolist())
        raise RanksDisagree(
            f"the block at {tuple(places.origins[twice].tolist())} of level "
            f"{places.levels[twice]} is held by {found}: only one may hold it; invalidate it in "
            "the others"
        )
    owners = np.zeros(len(places), np.int64)
    owners[which] = holders
    return places, owners
