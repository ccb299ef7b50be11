"""The free slots of an arena in plain numbers: what will become of them can be tried out first."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from holdfast.errors import BadBlock

if TYPE_CHECKING:
    from holdfast.amr.arena import FieldArena


class FreeSlots:
    """A copy of an arena's stack, with its stale words; one by one it is faster than an array."""

    def __init__(self, arena: FieldArena) -> None:
        self.words: list[int] = arena.free_slots.tolist()
        self.count = arena.free_count
        free = np.zeros(arena.max_blocks, bool)
        free[arena.free_slots[: self.count]] = True
        self._is_free = bytearray(free)

    def take(self) -> int:
        """The slot that was freed last; if there is none, there are twice as many then."""
        if not self.count:
            self.grow()
        self.count -= 1
        slot = self.words[self.count]
        self._is_free[slot] = False
        return slot

    def give_back(self, slot: int) -> None:
        """Let a slot be the next one; raises BadBlock if it is none, or free already."""
        if not slot < len(self.words) or self._is_free[slot]:
            raise BadBlock(
                f"slot {slot} of a block is free, or none of the {len(self.words):,} of the arena: "
                "a block that has a field has a slot of its own"
            )
        self.words[self.count] = slot
        self._is_free[slot] = True
        self.count += 1

    def grow(self) -> None:
        """Have twice as many, as `FieldArena.grow`."""
        before, after = len(self.words), max(1, 2 * len(self.words))
        kept = self.words[: self.count] + list(range(after - 1, before - 1, -1))
        self.words = kept + [0] * (after - len(kept))
        self.count = len(kept)
        self._is_free += bytes([True]) * (after - before)
