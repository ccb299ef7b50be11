"""Slots are a stack, and its stale words are a part of the state."""

from __future__ import annotations

import time
from typing import Any

import numpy as np
import pytest

from standfast.amr import INVALID, AMRTree, FieldArena, OpenTopology, ScalarFrontend
from standfast.errors import ArenaFull, BadBlock, BadOption, GhostsInUse
from tests.amr.tree_states import SCALAR, U1, worn


def words(arena: FieldArena) -> tuple[list[int], int]:
    return arena.free_slots.tolist(), arena.free_count


def test_slots_come_out_in_order_and_are_zero() -> None:
    arena = FieldArena(SCALAR, 3)
    assert words(arena) == ([2, 1, 0], 3)
    assert not arena.storage.any()
    assert [arena.alloc() for _ in range(3)] == [0, 1, 2]
    assert words(arena) == ([2, 1, 0], 0)


def test_storage_has_a_place_for_each_slot_site_and_component() -> None:
    assert FieldArena(SCALAR, 3).storage.shape == (3, 16)
    assert FieldArena(U1, 3).storage.shape == (3, 16, 1)
    assert FieldArena(U1, 3).storage.dtype == np.complex128


def test_the_slot_that_was_freed_last_is_taken_first() -> None:
    arena = FieldArena(SCALAR, 4)
    for _ in range(4):
        arena.alloc()
    arena.free(1)
    arena.free(3)
    assert words(arena) == ([1, 3, 1, 0], 2)  # above the two lie stale words
    assert [arena.alloc(), arena.alloc()] == [3, 1]


def test_a_slot_keeps_what_lies_in_it() -> None:
    arena = FieldArena(SCALAR, 1)
    arena.storage[arena.alloc()] = 5.0
    arena.free(0)
    assert arena.storage[arena.alloc()].tolist() == [5.0] * 16


def test_a_full_arena_says_so_and_stays_as_it_is() -> None:
    arena = FieldArena(SCALAR, 1)
    arena.alloc()
    with pytest.raises(ArenaFull, match="all 1 slots"):
        arena.alloc()
    assert words(arena) == ([0], 0)


@pytest.mark.parametrize("slot", [-1, 3, INVALID])
def test_a_slot_that_is_none_cannot_be_freed(slot: int) -> None:
    arena = FieldArena(SCALAR, 3)
    with pytest.raises(BadBlock, match="there is no slot"):
        arena.free(slot)


def test_a_slot_is_freed_once() -> None:
    arena = FieldArena(SCALAR, 3)
    slot = arena.alloc()
    arena.free(slot)
    with pytest.raises(BadBlock, match="slot 0 is free already"):
        arena.free(slot)
    assert words(arena) == ([2, 1, 0], 3)


def is_free(arena: FieldArena, slot: int) -> bool:
    """Whether the arena says so; a slot that it took back is taken again."""
    try:
        arena.free(slot)
    except BadBlock:
        return True
    assert arena.alloc() == slot
    return False


@pytest.mark.parametrize("seed", range(4))
def test_which_slots_are_free_is_known_whatever_was_done(seed: int) -> None:
    rng = np.random.default_rng(seed)
    arena = FieldArena(SCALAR, 6)
    tree = AMRTree(SCALAR, 1.0, 4, 1)
    for _ in range(150):
        free = arena.free_slots[: arena.free_count].tolist()
        taken = sorted(set(range(arena.max_blocks)) - set(free))
        match int(rng.integers(8)):
            case 0 | 1 if free:
                arena.alloc()
            case 2 | 3 if taken:
                arena.free(int(rng.choice(taken)))
            case 4 if arena.max_blocks < 24:
                arena.grow(arena.max_blocks + 1)
            case 5:
                arena.defragment(tree)
            case 6:  # as a program may do it by hand
                arena.free_slots = rng.permutation(arena.max_blocks).astype(np.uint64)
                arena.free_count = int(rng.integers(arena.max_blocks + 1))
            case 7:
                copies = arena.storage.copy(), arena.free_slots.copy()
                arena = FieldArena.restored(SCALAR, *copies, arena.free_count)
        free = arena.free_slots[: arena.free_count].tolist()
        for slot in range(arena.max_blocks):
            assert is_free(arena, slot) == (slot in free)


def test_words_that_count_again_are_looked_at_again() -> None:
    arena = FieldArena(SCALAR, 3)
    arena.free_count = 0
    arena.free(1)
    assert words(arena) == ([1, 1, 0], 1)
    arena.free_slots[:] = 0, 2, 1
    arena.free_count = 2
    with pytest.raises(BadBlock, match="slot 2 is free already"):
        arena.free(2)
    arena.free(1)
    assert words(arena) == ([0, 2, 1], 3)


def test_a_slot_is_freed_without_a_look_at_all_others() -> None:
    arena = FieldArena(ScalarFrontend(1, 4, OpenTopology(1, (4.0,)), np.uint8), 1 << 20)
    slots = [arena.alloc() for _ in range(4000)]
    start = time.process_time()
    for slot in slots:
        arena.free(slot)
    assert time.process_time() - start < 0.5  # it is 10 ms; with a look at each it is seconds


def test_growing_doubles_and_the_lowest_new_slot_is_next() -> None:
    arena = FieldArena(SCALAR, 2)
    arena.storage[arena.alloc()] = 7.0
    arena.grow()
    assert words(arena) == ([1, 3, 2, 0], 3)
    assert arena.storage[0].tolist() == [7.0] * 16
    assert not arena.storage[1:].any()
    assert arena.alloc() == 2


def test_growing_to_a_size_zeroes_the_stale_words() -> None:
    arena = FieldArena(SCALAR, 3)
    for _ in range(3):
        arena.alloc()
    arena.grow(5)
    assert words(arena) == ([4, 3, 0, 0, 0], 2)


def test_growing_to_the_same_size_changes_nothing() -> None:
    arena = FieldArena(SCALAR, 3)
    arena.alloc()
    storage = arena.storage
    arena.grow(3)
    assert words(arena) == ([2, 1, 0], 2)
    assert arena.storage is storage


def test_an_empty_arena_can_grow() -> None:
    arena = FieldArena(SCALAR, 0)
    arena.grow()
    assert words(arena) == ([0], 1)


def test_an_arena_does_not_shrink() -> None:
    with pytest.raises(BadOption, match="does not shrink"):
        FieldArena(SCALAR, 3).grow(2)


@pytest.mark.parametrize("count", [-1, 2.0, "3", True, 2**60])
def test_a_number_of_slots_is_a_whole_one(count: Any) -> None:
    with pytest.raises(BadOption, match="max_blocks"):
        FieldArena(SCALAR, count)


def test_defragmenting_gives_block_i_slot_i() -> None:
    tree, arena = worn()
    fields = [arena.storage[tree.field_slots[i]].tobytes() for i in tree.live]
    tree.reorder()
    order = tree.field_slots.tolist()
    by_block = [arena.storage[slot].tobytes() for slot in order]
    assert sorted(by_block) == sorted(fields)
    arena.defragment(tree)
    assert tree.field_slots.tolist() == list(range(len(tree)))
    assert [arena.storage[i].tobytes() for i in range(len(tree))] == by_block
    assert not arena.storage[len(tree) :].any()
    free = list(range(len(tree), 15))[::-1]
    assert words(arena) == (free + [0] * len(tree), len(free))


def test_defragmenting_without_a_reorder_takes_the_slots_of_dead_blocks() -> None:
    tree, arena = AMRTree(SCALAR, 1.0, 4, 2), FieldArena(SCALAR, 4)
    for x in range(3):
        tree.insert_block_with_field((4 * x, 0), 0, arena)
    tree.invalidate_block(1)
    arena.defragment(tree)
    assert tree.field_slots.tolist() == [0, INVALID, 2]
    assert words(arena) == ([3, 1, 0, 0], 2)


def test_blocks_without_fields_get_none_by_defragmenting() -> None:
    tree, arena = AMRTree(SCALAR, 1.0, 4, 2), FieldArena(SCALAR, 4)
    tree.insert_block((0, 0), 0)
    tree.insert_block_with_field((4, 0), 0, arena)
    arena.storage[0] = 3.0
    arena.defragment(tree)
    assert tree.field_slots.tolist() == [INVALID, 1]
    assert arena.storage[:, 0].tolist() == [0.0, 3.0, 0.0, 0.0]


def test_a_list_longer_than_the_arena_cannot_be_defragmented() -> None:
    tree, arena = AMRTree(SCALAR, 1.0, 4, 2), FieldArena(SCALAR, 1)
    tree.insert_block((0, 0), 0)
    tree.insert_block_with_field((4, 0), 0, arena)
    with pytest.raises(ArenaFull, match="reorder the tree first"):
        arena.defragment(tree)
    assert tree.field_slots.tolist() == [INVALID, 0]


def test_inside_apply_fields_are_not_moved() -> None:
    tree, arena = worn()
    with tree.applying(), pytest.raises(GhostsInUse):
        arena.defragment(tree)
