"""DCP writes into a store and reads from it: on several ranks, and what one process can show."""

import json
import os
import pickle
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed.checkpoint as dcp
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.distributed.checkpoint._nested_dict import flatten_state_dict
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.default_planner import DefaultLoadPlanner, DefaultSavePlanner
from torch.distributed.checkpoint.metadata import BytesStorageMetadata, TensorStorageMetadata
from torch.distributed.checkpoint.planner import SavePlanner
from torch.distributed.checkpoint.state_dict_loader import _load_state_dict_from_keys

import standfast
from standfast import errors
from standfast.dcp import Reader, Writer
from standfast.dcp.runs import step_of
from standfast.store.backends.memory import MemoryBackend
from tests import python_path
from tests.dcp.programs import checks as dcp_checks
from tests.kit.parallel_ranks import run_torchrun
from tests.kit.stores import data_path, flip, folder, same

pytestmark = pytest.mark.filterwarnings("ignore:torch.distributed is")

PROGRAMS = Path(__file__).with_name("programs")
ON_RANKS = [
    (count, check.__name__) for count, checks in dcp_checks.CHECKS.items() for check in checks
]


@pytest.fixture(scope="module")
def outcomes(tmp_path_factory: pytest.TempPathFactory) -> dict[int, list[dict[str, str]]]:
    """How the checks ended, of four ranks, of two and of one, rank by rank."""
    folder = tmp_path_factory.mktemp("ranks")
    subprocess.run(
        [sys.executable, str(PROGRAMS / "jobs.py"), str(folder)],
        env={**os.environ, "PYTHONPATH": python_path()},
        check=True,
        timeout=500,
        capture_output=True,
    )
    return {
        count: [
            json.loads((folder / f"outcomes-{count}-{rank}.json").read_text())
            for rank in range(count)
        ]
        for count in dcp_checks.CHECKS
    }


@pytest.mark.parametrize(("count", "name"), ON_RANKS, ids=[name for _, name in ON_RANKS])
def test_on_ranks(outcomes, count, name):
    ended = [each.get(name, "it was not reached") for each in outcomes[count]]
    assert ended == [""] * count, "\n".join(ended)


@pytest.mark.long
def test_a_save_in_another_process(tmp_path):
    finished = run_torchrun(2, PROGRAMS / "process.py", str(tmp_path), timeout=150)
    assert finished.returncode == 0, "its own assertions hold"


@pytest.fixture
def store(tmp_path: Path) -> Path:
    return tmp_path / "store"


def _run(store: Path) -> standfast.Run:
    return standfast.Store(store).find_run("gpt")


def _loaded(store: Path, ref: int | str = "latest") -> dict[str, Any]:
    """All of a checkpoint, as DCP makes a state dict of it."""
    return _load_state_dict_from_keys(storage_reader=Reader(store, "gpt", ref))


def _cause(error: pytest.ExceptionInfo[CheckpointException]) -> BaseException:
    (found,) = [each for each, _ in error.value.failures.values()]
    return found


STATE: dict[str, Any] = {
    "model": {"weight": torch.arange(12.0).reshape(3, 4), "half": torch.ones(5).bfloat16()},
    "empty": torch.empty(0, 4),
    "number": torch.tensor(3.5),
    "turned": torch.arange(6).reshape(2, 3).t(),
    "plain": {"text": "ä$", "none": None, "bytes": b"\0\1", "pair": (1, 2.5), "nan": float("inf")},
    "list": [1, [2, 3]],
    "tensors": [torch.zeros(2), {"deep": torch.ones(1)}],
    "tuple": (torch.arange(3), {"n": 1}),
    "array": np.arange(4, dtype=np.int16),
    "$tag": {"$tensor": torch.ones(2), "a.b": 1},
    "flags": torch.tensor([True, False]),
    "pairs": torch.arange(6, dtype=torch.uint8).reshape(2, 3).view(torch.float4_e2m1fn_x2),
}


@pytest.mark.parametrize("is_flat", [False, True])
def test_what_is_saved_comes_back_by_both_ways(store, is_flat):
    planner = DefaultSavePlanner(flatten_state_dict=is_flat)
    dcp.save(STATE, storage_writer=Writer(store, "gpt", 1), planner=planner)
    assert same(_run(store).load(), STATE)
    assert same(_loaded(store), STATE)
    checkpoint = _run(store).checkpoint()
    assert checkpoint.verify().tensors == 12
    (model,) = [file.name for file in checkpoint.head.files if ".model-rank0." in file.name] or [""]
    if model:
        assert {*standfast.load(folder(_run(store)) / model)} == {"weight", "half"}


def test_the_run_is_let_go_of_by_a_writer_that_lives_on(store):
    backend = standfast.Store(store).backend

    def check_free() -> None:
        for name in (_run(store).hash, f"{_run(store).hash}.change"):
            lock = backend.lock(name, 0)
            assert lock is not None
            lock.release()

    writer, again = Writer(store, "gpt", 1), Writer(store, "gpt", 2)
    dcp.save({"a": torch.ones(1)}, storage_writer=writer)
    check_free()
    for each, state in ((writer, {"a": torch.ones(1)}), (again, {"a": {1}})):  # the step exists
        with pytest.raises(CheckpointException):
            dcp.save(state, storage_writer=each)
        check_free()


def test_the_run_is_one_of_a_store(store):
    run = standfast.Store(store).run("other", hp={"lr": 1})
    dcp.save({"a": torch.tensor(1)}, storage_writer=Writer(run.store, run, 1, epoch=2, best=True))
    dcp.save({"a": torch.tensor(2)}, storage_writer=Writer(store, run.hash, 2))
    assert [c.step for c in run.checkpoints()] == [1, 2]
    assert run.checkpoint(1).epoch == 2
    assert run.checkpoint(2).parent == run.checkpoint(1)
    reader = Reader(run.store, run, 1)
    found = {"a": torch.tensor(0.0, dtype=torch.float64)}  # it is cast to what it fills
    for checkpoint_id, value in ((None, 1), ("best", 1), ("out/step-2", 2), ("latest", 2)):
        dcp.load(found, storage_reader=reader, checkpoint_id=checkpoint_id)
        assert same(found["a"], torch.tensor(float(value), dtype=torch.float64))


def test_a_target_whose_elements_share_memory_is_refused(store):
    standfast.Store(store).run("gpt").save(1, {"x": torch.arange(6.0).reshape(3, 2)})
    target = torch.zeros(1, 2).expand(3, 2)
    with pytest.raises(CheckpointException, match="x:"):
        dcp.load({"x": target}, storage_reader=Reader(store, "gpt"))
    assert not target.any()


def test_what_run_save_wrote_is_read(store):
    model = torch.nn.Linear(4, 3)
    optimizer = torch.optim.AdamW(model.parameters())
    model(torch.ones(4)).sum().backward()
    optimizer.step()
    run = standfast.Store(store).run("gpt")
    run.save(1, {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "more": STATE})
    assert same(_loaded(store)["more"], STATE)
    state = {"model": torch.nn.Linear(4, 3).state_dict(), "more": {"list": None}}
    dcp.load(state, storage_reader=Reader(store, "gpt"))
    assert same(dict(state["model"]), dict(model.state_dict()))
    assert state["more"] == {"list": [1, [2, 3]]}
    # DCP makes text of all keys.
    moments = _loaded(store)["optimizer"]["state"]["0"]["exp_avg"]
    assert torch.equal(moments, optimizer.state_dict()["state"][0]["exp_avg"])


def test_tensors_that_share_memory_and_what_each_rank_had_are_read(store):
    base = torch.arange(24.0).reshape(4, 6)
    state = {"base": base, "tied": base, "part": base[1:3, 2:], "turned": base.t()}
    standfast.Store(store).run("gpt").save(1, {**state, "seen": standfast.per_rank([1, 2])})
    assert same(_loaded(store), {**state, "seen": [[1, 2]]})


NESTED = st.recursive(
    st.one_of(st.integers(0, 3), st.text("ab", max_size=2), st.just(torch.zeros(1))),
    lambda members: st.one_of(
        st.lists(members, max_size=3),
        st.dictionaries(st.sampled_from(["a", "b.c", "0", "$"]), members, max_size=3),
        st.tuples(members),
    ),
    max_leaves=8,
)


@settings(max_examples=50, deadline=None)
@given(st.dictionaries(st.sampled_from(["x", "y", "z"]), NESTED, max_size=3))
def test_names_and_paths_are_those_that_dcp_gives(state):
    try:
        flat, paths = flatten_state_dict(state)
    except ValueError:  # two of its names are one
        return
    run = standfast.Store(MemoryBackend()).run("gpt")
    run.save(1, state)
    metadata = Reader(run.store, run).read_metadata()
    assert metadata.planner_data == paths
    found = metadata.state_dict_metadata
    assert [*found] == [*flat]
    for name, value in flat.items():
        kind = TensorStorageMetadata if isinstance(value, torch.Tensor) else BytesStorageMetadata
        assert isinstance(found[name], kind), name


@pytest.mark.parametrize("state", [{"a": {1: 2, "1": 3}}, [1, 2]], ids=["duplicate name", "a list"])
def test_what_dcp_cannot_fill_is_refused(store, state):
    standfast.Store(store).run("gpt").save(1, state)
    with pytest.raises(errors.StateMismatch):
        Reader(store, "gpt").read_metadata()


def test_a_rank_follows_the_coordinator_or_says_why_not(store):
    run = standfast.Store(store).run("gpt")
    run.save(1, {"a": torch.ones(3), "b": 1})
    coordinator, rank = Reader(store, "gpt"), Reader(store, "gpt")
    coordinator.read_metadata()
    run.save(2, {"a": torch.zeros(3), "b": 2, "c": 3})

    def load(state: dict[str, Any]) -> None:
        planner = DefaultLoadPlanner()
        planner.set_up_planner(state, rank.read_metadata())
        (plan,) = coordinator.prepare_global_plan([planner.create_local_plan()])
        rank.read_data(plan, planner).wait()

    state = {"a": torch.full((3,), 7.0), "b": 0}
    load(state)
    assert same(state, {"a": torch.ones(3), "b": 1})
    with pytest.raises(errors.RefNotFound, match="c"):
        load({"c": 0})
    run.save(1, {"a": torch.ones(3)}, replace=True)
    with pytest.raises(errors.RefNotFound):
        load({"a": torch.ones(3)})


def test_latest_falls_back_if_a_file_is_gone(store):
    for step in (1, 2):
        dcp.save({"a": torch.full((3,), step)}, storage_writer=Writer(store, "gpt", step))
    data_path(_run(store), 2).unlink()
    with pytest.warns(errors.FellBack):
        state = _loaded(store)
    assert same(state, {"a": torch.full((3,), 1)})


def test_damage_is_not_loaded_unless_asked_for(store):
    dcp.save({"a": torch.zeros(1000)}, storage_writer=Writer(store, "gpt", 1))
    flip(data_path(_run(store), 1))
    with pytest.raises(CheckpointException) as error:
        dcp.load({"a": torch.ones(1000)}, storage_reader=Reader(store, "gpt"))
    assert isinstance(_cause(error), errors.DigestMismatch)
    state = {"a": torch.ones(1000)}
    dcp.load(state, storage_reader=Reader(store, "gpt", verify=False))
    assert int(state["a"].count_nonzero()) == 1


def test_only_what_is_asked_for_is_read(store):
    # Two parts that are large enough for a file each.
    state = {"a": {"x": torch.ones(400_000)}, "b": {"x": torch.rand(400_000)}}
    dcp.save(state, storage_writer=Writer(store, "gpt", 1))
    path = data_path(_run(store), 1, "b-rank0")
    path.write_bytes(bytes(path.stat().st_size))
    found = {"a": {"x": torch.zeros(400_000)}}
    dcp.load(found, storage_reader=Reader(store, "gpt"))
    assert same(found, {"a": state["a"]})


class _Bare(SavePlanner):
    """A planner with no more than the interface has."""

    _inner = DefaultSavePlanner()
    set_up_planner = _inner.set_up_planner
    create_local_plan = _inner.create_local_plan
    create_global_plan = _inner.create_global_plan
    finish_plan = _inner.finish_plan
    resolve_data = _inner.resolve_data


@pytest.mark.parametrize(
    ("value", "error", "planner"),
    [
        ({1}, errors.RefusedState, None),
        (torch.eye(3).to_sparse(), errors.RefusedState, None),
        (standfast.per_rank(1), errors.RefusedState, None),
        (1, errors.BadOption, _Bare()),
    ],
    ids=["set", "sparse", "per rank", "bare planner"],
)
def test_what_cannot_be_saved_is_refused_by_name(store, value, error, planner):
    with pytest.raises(CheckpointException) as caught:
        dcp.save({"a": value}, storage_writer=Writer(store, "gpt", 1), planner=planner)
    assert isinstance(_cause(caught), error)
    assert " a: " in f" {_cause(caught)}"
    assert _run(store).checkpoints() == []


def test_a_planner_with_no_more_than_the_interface_saves_tensors(store):
    dcp.save({"a": torch.ones(1)}, storage_writer=Writer(store, "gpt", 1), planner=_Bare())
    assert torch.equal(_run(store).load()["a"], torch.ones(1))


def test_a_writer_needs_collectives_and_a_step(store):
    writer = Writer(store, "gpt")
    with pytest.raises(errors.BadOption, match="use_collectives"):
        dcp.save({"a": 1}, storage_writer=Writer(store, "gpt", 1), use_collectives=False)
    with pytest.raises(CheckpointException) as error:
        dcp.save({"a": 1}, storage_writer=writer)
    assert isinstance(_cause(error), errors.BadOption)
    for step in (3, 4):
        dcp.save({"a": step}, storage_writer=writer, checkpoint_id=f"outputs/step-{step}")
    assert [c.step for c in _run(store).checkpoints()] == [3, 4]


def test_the_step_is_what_a_checkpoint_id_ends_in():
    for name, step in ((100, 100), ("out/step-7", 7), ("out/step_12/", 12), (Path("ckpt9"), 9)):
        assert step_of(name) == step
        assert Writer.validate_checkpoint_id(name)
    for wrong in ("", "latest", "step-1/model", "1" * 17):
        with pytest.raises(errors.BadOption):
            step_of(wrong)
        assert not Writer.validate_checkpoint_id(wrong)


def test_a_writer_can_be_sent_to_another_process(store):
    run = standfast.Store(store).run("gpt")
    for step, writer in enumerate((Writer(store, "gpt", 0), Writer(run.store, run, 1))):
        dcp.save({"a": step}, storage_writer=pickle.loads(pickle.dumps(writer)))
    assert [c.step for c in run.checkpoints()] == [0, 1]
    in_memory = standfast.Store(MemoryBackend())
    with pytest.raises(errors.BadOption):
        pickle.dumps(Writer(in_memory, "gpt", 1))
