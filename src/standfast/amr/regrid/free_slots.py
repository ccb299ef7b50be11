"""The free slots of an arena in plain numbers: what will become of them can be tried out first."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from standfast.amr.mesh.arena import FieldArena


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
