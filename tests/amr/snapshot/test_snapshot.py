"""Snapshots of one rank, and of ranks that are threads: what is kept, and what is refused."""

import copy
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.lib.stride_tricks import as_strided

from standfast import Store, amr, errors
from standfast.amr import ShardContext, Snapshot
from standfast.errors import BadField, BadRange, StandfastError
from standfast.parallel import SingleRank
from standfast.store.backends.memory import MemoryBackend
from tests.amr.meshes import empty_mesh, random_mesh
from tests.amr.tree_states import SCALAR, saved, worn
from tests.kit.rank_threads import on_threads
from tests.kit.stores import bytes_written, data_path, flip


@pytest.fixture
def run_on_disk(tmp_path: Path) -> Any:
    return Store(tmp_path / "store").run("heat")


@pytest.mark.parametrize("kind", ["scalar", "vector", "u1", "su2"])
def test_what_is_loaded_is_what_was_saved(kind, run):
    tree, arena = worn(kind)
    values = {"beta": 2.5, "seen": [1, (2, None)], "means": np.arange(3.0)}
    snapshot = amr.Snapshot.save(run, 7, tree, arena, time=0.1 + 0.2, values=values)
    assert (snapshot.step, snapshot.time, snapshot.ranks) == (7, 0.1 + 0.2, 1)
    assert snapshot.frontend == tree.frontend
    assert repr(snapshot) == f"<snapshot {run.hash}@7>"
    for _ in range(2):  # what is loaded does not share its memory with the store
        found = amr.Snapshot.load(run, frontend=tree.frontend)
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
        arena = amr.FieldArena(tree.frontend, 4 * step)
        amr.Snapshot.save(run, step, tree, arena)
        found = amr.Snapshot.load(run, step)
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
    amr.Snapshot.save(run, 1, *worn(), random=own)
    expected = [draw() for draw in draws for _ in range(3)]
    assert amr.Snapshot.load(run).restore_random(**own) == []
    assert [draw() for draw in draws for _ in range(3)] == expected


def test_other_generators_than_were_saved_are_refused_and_none_is_changed(run):
    a, b = np.random.default_rng(1), np.random.default_rng(2)
    amr.Snapshot.save(run, 1, *worn(), random={"a": a, "b": b})
    a.random()
    before = a.bit_generator.state
    others: list[dict[str, Any]] = [
        {"a": a, "other": b},
        {"a": a, "b": np.random.Generator(np.random.Philox(2))},
    ]
    for given, told in zip(others, ("other", "Philox"), strict=True):
        with pytest.raises(errors.StateMismatch, match=told):
            amr.Snapshot.load(run).restore_random(**given)
    assert a.bit_generator.state == before


def test_only_slabs_that_changed_are_written_again(run_on_disk):
    frontend = amr.ScalarFrontend(2, 16, amr.OpenTopology(2, (64.0, 64.0)))
    tree, arena = amr.AMRTree(frontend, 1.0, 6, 2), amr.FieldArena(frontend, 1536)
    arena.storage[:] = np.random.default_rng(0).random(arena.storage.shape)
    assert arena.storage.nbytes == 3 << 20
    run, small = run_on_disk, 1 << 16

    def save(step: int) -> int:
        return bytes_written(run, lambda: amr.Snapshot.save(run, step, tree, arena))

    assert 3 << 20 < save(1) < (3 << 20) + small
    assert save(2) < small, "nothing but what is too small to be looked for"
    arena.storage[600, 3] = 0.5
    assert 1 << 20 < save(3) < (1 << 20) + small
    found = amr.Snapshot.load(run)
    assert bytes_written(run, lambda: amr.Snapshot.save(run, 4, found.tree, found.arena)) < small


def test_a_snapshot_is_found_by_step_tag_best_and_latest(run):
    with pytest.raises(errors.RefNotFound):
        amr.Snapshot.load(run)
    for step in (1, 2, 3):
        amr.Snapshot.save(run, step, *worn(), time=step / 2, best=step == 2)
    run.checkpoint(1).tag("paper")
    found = [amr.Snapshot.load(run, ref).step for ref in (1, "2", "paper", "best", "latest")]
    assert found == [1, 2, 1, 2, 3]
    with pytest.raises(errors.RefNotFound):
        amr.Snapshot.load(run, "other")


def test_the_latest_falls_back_to_one_that_is_intact(run_on_disk):
    for step in (1, 2):
        tree, arena = worn()
        arena.storage[:] = step
        amr.Snapshot.save(run_on_disk, step, tree, arena)
    flip(data_path(run_on_disk, 2))
    with pytest.warns(errors.FellBack, match="@1"):
        assert amr.Snapshot.load(run_on_disk).step == 1
    with pytest.raises(errors.StandfastError):
        amr.Snapshot.load(run_on_disk, 2)
    amr.Snapshot.save(run_on_disk, 3, *worn())
    assert amr.Snapshot.load(run_on_disk).step == 3


def save(run: Any, tree: Any, arena: Any, **given: Any) -> None:
    amr.Snapshot.save(run, 1, tree, arena, **given)


WRONG: dict[str, tuple[Callable[[Any, Any, Any], object], str]] = {
    "time nan": (lambda run, *of: save(run, *of, time=np.nan), "time"),
    "time text": (lambda run, *of: save(run, *of, time="later"), "time"),
    "time None": (lambda run, *of: save(run, *of, time=None), "time"),
    "values": (lambda run, *of: save(run, *of, values=[1]), "values"),
    "comm": (lambda run, *of: save(run, *of, comm="all"), "comm"),
    "a generator": (lambda run, *of: save(run, *of, random=random), "random"),
    "its name": (lambda run, *of: save(run, *of, random={1: random}), "names"),
    "swapped": (lambda run, tree, arena: amr.Snapshot.save(run, 1, arena, tree), "FieldArena"),
    "store": (lambda run, *of: amr.Snapshot.save(run.store, 1, *of), "Store"),
    "frontend": (lambda *of: amr.TreeCheckpoint(amr.AMRTree), "frontend="),
    "stream": (lambda *of: amr.TreeCheckpoint(SCALAR).read("x.sunc"), "str"),
    "digest": (lambda run, tree, arena: amr.logical_digest(tree), "AMRTree"),
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
        amr.Snapshot.save(run, 1, tree, arena)
    with pytest.raises(errors.RefusedState):
        amr.Snapshot.save(run, 2, *worn(), random={"kicks": 4})
    assert run.checkpoints() == []


def test_ranks_that_are_not_those_of_the_shard_are_refused(run):
    def program(comm: Any) -> None:
        tree, arena = random_mesh(3)
        shard = amr.ShardContext.from_tree(tree, comm, "morton_contiguous")
        tree.attach_shard(shard)
        with pytest.raises(errors.BadOption, match=r"2.*1"):
            amr.Snapshot.save(run, 1, tree, arena, comm=SingleRank())
        shard.rank = 1 - comm.rank
        with pytest.raises(errors.BadOption, match="comm"):
            amr.Snapshot.save(run, 1, tree, arena, comm=comm)

    assert on_threads(2, program) == [None, None]
    assert run.checkpoints() == []


def test_a_checkpoint_that_is_no_snapshot_is_refused(run):
    run.save(1, {"weight": np.ones(3)})
    run.save(2, {"simulation": {"format": "standfast snapshot 9"}})
    for step in (1, 2):
        with pytest.raises(errors.BadOption, match=f"@{step}"):
            amr.Snapshot.load(run, step)


@pytest.mark.parametrize("rows", [20_000_000, 10**9])
def test_sections_that_claim_more_than_is_stored_are_refused(rows, run_on_disk):
    run = run_on_disk
    amr.Snapshot.save(run, 1, *worn())
    state = run.load(1)
    block, slot = np.full((1, 40), 255, np.uint8), np.full(1, amr.INVALID, np.uint64)
    state["rank0"]["blocks"] = as_strided(block, (rows, 40), (0, 1))
    state["rank0"]["field_slots"] = as_strided(slot, (rows,), (0,))
    state["simulation"]["values"] = {"block": block, "slot": slot}  # what is stored of them
    run.save(2, state)
    assert run.checkpoint(2).verify().nbytes < 100_000
    for load in (lambda: amr.Snapshot.load(run, 2), lambda: amr.logical_digest(run.checkpoint(2))):
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
        calls: list[Callable[[], object]] = [lambda: amr.Snapshot.save(step=1, comm=comm, **given)]
        if wrong == "run":
            calls.append(lambda: amr.Snapshot.load(given["run"], comm=comm))
            calls.append(
                lambda: amr.Snapshot.import_files(given["run"], path, frontend=SCALAR, comm=comm)
            )
        for call in calls:
            with pytest.raises(errors.BadOption, match="NoneType"):
                call()

    assert on_threads(2, program) == [None, None]
    assert run.checkpoints() == []


def test_an_export_is_compressed_if_its_name_says_so(run, tmp_path):
    (path,) = amr.Snapshot.save(run, 1, *worn()).export(tmp_path / "x.sunc.zst")
    assert path == str(tmp_path / "x.sunc.zst")
    with pytest.raises(errors.UnknownFormat, match="zstd"):
        amr.TreeCheckpoint(SCALAR).read_from_file(path)


def _state(kind: str = "u1") -> dict[str, Any]:
    """What a snapshot of one rank with a shard is in a store."""
    run = Store(MemoryBackend()).run("heat")
    tree, arena = worn(kind)
    tree.attach_shard(ShardContext.from_tree(tree, None, "manual"))
    Snapshot.save(run, 1, tree, arena, values={"a": 1}, random={"kicks": np.random.default_rng(1)})
    state: dict[str, Any] = run.load(1)
    return state


def _paths(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    found = [path] if path else []
    if path[1:] in (("random", "global"), ("random", "own", "kicks")):
        return found  # what is in it is checked by who puts it back
    if isinstance(value, dict):
        return found + [each for key in value for each in _paths(value[key], (*path, key))]
    if isinstance(value, list):
        return found + [each for n, item in enumerate(value) for each in _paths(item, (*path, n))]
    return found


def _changed(state: Any, path: tuple[Any, ...], value: Any) -> Any:
    """A copy with something else at one place; or without that place, if the value is ...."""
    if not path:
        return value
    copy = list(state) if isinstance(state, list) else dict(state)
    if value is ... and len(path) == 1:
        del copy[path[0]]
    else:
        copy[path[0]] = _changed(state[path[0]], path[1:], value)
    return copy


JUNK: list[Any] = [
    *(..., None, True, -1, 1 << 62, float("nan"), "x", (1,), [], {"kind": {}}),
    *(np.zeros(0), np.zeros((2, 40), np.uint8)),
]


@pytest.mark.parametrize("path", _paths(_state()), ids=lambda path: ".".join(map(str, path)))
def test_junk_anywhere_in_a_record_is_refused_or_harmless(path, run):
    state = _state()
    refused = 0
    for step, junk in enumerate(JUNK):
        run.save(step, _changed(state, path, junk))
        try:
            found = Snapshot.load(run, step)
            found.restore_random(kicks=np.random.default_rng(2))
            found.tree.reorder()
            list(saved(found.tree, found.arena))
        except StandfastError:
            refused += 1
    free = path[:2] == ("simulation", "values") or path[-1] == "max_level"
    assert refused >= (0 if free else 6)


def _reverse_owners(state: dict[str, Any]) -> None:
    owners = state["simulation"]["owners"]
    owners["origins"] = owners["origins"][::-1].copy()


def _add_another_rank(state: dict[str, Any]) -> None:
    state["simulation"]["ranks"] = 2
    state["rank1"] = copy.deepcopy(state["rank0"])
    state["rank1"]["header"]["max_level"] = 1


HOSTILE: dict[str, tuple[Callable[[dict[str, Any]], Any], str]] = {
    "an owner that is no rank": (lambda s: s["simulation"]["owners"]["owners"].fill(1), "1"),
    "owners of one block twice": (lambda s: s["simulation"]["owners"]["origins"].fill(0), "owners"),
    "owners that are not sorted": (_reverse_owners, "owners"),
    "owners of levels no key has": (lambda s: s["simulation"]["owners"]["levels"].fill(255), "255"),
    "one slab too many": (lambda s: s["rank0"]["storage"].extend(s["rank0"]["storage"]), "storage"),
    "slabs of another shape": (lambda s: s["rank0"].update(links=[np.zeros((3, 5))]), "links"),
    "more free slots than slots": (
        *(lambda s: s["rank0"]["header"].update(free_count=16), "free_count"),
    ),
    "a slot that two blocks have": (lambda s: s["rank0"]["field_slots"].fill(1), "field_slots"),
    "a rank more": (lambda s: s.update(rank1=s["rank0"]), "1"),
    "a rank less": (lambda s: s["simulation"].update(ranks=2), "2"),
    "ranks that are not alike": (_add_another_rank, "max_level"),
    "links where none can be": (
        *(lambda s: s["simulation"].update(frontend=SCALAR.describe()), "frontend"),
    ),
    "no random states": (lambda s: s["rank0"].update(random={}), "random"),
    "a list of random states": (lambda s: s["rank0"].update(random=[]), "random"),
    "a number of random states": (
        *(lambda s: s["rank0"].update(random={"own": 1, "global": {}}), "random"),
    ),
    "no global random states": (lambda s: s["rank0"].update(random={"own": {}}), "random"),
}


@pytest.mark.parametrize("case", HOSTILE)
def test_a_record_that_no_writer_wrote_is_damage(case, run):
    change, told = HOSTILE[case]
    state = _state()
    change(state)
    run.save(1, state)
    with pytest.raises((BadField, BadRange), match=f"{run.hash}@1.*{told}"):
        Snapshot.load(run, 1, reshard=case == "ranks that are not alike")
