"""Blocks are inserted, die, are refined, coarsened, reordered; a refusal changes nothing."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from standfast.amr import INVALID, AMRTree, FieldArena, OpenTopology, ScalarFrontend
from standfast.errors import (
    ArenaFull,
    BadBlock,
    BadOption,
    BlockAlreadyExists,
    BlockNotFound,
    GhostsInUse,
    MaxRefinementExceeded,
)
from tests.amr.tree_states import SCALAR, saved, worn


def new(bits: int = 4, max_level: int = 3, slots: int = 8) -> tuple[AMRTree, FieldArena]:
    return AMRTree(SCALAR, 0.5, bits, max_level), FieldArena(SCALAR, slots)


def origins(tree: AMRTree, indices: Any) -> list[tuple[int, ...]]:
    return [tuple(tree.blocks[i]["origin"].tolist()) for i in indices]


# Limits


@pytest.mark.parametrize("spacing", [0.0, -1.0, float("inf"), float("nan")])
def test_a_spacing_is_above_0(spacing: float) -> None:
    with pytest.raises(BadOption, match="base_spacing"):
        AMRTree(SCALAR, spacing, 4, 4)


@pytest.mark.parametrize(("bits", "level"), [(-1, 0), (0, -1), (65, 0), (2.0, 0), (True, 0)])
def test_bits_and_levels_are_small_whole_numbers(bits: Any, level: Any) -> None:
    with pytest.raises(BadOption, match="from 0 to 64"):
        AMRTree(SCALAR, 1.0, bits, level)


def test_bits_and_levels_fit_into_a_key() -> None:
    assert AMRTree(SCALAR, 1.0, 28, 4).max_level == 4
    with pytest.raises(BadOption, match="32 together"):
        AMRTree(SCALAR, 1.0, 28, 5)
    three = ScalarFrontend(3, 4, OpenTopology(3, (8.0,) * 3))
    with pytest.raises(BadOption, match="21 together"):
        AMRTree(three, 1.0, 20, 2)


def test_the_highest_level_may_be_set_later() -> None:
    tree, _ = new(max_level=0)
    tree.insert_block((0, 0), 0)
    with pytest.raises(MaxRefinementExceeded):
        tree.refine_block(0)
    tree.max_level = 1
    assert len(tree.refine_block(0)) == 4
    tree.max_level = 0
    assert tree.find((4, 4), 1) == 4
    with pytest.raises(BadOption, match="32 together"):
        tree.max_level = 29
    assert tree.max_level == 0


# Inserting


def test_many_blocks_can_be_inserted() -> None:
    tree, _ = new(bits=8)
    places = [(4 * x, 4 * y) for x in range(20) for y in range(20)]
    assert [tree.insert_block(place, 0) for place in places] == list(range(400))
    assert origins(tree, range(400)) == places
    assert [tree.find(place, 0) for place in places] == list(range(400))


BAD_PLACES: list[tuple[str, Any, Any]] = [
    ("too few numbers", (0,), 0),
    ("no whole numbers", (0.0, 0), 0),
    ("no level", (0, 0), None),
    ("negative", (-4, 0), 0),
    ("not a whole block", (2, 0), 0),
    ("too far out", (4 * 16, 0), 0),
    ("beyond 64 bits", (2**64, 0), 0),
    ("a level too high", (0, 0), 4),
    ("a negative level", (0, 0), -1),
]


@pytest.mark.parametrize(
    ("origin", "level"), [p[1:] for p in BAD_PLACES], ids=[p[0] for p in BAD_PLACES]
)
def test_no_block_is_inserted_at(origin: Any, level: Any) -> None:
    tree, arena = new()
    with pytest.raises(BadBlock):
        tree.insert_block(origin, level)
    with pytest.raises(BadBlock):
        tree.insert_block_with_field(origin, level, arena)
    assert len(tree) == 0
    assert arena.free_count == 8


def test_numpy_numbers_are_numbers() -> None:
    tree, _ = new()
    tree.insert_block(np.array([4, 8], np.uint64), np.int8(1))  # type: ignore[arg-type]
    assert tree.find((4, 8), 1) == tree.find(np.array([4, 8]), np.uint8(1)) == 0  # type: ignore[arg-type]


def test_a_far_place_is_not_found_under_the_key_of_a_near_one() -> None:
    tree, _ = new()
    tree.insert_block((4, 0), 0)
    assert tree.key((4 * 17, 0), 0) == tree.key((4, 0), 0)
    assert tree.find((4 * 17, 0), 0) is None
    assert tree.find((5, 0), 0) is None


# All or nothing


def _full() -> tuple[AMRTree, FieldArena]:
    tree, arena = worn()
    while arena.free_count:
        arena.alloc()
    return tree, arena


def _children(tree: AMRTree) -> list[int]:
    """Four siblings without fields."""
    return [tree.insert_block((8 + 4 * x, 16 + 4 * y), 2) for y in (0, 1) for x in (0, 1)]


REFUSALS: dict[str, tuple[Any, Callable[[AMRTree, FieldArena], Any]]] = {
    "insert what is there": (BlockAlreadyExists, lambda t, a: t.insert_block((0, 0), 0)),
    "insert with field what is there": (
        BlockAlreadyExists,
        lambda t, a: t.insert_block_with_field((0, 0), 0, a),
    ),
    "invalidate the dead": (BlockNotFound, lambda t, a: t.invalidate_block(1)),
    "invalidate none": (BlockNotFound, lambda t, a: t.invalidate_block(99)),
    "invalidate a negative index": (BlockNotFound, lambda t, a: t.invalidate_block(-1)),
    "refine the dead": (BlockNotFound, lambda t, a: t.refine_block(1)),
    "coarsen too few": (BadBlock, lambda t, a: t.coarsen_blocks([0], a)),
    "coarsen none": (BadBlock, lambda t, a: t.coarsen_blocks([], a)),
    "coarsen one four times": (BadBlock, lambda t, a: t.coarsen_blocks([0] * 4, a)),
    "coarsen the dead": (BlockNotFound, lambda t, a: t.coarsen_blocks([0, 1, 2, 3], a)),
}


@pytest.mark.parametrize("name", REFUSALS)
def test_what_is_refused_changes_nothing(name: str) -> None:
    tree, arena = worn()
    before = saved(tree, arena)
    error, action = REFUSALS[name]
    with pytest.raises(error):
        action(tree, arena)
    assert saved(tree, arena) == before


def test_a_full_arena_leaves_the_tree_as_it_was() -> None:
    tree, arena = _full()
    before = saved(tree, arena)
    with pytest.raises(ArenaFull):
        tree.insert_block_with_field((20, 20), 0, arena)
    assert saved(tree, arena) == before


def test_refining_is_refused_if_a_child_is_there() -> None:
    tree, arena = worn()
    tree.insert_block((4, 4), 1)
    before = saved(tree, arena)
    with pytest.raises(BlockAlreadyExists, match=r"at \(4, 4\) of level 1"):
        tree.refine_block(0)
    assert saved(tree, arena) == before


def test_refining_is_refused_if_a_child_would_lie_too_far_out() -> None:
    tree, arena = new(bits=1)
    tree.insert_block_with_field((4, 0), 0, arena)
    before = saved(tree, arena)
    with pytest.raises(BadBlock, match="give the tree more bits"):
        tree.refine_block(0)
    assert saved(tree, arena) == before


def test_coarsening_is_refused_if_only_some_have_fields() -> None:
    tree, arena = new()
    children = _children(tree)
    tree.field_slots[children[2]] = arena.alloc()
    before = saved(tree, arena)
    with pytest.raises(BadBlock, match="some of the blocks"):
        tree.coarsen_blocks(children, arena)
    assert saved(tree, arena) == before


def test_coarsening_is_refused_if_the_parent_is_there() -> None:
    tree, arena = new()
    children = _children(tree)
    tree.insert_block((4, 8), 1)
    before = saved(tree, arena)
    with pytest.raises(BlockAlreadyExists):
        tree.coarsen_blocks(children, arena)
    assert saved(tree, arena) == before


def test_coarsening_is_refused_if_there_is_no_slot_for_the_parent() -> None:
    tree, arena = new(slots=4)
    children = _children(tree)
    for child in children:
        tree.field_slots[child] = arena.alloc()
    before = saved(tree, arena)
    with pytest.raises(ArenaFull):
        tree.coarsen_blocks(children, arena)
    assert saved(tree, arena) == before


def test_neighbours_that_are_no_siblings_are_not_coarsened() -> None:
    tree, arena = new()
    shifted = [tree.insert_block((4 + 4 * x, 4 * y), 1) for y in (0, 1) for x in (0, 1)]
    with pytest.raises(BadBlock, match="children of one block"):
        tree.coarsen_blocks(shifted, arena)


def test_the_coarsest_blocks_are_not_coarsened() -> None:
    tree, arena = new()
    roots = [tree.insert_block((4 * x, 4 * y), 0) for y in (0, 1) for x in (0, 1)]
    with pytest.raises(BadBlock, match="children of one block"):
        tree.coarsen_blocks(roots, arena)


# Refining, coarsening, reordering


def test_coarsening_takes_a_slot_first_and_frees_those_of_the_children_in_order() -> None:
    tree, arena = new()
    children = _children(tree)
    for number, child in enumerate(children):
        tree.field_slots[child] = arena.alloc()
        arena.storage[number] = number
    parent = tree.coarsen_blocks([children[i] for i in (2, 0, 3, 1)], arena)
    assert origins(tree, [parent]) == [(4, 8)]
    assert (parent, tree.blocks[parent]["level"]) == (4, 1)
    assert tree.field_slots.tolist() == [INVALID] * 4 + [4]
    assert tree.live.tolist() == [4]
    quarters = [[0.0, 0.0, 1.0, 1.0]] * 2 + [[2.0, 2.0, 3.0, 3.0]] * 2
    assert arena.storage[4].reshape(4, 4).tolist() == quarters
    assert arena.free_slots.tolist() == [7, 6, 5, 0, 1, 2, 3, 0]
    assert arena.free_count == 7


def test_blocks_above_the_highest_level_can_be_coarsened() -> None:
    tree, arena = new()
    children = _children(tree)
    tree.max_level = 0
    parent = tree.coarsen_blocks(children, arena)
    assert tree.blocks[parent]["level"] == 1


# Inside apply


CHANGES: dict[str, Callable[[AMRTree, FieldArena], Any]] = {
    "insert": lambda t, a: t.insert_block((20, 20), 0),
    "insert with field": lambda t, a: t.insert_block_with_field((20, 20), 0, a),
    "invalidate": lambda t, a: t.invalidate_block(0),
    "refine": lambda t, a: t.refine_block(0),
    "coarsen": lambda t, a: t.coarsen_blocks([0, 0, 0, 0], a),
    "reorder": lambda t, a: t.reorder(),
    "save": saved,
    "apply again": lambda t, a: t.applying().__enter__(),
}


@pytest.mark.parametrize("name", CHANGES)
def test_inside_apply_nothing_is_saved_or_changed(name: str) -> None:
    tree, arena = worn()
    before = saved(tree, arena)
    with tree.applying(), pytest.raises(GhostsInUse, match="after `apply` has returned"):
        CHANGES[name](tree, arena)
    assert saved(tree, arena) == before
