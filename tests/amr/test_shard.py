from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from standfast.amr import ShardContext
from standfast.amr.shard import even_owners, weighted_owners
from standfast.errors import BadOption, BlockNotFound, RanksDisagree
from tests.amr.meshes import empty_mesh, random_mesh
from tests.kit.rank_threads import on_threads


@pytest.mark.parametrize(
    ("blocks", "ranks", "owners"), [(7, 3, "0001122"), (2, 4, "01"), (0, 2, "")]
)
def test_blocks_are_shared_out_evenly(blocks: int, ranks: int, owners: str) -> None:
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
def test_weights_are_shared_out_in_order(weights: Any, ranks: int, owners: str) -> None:
    assert weighted_owners(np.array(weights), ranks).tolist() == list(map(int, owners))


@pytest.mark.parametrize("seed", range(5))
def test_owners_by_weights_do_not_depend_on_their_unit(seed: int) -> None:
    weights = np.random.default_rng(seed).random(40)
    owners = weighted_owners(weights, 7)
    assert np.all(np.diff(owners) >= 0)
    assert set(owners.tolist()) == set(range(7))
    for exponent in (-900, -1, 60, 1023):
        assert weighted_owners(np.ldexp(weights, exponent), 7).tolist() == owners.tolist()


def test_one_rank_owns_all_blocks_sorted_by_key() -> None:
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


def test_ranks_that_disagree_on_the_mesh_are_refused_on_all() -> None:
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
