"""Changes of many blocks: worked out first, and then made at once."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from standfast.amr.ghosts.places import NOWHERE, Indices, Places
from standfast.amr.mesh.arena import INVALID, FieldArena
from standfast.amr.mesh.gauge import GaugeTree
from standfast.amr.mesh.origins import check_origin
from standfast.amr.mesh.restriction import Field
from standfast.errors import BlockAlreadyExists

if TYPE_CHECKING:
    from standfast.amr.mesh.arena import FieldArena
    from standfast.amr.mesh.tree import AMRTree


class _Added(NamedTuple):
    """Blocks that were appended together."""

    first: int
    """The index of the first of them."""
    rows: Indices
    """[block]: the row of its field, or NOWHERE."""
    slots: Indices
    """[row]: the slot that the field will lie in."""
    fields: Field
    """[row, site, …]."""
    links: Any
    """[block, link, N, N]; None if they are identities."""


class Draft:
    """What a tree and its arena are going to be.

    Neither has changed until `commit`, which takes no memory that `prepare` did not take: whatever
    fails, fails before anything is changed.
    """

    def __init__(self, tree: AMRTree, arena: FieldArena) -> None:
        self.tree, self.arena = tree, arena
        arena.check_slots(tree)
        self.blocks = tree.drafted()
        self.free = FreeSlots(arena)
        self._added: list[_Added] = []
        self._storage = arena.storage
        self._words = arena.free_slots

    def find(self, places: Places) -> Indices:
        """The indices of the live blocks at these places; NOWHERE where there is none."""
        live = self.blocks.live
        records = self.blocks.records[live]
        rows = places.like(records["origin"], records["level"]).find_all(
            places.origins, places.levels
        )
        found = np.full(len(places), NOWHERE, np.int64)
        found[rows != NOWHERE] = live[rows[rows != NOWHERE]]
        return found

    def slots(self, indices: Indices) -> Any:
        """The slots of blocks, as lists of numbers; INVALID for one that has no field."""
        return self.blocks.slots[indices].tolist()

    def fields(self, indices: Indices) -> Field:
        """The fields of blocks, all of which have one, [block, site, …]."""
        storage = self.arena.storage
        fields = np.empty((len(indices), *storage.shape[1:]), storage.dtype)
        before = indices < len(self.tree)
        fields[before] = storage[self.tree.field_slots[indices[before]].astype(np.int64)]
        for added in self._added:
            last = added.first + len(added.rows)
            here = (indices >= added.first) & (indices < last)
            fields[here] = added.fields[added.rows[indices[here] - added.first]]
        return fields

    def kill(self, indices: Indices) -> None:
        """Let blocks die; they name no slots then, and it is the caller who gives those back."""
        self.blocks.kill_all(indices)
        self.blocks.slots[indices] = INVALID

    def append(
        self, origins: Indices, levels: Indices, slots: list[int], fields: Field, links: Any = None
    ) -> None:
        """Add blocks with their slots, or INVALID, and with a field for each that has a slot.

        Raises BadBlock where no block can begin, and BlockAlreadyExists where there is one.
        """
        self._refuse_misfits(origins)
        words = np.array(slots, np.uint64)
        has_field = words != INVALID
        rows = np.where(has_field, np.cumsum(has_field) - 1, NOWHERE)
        spacings = self.tree.base_spacing / 2.0**levels
        first, taken = self.blocks.append_all(origins, spacings, levels, words)
        if taken is not None:
            raise BlockAlreadyExists(
                f"the block at {tuple(origins[taken].tolist())} of level {levels[taken]} cannot "
                "be added, for a block with its key is in the tree"
            )
        self._added.append(_Added(first, rows, words[has_field].astype(np.int64), fields, links))

    def prepare(self) -> None:
        """Take all memory that `commit` needs; raises ArenaFull if there is none for slots."""
        self.tree.reserve(len(self.blocks) - len(self.tree))
        self._words = np.array(self.free.words, np.uint64)
        self._storage = self.arena.storage_of(len(self._words))

    def commit(self) -> None:
        """Change the tree and the arena."""
        self.tree.adopt(self.blocks)
        self.arena.adopt(self._storage, self._words, self.free.count)
        for added in self._added:
            self.arena.storage[added.slots] = added.fields
            if isinstance(self.tree, GaugeTree) and added.links is not None:
                self.tree.links[added.first : added.first + len(added.rows)] = added.links

    def _refuse_misfits(self, origins: Indices) -> None:
        size, bits = self.tree.frontend.block_size, self.tree.bits_per_dim
        misfits = np.any((origins % size != 0) | (origins // size >> bits != 0), axis=1)
        for origin in origins[misfits][:1].tolist():
            check_origin(tuple(origin), size, bits)


class FreeSlots:
    """A copy of an arena's stack, with its stale words; one by one it is faster than an array."""

    def __init__(self, arena: FieldArena) -> None:
        self.words: list[int] = arena.free_slots.tolist()
        self.count = arena.free_count

    def take(self) -> int:
        """The slot that was freed last; if there is none, there are twice as many then."""
        if not self.count:
            self.grow()
        self.count -= 1
        return self.words[self.count]

    def give_back(self, slot: int) -> None:
        """Let a slot that is taken be the next one."""
        self.words[self.count] = slot
        self.count += 1

    def grow(self) -> None:
        """Have twice as many, as `FieldArena.grow`."""
        before, after = len(self.words), max(1, 2 * len(self.words))
        kept = self.words[: self.count] + list(range(after - 1, before - 1, -1))
        self.words = kept + [0] * (after - len(kept))
        self.count = len(kept)
