"""Snapshots that ranks save, which are threads."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from standfast import Run, Store
from standfast.amr import ShardContext, Snapshot
from tests.amr.tree_states import saved
from tests.kit.rank_threads import on_threads


def saved_by_threads(run: Run, size: int, made: Callable[[int], Any], shard: str = "") -> Any:
    """Save the trees of some ranks as step 1; returns the file of each."""

    def program(comm: Any) -> bytes:
        tree, arena = made(comm.rank)
        if shard:
            tree.attach_shard(ShardContext.from_tree(tree, comm, shard))
        own = Store(run.store.backend).run("heat")
        Snapshot.save(own, 1, tree, arena, comm=None if shard else comm)
        return saved(tree, arena)

    return on_threads(size, program)
