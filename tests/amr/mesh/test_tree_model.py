"""Trees driven at random, against plain lists, and saved and loaded on the way."""

from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from standfast.amr import INVALID, FieldArena, GaugeFrontend, GaugeTree, PeriodicTopology
from standfast.errors import (
    ArenaFull,
    BadBlock,
    BlockAlreadyExists,
    BlockNotFound,
    MaxRefinementExceeded,
)
from tests.amr.mesh.tree_model import Model
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
            with pytest.raises(BlockAlreadyExists):
                self.tree.insert_block(origin, level)
        elif level > self.model.max_level:
            with pytest.raises(BadBlock):
                self.tree.insert_block(origin, level)
        else:
            assert self.tree.insert_block(origin, level) == self.model.append(origin, level)

    @rule(place=st.lists(st.integers(0, 3), min_size=3, max_size=3), value=numbers)
    def insert_with_field(self, place: list[int], value: complex) -> None:
        origin = tuple(4 * each for each in place[: self.nd])
        if self.model.find(origin, 0) is not None:
            with pytest.raises(BlockAlreadyExists):
                self.tree.insert_block_with_field(origin, 0, self.arena)
        elif not self.model.free_count:
            with pytest.raises(ArenaFull):
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
            with pytest.raises(BlockNotFound):
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
            with pytest.raises(BadBlock):
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
            with pytest.raises(MaxRefinementExceeded):
                self.tree.refine_block(index)
        elif not all(model.fits(origin) for origin in children):
            with pytest.raises((BadBlock, BlockAlreadyExists)):
                self.tree.refine_block(index)
        elif any(model.find(origin, level) is not None for origin in children):
            with pytest.raises(BlockAlreadyExists):
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
            with pytest.raises(BadBlock):
                self.tree.coarsen_blocks([index], self.arena)
            return
        given = shuffle.sample(children, len(children))
        first = self.model.blocks[children[0]]
        parent = tuple(value // 2 for value in first.origin)
        fields = {self.model.blocks[i].slot != INVALID for i in children}
        if self.model.find(parent, first.level - 1) is not None:
            with pytest.raises(BlockAlreadyExists):
                self.tree.coarsen_blocks(given, self.arena)
        elif len(fields) == 2:
            with pytest.raises(BadBlock):
                self.tree.coarsen_blocks(given, self.arena)
        elif fields == {True} and not self.model.free_count:
            with pytest.raises(ArenaFull):
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
            with pytest.raises(ArenaFull):
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
