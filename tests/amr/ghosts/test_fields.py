"""Ghosts of fields and halos of links, against loops over sites."""

from itertools import product
from typing import Any

import numpy as np
import pytest

from standfast import amr
from standfast.errors import BadBlock, BadOption, RanksDisagree
from tests.amr.meshes import (
    beyond,
    empty_mesh,
    face_sites,
    give_fields,
    merged,
    random_mesh,
    sites_by_place,
)
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


LINK_MESHES: list[dict[str, Any]] = [
    {"nd": 1, "base": 3, "topology": "open", "gauge": 2},
    {"nd": 2, "base": 3, "topology": "open", "gauge": 1},
    {"nd": 2, "base": 1, "topology": "periodic", "gauge": 2},
    {"nd": 2, "base": 3, "topology": "periodic", "gauge": 3},
    {"nd": 3, "base": 2, "topology": "periodic", "gauge": 1},
    {"nd": 2, "base": 3, "topology": "mixed", "gauge": 2},
]


def expected_halo(tree: Any, spec: amr.LinkExchangeSpec) -> Any:
    """The links of each halo, site by site."""
    nd, size, group = tree.frontend.nd, tree.frontend.block_size, tree.frontend.n_gauge
    links: dict[Any, Any] = {}
    for index in tree.live.tolist():
        origin = tree.blocks[index]["origin"].tolist()
        for site in range(size**nd):
            place = tuple(origin[d] + site // size**d % size for d in range(nd))
            links[place] = tree.links[index, site * nd : (site + 1) * nd]
    identities = np.broadcast_to(np.eye(group), (nd, group, group))
    halos = []
    for index in tree.live.tolist():
        origin = tree.blocks[index]["origin"].tolist()
        for x in product(range(-spec.depth, size + spec.depth), repeat=nd):
            along = x[::-1]  # dimension 0 is the fastest
            away = sum(not 0 <= each < size for each in along)
            at = beyond(tree, 0, [a + b for a, b in zip(origin, along, strict=True)])
            reached = at is not None and (away < 2 or spec.corners)
            halos.append(links.get(at, identities) if reached else identities)
    width = size + 2 * spec.depth
    return np.array(halos).reshape(len(tree.live), *(width,) * nd, nd, group, group)


@pytest.mark.parametrize("holes", [False, True])
@pytest.mark.parametrize(
    "spec",
    [
        amr.LinkExchangeSpec(),
        amr.LinkExchangeSpec(3),
        amr.LinkExchangeSpec(2, False),
        amr.LinkExchangeSpec(0),
    ],
)
@pytest.mark.parametrize("of", LINK_MESHES)
def test_a_halo_is_the_one_found_site_by_site(of, spec, holes):
    tree, _ = random_mesh(4, 0, holes=holes and of["base"] > 1, **of)
    halo = amr.link_halo(tree, spec)
    assert halo.tobytes() == expected_halo(tree, spec).tobytes()


@pytest.mark.parametrize("options", [{"depth": -1}, {"depth": 1.0}, {"corners": 1}])
def test_a_link_exchange_is_a_number_of_layers_with_or_without_corners(options):
    with pytest.raises(BadOption):
        amr.LinkExchangeSpec(**options)


def test_a_halo_follows_links_blocks_and_the_spec_of_the_tree():
    tree, _ = random_mesh(4, 0, **LINK_MESHES[1])
    first = amr.link_halo(tree)
    tree.links[:] *= 2
    assert not np.array_equal(amr.link_halo(tree), first)
    tree.invalidate_block(int(tree.live[3]))
    tree.reorder()
    assert tree.link_exchange_spec == amr.LinkExchangeSpec(depth=1, corners=True)
    assert np.array_equal(amr.link_halo(tree), expected_halo(tree, amr.LinkExchangeSpec()))
    tree.link_exchange_spec = amr.LinkExchangeSpec(2)
    assert np.array_equal(amr.link_halo(tree), expected_halo(tree, amr.LinkExchangeSpec(2)))
    with pytest.raises(BadOption, match="depth=5"):
        amr.link_halo(tree, amr.LinkExchangeSpec(5))
    assert amr.link_halo(empty_mesh(gauge=3)[0]).shape == (0, 6, 6, 2, 3, 3)
    copies = tree.blocks.copy(), tree.field_slots.copy()
    restored = amr.GaugeTree.restored(tree.frontend, 0.5, 6, 3, *copies)  # without links
    assert (restored.links == np.eye(1)).all()


def test_ranks_with_other_specs_are_refused():
    def program(comm: Any) -> None:
        tree, arena = random_mesh(4, 0, **LINK_MESHES[3])
        amr.repartition(tree, arena, comm)
        with pytest.raises(RanksDisagree):
            amr.link_halo(tree, amr.LinkExchangeSpec(1 + comm.rank))

    assert on_threads(2, program) == [None, None]


def test_neighbours_of_another_level_are_refused():
    tree, arena = empty_mesh(base=2, gauge=1)
    for place in ((0, 0), (4, 0)):
        tree.insert_block(place, 0)
    tree.refine_block(1)
    give_fields(tree, arena, np.random.default_rng(0))
    with pytest.raises(BadBlock):
        amr.link_halo(tree)


FIRST, SECOND = np.array([0, 1, 0, 2]), np.array([0, 2, 0, 1])
"""Each rank has as many blocks before and after, and as many neighbours on each other rank."""


def ring() -> Any:
    """Four blocks in a circle, each with a field and links of its own."""
    tree, arena = empty_mesh(nd=1, base=4, topology="periodic", gauge=1)
    for number in range(4):
        index = tree.insert_block_with_field((4 * number,), 0, arena)
        arena.storage[int(tree.field_slots[index])] = number + 1
        tree.links[index] = number + 1
    return tree, arena


def around(tree: Any, arena: Any) -> dict[int, Any]:
    """The ghosts and the halo of each block, by where it begins."""
    ghosts, halo = tree.fill_ghosts(arena), amr.link_halo(tree)
    origins = tree.blocks["origin"][ghosts.blocks, 0].tolist()
    rows = zip(ghosts.layers.tolist(), halo.tolist(), strict=True)
    return dict(zip(origins, rows, strict=True))


@pytest.mark.parametrize("change", ["another shard", "other owners", "owners written over"])
def test_ghosts_are_those_of_the_owners_that_there_are_now(change):
    def program(comm: Any) -> dict[int, Any]:
        tree, arena = ring()
        places = amr.ShardContext.from_tree(tree, comm, "morton_contiguous").places
        shard = amr.ShardContext(comm, "manual", places, FIRST.copy())
        amr.move_blocks(tree, arena, shard)
        tree.attach_shard(shard)
        before = around(tree, arena)
        if change == "another shard":
            shard = amr.ShardContext(shard.comm, "manual", shard.places, SECOND)
        elif change == "other owners":
            shard.owners = SECOND.copy()
        else:
            shard.owners[:] = SECOND
        amr.move_blocks(tree, arena, shard)
        tree.attach_shard(shard)
        after = around(tree, arena)
        assert before.keys() == after.keys() or comm.rank
        return after

    ranks = on_threads(3, program)
    assert [sorted(rank) for rank in ranks] == [[0, 8], [12], [4]]
    assert merged(ranks) == around(*ring())


def test_owners_that_are_written_to_without_a_move_are_noticed():
    def program(comm: Any) -> None:
        tree, arena = ring()
        shard = amr.ShardContext.from_tree(tree, comm, "morton_contiguous")
        amr.move_blocks(tree, arena, shard)
        tree.attach_shard(shard)
        tree.fill_ghosts(arena)
        shard.owners[:] = shard.owners[::-1].copy()
        with pytest.raises(RanksDisagree):
            tree.fill_ghosts(arena)
        shard.owners[:] = 7
        with pytest.raises(BadOption):
            tree.fill_ghosts(arena)

    assert on_threads(2, program) == [None, None]
