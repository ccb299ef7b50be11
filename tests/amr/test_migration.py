from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from standfast.amr import ShardContext
from standfast.amr.migration import move_blocks, repartition
from standfast.errors import BadBlock, BadOption, RankFailed, RanksDisagree
from tests.amr.meshes import empty_mesh, fields_by_key, give_fields, merged, random_mesh
from tests.amr.tree_states import saved
from tests.kit.rank_threads import on_threads

GAUGE: dict[str, Any] = {"nd": 2, "base": 3, "gauge": 2}
VECTOR: dict[str, Any] = {"nd": 2, "base": 3, "topology": "mixed", "components": 3}


@pytest.mark.parametrize(
    "of", [{"nd": 3, "base": 2}, VECTOR, GAUGE], ids=["scalar", "mixed vector", "gauge"]
)
@pytest.mark.parametrize("size", [1, 2, 4])
def test_blocks_come_to_their_owners_with_fields_and_links(of: Any, size: int) -> None:
    def program(comm: Any) -> Any:
        tree, arena = random_mesh(7, **of)
        shard = ShardContext.from_tree(tree, comm, "morton_contiguous")
        move_blocks(tree, arena, shard)  # every rank had all blocks: none travels
        keys = sorted(tree.keys())
        assert keys == [tuple(key) for key in shard.owned_by(comm.rank).tolist()]
        first = fields_by_key(tree, arena)
        rng = np.random.default_rng(comm.rank)
        for _ in range(3):
            again = repartition(tree, arena, comm, rng.random(len(tree.live)) + 0.01)
        assert sorted(tree.keys()) == [tuple(key) for key in again.owned_by(comm.rank).tolist()]
        assert tree.shard is again
        assert again.kind == "manual"
        by_hand = ShardContext.from_tree(tree, comm, "manual")
        assert by_hand.owners.tolist() == again.owners.tolist()
        return first, fields_by_key(tree, arena)

    answers = on_threads(size, program)
    expected = fields_by_key(*random_mesh(7, **of))
    assert merged([first for first, _ in answers]) == expected
    assert merged([last for _, last in answers]) == expected


def test_a_copy_that_the_owner_has_is_the_one_that_is_kept() -> None:
    def program(comm: Any) -> Any:
        tree, arena = empty_mesh(base=2)
        for place in ((0, 0), (4, 0)):
            index = tree.insert_block_with_field(place, 0, arena)
            arena.storage[int(tree.field_slots[index])] = comm.rank
        repartition(tree, arena, comm)
        assert arena.free_count == 3
        return arena.storage[int(tree.field_slots[tree.live[0]]), 0]

    assert on_threads(2, program) == [0.0, 1.0]


def test_a_shard_of_another_mesh_is_refused_and_nothing_moves() -> None:
    def program(comm: Any) -> None:
        tree, arena = random_mesh(7)
        shard = ShardContext.from_tree(tree, comm, "morton_contiguous")
        if comm.rank == 1:
            tree.insert_block((20, 20), 0)
        before = tree.blocks.tobytes()
        with pytest.raises(RanksDisagree, match=r"shard\.refresh"):
            move_blocks(tree, arena, shard)
        assert tree.blocks.tobytes() == before

    assert on_threads(2, program) == [None, None]


def test_a_block_that_no_tree_would_insert_does_not_leave_its_rank() -> None:
    def program(comm: Any) -> None:
        tree, arena = empty_mesh()
        if comm.rank == 0:
            for place in ((0, 0), (4, 0)):
                tree.insert_block_with_field(place, 0, arena)
            tree.blocks["origin"][1] = (4 * 65, 0)  # as a file may have it
        before = tree.blocks.tobytes()
        with pytest.raises(BadBlock, match=r"rank 1 of 2: .*\(260, 0\)"):
            repartition(tree, arena, comm)
        assert tree.blocks.tobytes() == before

    assert on_threads(2, program) == [None, None]


def test_no_room_on_one_rank_fails_on_all_and_nothing_is_lost(monkeypatch: Any) -> None:
    def program(comm: Any) -> Any:
        tree, arena = empty_mesh(base=4)
        if comm.rank == 0:
            for number in range(16):
                tree.insert_block((4 * (number % 4), 4 * (number // 4)), 0)
            give_fields(tree, arena, np.random.default_rng(0))
        else:
            monkeypatch.setattr(arena, "storage_of", _no_room)
        before = fields_by_key(tree, arena)
        with pytest.raises(RankFailed, match="rank 1 of 2: MemoryError: no room"):
            repartition(tree, arena, comm)
        assert fields_by_key(tree, arena) == before
        return len(before)

    assert on_threads(2, program) == [16, 0]


def _no_room(_: int) -> None:
    raise MemoryError("no room")


@pytest.mark.parametrize("weights", [[1.0], [-1.0, 1.0], [float("nan"), 1.0]])
def test_weights_that_are_none_are_refused_on_all_ranks(weights: Any) -> None:
    def program(comm: Any) -> None:
        tree, arena = empty_mesh()
        for place in ((0, 0), (4, 0)):
            tree.insert_block_with_field(place, 0, arena)
        with pytest.raises(BadOption, match=r"rank 0 of 2: .*weights"):
            repartition(tree, arena, comm, weights if comm.rank == 0 else [1.0, 1.0])

    assert on_threads(2, program) == [None, None]


@pytest.mark.parametrize(
    ("owners", "match"),
    [
        ([0, 2], "1 of 2 blocks have an owner that is none of the 2 ranks, the first of them 2"),
        ([-1, 0], "the first of them -1"),
        ([0], r"each of the 2 blocks, and found int64 of shape \(1,\)"),
        ([0.0, 1.0], "found float64"),
    ],
)
def test_owners_that_are_none_are_refused_and_nothing_moves(owners: Any, match: str) -> None:
    def program(comm: Any) -> None:
        tree, arena = empty_mesh()
        for place in ((0, 0), (4, 0)):
            tree.insert_block_with_field(place, 0, arena)
        before = saved(tree, arena)
        shard = ShardContext.from_tree(tree, comm, "morton_contiguous")
        shard.owners = np.array(owners)
        with pytest.raises(BadOption, match=match):
            move_blocks(tree, arena, shard)
        assert saved(tree, arena) == before

    assert on_threads(2, program) == [None, None]


def test_ranks_must_agree_on_the_owners() -> None:
    def program(comm: Any) -> None:
        tree, arena = empty_mesh()
        for place in ((0, 0), (4, 0)):
            tree.insert_block_with_field(place, 0, arena)
        before = saved(tree, arena)
        shard = ShardContext.from_tree(tree, comm, "morton_contiguous")
        shard.owners = np.array([1 - comm.rank, comm.rank])
        with pytest.raises(RanksDisagree, match="the owners of blocks"):
            move_blocks(tree, arena, shard)
        assert saved(tree, arena) == before

    assert on_threads(2, program) == [None, None]


def test_weights_on_some_ranks_only_are_refused() -> None:
    def program(comm: Any) -> None:
        tree, arena = empty_mesh()
        tree.insert_block_with_field((4 * comm.rank, 0), 0, arena)
        with pytest.raises(RanksDisagree, match="some gave none"):
            repartition(tree, arena, comm, [1.0] if comm.rank == 0 else None)

    assert on_threads(2, program) == [None, None]


def test_a_tree_without_a_shard_needs_a_communicator() -> None:
    tree, arena = random_mesh(0)
    with pytest.raises(BadOption, match="give a communicator"):
        repartition(tree, arena)
