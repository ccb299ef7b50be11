"""Snapshots on other numbers of ranks, which are threads here, than saved them."""

from __future__ import annotations

from typing import Any

import pytest

from standfast import Store
from standfast.amr import Snapshot
from standfast.errors import DuplicateKey, RanksDisagree
from tests.amr.meshes import empty_mesh, fields_by_key, random_mesh
from tests.amr.snapshot.snapshots import saved_by_threads
from tests.kit.rank_threads import on_threads


def _loaded_by_threads(run: Any, size: int) -> Any:
    """What each of some ranks has of step 1: its blocks, their owners, and its free slots."""

    def program(comm: Any) -> Any:
        found = Snapshot.load(Store(run.store.backend).run("heat"), 1, comm=comm, reshard=True)
        assert found.shard is not None
        fields = fields_by_key(found.tree, found.arena)
        return fields, found.shard.owners.tolist(), found.arena.free_count

    return on_threads(size, program)


def test_there_may_be_more_ranks_than_blocks(run: Any) -> None:
    tree, arena = empty_mesh(gauge=1)
    tree.insert_block_with_field((0, 0), 0, arena)
    Snapshot.save(run, 1, tree, arena)
    found = _loaded_by_threads(run, 3)
    assert [len(blocks) for blocks, _, _ in found] == [1, 0, 0]
    assert [free for _, _, free in found] == [1, 2, 2]


def test_of_copies_that_ranks_hold_the_owners_counts(run: Any) -> None:
    def made(rank: int) -> Any:
        tree, arena = empty_mesh()
        for place in ((0, 0), (4, 0)):
            tree.insert_block_with_field(place, 0, arena)
        arena.storage[:] = rank
        return tree, arena

    saved_by_threads(run, 2, made, "morton_contiguous")  # and the blocks are not moved
    found = Snapshot.load(run, 1, reshard=True)
    assert found.arena.storage[:2, 0].tolist() == [0.0, 1.0]
    assert found.shard is None


def of_one_key(rank: int) -> Any:
    tree, arena = empty_mesh()
    tree.insert_block_with_field((0, 0), 0, arena)
    if rank:
        tree.blocks["origin"][0] = (4 * 64, 0)  # too far out for a key of its own
    return tree, arena


@pytest.mark.parametrize(
    ("made", "error"), [(of_one_key, DuplicateKey), (lambda rank: random_mesh(rank), RanksDisagree)]
)
def test_meshes_of_their_own_are_not_shared_out_as_one(made: Any, error: Any, run: Any) -> None:
    saved_by_threads(run, 2, made)
    with pytest.raises(error):
        Snapshot.load(run, 1, reshard=True)
