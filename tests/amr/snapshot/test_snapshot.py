"""Snapshots of one rank, and of ranks that are threads: what is kept, exported and refused."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from standfast import Store
from standfast.amr import (
    AMRTree,
    FieldArena,
    OpenTopology,
    ScalarFrontend,
    ShardContext,
    Snapshot,
)
from standfast.errors import (
    BadOption,
    FellBack,
    GhostsInUse,
    RefNotFound,
    RefusedState,
    StandfastError,
    StateMismatch,
)
from standfast.parallel import SingleRank
from tests.amr.meshes import empty_mesh, random_mesh
from tests.amr.tree_states import saved, worn
from tests.kit.rank_threads import on_threads
from tests.kit.stores import bytes_written, data_path, flip


@pytest.fixture
def run_on_disk(tmp_path: Path) -> Any:
    return Store(tmp_path / "store").run("heat")


# What is kept


@pytest.mark.parametrize("kind", ["scalar", "vector", "u1", "su2"])
def test_what_is_loaded_is_what_was_saved(kind: str, run: Any) -> None:
    tree, arena = worn(kind)
    values = {"beta": 2.5, "seen": [1, (2, None)], "means": np.arange(3.0)}
    snapshot = Snapshot.save(run, 7, tree, arena, time=0.1 + 0.2, values=values)
    found = Snapshot.load(run, frontend=tree.frontend)
    assert type(found.tree) is type(tree)
    assert saved(found.tree, found.arena) == saved(tree, arena)
    assert (found.step, found.time, found.shard) == (7, 0.1 + 0.2, None)
    assert found.values["means"].tobytes() == values["means"].tobytes()  # type: ignore[attr-defined]
    assert [found.values["beta"], found.values["seen"]] == [2.5, [1, (2, None)]]
    assert (snapshot.step, snapshot.time, snapshot.ranks) == (7, 0.1 + 0.2, 1)
    assert snapshot.frontend == tree.frontend
    assert repr(snapshot) == f"<snapshot {run.hash}@7>"


def test_a_loaded_tree_does_not_share_memory_with_the_store(run: Any) -> None:
    tree, arena = worn("su2")
    Snapshot.save(run, 1, tree, arena)
    before = saved(tree, arena)
    for _ in range(2):
        found = Snapshot.load(run)
        assert saved(found.tree, found.arena) == before
        found.arena.storage[:] = 1
        found.tree.links[:] = 1
        found.tree.reorder()
        found.arena.defragment(found.tree)


def test_an_empty_tree_and_an_arena_without_slots_come_back(run: Any) -> None:
    for step, (tree, arena) in enumerate((empty_mesh(), empty_mesh(gauge=2))):
        arena = FieldArena(tree.frontend, 4 * step)
        Snapshot.save(run, step, tree, arena)
        found = Snapshot.load(run, step)
        assert saved(found.tree, found.arena) == saved(tree, arena)


def test_a_shard_of_one_rank_comes_back_attached(run: Any) -> None:
    tree, arena = random_mesh(3)
    shard = ShardContext.from_tree(tree, None, "morton_contiguous")
    tree.attach_shard(shard)
    Snapshot.save(run, 1, tree, arena)
    found = Snapshot.load(run).shard
    assert found is not None
    assert (found.kind, found.rank, found.size) == ("morton_contiguous", 0, 1)
    assert found.keys.tobytes() == shard.keys.tobytes()
    assert found.owners.tobytes() == shard.owners.tobytes()


def test_generators_go_on_where_they_were(run: Any) -> None:
    own: dict[str, Any] = {
        "pcg": np.random.default_rng(1),
        "philox": np.random.Generator(np.random.Philox(2)),
        "legacy": np.random.RandomState(3),
        "python": random.Random(4),
    }
    draws: list[Callable[[], float]] = [
        own["pcg"].standard_normal,
        own["philox"].random,
        own["legacy"].standard_normal,
        own["python"].random,
        random.random,
        np.random.standard_normal,
    ]
    for draw in draws:
        draw()  # of normal numbers the second of a pair waits now
    Snapshot.save(run, 1, *worn(), random=own)
    expected = [draw() for draw in draws for _ in range(3)]
    assert Snapshot.load(run).restore_random(**own) == []
    assert [draw() for draw in draws for _ in range(3)] == expected


def test_generators_that_were_not_saved_are_refused(run: Any) -> None:
    rng = np.random.default_rng(1)
    Snapshot.save(run, 1, *worn(), random={"kicks": rng})
    found = Snapshot.load(run)
    with pytest.raises(StateMismatch, match="kicks.*other"):
        found.restore_random(other=rng)
    with pytest.raises(StateMismatch, match="PCG64"):
        found.restore_random(kicks=np.random.Generator(np.random.Philox(2)))
    with pytest.raises(RefusedState):
        Snapshot.save(run, 2, *worn(), random={"kicks": 4})


# How it is stored


def test_only_slabs_that_changed_are_written_again(run_on_disk: Any) -> None:
    frontend = ScalarFrontend(2, 16, OpenTopology(2, (64.0, 64.0)))
    tree, arena = AMRTree(frontend, 1.0, 6, 2), FieldArena(frontend, 1536)
    arena.storage[:] = np.random.default_rng(0).random(arena.storage.shape)
    assert arena.storage.nbytes == 3 << 20
    run, small = run_on_disk, 1 << 16

    def save(step: int) -> int:
        return bytes_written(run, lambda: Snapshot.save(run, step, tree, arena))

    assert 3 << 20 < save(1) < (3 << 20) + small
    assert save(2) < small, "nothing but what is too small to be looked for"
    arena.storage[600, 3] = 0.5
    assert 1 << 20 < save(3) < (1 << 20) + small
    found = Snapshot.load(run)
    assert bytes_written(run, lambda: Snapshot.save(run, 4, found.tree, found.arena)) < small


# Which one is loaded


def test_a_snapshot_is_found_by_step_tag_best_and_latest(run: Any) -> None:
    with pytest.raises(RefNotFound):
        Snapshot.load(run)
    for step in (1, 2, 3):
        Snapshot.save(run, step, *worn(), time=step / 2, best=step == 2)
    Snapshot(run.checkpoint(1)).checkpoint.tag("paper")
    found = [Snapshot.load(run, ref).step for ref in (1, "2", "paper", "best", "latest")]
    assert found == [1, 2, 1, 2, 3]
    with pytest.raises(RefNotFound):
        Snapshot.load(run, "other")


def test_the_latest_falls_back_to_one_that_is_intact(run_on_disk: Any) -> None:
    for step in (1, 2):
        tree, arena = worn()
        arena.storage[:] = step
        Snapshot.save(run_on_disk, step, tree, arena)
    flip(data_path(run_on_disk, 2))
    with pytest.warns(FellBack, match="@1"):
        assert Snapshot.load(run_on_disk).step == 1
    with pytest.raises(StandfastError):
        Snapshot.load(run_on_disk, 2)
    Snapshot.save(run_on_disk, 3, *worn())
    assert Snapshot.load(run_on_disk).step == 3


# What is refused


@pytest.mark.parametrize(
    "given",
    [
        {"time": float("nan")},
        {"time": "later"},
        {"time": None},
        {"values": [1]},
        {"comm": "all"},
    ],
    ids=repr,
)
def test_options_that_are_none_are_refused_and_nothing_is_saved(given: Any, run: Any) -> None:
    with pytest.raises(BadOption, match=next(iter(given))):
        Snapshot.save(run, 1, *worn(), **given)
    assert run.checkpoints() == []


def test_a_kernel_cannot_save_what_it_is_applied_to(run: Any) -> None:
    tree, arena = random_mesh(3)

    def kernel(patch: Any) -> Any:
        Snapshot.save(run, 1, tree, arena)

    with pytest.raises(GhostsInUse):
        tree.apply(kernel, arena)
    assert run.checkpoints() == []
    Snapshot.save(run, 1, tree, arena)


def test_ranks_that_are_not_those_of_the_shard_are_refused(run: Any) -> None:
    def program(comm: Any) -> None:
        tree, arena = random_mesh(3)
        tree.attach_shard(ShardContext.from_tree(tree, comm, "morton_contiguous"))
        with pytest.raises(BadOption):
            Snapshot.save(run, 1, tree, arena, comm=SingleRank())

    assert on_threads(2, program) == [None, None]
    assert run.checkpoints() == []


def test_a_checkpoint_that_is_no_snapshot_is_refused(run: Any) -> None:
    run.save(1, {"weight": np.ones(3)})
    with pytest.raises(BadOption):
        Snapshot.load(run, 1)
    run.save(2, {"simulation": {"format": "standfast snapshot 9"}})
    with pytest.raises(BadOption):
        Snapshot.load(run, 2)


@pytest.mark.parametrize("wrong", ["run", "tree", "arena"])
def test_a_wrong_argument_on_one_rank_is_refused_on_all(wrong: str, run: Any) -> None:
    def program(comm: Any) -> None:
        tree, arena = random_mesh(3)
        given: dict[str, Any] = {"run": run, "tree": tree, "arena": arena}
        if comm.rank:
            given[wrong] = None
        with pytest.raises(BadOption, match="NoneType"):
            Snapshot.save(step=1, comm=comm, **given)
        if wrong == "run":
            with pytest.raises(BadOption):
                Snapshot.load(given["run"], comm=comm)

    assert on_threads(2, program) == [None, None]
    assert run.checkpoints() == []
