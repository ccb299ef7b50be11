"""Blocks are inserted, die, are refined, coarsened, reordered, and get slots of the arena."""

import itertools
from collections.abc import Callable
from itertools import product
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from standfast import Store
from standfast.amr import INVALID, AMRTree, FieldArena, OpenTopology, ScalarFrontend, Snapshot
from standfast.amr.mesh.morton import key_of, keys_of, morton
from standfast.amr.mesh.restriction import inject, restrict
from standfast.errors import BadBlock, BadOption, BlockNotFound, GhostsInUse, MaxRefinementExceeded
from standfast.formats.sunc.file import block_dtype
from standfast.store.backends.memory import MemoryBackend
from tests.amr.tree_states import SCALAR, saved, worn


def new(bits: int = 4, max_level: int = 3, slots: int = 8) -> tuple[AMRTree, FieldArena]:
    return AMRTree(SCALAR, 0.5, bits, max_level), FieldArena(SCALAR, slots)


@pytest.mark.parametrize(
    ("spacing", "bits", "level", "told"),
    [
        *((0.0, 4, 4, "base_spacing"), (-1.0, 4, 4, "base_spacing")),
        *((float("inf"), 4, 4, "base_spacing"), (float("nan"), 4, 4, "base_spacing")),
        *((1.0, -1, 0, "64"), (1.0, 0, -1, "64"), (1.0, 65, 0, "64"), (1.0, 2.0, 0, "64")),
        *((1.0, True, 0, "64"), (1.0, 28, 5, "32")),
    ],
)
def test_a_tree_of_such_geometry_is_refused(spacing, bits, level, told):
    with pytest.raises(BadOption, match=told):
        AMRTree(SCALAR, spacing, bits, level)


def test_bits_and_levels_fit_into_a_key():
    assert AMRTree(SCALAR, 1.0, 28, 4).max_level == 4
    three = ScalarFrontend(3, 4, OpenTopology(3, (8.0,) * 3))
    with pytest.raises(BadOption, match="21"):
        AMRTree(three, 1.0, 20, 2)


def test_the_highest_level_may_be_set_later():
    tree, _ = new(max_level=0)
    tree.insert_block((0, 0), 0)
    with pytest.raises(MaxRefinementExceeded):
        tree.refine_block(0)
    tree.max_level = 1
    assert len(tree.refine_block(0)) == 4
    tree.max_level = 0
    assert tree.find((4, 4), 1) == 4
    with pytest.raises(BadOption):
        tree.max_level = 29
    assert tree.max_level == 0


@pytest.mark.parametrize(
    ("origin", "level"),
    [
        *(((0,), 0), ((0.0, 0), 0), ((0, 0), None), ((-4, 0), 0), ((2, 0), 0), ((4 * 16, 0), 0)),
        *(((2**64, 0), 0), ((0, 0), 4), ((0, 0), -1)),
    ],
)
def test_no_block_is_inserted_at(origin, level):
    tree, arena = new()
    with pytest.raises(BadBlock):
        tree.insert_block(origin, level)
    with pytest.raises(BadBlock):
        tree.insert_block_with_field(origin, level, arena)
    assert (len(tree), arena.free_count) == (0, 8)


def test_a_far_place_is_not_found_under_the_key_of_a_near_one():
    tree, _ = new()
    tree.insert_block(np.array([4, 0], np.uint64), np.int8(0))  # type: ignore[arg-type]
    assert tree.find((4, 0), 0) == tree.find(np.array([4, 0]), np.uint8(0)) == 0  # type: ignore[arg-type]
    assert tree.key((4 * 17, 0), 0) == tree.key((4, 0), 0)
    assert tree.find((4 * 17, 0), 0) is tree.find((5, 0), 0) is None


State = tuple[AMRTree, FieldArena]


def _roots(level: int, at: int) -> State:
    tree, arena = new()
    for y, x in product((0, 1), repeat=2):
        tree.insert_block((at + 4 * x, 4 * y), level)
    return tree, arena


def _coarsen(tree: AMRTree, arena: FieldArena) -> int:
    return tree.coarsen_blocks(range(4), arena)


Action = Callable[[AMRTree, FieldArena], Any]
REFUSALS: dict[str, tuple[Callable[[], State], Action, Any]] = {
    "invalidate none": (worn, lambda t, a: t.invalidate_block(99), BlockNotFound),
    "invalidate a negative index": (worn, lambda t, a: t.invalidate_block(-1), BlockNotFound),
    "refine the dead": (worn, lambda t, a: t.refine_block(1), BlockNotFound),
    "coarsen none": (worn, lambda t, a: t.coarsen_blocks([], a), BadBlock),
    "coarsen one four times": (worn, lambda t, a: t.coarsen_blocks([0] * 4, a), BadBlock),
    "coarsen the dead": (worn, _coarsen, BlockNotFound),
    "coarsen no siblings": (lambda: _roots(1, 4), _coarsen, BadBlock),
    "coarsen the coarsest": (lambda: _roots(0, 0), _coarsen, BadBlock),
}


@pytest.mark.parametrize("name", REFUSALS)
def test_what_is_refused_changes_nothing(name):
    make, action, error = REFUSALS[name]
    tree, arena = make()
    before = saved(tree, arena)
    with pytest.raises(error):
        action(tree, arena)
    assert saved(tree, arena) == before


CHANGES: dict[str, Callable[[AMRTree, FieldArena], Any]] = {
    "insert": lambda t, a: t.insert_block((20, 20), 0),
    "insert with field": lambda t, a: t.insert_block_with_field((20, 20), 0, a),
    "invalidate": lambda t, a: t.invalidate_block(0),
    "refine": lambda t, a: t.refine_block(0),
    "coarsen": lambda t, a: t.coarsen_blocks([0, 0, 0, 0], a),
    "reorder": lambda t, a: t.reorder(),
    "defragment": lambda t, a: a.defragment(t),
    "fill ghosts": lambda t, a: t.fill_ghosts(a),
    "adapt": lambda t, a: t.adapt_mesh(a, 1.0),
    "apply": lambda t, a: t.apply(lambda patch: patch.field, a),
    "save": saved,
    "save a snapshot": lambda t, a: Snapshot.save(Store(MemoryBackend()).run("a"), 1, t, a),
}


@pytest.mark.parametrize("name", CHANGES)
def test_inside_apply_nothing_is_saved_or_changed(name):
    tree, arena = worn()
    before = saved(tree, arena)
    with pytest.raises(GhostsInUse):
        tree.apply(lambda patch: CHANGES[name](tree, arena), arena)
    assert saved(tree, arena) == before


def plain_morton(origin: list[int], level: int, block_size: int, bits_per_dim: int) -> int:
    """The digits of all coordinates dealt like cards, the last dimension's on top."""
    bits = bits_per_dim + level
    digits = [format((value // block_size << level) % 2**bits, f"0{bits}b") for value in origin]
    return int("".join(each[i] for i in range(bits) for each in reversed(digits)) or "0", 2)


@st.composite
def blocks(draw: Any) -> tuple[list[int], int, int, int]:
    nd = draw(st.integers(1, 8))
    bits = draw(st.integers(0, 64 // nd))
    level = draw(st.integers(0, 64 // nd - bits))
    origin = draw(st.lists(st.integers(0, 2**64 - 1), min_size=nd, max_size=nd))
    return origin, level, 2 ** draw(st.integers(2, 5)), bits


@given(blocks())
def test_one_key_and_many_keys_are_the_interleaved_digits(block):
    origin, level, block_size, bits = block
    expected = plain_morton(origin, level, block_size, bits)
    assert key_of(origin, level, block_size, bits) == (expected, level)
    many = morton(np.array([origin] * 3, np.uint64), [level, 0, level], block_size, bits)
    assert many.tolist() == [expected, plain_morton(origin, 0, block_size, bits), expected]


@pytest.mark.parametrize("level", [64, 200, 255])
def test_levels_that_no_tree_has_do_no_harm(level):
    records = np.zeros(2, block_dtype(3))
    records["level"] = level
    records["origin"] = 2**64 - 1
    assert [key[1] for key in keys_of(records, 4, 21)] == [level, level]


def words(arena: FieldArena) -> tuple[list[int], int]:
    return arena.free_slots.tolist(), arena.free_count


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


def scalar(nd: int, dtype: Any = np.float64) -> ScalarFrontend:
    return ScalarFrontend(nd, 4, OpenTopology(nd, (8.0,) * nd), dtype)


def site(place: tuple[int, ...]) -> int:
    """The number of a site of a block of 4; dimension 0 runs fastest."""
    return sum(value * 4**d for d, value in enumerate(place))


def fine_sites(place: tuple[int, ...]) -> list[tuple[int, int]]:
    """The child and the site of each of the 2^nd that a site of the parent covers."""
    found = []
    for steps in itertools.product((0, 1), repeat=len(place)):
        fine = [2 * value + step for value, step in zip(place, steps, strict=True)]
        child = sum((value // 4) << d for d, value in enumerate(fine))
        found.append((child, site(tuple(value % 4 for value in fine))))
    return found


@pytest.mark.parametrize("nd", [1, 2, 3])
def test_the_parent_has_the_mean_of_what_it_covers(nd):
    children = np.random.default_rng(nd).integers(-999, 999, (2**nd, 4**nd)).astype(np.float64)
    parent = restrict(children, scalar(nd))
    injected = inject(parent, scalar(nd))
    for place in itertools.product(range(4), repeat=nd):
        covered = fine_sites(place)
        assert parent[site(place)] == sum(children[each] for each in covered) / 2**nd
        assert {injected[each] for each in covered} == {parent[site(place)]}


def test_signs_of_zero_and_infinities_survive():
    frontend = scalar(1, np.complex128)
    children = np.full((2, 4), complex(-0.0, np.inf))
    assert restrict(children, frontend).tobytes() == children[0].tobytes()


@pytest.mark.parametrize("dtype", ["int8", "uint8", "int64", "uint64"])
def test_the_mean_of_whole_numbers_is_rounded_down_and_does_not_overflow(dtype):
    most = np.iinfo(dtype).max
    children = np.full((4, 16), most, dtype)
    children[0, 0] = most - 3
    parent = restrict(children, scalar(2, dtype))
    assert parent.dtype == np.dtype(dtype)
    assert parent.tolist() == [most - 1, *[most] * 15]
    if dtype == "int8":
        children = np.array([[-1, -2, -5, -6], [3, 4, 3, 3]], np.int8)
        assert restrict(children, scalar(1, np.int8)).tolist() == [-2, -6, 3, 3]


def test_half_precision_is_summed_in_single():
    children = np.full((4, 16), 60000, np.float16)
    assert restrict(children, scalar(2, np.float16)).tolist() == children[0].tolist()
