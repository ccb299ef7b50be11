"""Many blocks at once: the bytes are those of one by one, and what fails has changed nothing."""

import threading
from typing import Any

import numpy as np
import pytest

from standfast.amr import INVALID, FieldArena, repartition
from standfast.amr.ghosts.places import Places
from standfast.amr.mesh.restriction import inject
from standfast.amr.regrid.adapt import Adapted, gradients, plan_adaption
from standfast.errors import ArenaFull, BadBlock, MaxRefinementExceeded, RankFailed
from tests.amr.meshes import (
    ShortMemory,
    empty_mesh,
    fails_until_it_has_memory,
    random_mesh,
    random_numbers,
)
from tests.amr.tree_states import loaded, saved
from tests.kit.rank_threads import on_threads


def adapt_slowly(tree: Any, arena: Any, threshold: float, hysteresis: float) -> None:
    """`adapt_mesh` of a tree without a shard."""
    found = gradients(tree, arena, tree.fill_ghosts(arena))
    places = Places.of(tree)
    adaption = plan_adaption(
        places,
        np.zeros(len(places), np.int64),
        found > threshold,
        found < threshold * hysteresis,
        tree.max_level,
    )
    for chosen in adaption.refined:
        for index in sorted(indices_of(tree, chosen.origins, chosen.levels)):
            refine_slowly(tree, arena, index)
    families = [
        indices_of(tree, places.origins[family], places.levels[family])
        for family in adaption.families
    ]
    for family in sorted(families, key=min):
        if not arena.free_count:
            arena.grow()
        tree.coarsen_blocks(family, arena)


def indices_of(tree: Any, origins: Any, levels: Any) -> list[int]:
    pairs = zip(origins.tolist(), levels.tolist(), strict=True)
    return [tree.find(origin, level) for origin, level in pairs]


def refine_slowly(tree: Any, arena: Any, index: int) -> None:
    """Put children in the place of a block; the first takes the slot that it gives back."""
    slot = int(tree.field_slots[index])
    fields = inject(arena.storage[slot], tree.frontend).copy()
    children = tree.refine_block(index)
    arena.free(slot)
    tree.field_slots[index] = INVALID
    for child, field in zip(children, fields, strict=True):
        if not arena.free_count:
            arena.grow()
        tree.field_slots[child] = arena.alloc()
        arena.storage[int(tree.field_slots[child])] = field


MESHES: list[dict[str, Any]] = [
    {"nd": 1, "base": 4},
    {"nd": 2, "base": 3},
    {"nd": 2, "base": 2, "topology": "periodic", "gauge": 2},
    {"nd": 2, "base": 2, "dtype": np.uint8},
    {"nd": 3, "base": 2, "topology": "periodic", "max_level": 2},
    {"nd": 2, "base": 3, "topology": "mixed", "components": 3},
]


def scramble(tree: Any, arena: Any, rng: np.random.Generator) -> None:
    """Some blocks become flat, and some steep."""
    for index in tree.live.tolist():
        chance, slot = rng.random(), int(tree.field_slots[index])
        if chance < 0.6:
            arena.storage[slot] = 3
        elif chance < 0.8:
            shape = arena.storage.shape[1:]
            arena.storage[slot] = random_numbers(rng, shape, arena.storage.dtype)


@pytest.mark.parametrize("seed", [0, 1])
@pytest.mark.parametrize("of", MESHES)
def test_an_adapted_mesh_has_the_bytes_of_one_adapted_block_by_block(of, seed):
    tree, arena = random_mesh(seed, 6, holes=False, **of)
    while seed % 2 and arena.free_count:
        arena.alloc()  # a full arena grows on the way
    rng = np.random.default_rng(seed)
    done = 0
    for step in range(5):
        scramble(tree, arena, rng)
        slow = loaded(saved(tree, arena), tree)
        adapt_slowly(slow.tree, slow.arena, 2.0 + step % 3, 0.7)
        report = tree.adapt_mesh(arena, 2.0 + step % 3, 0.7)
        done += report.refined + report.coarsened
        assert saved(tree, arena) == saved(slow.tree, slow.arena)
        if step == 2:
            tree.reorder()
    assert done


def small_mesh(gauge: int) -> tuple[Any, FieldArena]:
    """Four blocks: the first has four flat children, the third is steep, and the arena is full."""
    tree, arena = empty_mesh(base=4, gauge=gauge)
    for number in range(4):
        tree.insert_block((4 * number, 0), 0)
    tree.refine_block(0)
    arena.grow(7)
    for index in tree.live.tolist():
        tree.field_slots[index] = arena.alloc()
    arena.storage[:] = 1
    arena.storage[int(tree.field_slots[2]), 5] = 9
    return tight(tree, arena)


def tight(tree: Any, arena: FieldArena) -> tuple[Any, FieldArena]:
    """The same, restored: without any room for more blocks."""
    state = loaded(saved(tree, arena), tree)
    return state.tree, state.arena


@pytest.mark.parametrize("gauge", [0, pytest.param(2, marks=pytest.mark.long)])
def test_without_memory_for_any_array_the_mesh_is_the_old_one_or_the_new(gauge, seams):
    def adapt(tree: Any, arena: Any) -> None:
        assert tree.adapt_mesh(arena, 2.0, 0.7) == Adapted(1, 1)

    failures, *found = fails_until_it_has_memory(seams, lambda: small_mesh(gauge), adapt)
    assert failures > 200
    slow = small_mesh(gauge)
    adapt_slowly(*slow, 2.0, 0.7)
    assert saved(*found) == saved(*slow)


def test_a_rank_without_memory_changes_nothing_on_any(seams):
    memory = ShortMemory(seams)

    def program(comm: Any) -> None:
        tree, arena = random_mesh(3, 6, holes=False)
        repartition(tree, arena, comm)
        scramble(tree, arena, np.random.default_rng(3))
        while arena.free_count:
            arena.alloc()
        before, keys = saved(tree, arena), tree.shard.keys.tobytes()
        if comm.rank == 1:
            memory.thread, memory.left = threading.get_ident(), 0
        with pytest.raises(RankFailed, match="MemoryError"):
            tree.adapt_mesh(arena, 2.0, 0.7)
        if comm.rank == 1:
            memory.left = np.inf
        assert saved(tree, arena) == before
        assert tree.shard.keys.tobytes() == keys
        assert tree.adapt_mesh(arena, 2.0, 0.7).refined

    assert on_threads(2, program) == [None, None]


CHANGES: dict[str, Any] = {
    "insert": lambda tree, arena: tree.insert_block((0, 4), 0),
    "insert with a field": lambda tree, arena: tree.insert_block_with_field((0, 4), 0, arena),
    "refine": lambda tree, arena: tree.refine_block(1),
    "coarsen": lambda tree, arena: tree.coarsen_blocks(range(4, 8), arena),
    "reorder": lambda tree, arena: tree.reorder(),
}


@pytest.mark.parametrize("change", CHANGES)
def test_a_change_without_memory_for_links_changes_nothing(change, seams):
    def make() -> Any:
        tree, arena = empty_mesh(gauge=2, base=4)
        arena.grow(32)
        for number in range(4):
            tree.insert_block_with_field((4 * number, 0), 0, arena)
        for child in tree.refine_block(0):
            tree.field_slots[child] = arena.alloc()
        return tight(tree, arena)

    assert fails_until_it_has_memory(seams, make, CHANGES[change])[0]


def test_an_arena_without_memory_to_grow_is_full_and_stays_as_it_is(seams):
    tree, arena = random_mesh(3)
    before = saved(tree, arena)
    memory = ShortMemory(seams, left=0)
    with pytest.raises(ArenaFull, match="128"):
        arena.grow()
    memory.left = np.inf
    assert saved(tree, arena) == before


def test_a_slot_that_two_blocks_have_is_refused_and_nothing_changes():
    tree, arena = random_mesh(3, 6, holes=False)
    tree.field_slots[tree.live[-2:]] = tree.field_slots[tree.live[-1]]
    before = tree.blocks.tobytes(), tree.field_slots.tobytes(), arena.storage.tobytes()
    with pytest.raises(BadBlock):
        tree.adapt_mesh(arena, 0.0)
    assert (tree.blocks.tobytes(), tree.field_slots.tobytes(), arena.storage.tobytes()) == before


def test_blocks_finer_than_the_highest_level_cannot_be_balanced_and_nothing_changes():
    tree, arena = empty_mesh(base=2)
    for place in ((0, 0), (4, 0)):
        tree.insert_block(place, 0)
    tree.refine_block(tree.refine_block(tree.refine_block(1)[0])[0])
    while arena.free_count < len(tree.live):
        arena.grow()
    for index in tree.live.tolist():
        tree.field_slots[index] = arena.alloc()
    tree.max_level = 0
    before = saved(tree, arena)
    with pytest.raises(MaxRefinementExceeded, match="max_level"):
        tree.adapt_mesh(arena, 1.0, 0.0)
    assert saved(tree, arena) == before
