"""Snapshots of one rank, and of ranks that are threads: what is kept, and what is refused."""

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.lib.stride_tricks import as_strided

from standfast import Store, errors
from standfast.amr import (
    INVALID,
    AMRTree,
    FieldArena,
    OpenTopology,
    ScalarFrontend,
    ShardContext,
    Snapshot,
    TreeCheckpoint,
    logical_digest,
)
from standfast.parallel import SingleRank
from tests.amr.meshes import empty_mesh, random_mesh
from tests.amr.tree_states import SCALAR, saved, worn
from tests.kit.rank_threads import on_threads
from tests.kit.stores import bytes_written, data_path, flip


@pytest.fixture
def run_on_disk(tmp_path: Path) -> Any:
    return Store(tmp_path / "store").run("heat")


# What is kept


@pytest.mark.parametrize("kind", ["scalar", "vector", "u1", "su2"])
def test_what_is_loaded_is_what_was_saved(kind, run):
    tree, arena = worn(kind)
    values = {"beta": 2.5, "seen": [1, (2, None)], "means": np.arange(3.0)}
    snapshot = Snapshot.save(run, 7, tree, arena, time=0.1 + 0.2, values=values)
    assert (snapshot.step, snapshot.time, snapshot.ranks) == (7, 0.1 + 0.2, 1)
    assert snapshot.frontend == tree.frontend
    assert repr(snapshot) == f"<snapshot {run.hash}@7>"
    for _ in range(2):  # what is loaded does not share its memory with the store
        found = Snapshot.load(run, frontend=tree.frontend)
        assert type(found.tree) is type(tree)
        assert saved(found.tree, found.arena) == saved(tree, arena)
        assert (found.step, found.time, found.shard) == (7, 0.1 + 0.2, None)
        assert found.values.pop("means").tolist() == [0.0, 1.0, 2.0]
        assert found.values == {"beta": 2.5, "seen": [1, (2, None)]}
        found.arena.storage[:] = 1
        if kind in ("u1", "su2"):
            found.tree.links[:] = 1
        found.tree.reorder()
        found.arena.defragment(found.tree)


def test_an_empty_tree_and_an_arena_without_slots_come_back(run):
    for step, (tree, arena) in enumerate((empty_mesh(), empty_mesh(gauge=2))):
        arena = FieldArena(tree.frontend, 4 * step)
        Snapshot.save(run, step, tree, arena)
        found = Snapshot.load(run, step)
        assert saved(found.tree, found.arena) == saved(tree, arena)


def test_generators_go_on_where_they_were(run):
    own: dict[str, Any] = {
        "self": np.random.default_rng(1),
        "philox": np.random.Generator(np.random.Philox(2)),
        "legacy": np.random.RandomState(3),
        "python": random.Random(4),
    }
    draws: list[Callable[[], float]] = [
        own["self"].standard_normal,
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


def test_other_generators_than_were_saved_are_refused_and_none_is_changed(run):
    a, b = np.random.default_rng(1), np.random.default_rng(2)
    Snapshot.save(run, 1, *worn(), random={"a": a, "b": b})
    a.random()
    before = a.bit_generator.state
    others: list[dict[str, Any]] = [
        {"a": a, "other": b},
        {"a": a, "b": np.random.Generator(np.random.Philox(2))},
    ]
    for given, told in zip(others, ("other", "Philox"), strict=True):
        with pytest.raises(errors.StateMismatch, match=told):
            Snapshot.load(run).restore_random(**given)
    assert a.bit_generator.state == before


# How it is stored


def test_only_slabs_that_changed_are_written_again(run_on_disk):
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


def test_a_snapshot_is_found_by_step_tag_best_and_latest(run):
    with pytest.raises(errors.RefNotFound):
        Snapshot.load(run)
    for step in (1, 2, 3):
        Snapshot.save(run, step, *worn(), time=step / 2, best=step == 2)
    run.checkpoint(1).tag("paper")
    found = [Snapshot.load(run, ref).step for ref in (1, "2", "paper", "best", "latest")]
    assert found == [1, 2, 1, 2, 3]
    with pytest.raises(errors.RefNotFound):
        Snapshot.load(run, "other")


def test_the_latest_falls_back_to_one_that_is_intact(run_on_disk):
    for step in (1, 2):
        tree, arena = worn()
        arena.storage[:] = step
        Snapshot.save(run_on_disk, step, tree, arena)
    flip(data_path(run_on_disk, 2))
    with pytest.warns(errors.FellBack, match="@1"):
        assert Snapshot.load(run_on_disk).step == 1
    with pytest.raises(errors.StandfastError):
        Snapshot.load(run_on_disk, 2)
    Snapshot.save(run_on_disk, 3, *worn())
    assert Snapshot.load(run_on_disk).step == 3


# What is refused


def save(run: Any, tree: Any, arena: Any, **given: Any) -> None:
    Snapshot.save(run, 1, tree, arena, **given)


WRONG: dict[str, tuple[Callable[[Any, Any, Any], object], str]] = {
    "time nan": (lambda run, *of: save(run, *of, time=np.nan), "time"),
    "time text": (lambda run, *of: save(run, *of, time="later"), "time"),
    "time None": (lambda run, *of: save(run, *of, time=None), "time"),
    "values": (lambda run, *of: save(run, *of, values=[1]), "values"),
    "comm": (lambda run, *of: save(run, *of, comm="all"), "comm"),
    "a generator": (lambda run, *of: save(run, *of, random=random), "random"),
    "its name": (lambda run, *of: save(run, *of, random={1: random}), "names"),
    "swapped": (lambda run, tree, arena: Snapshot.save(run, 1, arena, tree), "FieldArena"),
    "store": (lambda run, *of: Snapshot.save(run.store, 1, *of), "Store"),
    "frontend": (lambda *of: TreeCheckpoint(AMRTree), "frontend="),
    "stream": (lambda *of: TreeCheckpoint(SCALAR).read("x.sunc"), "str"),
    "digest": (lambda run, tree, arena: logical_digest(tree), "AMRTree"),
}


@pytest.mark.parametrize("name", WRONG)
def test_wrong_arguments_are_named_and_nothing_is_saved(name, run):
    wrong, told = WRONG[name]
    with pytest.raises(errors.BadOption, match=told):
        wrong(run, *worn())
    assert run.checkpoints() == []


@pytest.mark.parametrize(
    ("name", "other"),
    [
        ("storage", lambda old: old.astype(np.complex64)),
        ("storage", lambda old: old[:-1]),
        ("storage", lambda old: old.tolist()),
        ("free_slots", lambda old: old.astype(np.int64)),
        ("links", lambda old: old.astype(np.complex64)),
    ],
    ids=["dtype", "length", "list", "slots", "links"],
)
def test_a_mesh_with_other_arrays_is_refused(name, other, run):
    tree, arena = worn("u1")
    if name == "links":
        tree._links = other(tree._links)
    else:
        setattr(arena, name, other(getattr(arena, name)))
    with pytest.raises(errors.BadBlock, match=rf"\.{name}"):
        Snapshot.save(run, 1, tree, arena)
    with pytest.raises(errors.RefusedState):
        Snapshot.save(run, 2, *worn(), random={"kicks": 4})
    assert run.checkpoints() == []


def test_ranks_that_are_not_those_of_the_shard_are_refused(run):
    def program(comm: Any) -> None:
        tree, arena = random_mesh(3)
        shard = ShardContext.from_tree(tree, comm, "morton_contiguous")
        tree.attach_shard(shard)
        with pytest.raises(errors.BadOption, match=r"2.*1"):
            Snapshot.save(run, 1, tree, arena, comm=SingleRank())
        shard.rank = 1 - comm.rank
        with pytest.raises(errors.BadOption, match="comm"):
            Snapshot.save(run, 1, tree, arena, comm=comm)

    assert on_threads(2, program) == [None, None]
    assert run.checkpoints() == []


def test_a_checkpoint_that_is_no_snapshot_is_refused(run):
    run.save(1, {"weight": np.ones(3)})
    run.save(2, {"simulation": {"format": "standfast snapshot 9"}})
    for step in (1, 2):
        with pytest.raises(errors.BadOption, match=f"@{step}"):
            Snapshot.load(run, step)


@pytest.mark.parametrize("rows", [20_000_000, 10**9])
def test_sections_that_claim_more_than_is_stored_are_refused(rows, run_on_disk):
    run = run_on_disk
    Snapshot.save(run, 1, *worn())
    state = run.load(1)
    block, slot = np.full((1, 40), 255, np.uint8), np.full(1, INVALID, np.uint64)
    state["rank0"]["blocks"] = as_strided(block, (rows, 40), (0, 1))
    state["rank0"]["field_slots"] = as_strided(slot, (rows,), (0,))
    state["simulation"]["values"] = {"block": block, "slot": slot}  # what is stored of them
    run.save(2, state)
    assert run.checkpoint(2).verify().nbytes < 100_000
    for load in (lambda: Snapshot.load(run, 2), lambda: logical_digest(run.checkpoint(2))):
        with pytest.raises(errors.BadField):
            load()


@pytest.mark.parametrize("wrong", ["run", "tree", "arena"])
def test_a_wrong_argument_on_one_rank_is_refused_on_all(wrong, run, tmp_path):
    path = tmp_path / "a_step1.sunc"
    path.write_bytes(saved(*worn()))

    def program(comm: Any) -> None:
        tree, arena = random_mesh(3)
        given: dict[str, Any] = {"run": run, "tree": tree, "arena": arena}
        if comm.rank:
            given[wrong] = None
        calls: list[Callable[[], object]] = [lambda: Snapshot.save(step=1, comm=comm, **given)]
        if wrong == "run":
            calls.append(lambda: Snapshot.load(given["run"], comm=comm))
            calls.append(
                lambda: Snapshot.import_files(given["run"], path, frontend=SCALAR, comm=comm)
            )
        for call in calls:
            with pytest.raises(errors.BadOption, match="NoneType"):
                call()

    assert on_threads(2, program) == [None, None]
    assert run.checkpoints() == []


def test_an_export_is_compressed_if_its_name_says_so(run, tmp_path):
    (path,) = Snapshot.save(run, 1, *worn()).export(tmp_path / "x.sunc.zst")
    assert path == str(tmp_path / "x.sunc.zst")
    with pytest.raises(errors.UnknownFormat, match="zstd"):
        TreeCheckpoint(SCALAR).read_from_file(path)
