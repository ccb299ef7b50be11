"""A mesh that is adapted: which blocks it has, their bytes, and what a failure leaves."""

import threading
from typing import Any

import numpy as np
import pytest

from standfast.amr import INVALID, FieldArena, ShardContext, repartition
from standfast.amr.ghosts.places import Places
from standfast.amr.mesh.restriction import inject
from standfast.amr.regrid.adapt import Adapted, gradients, plan_adaption
from standfast.errors import (
    ArenaFull,
    BadBlock,
    BadOption,
    MaxRefinementExceeded,
    RankFailed,
    RanksDisagree,
)
from tests.amr.ghosts.test_fields import expected_layer
from tests.amr.meshes import (
    ShortMemory,
    beyond,
    empty_mesh,
    fails_until_it_has_memory,
    give_fields,
    random_mesh,
    random_numbers,
    sites_by_place,
)
from tests.amr.tree_states import loaded, saved
from tests.kit.rank_threads import on_threads

Mesh = set[tuple[int, tuple[int, ...]]]
"""Blocks as their levels and the coordinates of their origins in blocks."""


def block_at(block: Any) -> tuple[int, tuple[int, ...]]:
    return int(block["level"]), tuple(x // 4 for x in block["origin"].tolist())


def mesh_of(tree: Any) -> Mesh:
    return {block_at(block) for block in tree.blocks[tree.live]}


def neighbour_places(tree: Any, level: int, place: tuple[int, ...]) -> list[tuple[int, ...]]:
    """The places of a level beyond the faces of a block."""
    size, found = tree.frontend.block_size, []
    for d in range(len(place)):
        for step in (1, -1):
            origin = [size * (x + step * (k == d)) for k, x in enumerate(place)]
            at = beyond(tree, level, origin)
            if at is not None:
                found.append(tuple(x // size for x in at))
    return found


def finer_by(tree: Any, mesh: Mesh, least: int) -> Mesh:
    """The blocks that have a neighbour over a face that is finer by `least` or more."""
    found = set()
    for level, place in mesh:
        for other in neighbour_places(tree, level, place):
            for up in range(least, level + 1):
                ancestor = level - up, tuple(x >> up for x in other)
                if ancestor in mesh:
                    found.add(ancestor)
    return found


def children_of(level: int, place: tuple[int, ...]) -> list[Any]:
    nd = len(place)
    return [
        (level + 1, tuple(2 * x + (child >> d & 1) for d, x in enumerate(place)))
        for child in range(2**nd)
    ]


def gradient_of(tree: Any, arena: Any, sites: Any, index: int) -> float:
    """The steepest difference of a block, site by site."""
    nd, size = tree.frontend.nd, tree.frontend.block_size
    field = arena.storage[int(tree.field_slots[index])].astype(
        np.result_type(arena.storage, np.float64)
    )
    spacing, steepest = float(tree.blocks[index]["spacing"]), 0.0
    for site in range(size**nd):
        for d in range(nd):
            if site // size**d % size < size - 1:
                steepest = max(steepest, magnitude(field[site + size**d] - field[site]))
    for face in range(2 * nd):
        layer = expected_layer(tree, sites, index, face)
        if layer is not None:
            d, minus = divmod(face, 2)
            edge = [s for s in range(size**nd) if s // size**d % size == (0 if minus else size - 1)]
            for site, value in zip(edge, layer[0].astype(field.dtype), strict=True):
                difference = magnitude(value - field[site])
                steepest = max(steepest, difference / 1.5 if layer[1] else difference)
    return steepest / spacing


def magnitude(values: Any) -> float:
    values = np.atleast_1d(values)
    if np.iscomplexobj(values):
        return float(np.sqrt(max(float(v.real) ** 2 + float(v.imag) ** 2 for v in values)))
    return float(np.max(np.abs(values)))


def adapted_mesh(tree: Any, gradient: dict[Any, float], threshold: float, low: float) -> Any:
    """The mesh that follows, and how many blocks were refined and families coarsened."""
    mesh, start = mesh_of(tree), mesh_of(tree)
    chosen = {block for block in mesh if gradient[block] > threshold and block[0] < tree.max_level}
    refined = 0
    while chosen:
        refined += len(chosen)
        mesh = mesh - chosen | {child for block in chosen for child in children_of(*block)}
        chosen = finer_by(tree, mesh, 2)
    coarsened = 0
    for level in range(tree.max_level, 0, -1):
        blocked = finer_by(tree, mesh, 1)
        parents = {tuple(x // 2 for x in place) for depth, place in mesh if depth == level}
        for parent in parents:
            family = set(children_of(level - 1, parent))
            if family <= mesh & start - blocked and all(gradient[child] < low for child in family):
                mesh = mesh - family | {(level - 1, parent)}
                coarsened += 1
    return mesh, Adapted(refined, coarsened)


MESHES: list[dict[str, Any]] = [
    {"nd": 1, "base": 4},
    {"nd": 2, "base": 3},
    {"nd": 2, "base": 2, "topology": "periodic"},
    {"nd": 2, "base": 2, "gauge": 2},
    {"nd": 2, "base": 2, "dtype": np.uint8},
    {"nd": 3, "base": 2, "topology": "periodic", "max_level": 2},
    {"nd": 2, "base": 3, "topology": "mixed", "components": 3},
]


def bumpy_mesh(seed: int, of: Any) -> Any:
    """A balanced mesh with some steep blocks and many flat ones."""
    tree, arena = random_mesh(seed, 8, holes=False, fields=False, **of)
    while violated := sorted(finer_by(tree, mesh_of(tree), 2)):
        for level, place in violated:
            tree.refine_block(tree.find([4 * x for x in place], level))
    give_fields(tree, arena, np.random.default_rng(seed))
    scale = np.random.default_rng(seed + 1).random(len(arena.storage)) < 0.04
    arena.storage[~scale] = arena.storage[~scale] * 0 + 3
    return tree, arena


@pytest.mark.parametrize("of", MESHES)
def test_the_mesh_is_the_one_found_block_by_block(of):
    reports = []
    for seed in (0, 4, 6):
        tree, arena = bumpy_mesh(seed, of)
        sites = sites_by_place(tree, arena)
        found = gradients(tree, arena, tree.fill_ghosts(arena))
        expected = [gradient_of(tree, arena, sites, index) for index in tree.live.tolist()]
        assert found.tolist() == expected
        gradient = dict(zip(map(block_at, tree.blocks[tree.live]), expected, strict=True))
        threshold = float(np.quantile(found, 0.8))
        mesh, report = adapted_mesh(tree, gradient, threshold, 0.5 * threshold)
        assert tree.adapt_mesh(arena, threshold) == report
        assert mesh_of(tree) == mesh
        assert not finer_by(tree, mesh, 2)
        reports.append(report)
    assert sum(report.refined for report in reports) > 0
    assert sum(report.coarsened for report in reports) > 0


def test_a_mesh_that_nothing_is_done_to_is_left_as_it_is():
    tree, arena = bumpy_mesh(0, MESHES[1])
    before = tree.blocks.tobytes(), tree.field_slots.tobytes(), arena.storage.tobytes()
    assert tree.adapt_mesh(arena, 1e9, 0.0) == Adapted(0, 0)
    assert (tree.blocks.tobytes(), tree.field_slots.tobytes(), arena.storage.tobytes()) == before


def test_not_a_number_is_neither_steep_nor_flat():
    tree, arena = empty_mesh()
    tree.insert_block((0, 0), 0)
    tree.refine_block(0)
    give_fields(tree, arena, np.random.default_rng(0))
    arena.storage[:] = 0.0
    arena.storage[int(tree.field_slots[1]), 3] = np.nan
    assert tree.adapt_mesh(arena, 1.0) == Adapted(0, 0)


def test_an_unbalanced_mesh_is_balanced():
    tree, arena = empty_mesh(base=2, max_level=3)
    for place in ((0, 0), (4, 0)):
        tree.insert_block(place, 0)
    tree.refine_block(tree.refine_block(tree.refine_block(1)[0])[0])
    give_fields(tree, arena, np.random.default_rng(0))
    tree.adapt_mesh(arena, 1e9, 0.0)
    assert not finer_by(tree, mesh_of(tree), 2)
    assert (0, (0, 0)) not in mesh_of(tree)


@pytest.mark.parametrize(
    ("base", "place", "level", "told"),
    [(64, (40 * 4, 0), 0, r"\(160,\s0\)"), (2, (4, 12), 2, r"\(4,\s12\)")],
    ids=["too far out to be refined", "in another block"],
)
def test_a_mesh_that_cannot_be_adapted_is_refused_and_left_as_it_is(base, place, level, told):
    tree, arena = empty_mesh(base=base)
    tree.insert_block_with_field((0, 0), 0, arena)
    tree.insert_block_with_field(place, level, arena)
    arena.storage[:, 3] = 9.0
    before = tree.blocks.tobytes(), arena.storage.tobytes(), arena.free_count
    with pytest.raises(BadBlock, match=told):
        tree.adapt_mesh(arena, 1.0)
    assert (tree.blocks.tobytes(), arena.storage.tobytes(), arena.free_count) == before


@pytest.mark.parametrize(
    "options", [(np.nan, 0.5), (-1.0, 0.5), ("steep", 0.5), (1.0, 1.5), (1.0, -0.1), (1.0, None)]
)
def test_a_threshold_that_is_none_is_refused(options):
    tree, arena = random_mesh(0)
    with pytest.raises(BadOption, match=r"threshold=|hysteresis="):
        tree.adapt_mesh(arena, *options)


def test_a_mesh_that_has_grown_on_one_rank_is_shared_out_by_hand():
    def program(comm: Any) -> Any:
        tree, arena = empty_mesh(base=2)
        tree.insert_block_with_field((4 * comm.rank, 0), 0, arena)
        shard = ShardContext.from_tree(tree, comm, "morton_contiguous")
        tree.attach_shard(shard)
        tree.adapt_mesh(arena, 1.0)
        kinds = [shard.kind]
        if comm.rank == 0:
            arena.storage[0, 5] = 9.0
        assert tree.adapt_mesh(arena, 1.0) == Adapted(1, 0)
        kinds.append(shard.kind)
        again = ShardContext.from_tree(tree, comm, "manual")
        assert again.owners.tolist() == shard.owners.tolist()
        return kinds, len(tree.live)

    kinds = ["morton_contiguous", "manual"]
    assert on_threads(2, program) == [(kinds, 4), (kinds, 1)]


def test_ranks_must_agree_on_the_threshold():
    def program(comm: Any) -> None:
        tree, arena = random_mesh(3)
        repartition(tree, arena, comm)
        with pytest.raises(RanksDisagree, match="threshold"):
            tree.adapt_mesh(arena, 1.0 + comm.rank)

    assert on_threads(2, program) == [None, None]


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
