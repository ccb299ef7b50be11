from typing import Any

import numpy as np
import pytest

from standfast.amr import Patch, repartition
from standfast.errors import BadBlock, BadOption, RankFailed
from tests.amr.meshes import empty_mesh, fields_by_key, give_fields, random_mesh
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


@pytest.mark.parametrize(
    ("of", "outside"),
    [
        *((of, outside) for of in MESHES for outside in (0.0, None, 2.5)),
        (MESHES[-1], (0.5, -1.0, 2.0)),  # one for each component
    ],
)
def test_a_kernel_gets_each_site_with_its_neighbours(of, outside):
    tree, arena = random_mesh(3, 8, **of)
    values = np.array(outside) if isinstance(outside, tuple) else outside
    expected = smoothed(tree, arena, values)
    tree.apply(smooth, arena, outside)
    assert field_bytes(tree, arena) == expected


def field_bytes(tree: Any, arena: Any) -> dict[Any, bytes]:
    slots = tree.field_slots[tree.live].tolist()
    return {key: arena.storage[at].tobytes() for key, at in zip(tree.keys(), slots, strict=True)}


def test_a_kernel_is_called_once_for_each_level_from_the_coarsest():
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


def test_positions_are_the_middles_of_cells():
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


def write(patch: Patch) -> Any:
    patch.field[:] = 0


@pytest.mark.parametrize(
    ("kernel", "error", "match"),
    [
        (lambda patch: patch.field + 1 // (2 - patch.level), ZeroDivisionError, None),
        (write, ValueError, None),
        (lambda patch: patch.field[:, :3], BadOption, "float64"),
        (lambda patch: patch.field.astype(np.float32), BadOption, "float32"),
        (lambda patch: 0.0, BadOption, "float"),
        (lambda patch: None, BadOption, "NoneType"),
        (lambda patch: patch.shifted(0, 2), BadOption, "step=2"),
        (lambda patch: patch.shifted(2, 1), BadOption, "d=2"),
    ],
    ids="raises writes shape dtype number nothing step dimension".split(),
)
def test_a_kernel_that_fails_changes_no_field(kernel, error, match):
    tree, arena = random_mesh(3)
    before = arena.storage.tobytes()
    with pytest.raises(error, match=match):
        tree.apply(kernel, arena)
    assert arena.storage.tobytes() == before
    tree.insert_block((20, 20), 0)  # the tree is not busy any more


def test_a_kernel_that_fails_on_one_rank_changes_no_field_on_any():
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


def test_there_may_be_more_ranks_than_blocks():
    def program(comm: Any) -> Any:
        tree, arena = empty_mesh()
        tree.insert_block_with_field((0, 0), 0, arena)
        repartition(tree, arena, comm)
        tree.apply(smooth, arena)
        return len(tree.live)

    assert on_threads(3, program) == [1, 0, 0]


@pytest.mark.parametrize(
    ("dtype", "components", "outside"),
    [
        *(("uint8", 1, -1), ("uint8", 1, 256), ("int8", 1, 200.0), ("int32", 1, 1e12)),
        *(("int32", 1, float("inf")), ("int32", 1, float("nan")), ("int64", 1, 2.0**63)),
        *(("uint64", 1, -1), ("int16", 1, 0.5), ("float64", 1, 1j), ("float16", 1, 65536)),
        *(("float32", 1, 1e300), ("float32", 2, [1e300, 0.0]), ("complex64", 1, 1e300j)),
        *(("float64", 3, (1.0, 2.0)), ("float64", 3, (1.0,) * 4), ("float64", 3, [[1.0] * 3])),
    ],
)
def test_what_the_field_cannot_hold_is_refused_beyond_a_wall(dtype, components, outside):
    tree, arena = random_mesh(3, dtype=dtype, components=components)
    before = arena.storage.tobytes()
    with pytest.raises(BadOption, match="outside="):
        tree.apply(lambda patch: patch.shifted(0, 1), arena, outside)
    assert arena.storage.tobytes() == before


@pytest.mark.parametrize(
    ("dtype", "outside"),
    [
        *(("uint8", 255), ("int8", -128.0), ("uint64", 2**64 - 1), ("int64", -(2.0**63))),
        *(("float32", 0.1), ("float32", float("inf")), ("float64", float("nan"))),
        ("complex64", -1),
    ],
)
def test_what_the_field_can_hold_is_what_kernels_get_beyond_a_wall(dtype, outside):
    tree, arena = random_mesh(3, dtype=dtype)
    seen: list[Any] = []

    def kernel(patch: Patch) -> Any:
        seen.extend(patch.shifted(0, 1).ravel())
        return patch.field.copy()

    tree.apply(kernel, arena, outside)
    expected = np.array(outside, dtype)
    assert np.any((np.array(seen) == expected) | (np.isnan(seen) & np.isnan(expected)))


@pytest.mark.parametrize("action", ["apply", "fill_ghosts", "defragment", "adapt_mesh"])
@pytest.mark.parametrize("is_reused", [False, True])
def test_a_live_block_whose_slot_was_given_back_is_refused_and_nothing_changes(action, is_reused):
    tree, arena = random_mesh(3)
    slot = int(tree.field_slots[tree.live[0]])
    arena.free(slot)
    if is_reused:
        tree.field_slots[tree.live[1]] = arena.alloc()
    arrays = tree.blocks, tree.field_slots, arena.storage, arena.free_slots
    before = [each.tobytes() for each in arrays]
    with pytest.raises(BadBlock, match=str(slot)):
        {
            "apply": lambda: tree.apply(lambda patch: 0 * patch.field, arena),
            "fill_ghosts": lambda: tree.fill_ghosts(arena),
            "defragment": lambda: arena.defragment(tree),
            "adapt_mesh": lambda: tree.adapt_mesh(arena, 0.0),
        }[action]()
    assert [each.tobytes() for each in arrays] == before
