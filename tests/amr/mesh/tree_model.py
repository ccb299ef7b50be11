"""A tree and its arena as plain lists: what the operations do, written down once more.

It is slow and knows nothing of NumPy; fields and links are lists of numbers.
"""

import itertools
from dataclasses import dataclass, field
from typing import Any

INVALID = 2**64 - 1
SIZE = 4


@dataclass
class Block:
    origin: tuple[int, ...]
    level: int
    slot: int
    links: list[complex]
    alive: bool = True


@dataclass
class Model:
    nd: int
    bits: int
    max_level: int
    slots: int
    blocks: list[Block] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.volume = SIZE**self.nd
        self.storage: list[list[complex]] = [[0j] * self.volume for _ in range(self.slots)]
        self.free_words = list(range(self.slots))[::-1]
        self.free_count = self.slots

    # The arena

    def take(self) -> int:
        self.free_count -= 1
        return self.free_words[self.free_count]

    def give_back(self, slot: int) -> None:
        self.free_words[self.free_count] = slot
        self.free_count += 1

    def grow(self, slots: int) -> None:
        added = list(range(self.slots, slots))[::-1]
        if added:
            kept = self.free_words[: self.free_count] + added
            self.free_words = kept + [0] * (slots - len(kept))
            self.free_count = len(kept)
            self.storage += [[0j] * self.volume for _ in added]
            self.slots = slots

    def defragment(self) -> None:
        fields = {
            i: self.storage[block.slot]
            for i, block in enumerate(self.blocks)
            if block.alive and block.slot != INVALID
        }
        self.storage = [fields.get(i, [0j] * self.volume) for i in range(self.slots)]
        for i, block in enumerate(self.blocks):
            block.slot = i if i in fields else INVALID
        free = [i for i in range(self.slots) if i not in fields][::-1]
        self.free_words = free + [0] * (self.slots - len(free))
        self.free_count = len(free)

    # The tree

    def live(self) -> list[int]:
        return [i for i, block in enumerate(self.blocks) if block.alive]

    def find(self, origin: tuple[int, ...], level: int) -> int | None:
        places = [(i, self.blocks[i]) for i in self.live()]
        found = [i for i, block in places if (block.origin, block.level) == (origin, level)]
        return found[0] if found else None

    def fits(self, origin: tuple[int, ...]) -> bool:
        return all(value // SIZE < 2**self.bits for value in origin)

    def append(self, origin: tuple[int, ...], level: int, slot: int = INVALID) -> int:
        links = [1 + 0j] * (self.volume * self.nd)
        self.blocks.append(Block(origin, level, slot, links))
        return len(self.blocks) - 1

    def children(self, index: int) -> list[tuple[int, ...]]:
        parent = self.blocks[index].origin
        halves = itertools.product((0, SIZE), repeat=self.nd)  # the last of them runs fastest
        return [
            tuple(2 * a + half for a, half in zip(parent, reversed(each), strict=True))
            for each in halves
        ]

    def refine(self, index: int) -> None:
        level = self.blocks[index].level + 1
        origins = self.children(index)
        self.blocks[index].alive = False
        for origin in origins:
            self.append(origin, level)

    def siblings(self, index: int) -> list[int] | None:
        """All children of the parent of a block, if they are there."""
        block = self.blocks[index]
        if not block.level:
            return None
        parent = tuple(value // (2 * SIZE) * SIZE for value in block.origin)
        halves = itertools.product((0, SIZE), repeat=self.nd)
        origins = [
            tuple(2 * a + half for a, half in zip(parent, reversed(each), strict=True))
            for each in halves
        ]
        found = [self.find(origin, block.level) for origin in origins]
        return None if None in found else [i for i in found if i is not None]

    def coarsen(self, children: list[int]) -> None:
        first = self.blocks[children[0]]
        origin = tuple(value // 2 for value in first.origin)
        has_field = first.slot != INVALID
        slot = self.take() if has_field else INVALID
        self.append(origin, first.level - 1, slot)
        if has_field:
            fine = [self.storage[self.blocks[i].slot] for i in children]
            self.storage[slot] = [self._mean(place, fine) for place in self._sites()]
        for i in children:
            if has_field:
                self.give_back(self.blocks[i].slot)
                self.blocks[i].slot = INVALID
            self.blocks[i].alive = False

    def _sites(self) -> list[tuple[int, ...]]:
        return [each[::-1] for each in itertools.product(range(SIZE), repeat=self.nd)]

    def _mean(self, place: tuple[int, ...], fine: list[list[complex]]) -> complex:
        total = 0j
        for step in itertools.product((0, 1), repeat=self.nd):
            at = [2 * a + b for a, b in zip(place, step, strict=True)]
            child = sum((a // SIZE) * 2**d for d, a in enumerate(at))
            total += fine[child][sum((a % SIZE) * SIZE**d for d, a in enumerate(at))]
        return total / 2**self.nd

    def reorder(self) -> list[int]:
        order = sorted(self.live(), key=lambda i: (*self._key(i), i))
        moved = [order.index(i) if i in order else INVALID for i in range(len(self.blocks))]
        self.blocks = [self.blocks[i] for i in order]
        return moved

    def _key(self, index: int) -> tuple[int, int]:
        """The digits of the coordinates dealt like cards, the last dimension's on top."""
        block = self.blocks[index]
        width = self.bits + block.level
        digits = [format(a // SIZE << block.level, f"0{width}b") for a in block.origin]
        dealt = "".join(each[i] for i in range(width) for each in reversed(digits))
        return int(dealt, 2), block.level

    # What can be compared

    def state(self, base_spacing: float) -> dict[str, Any]:
        return {
            "blocks": [
                (list(b.origin), base_spacing / 2**b.level, i if b.alive else INVALID, b.level)
                for i, b in enumerate(self.blocks)
            ],
            "field_slots": [block.slot for block in self.blocks],
            "links": [block.links for block in self.blocks],
            "storage": self.storage,
            "free_slots": self.free_words,
            "free_count": self.free_count,
            "max_level": self.max_level,
        }
