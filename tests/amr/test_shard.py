from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from standfast.amr import ShardContext
from standfast.amr.shard import even_owners, weighted_owners
from standfast.errors import BadOption, BlockNotFound, RanksDisagree
from tests.amr.meshes import empty_mesh, random_mesh
from tests.kit.rank_threads import on_threads


def test_seven_blocks_over_three_ranks_are_three_two_and_two() -> None:
    assert even_owners(7, 3).tolist() == [0, 0, 0, 1, 1, 2, 2]
    assert even_owners(2, 4).tolist() == [0, 1]
    assert even_owners(0, 2).tolist() == []


def test_weights_are_shared_out_in_order() -> None:
    assert weighted_owners(np.array([1.0, 1.0, 1.0, 1.0]), 2).tolist() == [0, 0, 1, 1]
    assert weighted_owners(np.array([9.0, 1.0, 1.0, 1.0]), 2).tolist() == [0, 1, 1, 1]
    assert weighted_owners(np.array([1.0, 1.0, 1.0, 9.0]), 3).tolist() == [0, 0, 0, 1]
    assert weighted_owners(np.zeros(3), 2).tolist() == [0, 0, 1]


@pytest.mark.parametrize("seed", range(5))
def test_weighted_owners_never_go_back(seed: int) -> None:
    rng = np.random.default_rng(seed)
    owners = weighted_owners(rng.random(40), 7)
    assert np.all(np.diff(owners) >= 0)
    assert set(owners.tolist()) == set(range(7))


@pytest.mark.parametrize("scale", [1e308, 2.0**-1022, 5e-324, 1e300])
def test_weights_may_be_as_large_or_small_as_numbers_are(scale: float) -> None:
    assert weighted_owners(np.full(9, scale), 2).tolist() == [0, 0, 0, 0, 1, 1, 1, 1, 1]
    assert weighted_owners(np.array([scale, scale, 0.0]), 3).tolist() == [0, 2, 2]


def test_weights_that_are_scaled_have_the_same_owners() -> None:
    weights = np.random.default_rng(0).random(50)
    expected = weighted_owners(weights, 6).tolist()
    for exponent in (-900, -1, 60, 1023):
        assert weighted_owners(np.ldexp(weights, exponent), 6).tolist() == expected


def test_one_rank_owns_all_blocks_sorted_by_key() -> None:
    tree, _ = random_mesh(1)
    shard = ShardContext.from_tree(tree, None, "morton_contiguous")
    assert [tuple(key) for key in shard.keys.tolist()] == sorted(tree.keys())
    assert (shard.rank, shard.size, shard.kind) == (0, 1, "morton_contiguous")
    assert shard.owners.tolist() == [0] * len(tree.live)
    assert set(map(shard.owner, tree.keys())) == {0}


def test_a_tree_that_every_rank_has_is_split_evenly() -> None:
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


def test_shared_out_by_hand_a_block_belongs_to_who_has_it() -> None:
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


def test_shared_out_by_hand_a_block_on_two_ranks_is_refused_on_all() -> None:
    def program(comm: Any) -> None:
        tree, _ = empty_mesh()
        tree.insert_block((4, 0) if comm.rank else (0, 0), 0)
        with pytest.raises(RanksDisagree, match=r"\(4,\s0\)"):
            ShardContext.from_tree(tree, comm, "manual")

    assert on_threads(3, program) == [None] * 3


def test_ranks_must_agree_on_the_tree_and_on_the_kind() -> None:
    def program(comm: Any) -> None:
        with pytest.raises(RanksDisagree):
            ShardContext.from_tree(empty_mesh(max_level=1 + comm.rank)[0], comm, "manual")
        kind = "manual" if comm.rank else "morton_contiguous"
        with pytest.raises(RanksDisagree):
            ShardContext.from_tree(empty_mesh()[0], comm, kind)

    assert on_threads(2, program) == [None] * 2


def test_what_is_not_there_is_refused() -> None:
    tree, _ = random_mesh(1)
    with pytest.raises(BadOption, match="kind='hilbert'"):
        ShardContext.from_tree(tree, None, "hilbert")
    shard = ShardContext.from_tree(tree, None, "manual")
    with pytest.raises(BlockNotFound):
        shard.owner((12345678, 0))
    with pytest.raises(BadOption):
        shard.owned_by(1)
