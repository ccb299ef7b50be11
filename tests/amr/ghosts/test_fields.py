from itertools import product
from typing import Any

import numpy as np
import pytest

from standfast import amr
from standfast.errors import BadBlock, BadOption, RanksDisagree
from tests.amr.meshes import beyond, empty_mesh, face_sites, random_mesh, sites_by_place
from tests.kit.rank_threads import on_threads

MESHES = [
    ({"nd": 1, "base": 4, "topology": "open"}, 6),
    ({"nd": 1, "base": 2, "topology": "periodic"}, 6),
    ({"nd": 2, "base": 3, "topology": "open"}, 10),
    ({"nd": 2, "base": 1, "topology": "periodic"}, 9),
    ({"nd": 2, "base": 2, "topology": "periodic", "dtype": np.int32}, 8),
    ({"nd": 2, "base": 2, "topology": "periodic", "gauge": 3}, 8),
    ({"nd": 3, "base": 2, "topology": "open", "dtype": np.float32}, 8),
    ({"nd": 3, "base": 2, "topology": "periodic", "dtype": np.complex64}, 8),
    ({"nd": 2, "base": 3, "topology": "mixed", "components": 3}, 10),
    ({"nd": 3, "base": 2, "topology": "mixed", "dtype": np.int16, "components": 2}, 8),
]


def expected_layer(tree: Any, sites: Any, index: int, face: int) -> Any:
    """The layer beyond a face site by site, and whether it comes from a coarser block, or None."""
    level, nd = int(tree.blocks[index]["level"]), tree.frontend.nd
    values, coarser = [], False
    for place in face_sites(tree, index, face):
        at = beyond(tree, level, place)
        if at is None:
            return None
        up = level - 1, tuple(x // 2 for x in at)
        if (level, at) in sites:
            values.append(sites[level, at])
        elif up in sites:
            values.append(sites[up])
            coarser = True
        else:
            finer = {
                corner: sites.get(
                    (level + 1, tuple(2 * x + c for x, c in zip(at, corner, strict=True)))
                )
                for corner in product((0, 1), repeat=nd)
            }
            if any(value is None for value in finer.values()):
                return None
            values.append(mean(finer, nd, tree.frontend.dtype))
    return np.array(values, tree.frontend.dtype), coarser


def mean(finer: dict[tuple[int, ...], Any], nd: int, dtype: Any) -> Any:
    """Sums of pairs along the last dimension, then the one before it, and so on."""
    for d in reversed(range(nd)):
        finer = {
            corner[:d]: finer[corner] + finer[(*corner[:d], 1)] for corner in finer if not corner[d]
        }
    return (finer[()] / 2**nd).astype(dtype)


@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize(("of", "changes"), MESHES)
def test_ghosts_are_those_found_site_by_site(of, changes, seed):
    tree, arena = random_mesh(seed, changes, **of)
    ghosts = tree.fill_ghosts(arena)
    sites = sites_by_place(tree, arena)
    assert ghosts.blocks.tolist() == tree.live.tolist()
    for row, index in enumerate(tree.live.tolist()):
        for face in range(2 * tree.frontend.nd):
            expected = expected_layer(tree, sites, index, face)
            assert ghosts.valid[row, face] == (expected is not None)
            layer, coarser = expected or (np.zeros_like(ghosts.layers[row, face]), False)
            assert ghosts.layers[row, face].tobytes() == layer.tobytes()
            assert ghosts.coarser[row, face] == coarser
    if (of, seed) == (MESHES[2][0], 1):  # all kinds of neighbours are among them
        assert 0 < ghosts.valid.sum() < ghosts.valid.size
        assert ghosts.coarser.any()
        assert len(set(tree.blocks["level"][tree.live].tolist())) > 2


def test_a_place_too_far_out_for_a_key_is_no_other_place():
    tree, arena = empty_mesh(base=65)
    for place in ((0, 0), (4 * 63, 0)):
        tree.insert_block_with_field(place, 0, arena)
    # One more block to the right, 64 would need a seventh bit: its number is that of 0.
    assert not tree.fill_ghosts(arena).valid.any()


def test_ghosts_follow_fields_blocks_and_slots():
    tree, arena = random_mesh(2, 4, holes=False)
    before = tree.fill_ghosts(arena)
    arena.storage[:] *= 2
    moved = tree.fill_ghosts(arena)
    assert np.array_equal(moved.layers[moved.valid], 2 * before.layers[before.valid])
    tree.reorder()
    arena.grow()
    arena.defragment(tree)
    assert tree.live.tolist() == list(range(len(tree)))
    assert sorted(map(bytes, tree.fill_ghosts(arena).layers)) == sorted(map(bytes, moved.layers))
    tree.invalidate_block(0)
    assert tree.fill_ghosts(arena).valid.sum() < moved.valid.sum()


def test_blocks_without_fields_of_this_arena_are_refused():
    tree, arena = random_mesh(0)
    with pytest.raises(BadBlock):
        tree.fill_ghosts(amr.FieldArena(tree.frontend, 2))
    with pytest.raises(BadOption):
        tree.fill_ghosts(empty_mesh(nd=3)[1])
    tree.insert_block((28, 28), 0)
    with pytest.raises(BadBlock):
        tree.fill_ghosts(arena)
    frontend = amr.ScalarFrontend(2, 4, amr.PeriodicTopology(2, (4.0, 3.0)))
    other, memory = amr.AMRTree(frontend, 0.5, 4, 1), amr.FieldArena(frontend, 1)
    assert other.fill_ghosts(memory).layers.shape == (0, 4, 4)
    other.insert_block_with_field((0, 0), 0, memory)
    with pytest.raises(BadOption):  # the periodic box has one block and a half
        other.fill_ghosts(memory)


def test_a_tree_that_changed_without_its_shard_is_refused_on_all_ranks():
    def program(comm: Any) -> Any:
        tree, arena = random_mesh(5)
        shard = amr.repartition(tree, arena, comm)
        if comm.rank == 1:
            block = int(tree.live[0])
            arena.free(int(tree.field_slots[block]))
            tree.invalidate_block(block)
        with pytest.raises(RanksDisagree, match=r"shard\.refresh"):
            tree.fill_ghosts(arena)
        shard.refresh(tree)
        amr.move_blocks(tree, arena, shard)
        return tree.fill_ghosts(arena).valid.shape

    shapes = on_threads(2, program)
    assert sum(shape[0] for shape in shapes) == len(random_mesh(5)[0].live) - 1


def test_ghosts_follow_the_blocks_of_other_ranks():
    def program(comm: Any) -> Any:
        tree, arena = empty_mesh(base=2)
        tree.insert_block_with_field((4 * comm.rank, 0), 0, arena)
        shard = amr.ShardContext.from_tree(tree, comm, "manual")
        tree.attach_shard(shard)
        before = tree.fill_ghosts(arena).valid.sum()
        if comm.rank == 1:
            tree.invalidate_block(0)
        shard.refresh(tree)
        return before, tree.fill_ghosts(arena).valid.sum()

    assert on_threads(2, program) == [(1, 0), (1, 0)]
