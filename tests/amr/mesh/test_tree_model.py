"""Trees driven at random, against plain lists, and saved and loaded on the way."""

import itertools
from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from standfast import errors
from standfast.amr import INVALID, FieldArena, GaugeFrontend, GaugeTree, PeriodicTopology
from tests.amr.tree_states import loaded, saved

SPACING = 0.75
picks = st.integers(0, 2**16)
numbers = st.builds(complex, st.integers(-99, 99), st.integers(-99, 99))


class TreeMachine(RuleBasedStateMachine):
    """All operations in any order; what is refused must change nothing."""

    nd = 2

    def __init__(self) -> None:
        super().__init__()
        self.frontend = GaugeFrontend(1, 1, self.nd, 4, PeriodicTopology(self.nd, (8.0,) * self.nd))
        self.tree: Any = GaugeTree(self.frontend, SPACING, 3, 2)
        self.arena: Any = FieldArena(self.frontend, 3)
        self.model = Model(self.nd, bits=3, max_level=2, slots=3)

    def any_block(self, pick: int) -> int:
        return pick % len(self.model.blocks)

    def live_block(self, pick: int) -> int:
        live = self.model.live()
        return live[pick % len(live)]

    def has_blocks(self) -> bool:
        return bool(self.model.blocks)

    def has_live(self) -> bool:
        return bool(self.model.live())

    @rule(place=st.lists(st.integers(0, 3), min_size=3, max_size=3), level=st.integers(0, 3))
    def insert(self, place: list[int], level: int) -> None:
        origin = tuple(4 * value for value in place[: self.nd])
        if self.model.find(origin, level) is not None:
            with pytest.raises(errors.BlockAlreadyExists):
                self.tree.insert_block(origin, level)
        elif level > self.model.max_level:
            with pytest.raises(errors.BadBlock):
                self.tree.insert_block(origin, level)
        else:
            assert self.tree.insert_block(origin, level) == self.model.append(origin, level)

    @rule(place=st.lists(st.integers(0, 3), min_size=3, max_size=3), value=numbers)
    def insert_with_field(self, place: list[int], value: complex) -> None:
        origin = tuple(4 * each for each in place[: self.nd])
        if self.model.find(origin, 0) is not None:
            with pytest.raises(errors.BlockAlreadyExists):
                self.tree.insert_block_with_field(origin, 0, self.arena)
        elif not self.model.free_count:
            with pytest.raises(errors.ArenaFull):
                self.tree.insert_block_with_field(origin, 0, self.arena)
        else:
            index = self.tree.insert_block_with_field(origin, 0, self.arena)
            assert index == self.model.append(origin, 0, self.model.take())
            self.fill(int(self.tree.field_slots[index]), value)

    def fill(self, slot: int, value: complex) -> None:
        self.model.storage[slot] = [value + site for site in range(self.model.volume)]
        self.arena.storage[slot, :, 0] = self.model.storage[slot]

    @precondition(has_live)
    @rule(pick=picks, value=numbers)
    def give_a_field(self, pick: int, value: complex) -> None:
        index = self.live_block(pick)
        if self.model.blocks[index].slot == INVALID and self.model.free_count:
            self.tree.field_slots[index] = self.arena.alloc()
            self.model.blocks[index].slot = self.model.take()
            self.fill(self.model.blocks[index].slot, value)

    @precondition(has_blocks)
    @rule(pick=picks, value=numbers)
    def set_links(self, pick: int, value: complex) -> None:
        index = self.any_block(pick)
        links = [value + 1j * link for link in range(self.frontend.links_per_block)]
        self.tree.links[index, :, 0, 0] = self.model.blocks[index].links = links

    @precondition(has_blocks)
    @rule(pick=picks)
    def invalidate(self, pick: int) -> None:
        index = self.any_block(pick)
        if self.model.blocks[index].alive:
            self.tree.invalidate_block(index)
            self.model.blocks[index].alive = False
        else:
            with pytest.raises(errors.BlockNotFound):
                self.tree.invalidate_block(index)

    @rule(pick=picks)
    def free_a_slot_that_no_live_block_has(self, pick: int) -> None:
        model = self.model
        free = model.free_words[: model.free_count]
        used = [model.blocks[i].slot for i in model.live()]
        idle = [slot for slot in range(model.slots) if slot not in free and slot not in used]
        if idle:
            self.arena.free(idle[pick % len(idle)])
            model.give_back(idle[pick % len(idle)])
        elif free:
            with pytest.raises(errors.BadBlock):
                self.arena.free(free[pick % len(free)])

    @rule(value=numbers)
    def use_a_slot_for_a_while(self, value: complex) -> None:
        if self.model.free_count:
            slot = self.arena.alloc()
            assert slot == self.model.take()
            self.fill(slot, value)
            self.arena.free(slot)
            self.model.give_back(slot)

    @precondition(has_live)
    @rule(pick=picks)
    def refine(self, pick: int) -> None:
        index = self.live_block(pick)
        model, level = self.model, self.model.blocks[index].level + 1
        children = model.children(index)
        if level > model.max_level:
            with pytest.raises(errors.MaxRefinementExceeded):
                self.tree.refine_block(index)
        elif not all(model.fits(origin) for origin in children):
            with pytest.raises((errors.BadBlock, errors.BlockAlreadyExists)):
                self.tree.refine_block(index)
        elif any(model.find(origin, level) is not None for origin in children):
            with pytest.raises(errors.BlockAlreadyExists):
                self.tree.refine_block(index)
        else:
            self.tree.refine_block(index)
            model.refine(index)

    @precondition(has_live)
    @rule(pick=picks, shuffle=st.randoms(use_true_random=False))
    def coarsen(self, pick: int, shuffle: Any) -> None:
        index = self.live_block(pick)
        children = self.model.siblings(index)
        if children is None:
            with pytest.raises(errors.BadBlock):
                self.tree.coarsen_blocks([index], self.arena)
            return
        given = shuffle.sample(children, len(children))
        first = self.model.blocks[children[0]]
        parent = tuple(value // 2 for value in first.origin)
        fields = {self.model.blocks[i].slot != INVALID for i in children}
        if self.model.find(parent, first.level - 1) is not None:
            with pytest.raises(errors.BlockAlreadyExists):
                self.tree.coarsen_blocks(given, self.arena)
        elif len(fields) == 2:
            with pytest.raises(errors.BadBlock):
                self.tree.coarsen_blocks(given, self.arena)
        elif fields == {True} and not self.model.free_count:
            with pytest.raises(errors.ArenaFull):
                self.tree.coarsen_blocks(given, self.arena)
        else:
            self.tree.coarsen_blocks(given, self.arena)
            self.model.coarsen(children)

    @rule()
    def reorder(self) -> None:
        assert self.tree.reorder().tolist() == self.model.reorder()

    @rule()
    def defragment(self) -> None:
        if len(self.model.blocks) > self.model.slots:
            with pytest.raises(errors.ArenaFull):
                self.arena.defragment(self.tree)
        else:
            self.arena.defragment(self.tree)
            self.model.defragment()

    @precondition(lambda self: self.model.slots < 24)
    @rule(added=st.integers(0, 3))
    def grow(self, added: int) -> None:
        self.arena.grow(self.model.slots + added)
        self.model.grow(self.model.slots + added)

    @rule(level=st.integers(0, 3))
    def set_the_highest_level(self, level: int) -> None:
        self.tree.max_level = self.model.max_level = level

    @rule()
    def restart(self) -> None:
        data = saved(self.tree, self.arena)
        state = loaded(data, self.tree)
        assert saved(state.tree, state.arena) == data
        self.tree, self.arena = state.tree, state.arena

    @invariant()
    def the_state_is_that_of_the_model(self) -> None:
        tree, arena = self.tree, self.arena
        assert not tree.blocks["padding"].any()
        names = ["origin", "spacing", "block_index", "level"]
        found = {
            "blocks": [(o.tolist(), *rest) for o, *rest in tree.blocks[names].tolist()],
            "field_slots": tree.field_slots.tolist(),
            "links": tree.links[:, :, 0, 0].tolist(),
            "storage": arena.storage[:, :, 0].tolist(),
            "free_slots": arena.free_slots.tolist(),
            "free_count": arena.free_count,
            "max_level": tree.max_level,
        }
        assert found == self.model.state(SPACING)
        for index in self.model.live():
            block = self.model.blocks[index]
            assert tree.find(block.origin, block.level) == index


class LineMachine(TreeMachine):
    """In one dimension blocks have few siblings, and trees become deep."""

    nd = 1


# Derandomized, so that a run of the tests tells of the code and not of the dice.
QUICK = settings(max_examples=50, stateful_step_count=40, deadline=None, derandomize=True)

TestTree = TreeMachine.TestCase
TestTree.settings = QUICK
TestLine = LineMachine.TestCase
TestLine.settings = QUICK


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
