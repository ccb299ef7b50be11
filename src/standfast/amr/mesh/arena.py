"""The memory that fields lie in: slots of one block each, and a stack of those that are free."""

from __future__ import annotations

import operator
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from standfast.amr.mesh.frontends import Frontend, check_savable
from standfast.amr.mesh.morton import Words
from standfast.errors import ArenaFull, BadBlock, BadOption
from standfast.formats.sunc.header import MAX_BYTES

if TYPE_CHECKING:
    from standfast.amr.mesh.tree import AMRTree

Array = np.ndarray[Any, Any]

INVALID: Final = (1 << 64) - 1
"""Stands where there is no slot, or no block."""


class FieldArena:
    """`max_blocks` slots for the fields of blocks, all of them zero at first.

    >>> arena = FieldArena(frontend, 64)
    >>> arena.storage[arena.alloc()] = 1.0
    """

    def __init__(self, frontend: Frontend, max_blocks: int) -> None:
        check_savable(frontend)
        slots = _slots(max_blocks, frontend)
        self.frontend: Final = frontend
        self.storage: Array = np.zeros(
            (slots, frontend.block_volume, *frontend.field_shape), frontend.dtype
        )
        """The fields, [slot, site, component]: a field of one number has no such axis."""
        self.free_slots: Words = np.arange(slots, dtype=np.uint64)[::-1].copy()
        """A stack; what lies above `free_count` is stale, and a part of the state."""
        self.free_count = slots
        self._stack: Words | None = None
        """The array that `_positions` tells of, up to the word `_known`."""
        self._positions = np.zeros(0, np.int64)
        """[slot]: where it lies in the stack, if it is free."""
        self._known = 0

    @classmethod
    def restored(
        cls, frontend: Frontend, storage: Array, free_slots: Words, free_count: int
    ) -> FieldArena:
        """An arena of saved sections, which were checked before; both become its own."""
        arena = cls(frontend, 0)
        arena.storage = storage.reshape(
            len(free_slots), frontend.block_volume, *frontend.field_shape
        )
        arena.free_slots, arena.free_count = free_slots, free_count
        return arena

    @property
    def max_blocks(self) -> int:
        """How many slots there are."""
        return len(self.free_slots)

    def __repr__(self) -> str:
        return f"<FieldArena of {self.max_blocks:,} slots, {self.free_count:,} of them free>"

    def alloc(self) -> int:
        """Take the slot that was freed last; raises ArenaFull. Its field is as it was left."""
        if not self.free_count:
            raise ArenaFull(
                f"all {self.max_blocks:,} slots of the arena are taken: free some, or call grow()"
            )
        self.free_count -= 1
        return int(self.free_slots[self.free_count])

    def free(self, slot: int) -> None:
        """Give a slot back; raises BadBlock if it is none, or free already."""
        slot = operator.index(slot)
        self.check_taken(slot)
        self.free_slots[self.free_count] = slot
        self._positions[slot] = self.free_count
        self.free_count = self._known = self.free_count + 1

    def check_taken(self, slot: int) -> None:
        """Raise BadBlock for a slot that is none, or free."""
        if not 0 <= slot < self.max_blocks:
            raise BadBlock(f"there is no slot {slot} among the {self.max_blocks:,} of the arena")
        if self._stack is not self.free_slots or self._known < self.free_count:
            self._look_again()
        position = self._positions[slot]
        # Where it was pushed last. Whatever has been taken since, a look at the stack decides.
        if position < self.free_count and self.free_slots[position] == slot:
            raise BadBlock(f"slot {slot} is free already")

    def check_slots(self, tree: AMRTree) -> None:
        """Raise BadBlock for a slot of two live blocks, or of a block though it is free."""
        slots = tree.field_slots[tree.live]
        used = np.concatenate((slots[slots != INVALID], self.free_slots[: self.free_count]))
        counted = np.minimum(used, self.max_blocks).astype(np.int64)
        wrong = (np.bincount(counted)[counted] > 1) | (used >= self.max_blocks)
        for slot in used[wrong][:1].tolist():
            raise BadBlock(
                f"slot {slot} belongs to two live blocks, or is free although a live block uses "
                f"it, or is not one of the {self.max_blocks:,} of the arena: each block with a "
                "field has a slot of its own"
            )

    def grow(self, max_blocks: int | None = None) -> None:
        """Have more slots, twice as many unless told; those there are keep their fields.

        `storage` is another array then. The lowest of the new slots is the next to be taken.
        """
        before = self.max_blocks
        after = _slots(max(1, 2 * before) if max_blocks is None else max_blocks, self.frontend)
        if after < before:
            raise BadOption(f"max_blocks={after:,}: an arena of {before:,} slots does not shrink")
        if after == before:
            return
        storage = self.storage_of(after)
        free_slots = np.zeros(after, np.uint64)
        free_slots[: self.free_count] = self.free_slots[: self.free_count]
        added = np.arange(before, after, dtype=np.uint64)[::-1]
        free_slots[self.free_count : self.free_count + len(added)] = added
        self.adopt(storage, free_slots, self.free_count + len(added))

    def storage_of(self, max_blocks: int) -> Array:
        """`storage` if it has so many slots, or a copy with more; raises ArenaFull."""
        slots = _slots(max_blocks, self.frontend)
        if slots == self.max_blocks:
            return self.storage
        try:
            storage = np.zeros((slots, *self.storage.shape[1:]), self.storage.dtype)
        except MemoryError as error:
            raise ArenaFull(
                f"there is no memory for an arena of {slots:,} slots instead of "
                f"{self.max_blocks:,}: {error}; nothing was changed"
            ) from error
        storage[: self.max_blocks] = self.storage
        return storage

    def adopt(self, storage: Array, free_slots: Words, free_count: int) -> None:
        """Take what `storage_of` gave, with the stack that belongs to it."""
        self.storage, self.free_slots, self.free_count = storage, free_slots, free_count

    def defragment(self, tree: AMRTree) -> None:
        """Move fields so that slot i is that of block i, and no dead block names one.

        After `tree.reorder()` this lets neighbours in space be neighbours in memory. All other
        slots are free and zero, the lowest on top.
        """
        tree.check_idle()
        self.check_slots(tree)
        slots = tree.field_slots
        if len(slots) > self.max_blocks:
            raise ArenaFull(
                f"{len(slots):,} blocks do not fit into {self.max_blocks:,} slots: reorder the "
                "tree first, or call grow()"
            )
        has_field = np.zeros(len(slots), bool)
        has_field[tree.live] = slots[tree.live] != INVALID
        taken = np.flatnonzero(has_field)
        fields = self.storage[slots[taken]]
        rest = np.ones(self.max_blocks, bool)
        rest[taken] = False
        free = np.flatnonzero(rest)[::-1]
        self.storage[:] = 0
        self.storage[taken] = fields
        slots[~has_field] = INVALID
        slots[taken] = taken
        self.free_slots[:] = 0
        self.free_slots[: len(free)] = free
        self.free_count = len(free)
        self._stack = None  # that it is the same array does not say that it is the same stack

    def _look_again(self) -> None:
        """Note where each free slot lies in the stack, which is another one than it was."""
        free = self.free_slots[: self.free_count].astype(np.int64)
        self._positions = np.zeros(self.max_blocks, np.int64)
        self._positions[free] = np.arange(len(free))
        self._stack, self._known = self.free_slots, self.free_count


def _slots(value: Any, frontend: Frontend) -> int:
    try:
        slots = operator.index(value)
    except TypeError:
        slots = -1
    most = MAX_BYTES // (frontend.block_volume * frontend.field_bytes)
    if isinstance(value, bool) or not 0 <= slots <= most:
        raise BadOption(f"max_blocks={value!r}: it is a number of slots from 0 to {most:,}")
    return slots
