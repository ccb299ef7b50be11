"""Many blocks at once: the bytes are those of one by one, and what fails has changed nothing."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from standfast.amr import INVALID, FieldArena, GaugeTree
from standfast.amr.ghosts.places import Places
from standfast.amr.mesh.restriction import inject
from standfast.amr.migration import repartition
from standfast.amr.regrid.adapt import Adapted, gradients, plan_adaption
from standfast.errors import ArenaFull, BadBlock, MaxRefinementExceeded, RankFailed
from tests.amr.meshes import empty_mesh, random_mesh, random_numbers
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


def move_slowly(tree: Any, arena: Any, dying: list[Any], coming: list[Any]) -> None:
    """Let blocks at some places die, and insert others: (place, field or None, links)."""
    indices = [tree.find(*place) for place in dying]
    freed = sum(int(tree.field_slots[index]) != INVALID for index in indices)
    while arena.free_count + freed < sum(field is not None for _, field, _ in coming):
        arena.grow()
    for index in indices:
        if tree.field_slots[index] != INVALID:
            arena.free(int(tree.field_slots[index]))
            tree.field_slots[index] = INVALID
        tree.invalidate_block(index)
    for place, field, links in coming:
        if field is None:
            index = tree.insert_block(*place)
        else:
            index = tree.insert_block_with_field(*place, arena)
            arena.storage[int(tree.field_slots[index])] = field
        if isinstance(tree, GaugeTree):
            tree.links[index] = links


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
def test_an_adapted_mesh_has_the_bytes_of_one_adapted_block_by_block(of: Any, seed: int) -> None:
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


@pytest.mark.parametrize("of", [MESHES[1], MESHES[2]], ids=["scalar", "gauge"])
def test_moved_blocks_have_the_bytes_of_blocks_moved_one_by_one(of: Any) -> None:
    def program(comm: Any) -> Any:
        tree, arena = random_mesh(5, **of)
        rng = np.random.default_rng(comm.rank)
        for index in tree.live[:2].tolist():
            arena.free(int(tree.field_slots[index]))
            tree.field_slots[index] = INVALID
        steps = []
        for _ in range(4):
            before = saved(tree, arena)
            content = content_of(tree, arena)
            repartition(tree, arena, comm, rng.random(len(tree.live)))
            steps.append((before, content, saved(tree, arena)))
        return steps

    ranks = on_threads(3, program)
    like, _ = random_mesh(5, **of)
    for step in range(1, 4):
        everywhere = {key: each for rank in ranks for key, each in rank[step][1].items()}
        for rank in ranks:
            before, content, after = rank[step]
            slow = loaded(before, like)
            stays = set(loaded(after, like).tree.keys())
            dying = [content[key][0] for key in sorted(set(content) - stays)]
            coming = [everywhere[key] for key in sorted(stays - set(content))]
            move_slowly(slow.tree, slow.arena, dying, coming)
            assert saved(slow.tree, slow.arena) == after


def content_of(tree: Any, arena: Any) -> dict[Any, Any]:
    """The place, the field and the links of each live block, by its key."""
    found = {}
    for key, index in zip(tree.keys(), tree.live.tolist(), strict=True):
        block, slot = tree.blocks[index], int(tree.field_slots[index])
        place = block["origin"].tolist(), int(block["level"])
        field = None if slot == INVALID else arena.storage[slot].copy()
        found[key] = place, field, tree.links[index].copy() if hasattr(tree, "links") else None
    return found


TAKING = ("zeros", "empty", "array", "full", "concatenate", "repeat", "take")


class ShortMemory:
    """Lets NumPy fail to make the array of a number, and counts those that were asked for."""

    def __init__(self, monkeypatch: Any) -> None:
        self.left: float = np.inf
        for name in TAKING:
            monkeypatch.setattr(np, name, self._counted(getattr(np, name)))

    def _counted(self, function: Any) -> Any:
        def counted(*args: Any, **options: Any) -> Any:
            self.left -= 1
            if self.left < 0:
                raise MemoryError("there is none")
            return function(*args, **options)

        return counted


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


@pytest.mark.parametrize("gauge", [0, 2])
def test_without_memory_for_any_array_the_mesh_is_the_old_one_or_the_new(
    gauge: int, monkeypatch: Any
) -> None:
    before = saved(*small_mesh(gauge))
    memory = ShortMemory(monkeypatch)
    failures = 0
    while True:
        tree, arena = small_mesh(gauge)  # of which nothing is known yet
        memory.left = failures
        try:
            report = tree.adapt_mesh(arena, 2.0, 0.7)
        except MemoryError:
            memory.left = np.inf
            assert saved(tree, arena) == before
            failures += 1
        else:
            break
    memory.left = np.inf
    assert report == Adapted(1, 1)
    assert failures > 200
    slow = loaded(before, tree)
    adapt_slowly(slow.tree, slow.arena, 2.0, 0.7)
    assert saved(tree, arena) == saved(slow.tree, slow.arena)


def test_an_arena_that_cannot_grow_on_one_rank_changes_nothing_on_any(monkeypatch: Any) -> None:
    def program(comm: Any) -> None:
        tree, arena = random_mesh(3, 6, holes=False)
        repartition(tree, arena, comm)
        scramble(tree, arena, np.random.default_rng(3))
        while arena.free_count:
            arena.alloc()
        before, keys = saved(tree, arena), tree.shard.keys.tobytes()
        with monkeypatch.context() as patch:
            if comm.rank == 1:
                patch.setattr(arena, "storage_of", no_room)
            with pytest.raises(RankFailed, match="MemoryError"):
                tree.adapt_mesh(arena, 2.0, 0.7)
        assert saved(tree, arena) == before
        assert tree.shard.keys.tobytes() == keys
        assert tree.adapt_mesh(arena, 2.0, 0.7).refined

    assert on_threads(2, program) == [None, None]


def no_room(_: int) -> None:
    raise MemoryError("no room")


def test_an_arena_without_memory_to_grow_is_full_and_stays_as_it_is(monkeypatch: Any) -> None:
    tree, arena = random_mesh(3)
    before = saved(tree, arena)
    memory = ShortMemory(monkeypatch)
    memory.left = 0
    with pytest.raises(ArenaFull, match="128"):
        arena.grow()
    memory.left = np.inf
    assert saved(tree, arena) == before


def full_gauge_tree() -> tuple[Any, FieldArena]:
    """A gauge tree whose next block needs memory for links."""
    tree, arena = empty_mesh(gauge=2, base=4)
    arena.grow(32)
    for number in range(4):
        tree.insert_block_with_field((4 * number, 0), 0, arena)
    assert isinstance(tree, GaugeTree)
    return tight(tree, arena)


@pytest.mark.parametrize("change", ["insert", "insert with a field", "refine", "coarsen"])
def test_a_block_without_memory_for_its_links_changes_nothing(
    change: str, monkeypatch: Any
) -> None:
    tree, arena = full_gauge_tree()
    children: list[int] = []
    if change == "coarsen":
        children = tree.refine_block(0)
        for child in children:
            tree.field_slots[child] = arena.alloc()
        tree, arena = tight(tree, arena)
    changes = {
        "insert": lambda: tree.insert_block((0, 4), 0),
        "insert with a field": lambda: tree.insert_block_with_field((0, 4), 0, arena),
        "refine": lambda: tree.refine_block(0),
        "coarsen": lambda: tree.coarsen_blocks(children, arena),
    }
    before = saved(tree, arena)
    memory = ShortMemory(monkeypatch)
    failures = 0
    while True:
        memory.left = failures
        try:
            changes[change]()
        except MemoryError:
            memory.left = np.inf
            assert saved(tree, arena) == before
            failures += 1
        else:
            break
    memory.left = np.inf
    assert failures
    assert saved(tree, arena) != before


def test_a_reorder_without_memory_changes_nothing() -> None:
    tree, arena = full_gauge_tree()
    tree.invalidate_block(1)
    tree.links[:] = np.arange(4).reshape(4, 1, 1, 1)
    before = saved(tree, arena)

    class NoRoom(np.ndarray[Any, Any]):
        def __getitem__(self, key: Any) -> Any:
            raise MemoryError("no room")

    links = tree._links
    tree._links = links.view(NoRoom)
    with pytest.raises(MemoryError):
        tree.reorder()
    tree._links = links
    assert saved(tree, arena) == before


def test_a_slot_that_two_blocks_have_is_refused_and_nothing_changes() -> None:
    tree, arena = random_mesh(3, 6, holes=False)
    scramble(tree, arena, np.random.default_rng(3))
    arena.storage[:] = random_numbers(np.random.default_rng(0), arena.storage.shape, np.dtype("f8"))
    tree.field_slots[tree.live[-2:]] = tree.field_slots[tree.live[-1]]
    before = tree.blocks.tobytes(), tree.field_slots.tobytes(), arena.storage.tobytes()
    with pytest.raises(BadBlock):
        tree.adapt_mesh(arena, 0.0)
    assert (tree.blocks.tobytes(), tree.field_slots.tobytes(), arena.storage.tobytes()) == before


def test_blocks_finer_than_the_highest_level_cannot_be_balanced_and_nothing_changes() -> None:
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
