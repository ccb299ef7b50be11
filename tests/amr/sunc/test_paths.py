"""Names of files, and one step for all ranks."""

import os
from pathlib import Path
from typing import Any

import pytest

from standfast.amr import (
    AMRTree,
    FieldArena,
    Schedule,
    ShardContext,
    TreeCheckpoint,
    broadcast_checkpoint_step,
    format_path,
    format_ranked_path,
)
from standfast.errors import BadOption
from standfast.parallel import SingleRank
from tests.amr.tree_states import VECTOR
from tests.kit.rank_threads import on_threads


def test_paths_are_the_originals():
    assert format_path("checkpoints", "run", 100) == "checkpoints/run_step100.sunc"
    assert format_ranked_path("checkpoints", "run", 100, 0) == "checkpoints/run_step100_rank0.sunc"
    assert format_ranked_path(Path("a/b"), "x", 7, 12) == "a/b/x_step7_rank12.sunc"


@pytest.mark.parametrize("step", [-1, 1.0, "1", None, True, 2**64])
def test_a_step_and_a_rank_are_whole_numbers(step):
    with pytest.raises(BadOption, match="step="):
        format_path("checkpoints", "run", step)
    with pytest.raises(BadOption, match="rank="):
        format_ranked_path("checkpoints", "run", 0, step)
    for prefix in (f"..{os.sep}run", "/run", "a\0b", 3):
        with pytest.raises(BadOption, match="prefix="):
            format_path("checkpoints", prefix, 1)


@pytest.mark.parametrize("strict", [False, True])
def test_the_step_decides_whether_a_checkpoint_is_due(strict):
    schedule = Schedule(100, start=0)
    assert schedule.should_checkpoint(broadcast_checkpoint_step(None, 0, 300, strict=strict))
    assert not schedule.should_checkpoint(broadcast_checkpoint_step(SingleRank(), 0, 301))
    with pytest.raises(BadOption, match="step="):
        broadcast_checkpoint_step(None, 0, -5, strict=strict)
    with pytest.raises(BadOption, match="1"):
        broadcast_checkpoint_step(None, 1, 5, strict=strict)


def test_each_rank_writes_its_own_file_and_rebuilds_the_shard_after_a_restart(tmp_path):

    def program(comm: Any) -> None:
        tree, arena = AMRTree(VECTOR, 1.0, 4, 8), FieldArena(VECTOR, 4)
        block = tree.insert_block_with_field((4 * comm.rank, 0), 0, arena)
        arena.storage[tree.field_slots[block]] = 10_000.0 * comm.rank + 0.5
        tree.attach_shard(ShardContext.from_tree(tree, comm, "morton_contiguous"))
        before = tree.fill_ghosts(arena).layers.tobytes()

        step = broadcast_checkpoint_step(comm, 0, 300 + comm.rank)
        assert Schedule(100, start=0).should_checkpoint(step)
        checkpoint = TreeCheckpoint(VECTOR)
        path = format_ranked_path(tmp_path, "run", step, comm.rank)
        checkpoint.write_to_file(tree, arena, path)

        state = checkpoint.read_from_file(path)
        shard = ShardContext.from_tree(state.tree, comm, "morton_contiguous")
        state.tree.attach_shard(shard)
        assert state.tree.fill_ghosts(state.arena).layers.tobytes() == before

    on_threads(2, program)
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "run_step300_rank0.sunc",
        "run_step300_rank1.sunc",
    ]
