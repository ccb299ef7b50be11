from typing import Any

import numpy as np
import pytest

from standfast.amr import ShardContext, repartition
from standfast.amr.regrid.adapt import Adapted, gradients
from standfast.errors import BadBlock, BadOption, RanksDisagree
from tests.amr.ghosts.test_fields import expected_layer
from tests.amr.meshes import beyond, empty_mesh, give_fields, random_mesh, sites_by_place
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
