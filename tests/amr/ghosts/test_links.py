from itertools import product
from typing import Any

import numpy as np
import pytest

from standfast import amr
from standfast.errors import BadBlock, BadOption, RanksDisagree
from tests.amr.meshes import beyond, empty_mesh, give_fields, merged, random_mesh
from tests.kit.rank_threads import on_threads

MESHES: list[dict[str, Any]] = [
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
@pytest.mark.parametrize("of", MESHES)
def test_a_halo_is_the_one_found_site_by_site(of, spec, holes):
    tree, _ = random_mesh(4, 0, holes=holes and of["base"] > 1, **of)
    halo = amr.link_halo(tree, spec)
    assert halo.tobytes() == expected_halo(tree, spec).tobytes()


@pytest.mark.parametrize("options", [{"depth": -1}, {"depth": 1.0}, {"corners": 1}])
def test_a_link_exchange_is_a_number_of_layers_with_or_without_corners(options):
    with pytest.raises(BadOption):
        amr.LinkExchangeSpec(**options)


def test_a_halo_follows_links_blocks_and_the_spec_of_the_tree():
    tree, _ = random_mesh(4, 0, **MESHES[1])
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
        tree, arena = random_mesh(4, 0, **MESHES[3])
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
