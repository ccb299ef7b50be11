import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from standfast.amr import ShardContext, move_blocks, repartition
from standfast.amr.shard import even_owners, weighted_owners
from standfast.errors import (
    BadBlock,
    BadOption,
    BlockNotFound,
    RankFailed,
    RanksDisagree,
    StandfastError,
)
from tests.amr.meshes import (
    ShortMemory,
    empty_mesh,
    fields_by_key,
    give_fields,
    merged,
    random_mesh,
    saved,
)
from tests.kit.rank_threads import on_threads

GAUGE: dict[str, Any] = {"nd": 2, "base": 3, "gauge": 2}
VECTOR: dict[str, Any] = {"nd": 2, "base": 3, "topology": "mixed", "components": 3}


@pytest.mark.parametrize(
    "of", [{"nd": 3, "base": 2}, VECTOR, GAUGE], ids=["scalar", "mixed vector", "gauge"]
)
@pytest.mark.parametrize("size", [1, 2, 4])
def test_blocks_come_to_their_owners_with_fields_and_links(of, size):
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


def test_a_copy_that_the_owner_has_is_the_one_that_is_kept():
    def program(comm: Any) -> Any:
        tree, arena = empty_mesh(base=2)
        for place in ((0, 0), (4, 0)):
            index = tree.insert_block_with_field(place, 0, arena)
            arena.storage[int(tree.field_slots[index])] = comm.rank
        repartition(tree, arena, comm)
        assert arena.free_count == 3
        return arena.storage[int(tree.field_slots[tree.live[0]]), 0]

    assert on_threads(2, program) == [0.0, 1.0]


def moved(comm: Any, tree: Any, arena: Any, owners: Any, more: bool = False) -> None:
    """Move blocks to these owners; with `more`, after a rank has another block."""
    shard = ShardContext.from_tree(tree, comm, "morton_contiguous")
    if owners is not None:
        shard.owners = np.array(owners)
    if more and comm.rank == 1:
        tree.insert_block((20, 20), 0)
    move_blocks(tree, arena, shard)


def weighted(comm: Any, tree: Any, arena: Any, weights: Any) -> None:
    """Share blocks out by weights of which rank 0 has others."""
    repartition(tree, arena, comm, weights if comm.rank == 0 else [1.0, 1.0])


REFUSED: dict[str, tuple[Callable[[Any, Any, Any], object], type[StandfastError], str]] = {
    "a shard of another mesh": (lambda *of: moved(*of, None, True), RanksDisagree, "refresh"),
    "too few weights": (lambda *of: weighted(*of, [1.0]), BadOption, "weights"),
    "a negative weight": (lambda *of: weighted(*of, [-1.0, 1.0]), BadOption, "weights"),
    "a weight that is nan": (lambda *of: weighted(*of, [np.nan, 1.0]), BadOption, "weights"),
    "weights on one rank only": (lambda *of: weighted(*of, None), RanksDisagree, "weights"),
    "an owner too high": (lambda *of: moved(*of, [0, 2]), BadOption, "2"),
    "a negative owner": (lambda *of: moved(*of, [-1, 0]), BadOption, "-1"),
    "too few owners": (lambda *of: moved(*of, [0]), BadOption, "int64"),
    "owners that are no integers": (lambda *of: moved(*of, [0.0, 1.0]), BadOption, "float64"),
    "other owners on each rank": (
        lambda comm, *of: moved(comm, *of, [1 - comm.rank, comm.rank]),
        *(RanksDisagree, "owners"),
    ),
    "no communicator": (lambda comm, *of: repartition(*of), BadOption, "communicator"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_refused_is_refused_on_all_ranks_and_nothing_moves(name):
    call, error, told = REFUSED[name]

    def program(comm: Any) -> None:
        tree, arena = empty_mesh()
        for place in ((0, 0), (4, 0)):
            tree.insert_block_with_field(place, 0, arena)
        fields = arena.storage.tobytes(), arena.free_slots.tobytes(), arena.free_count
        with pytest.raises(error, match=told):
            call(comm, tree, arena)
        assert tree.live[:2].tolist() == tree.field_slots[:2].tolist() == [0, 1]
        assert (arena.storage.tobytes(), arena.free_slots.tobytes(), arena.free_count) == fields

    assert on_threads(2, program) == [None, None]


def test_a_block_that_no_tree_would_insert_does_not_leave_its_rank():
    def program(comm: Any) -> None:
        tree, arena = empty_mesh()
        if comm.rank == 0:
            for place in ((0, 0), (4, 0)):
                tree.insert_block_with_field(place, 0, arena)
            tree.blocks["origin"][1] = (4 * 65, 0)  # as a file may have it
        before = tree.blocks.tobytes()
        with pytest.raises(BadBlock, match="260"):
            repartition(tree, arena, comm)
        assert tree.blocks.tobytes() == before

    assert on_threads(2, program) == [None, None]


def test_no_room_on_one_rank_fails_on_all_and_nothing_is_lost(seams):
    memory = ShortMemory(seams, "zeros")

    def program(comm: Any) -> Any:
        tree, arena = empty_mesh(base=4)
        if comm.rank == 0:
            for number in range(16):
                tree.insert_block((4 * (number % 4), 4 * (number // 4)), 0)
            give_fields(tree, arena, np.random.default_rng(0))
        before = fields_by_key(tree, arena)
        if comm.rank == 1:
            memory.thread, memory.left = threading.get_ident(), 0
        with pytest.raises(RankFailed, match=r"rank\s1"):
            repartition(tree, arena, comm)
        if comm.rank == 1:
            memory.left = np.inf
        assert fields_by_key(tree, arena) == before
        return len(before)

    assert on_threads(2, program) == [16, 0]


CHANGES: dict[str, Callable[..., Any]] = {
    "repartition": repartition,
    "morton_contiguous": lambda tree, _, comm: ShardContext.from_tree(
        tree, comm, "morton_contiguous"
    ),
}


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_a_rank_without_memory_for_any_array_fails_on_all_and_moves_nothing(change, seams):
    memory = ShortMemory(seams)

    failures = 0

    def program(comm: Any) -> bool:
        tree, arena = random_mesh(3, 6, holes=False)
        before, has_failed = saved(tree, arena), False
        if comm.rank == 1:
            memory.thread, memory.left = threading.get_ident(), failures
        try:
            change(tree, arena, comm)
        except RankFailed:
            has_failed = True
        if comm.rank == 1:
            memory.left = np.inf
        assert not has_failed or saved(tree, arena) == before
        return has_failed

    while (failed := on_threads(2, program)) == [True, True]:
        failures += 1
    assert failed == [False, False]
    assert failures >= 5


@pytest.mark.parametrize(
    ("blocks", "ranks", "owners"), [(7, 3, "0001122"), (2, 4, "01"), (0, 2, "")]
)
def test_blocks_are_shared_out_evenly(blocks, ranks, owners):
    assert even_owners(blocks, ranks).tolist() == list(map(int, owners))


@pytest.mark.parametrize(
    ("weights", "ranks", "owners"),
    [
        *(([1.0, 1.0, 1.0, 1.0], 2, "0011"), ([9.0, 1.0, 1.0, 1.0], 2, "0111")),
        *(([1.0, 1.0, 1.0, 9.0], 3, "0001"), ([0.0, 0.0, 0.0], 2, "001")),
        *(([scale] * 9, 2, "000011111") for scale in (1e308, 1e300, 2.0**-1022, 5e-324)),
        *(([scale, scale, 0.0], 3, "022") for scale in (1e308, 1e300, 2.0**-1022, 5e-324)),
    ],
)
def test_weights_are_shared_out_in_order(weights, ranks, owners):
    assert weighted_owners(np.array(weights), ranks).tolist() == list(map(int, owners))


@pytest.mark.parametrize("seed", range(5))
def test_owners_by_weights_do_not_depend_on_their_unit(seed):
    weights = np.random.default_rng(seed).random(40)
    owners = weighted_owners(weights, 7)
    assert np.all(np.diff(owners) >= 0)
    assert set(owners.tolist()) == set(range(7))
    for exponent in (-900, -1, 60, 1023):
        assert weighted_owners(np.ldexp(weights, exponent), 7).tolist() == owners.tolist()


def test_one_rank_owns_all_blocks_sorted_by_key():
    tree, _ = random_mesh(1)
    shard = ShardContext.from_tree(tree, None, "morton_contiguous")
    assert list(map(tuple, shard.keys.tolist())) == sorted(tree.keys())
    assert (shard.rank, shard.size, shard.kind) == (0, 1, "morton_contiguous")
    assert set(shard.owners.tolist()) == set(map(shard.owner, tree.keys())) == {0}
    with pytest.raises(BadOption, match="kind='hilbert'"):
        ShardContext.from_tree(tree, None, "hilbert")
    with pytest.raises(BlockNotFound):
        shard.owner((12345678, 0))
    with pytest.raises(BadOption, match="1"):
        shard.owned_by(1)


def test_a_tree_that_every_rank_has_is_split_evenly():
    def program(comm: Any) -> Any:
        tree, _ = random_mesh(1)
        shard = ShardContext.from_tree(tree, comm, "morton_contiguous")
        assert [shard.count(rank) for rank in range(3)] == np.bincount(shard.owners).tolist()
        assert {shard.owner(tuple(key)) for key in shard.owned_by(1).tolist()} == {1}
        return shard.keys.tolist(), shard.owners.tolist()

    answers = on_threads(3, program)
    assert answers[0] == answers[1] == answers[2]
    tree, _ = random_mesh(1)
    assert [tuple(key) for key in answers[0][0]] == sorted(tree.keys())
    assert answers[0][1] == even_owners(len(tree.live), 3).tolist()


def test_shared_out_by_hand_a_block_belongs_to_who_has_it():
    def program(comm: Any) -> Any:
        tree, _ = empty_mesh(base=4)
        tree.insert_block((4 * comm.rank, 4), 0)
        tree.insert_block((0, 8 + 4 * comm.rank), 1)
        shard = ShardContext.from_tree(tree, comm, "manual")
        assert sorted(tree.keys()) == [tuple(key) for key in shard.owned_by(comm.rank).tolist()]
        tree.insert_block((12, 4 * comm.rank), 0)
        shard.refresh(tree)
        assert sorted(tree.keys()) == [tuple(key) for key in shard.owned_by(comm.rank).tolist()]
        return len(shard.keys)

    assert on_threads(2, program) == [6, 6]


def test_ranks_that_disagree_on_the_mesh_are_refused_on_all():
    def program(comm: Any) -> None:
        tree, _ = empty_mesh()
        tree.insert_block((4, 0) if comm.rank else (0, 0), 0)
        with pytest.raises(RanksDisagree, match=r"\(4,\s0\).*1.*2"):  # ranks 1 and 2 have it
            ShardContext.from_tree(tree, comm, "manual")
        with pytest.raises(RanksDisagree, match="tree"):
            ShardContext.from_tree(empty_mesh(max_level=1 + comm.rank)[0], comm, "manual")
        kind = "manual" if comm.rank else "morton_contiguous"
        with pytest.raises(RanksDisagree):
            ShardContext.from_tree(empty_mesh()[0], comm, kind)

    assert on_threads(3, program) == [None] * 3
