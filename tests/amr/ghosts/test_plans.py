"""What is kept about a mesh is forgotten when the mesh, or who owns it, changes."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from standfast.amr import ShardContext, link_halo, move_blocks
from standfast.errors import BadOption, RanksDisagree
from tests.amr.meshes import empty_mesh, merged
from tests.kit.rank_threads import on_threads

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
    ghosts, halo = tree.fill_ghosts(arena), link_halo(tree)
    origins = tree.blocks["origin"][ghosts.blocks, 0].tolist()
    rows = zip(ghosts.layers.tolist(), halo.tolist(), strict=True)
    return dict(zip(origins, rows, strict=True))


@pytest.mark.parametrize("change", ["another shard", "other owners", "owners written over"])
def test_ghosts_are_those_of_the_owners_that_there_are_now(change: str) -> None:
    def program(comm: Any) -> dict[int, Any]:
        tree, arena = ring()
        places = ShardContext.from_tree(tree, comm, "morton_contiguous").places
        shard = ShardContext(comm, "manual", places, FIRST.copy())
        move_blocks(tree, arena, shard)
        tree.attach_shard(shard)
        before = around(tree, arena)
        if change == "another shard":
            shard = ShardContext(shard.comm, "manual", shard.places, SECOND)
        elif change == "other owners":
            shard.owners = SECOND.copy()
        else:
            shard.owners[:] = SECOND
        move_blocks(tree, arena, shard)
        tree.attach_shard(shard)
        after = around(tree, arena)
        assert before.keys() == after.keys() or comm.rank
        return after

    ranks = on_threads(3, program)
    assert [sorted(rank) for rank in ranks] == [[0, 8], [12], [4]]
    assert merged(ranks) == around(*ring())


def test_owners_that_are_written_to_without_a_move_are_noticed() -> None:
    def program(comm: Any) -> None:
        tree, arena = ring()
        shard = ShardContext.from_tree(tree, comm, "morton_contiguous")
        move_blocks(tree, arena, shard)
        tree.attach_shard(shard)
        tree.fill_ghosts(arena)
        shard.owners[:] = shard.owners[::-1].copy()
        with pytest.raises(RanksDisagree):
            tree.fill_ghosts(arena)
        shard.owners[:] = 7
        with pytest.raises(BadOption):
            tree.fill_ghosts(arena)

    assert on_threads(2, program) == [None, None]
