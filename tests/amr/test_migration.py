from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from standfast.amr import ShardContext
from standfast.amr.migration import move_blocks, repartition
from standfast.errors import BadBlock, BadOption, RankFailed, RanksDisagree, StandfastError
from tests.amr.meshes import empty_mesh, fields_by_key, give_fields, merged, random_mesh
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


def moved_to(owners: Any) -> Callable[[Any, Any, Any], object]:
    """Blocks that the ranks move to these owners, which each of them may have by its number."""

    def move(comm: Any, tree: Any, arena: Any) -> None:
        shard = ShardContext.from_tree(tree, comm, "morton_contiguous")
        shard.owners = np.array(owners(comm.rank) if callable(owners) else owners)
        move_blocks(tree, arena, shard)

    return move


def weighted(weights: Any) -> Callable[[Any, Any, Any], object]:
    """Blocks that are shared out by weights of which rank 0 has others."""

    def share(comm: Any, tree: Any, arena: Any) -> None:
        repartition(tree, arena, comm, weights if comm.rank == 0 else [1.0, 1.0])

    return share


def without_its_shard(comm: Any, tree: Any, arena: Any) -> None:
    shard = ShardContext.from_tree(tree, comm, "morton_contiguous")
    if comm.rank == 1:
        tree.insert_block((20, 20), 0)
    move_blocks(tree, arena, shard)


REFUSED: dict[str, tuple[Callable[[Any, Any, Any], object], type[StandfastError], str]] = {
    "a shard of another mesh": (without_its_shard, RanksDisagree, r"shard\.refresh"),
    "too few weights": (weighted([1.0]), BadOption, "rank 0 of 2: .*weights"),
    "a negative weight": (weighted([-1.0, 1.0]), BadOption, "rank 0 of 2: .*weights"),
    "a weight that is no number": (weighted([float("nan"), 1.0]), BadOption, "rank 0 of 2"),
    "weights on one rank only": (weighted(None), RanksDisagree, "some gave none"),
    "an owner too high": (moved_to([0, 2]), BadOption, "1 of 2 blocks have an owner"),
    "a negative owner": (moved_to([-1, 0]), BadOption, "the first of them -1"),
    "too few owners": (moved_to([0]), BadOption, r"int64 of shape \(1,\)"),
    "owners that are no integers": (moved_to([0.0, 1.0]), BadOption, "found float64"),
    "other owners on each rank": (moved_to(lambda r: [1 - r, r]), RanksDisagree, "the owners of"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_refused_is_refused_on_all_ranks_and_nothing_moves(name: str) -> None:
    call, error, told = REFUSED[name]

    def program(comm: Any) -> None:
        tree, arena = empty_mesh()
        for place in ((0, 0), (4, 0)):
            tree.insert_block_with_field(place, 0, arena)
        fields = arena.storage.tobytes(), arena.free_slots.tobytes(), arena.free_count
        with pytest.raises(error, match=told):
            call(comm, tree, arena)
        assert tree.live[:2].tolist() == [0, 1]
        assert tree.field_slots[:2].tolist() == [0, 1]
        assert (arena.storage.tobytes(), arena.free_slots.tobytes(), arena.free_count) == fields

    assert on_threads(2, program) == [None, None]


def test_a_block_that_no_tree_would_insert_does_not_leave_its_rank() -> None:
    def program(comm: Any) -> None:
        tree, arena = empty_mesh()
        if comm.rank == 0:
            for place in ((0, 0), (4, 0)):
                tree.insert_block_with_field(place, 0, arena)
            tree.blocks["origin"][1] = (4 * 65, 0)  # as a file may have it
        before = tree.blocks.tobytes()
        with pytest.raises(BadBlock, match=r"\(260,\s0\)"):
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
        with pytest.raises(RankFailed, match="MemoryError"):
            repartition(tree, arena, comm)
        assert fields_by_key(tree, arena) == before
        return len(before)

    assert on_threads(2, program) == [16, 0]


def _no_room(_: int) -> None:
    raise MemoryError("no room")


def test_a_tree_without_a_shard_needs_a_communicator() -> None:
    tree, arena = random_mesh(0)
    with pytest.raises(BadOption):
        repartition(tree, arena)
