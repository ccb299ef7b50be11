from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from standfast.amr.mesh.apply import Patch
from standfast.amr.migration import repartition
from standfast.errors import BadBlock, BadOption, GhostsInUse, RankFailed
from tests.amr.meshes import (
    empty_mesh,
    fields_by_key,
    give_fields,
    random_mesh,
)
from tests.kit.rank_threads import on_threads

MESHES: list[dict[str, Any]] = [
    {"nd": 1, "base": 4},
    {"nd": 2, "base": 3},
    {"nd": 2, "base": 2, "topology": "periodic", "gauge": 2},
    {"nd": 3, "base": 2, "topology": "periodic"},
    {"nd": 2, "base": 3, "topology": "mixed", "components": 3},
]


def smooth(patch: Patch) -> Any:
    """A kernel that sees every neighbour, and weighs each of them by another power of two."""
    result = patch.field * patch.spacing
    for d in range(patch.nd):
        result = result + patch.shifted(d, +1) * 0.5**d - patch.shifted(d, -1) * 0.25**d
    return result


def smoothed(tree: Any, arena: Any, outside: Any) -> dict[Any, Any]:
    """The same, site by site, out of the blocks and their ghosts."""
    frontend, ghosts = tree.frontend, tree.fill_ghosts(arena)
    nd, size = frontend.nd, frontend.block_size
    results = {}
    for row, (key, index) in enumerate(zip(tree.keys(), tree.live.tolist(), strict=True)):
        field = arena.storage[int(tree.field_slots[index])]
        result = np.empty_like(field)
        for site in range(size**nd):
            x = [site // size**d % size for d in range(nd)]
            total = field[site] * tree.spacing(key[1])
            for d in range(nd):
                for step, weight in ((1, 0.5**d), (-1, -(0.25**d))):
                    face = 2 * d + (step < 0)
                    if 0 <= x[d] + step < size:
                        value = field[site + step * size**d]
                    elif ghosts.valid[row, face]:
                        others = [x[k] for k in range(nd) if k != d]
                        along = sum(others[k] * size**k for k in range(nd - 1))
                        value = ghosts.layers[row, face, along]
                    else:
                        value = field[site] if outside is None else outside
                    total = total + value * weight
            result[site] = total
        results[key] = result.tobytes()
    return results


@pytest.mark.parametrize("outside", [0.0, None, 2.5])
@pytest.mark.parametrize("of", MESHES)
def test_a_kernel_gets_each_site_with_its_neighbours(of: Any, outside: Any) -> None:
    tree, arena = random_mesh(3, 8, **of)
    expected = smoothed(tree, arena, outside)
    tree.apply(smooth, arena, outside)
    found = {
        key: arena.storage[int(tree.field_slots[index])].tobytes()
        for key, index in zip(tree.keys(), tree.live.tolist(), strict=True)
    }
    assert found == expected


def test_beyond_a_wall_each_component_may_have_a_value_of_its_own() -> None:
    tree, arena = random_mesh(3, 8, nd=2, base=3, topology="mixed", components=3)
    outside = (0.5, -1.0, 2.0)
    expected = smoothed(tree, arena, np.array(outside))
    tree.apply(smooth, arena, outside)
    assert fields_by_key(tree, arena) == expected


@pytest.mark.parametrize("outside", [(1.0, 2.0), (1.0,) * 4, [[1.0] * 3]])
def test_a_field_of_other_components_beyond_a_wall_is_refused(outside: Any) -> None:
    tree, arena = random_mesh(3, 8, components=3)
    before = fields_by_key(tree, arena)
    with pytest.raises(BadOption, match="outside="):
        tree.apply(smooth, arena, outside)
    assert fields_by_key(tree, arena) == before


def test_a_kernel_is_called_once_for_each_level_from_the_coarsest() -> None:
    tree, arena = random_mesh(3)
    seen: list[Patch] = []

    def look(patch: Patch) -> Any:
        seen.append(patch)
        return patch.field

    before = fields_by_key(tree, arena)
    tree.apply(look, arena)
    assert [patch.level for patch in seen] == sorted(set(tree.blocks["level"][tree.live].tolist()))
    for patch in seen:
        assert patch.spacing == 0.5 / 2**patch.level
        assert set(tree.blocks["level"][patch.blocks].tolist()) == {patch.level}
    assert fields_by_key(tree, arena) == before


def test_positions_are_the_middles_of_cells() -> None:
    tree, arena = empty_mesh(nd=3, base=4, gauge=2)
    tree.insert_block((4, 0, 8), 0)
    tree.refine_block(0)
    give_fields(tree, arena, np.random.default_rng(0))

    def place(patch: Patch) -> Any:
        assert patch.positions(0).shape == (8, 1, 1, 4, 1)
        assert patch.positions(0)[1].ravel().tolist() == [3.125, 3.375, 3.625, 3.875]
        x, y, z = (patch.positions(d) for d in range(3))
        return x + 100 * y + 10000 * z + 0 * patch.field

    tree.apply(place, arena)
    last = arena.storage[int(tree.field_slots[8])]  # the child of all upper halves
    assert last[0].tolist() == [3.125 + 112.5 + 51250.0] * 4
    assert last[1].tolist() == [3.375 + 112.5 + 51250.0] * 4
    assert last[16].tolist() == [3.125 + 112.5 + 53750.0] * 4


def test_a_kernel_that_fails_changes_no_field() -> None:
    tree, arena = random_mesh(3)
    before = arena.storage.tobytes()

    def fail(patch: Patch) -> Any:
        if patch.level == 2:
            raise ZeroDivisionError("level 2")
        return patch.field + 1

    with pytest.raises(ZeroDivisionError):
        tree.apply(fail, arena)
    assert arena.storage.tobytes() == before
    tree.insert_block((20, 20), 0)  # the tree is not busy any more


def test_the_field_of_a_patch_cannot_be_written_to() -> None:
    tree, arena = random_mesh(3)

    def write(patch: Patch) -> Any:
        patch.field[:] = 0
        return patch.field

    with pytest.raises(ValueError, match="read-only"):
        tree.apply(write, arena)


@pytest.mark.parametrize(
    ("wrong", "found"),
    [
        (lambda patch: patch.field[:, :3], r"float64 \(\d+, 3, 4\)"),
        (lambda patch: patch.field.astype(np.float32), "float32"),
        (lambda patch: 0.0, "float for level 0"),
        (lambda patch: None, "NoneType"),
    ],
    ids=["shape", "dtype", "number", "nothing"],
)
def test_a_kernel_must_return_a_field_of_the_same_kind(wrong: Any, found: str) -> None:
    tree, arena = random_mesh(3)
    before = arena.storage.tobytes()
    with pytest.raises(BadOption, match=found):
        tree.apply(wrong, arena)
    assert arena.storage.tobytes() == before


def test_a_kernel_may_not_change_the_tree() -> None:
    tree, arena = random_mesh(3)
    block = int(tree.live[0])
    for change in (
        lambda: tree.insert_block((20, 20), 0),
        lambda: tree.invalidate_block(block),
        lambda: tree.refine_block(block),
        lambda: tree.reorder(),
        lambda: tree.apply(smooth, arena),
        lambda: tree.adapt_mesh(arena, 1.0),
    ):
        with pytest.raises(GhostsInUse):
            tree.apply(lambda patch, change=change: change(), arena)


def test_there_is_no_dimension_and_no_step_beyond() -> None:
    tree, arena = random_mesh(3)
    with pytest.raises(BadOption, match="step=2"):
        tree.apply(lambda patch: patch.shifted(0, 2), arena)
    with pytest.raises(BadOption, match="d=2"):
        tree.apply(lambda patch: patch.shifted(2, 1), arena)


def test_a_kernel_that_fails_on_one_rank_changes_no_field_on_any() -> None:
    def program(comm: Any) -> Any:
        tree, arena = random_mesh(5)
        repartition(tree, arena, comm)
        before = fields_by_key(tree, arena)

        def fail(patch: Patch) -> Any:
            if comm.rank == 1:
                raise ZeroDivisionError("no way")
            return patch.field + 1

        with pytest.raises(RankFailed, match="ZeroDivisionError"):
            tree.apply(fail, arena)
        assert fields_by_key(tree, arena) == before
        tree.apply(smooth, arena)
        return fields_by_key(tree, arena) != before

    assert on_threads(3, program) == [True] * 3


def test_more_ranks_than_blocks_is_legal() -> None:
    def program(comm: Any) -> Any:
        tree, arena = empty_mesh()
        tree.insert_block((0, 0), 0)
        give_fields(tree, arena, np.random.default_rng(0))
        repartition(tree, arena, comm)
        tree.apply(smooth, arena)
        return len(tree.live)

    assert on_threads(3, program) == [1, 0, 0]


@pytest.mark.parametrize(
    ("dtype", "outside"),
    [
        ("uint8", -1),
        ("uint8", 256),
        ("int8", 200.0),
        ("int32", 1e12),
        ("int32", float("inf")),
        ("int32", float("nan")),
        ("int64", 2.0**63),
        ("uint64", -1),
        ("int16", 0.5),
        ("float64", 1j),
        ("float16", 65536),
        ("float32", 1e300),
        ("float32", [1e300, 0.0]),
        ("complex64", 1e300j),
    ],
)
def test_a_number_outside_that_the_field_cannot_hold_is_refused(dtype: str, outside: Any) -> None:
    components = len(outside) if isinstance(outside, list) else 1
    tree, arena = random_mesh(3, dtype=dtype, components=components)
    before = arena.storage.copy()
    with pytest.raises(BadOption) as refused:
        tree.apply(lambda patch: patch.shifted(0, 1), arena, outside)
    assert repr(outside) in str(refused.value)
    assert dtype in str(refused.value)
    assert np.array_equal(arena.storage, before, equal_nan=True)


@pytest.mark.parametrize(
    ("dtype", "outside"),
    [
        ("uint8", 255),
        ("int8", -128.0),
        ("uint64", 2**64 - 1),
        ("int64", -(2.0**63)),
        ("float32", 0.1),
        ("float32", float("inf")),
        ("float64", float("nan")),
        ("complex64", -1),
    ],
)
def test_a_number_outside_that_the_field_can_hold_is_what_kernels_get(
    dtype: str, outside: Any
) -> None:
    tree, arena = random_mesh(3, dtype=dtype)
    seen = []

    def kernel(patch: Patch) -> Any:
        seen.append(patch.shifted(0, 1))
        return patch.field.copy()

    tree.apply(kernel, arena, outside)
    expected = np.array(outside, dtype)
    found = np.concatenate([each.ravel() for each in seen])
    assert np.any((found == expected) | (np.isnan(found) & np.isnan(expected)))


@pytest.mark.parametrize("action", ["apply", "fill_ghosts", "defragment", "adapt_mesh"])
@pytest.mark.parametrize("freed", ["free", "used again"])
def test_a_live_block_whose_slot_was_given_back_is_refused_and_nothing_changes(
    action: str, freed: str
) -> None:
    tree, arena = random_mesh(3)
    slot = int(tree.field_slots[tree.live[0]])
    arena.free(slot)
    if freed == "used again":
        tree.field_slots[tree.live[1]] = arena.alloc()
    before = saved_arrays(tree, arena)
    with pytest.raises(BadBlock, match=str(slot)):
        {
            "apply": lambda: tree.apply(lambda patch: 0 * patch.field, arena),
            "fill_ghosts": lambda: tree.fill_ghosts(arena),
            "defragment": lambda: arena.defragment(tree),
            "adapt_mesh": lambda: tree.adapt_mesh(arena, 0.0),
        }[action]()
    assert saved_arrays(tree, arena) == before


def saved_arrays(tree: Any, arena: Any) -> list[bytes]:
    arrays = tree.blocks, tree.field_slots, arena.storage, arena.free_slots
    return [each.tobytes() for each in arrays]
