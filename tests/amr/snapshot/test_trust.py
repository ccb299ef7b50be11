"""Nothing is saved that could not be loaded, and nothing loaded that claims more than there is."""

from __future__ import annotations

from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest
from numpy.lib.stride_tricks import as_strided

from standfast import Run, Store
from standfast.amr import (
    INVALID,
    AMRTree,
    FieldArena,
    GaugeFrontend,
    GaugeTree,
    OpenTopology,
    ScalarFrontend,
    ShardContext,
    Snapshot,
    TreeCheckpoint,
    logical_digest,
)
from standfast.errors import (
    BadBlock,
    BadField,
    BadOption,
    StateMismatch,
    UnknownFormat,
)
from tests.kit.rank_threads import ThreadRanks, attempt_on_ranks

FRONTEND = ScalarFrontend(2, 4, OpenTopology(2, (64.0, 64.0)))


@pytest.fixture
def run(tmp_path: Path) -> Run:
    return Store(tmp_path / "store").run("heat")


def _mesh(*places: tuple[int, int]) -> tuple[AMRTree, FieldArena]:
    tree, arena = AMRTree(FRONTEND, 1.0, 4, 2), FieldArena(FRONTEND, 8)
    for place in places or ((0, 0), (4, 0)):
        tree.insert_block_with_field(place, 0, arena)
    arena.storage[:] = np.arange(arena.storage.size).reshape(arena.storage.shape)
    return tree, arena


@pytest.mark.parametrize(
    ("name", "other"),
    [
        ("storage", lambda old: old.astype(np.float32)),
        ("storage", lambda old: old[:-1]),
        ("storage", lambda old: old.tolist()),
        ("free_slots", lambda old: old.astype(np.int64)),
    ],
    ids=["dtype", "length", "list", "slots"],
)
def test_an_arena_with_other_arrays_is_refused(name: str, other: Any, run: Run) -> None:
    tree, arena = _mesh()
    setattr(arena, name, other(getattr(arena, name)))
    with pytest.raises(BadBlock, match=rf"arena\.{name}"):
        Snapshot.save(run, 1, tree, arena)
    assert run.checkpoints() == []


def test_links_of_another_dtype_are_refused(run: Run) -> None:
    frontend = GaugeFrontend(1, 1, 2, 4, OpenTopology(2, (64.0, 64.0)))
    tree, arena = GaugeTree(frontend, 1.0, 4, 0), FieldArena(frontend, 2)
    tree.insert_block((0, 0), 0)
    tree._links = tree._links.astype(np.complex64)
    with pytest.raises(BadBlock, match=r"tree\.links"):
        Snapshot.save(run, 1, tree, arena)


def test_a_generator_must_have_a_name(run: Run) -> None:
    tree, arena = _mesh()
    with pytest.raises(BadOption):
        Snapshot.save(run, 1, tree, arena, random={1: np.random.default_rng()})  # type: ignore[dict-item]
    rng = np.random.default_rng(3)
    Snapshot.save(run, 1, tree, arena, random={"self": rng})
    expected = rng.random()
    Snapshot.load(run).restore_random(self=rng)
    assert rng.random() == expected


def test_generators_stay_as_they_are_if_one_of_them_is_of_another_kind(run: Run) -> None:
    tree, arena = _mesh()
    a, b = np.random.default_rng(1), np.random.default_rng(2)
    Snapshot.save(run, 1, tree, arena, random={"a": a, "b": b})
    a.random()
    before = a.bit_generator.state
    with pytest.raises(StateMismatch, match="Philox"):
        Snapshot.load(run).restore_random(a=a, b=np.random.Generator(np.random.Philox(2)))
    assert a.bit_generator.state == before


def test_ranks_in_another_order_than_the_shards_are_refused(tmp_path: Path) -> None:
    def save(comm: ThreadRanks) -> None:
        tree, arena = _mesh((4 * comm.rank, 0))
        tree.attach_shard(ShardContext.from_tree(tree, comm, "manual"))
        with patch.object(tree.shard, "rank", 1 - comm.rank):
            Snapshot.save(Store(tmp_path).run("heat"), 1, tree, arena, comm=comm)

    outcomes = attempt_on_ranks(2, save)
    assert [type(each) for each in outcomes] == [BadOption] * 2
    assert "leave comm out" in str(outcomes[0])


@pytest.mark.parametrize("rows", [20_000_000, 10**9])
def test_sections_that_claim_more_than_is_stored_are_refused(rows: int, run: Run) -> None:
    tree, arena = _mesh()
    Snapshot.save(run, 1, tree, arena)
    state = run.load(1)
    block, slot = np.full((1, 40), 255, np.uint8), np.full(1, INVALID, np.uint64)
    state["rank0"]["blocks"] = as_strided(block, (rows, 40), (0, 1))
    state["rank0"]["field_slots"] = as_strided(slot, (rows,), (0,))
    state["simulation"]["values"] = {"block": block, "slot": slot}  # what is stored of them
    run.save(2, state)
    assert run.checkpoint(2).verify().nbytes < 100_000
    for load in (lambda: Snapshot.load(run, 2), lambda: logical_digest(run.checkpoint(2))):
        with pytest.raises(BadField):
            load()


@pytest.mark.parametrize(
    ("wrong", "why"),
    [
        (lambda run, tree, arena: Snapshot.save(run, 1, arena, tree), "not of a FieldArena and"),
        (lambda run, tree, arena: Snapshot.save(run.store, 1, tree, arena), "run is a Store"),
        (
            lambda run, tree, arena: Snapshot.save(
                run, 1, tree, arena, random=np.random.default_rng()
            ),
            "random is a Generator",
        ),
        (lambda run, tree, arena: TreeCheckpoint(AMRTree), "frontend="),
        (lambda run, tree, arena: TreeCheckpoint(FRONTEND).read("x.sunc"), "a str is not a stream"),
        (lambda run, tree, arena: OpenTopology(2, 1.0), "extents=1.0"),
        (lambda run, tree, arena: logical_digest(tree), "a AMRTree is no state"),
    ],
    ids=["swapped", "store", "random", "frontend", "stream", "extents", "digest"],
)
def test_what_is_given_in_the_wrong_place_is_told(wrong: Any, why: str, run: Run) -> None:
    with pytest.raises(BadOption, match=why):
        wrong(run, *_mesh())
    assert run.checkpoints() == []


def test_a_path_that_says_so_is_compressed(run: Run, tmp_path: Path) -> None:
    snapshot = Snapshot.save(run, 1, *_mesh())
    (path,) = snapshot.export(tmp_path / "x.sunc.zst")
    assert path == str(tmp_path / "x.sunc.zst")
    with pytest.raises(UnknownFormat):
        TreeCheckpoint(FRONTEND).read_from_file(path)
