"""Slots are a stack, and its stale words are a part of the state."""

import numpy as np
import pytest

from standfast.amr import INVALID, AMRTree, FieldArena
from standfast.errors import ArenaFull, BadBlock, BadOption
from tests.amr.tree_states import SCALAR


def words(arena: FieldArena) -> tuple[list[int], int]:
    return arena.free_slots.tolist(), arena.free_count


def test_a_full_arena_says_so_and_stays_as_it_is():
    arena = FieldArena(SCALAR, 1)
    arena.alloc()
    with pytest.raises(ArenaFull):
        arena.alloc()
    assert words(arena) == ([0], 0)


@pytest.mark.parametrize("slot", [-1, 3, INVALID])
def test_a_slot_that_is_none_cannot_be_freed(slot):
    arena = FieldArena(SCALAR, 3)
    with pytest.raises(BadBlock):
        arena.free(slot)


@pytest.mark.parametrize("seed", range(4))
def test_which_slots_are_free_is_known_whatever_was_done(seed):
    rng = np.random.default_rng(seed)
    arena, tree = FieldArena(SCALAR, 6), AMRTree(SCALAR, 1.0, 4, 1)
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
            if slot in free:
                with pytest.raises(BadBlock):
                    arena.free(slot)
            else:
                arena.free(slot)
                assert arena.alloc() == slot


def test_growing_doubles_and_the_lowest_new_slot_is_next():
    arena = FieldArena(SCALAR, 2)
    arena.storage[arena.alloc()] = 7.0
    arena.grow()
    assert words(arena) == ([1, 3, 2, 0], 3)
    assert arena.storage[0].tolist() == [7.0] * 16
    assert not arena.storage[1:].any()
    assert arena.alloc() == 2
    with pytest.raises(BadOption):
        arena.grow(3)
    empty = FieldArena(SCALAR, 0)
    empty.grow()
    assert words(empty) == ([0], 1)


@pytest.mark.parametrize("count", [-1, 2.0, "3", True, 2**60])
def test_a_number_of_slots_is_a_whole_one(count):
    with pytest.raises(BadOption, match="max_blocks"):
        FieldArena(SCALAR, count)
