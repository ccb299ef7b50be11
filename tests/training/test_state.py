"""The parts of a training state: what can be one, and how it comes back."""

import random
from collections import OrderedDict
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from torch.utils.data import DataLoader

from standfast import errors
from standfast.store.load.filling import spec_of
from standfast.training.comparison import compare
from standfast.training.report import NO_LOADER, ResumeReport
from standfast.training.state import TrainingState, model_of, tree_of
from tests.kit.walk import checkpointer


def _saved(store: Path, **parts: Any) -> None:
    with checkpointer(store, TrainingState(**parts), name="parts") as ckpt:
        ckpt.step()
        ckpt.save()


def _restored(store: Path, **parts: Any) -> TrainingState:
    state = TrainingState(**parts)
    with checkpointer(store, state, name="parts", resume="must") as ckpt:
        assert ckpt.resume_report.exact, ckpt.resume_report
    return state


class Counter:
    """An object of a program's own."""

    def __init__(self, count: int = 0) -> None:
        self.count = count

    def state_dict(self) -> dict[str, Any]:
        return {"count": self.count}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.count = state["count"]


def test_parts_are_attributes_and_items_and_may_be_replaced():
    counter = Counter()
    state = TrainingState(counter=counter, params={"w": np.zeros(2)})
    assert state.counter is counter
    assert state["counter"] is counter
    assert list(state) == ["counter", "params"]
    assert repr(state) == "TrainingState(counter=Counter, params=dict)"
    state.params = {"w": np.ones(2)}
    assert tree_of(state)["params"]["w"].tolist() == [1.0, 1.0]
    with pytest.raises(AttributeError, match="model"):
        _ = state.model
    with pytest.raises(AttributeError, match="weights"):
        state.weights = {}
    with pytest.raises(errors.RefusedState):
        state.params = object()


def test_a_tree_comes_back_into_its_own_containers_and_tensors(tmp_path):
    _saved(
        tmp_path,
        array=np.arange(3.0),
        tree={"a": np.arange(4), "b": [1, np.ones(2)], "c": (np.full(2, 5), "text"), "n": None},
        history=[0.5, 0.25],
        counts={},
        ordered=OrderedDict(z=1, y=2),
        counter=Counter(7),
        nothing=None,
    )
    array, inner, last = np.zeros(3), np.zeros(4, np.int64), np.zeros(2)
    tree = {"a": inner, "b": [0, last], "c": (np.zeros(2, np.int64), ""), "n": None}
    history: list[float] = [1, 2, 3, 4]
    state = _restored(
        tmp_path,
        array=array,
        tree=tree,
        history=history,
        counts={"a": 1},
        ordered=OrderedDict(z=0, y=0),
        counter=Counter(),
        nothing=None,
    )
    assert array.tolist() == [0.0, 1.0, 2.0]
    assert tree["a"] is inner
    assert inner.tolist() == [0, 1, 2, 3]
    assert tree["b"] == [1, last]
    assert last.tolist() == [1.0, 1.0]
    assert tree["c"][1] == "text"  # type: ignore[index]
    assert history == [0.5, 0.25]
    assert state.counts == {}
    assert state.ordered == OrderedDict(z=1, y=2)
    assert state.counter.count == 7


class Half:
    def state_dict(self) -> dict[str, Any]:
        return {}


@pytest.mark.parametrize(
    "value", [3, 1.5, "text", object(), np.float64(1.0), {1, 2}, Half(), DataLoader([1, 2])]
)
def test_what_cannot_be_restored_is_refused_by_name(value):
    with pytest.raises(errors.RefusedState, match="count:"):
        TrainingState(count=value)


def test_parts_have_names_and_random_is_taken():
    for given, named in (((), {}), ((Counter(),), {}), ((), {"random": random.Random()})):
        with pytest.raises(errors.RefusedState):
            TrainingState(*given, **named)  # type: ignore[arg-type]


def test_an_object_that_refuses_its_state_is_named(tmp_path):
    class Picky(Counter):
        def load_state_dict(self, state: dict[str, Any]) -> None:
            raise KeyError("version")

    _saved(tmp_path, counter=Counter(1))
    with pytest.raises(errors.StateMismatch, match="Picky"):
        _restored(tmp_path, counter=Picky())


def test_the_identity_of_a_tree_is_its_tensors_not_its_values():
    def model(**values: Any) -> Any:
        return model_of(TrainingState(model={"w": np.ones(3), **values}))

    assert model(count=1) == model(count=2)
    assert model() != model_of(TrainingState(model={"w": np.ones(4)}))
    assert model_of(TrainingState(other=np.ones(3))) is None


def _report(mine: Any, saved: Any) -> Any:
    return compare(mine, saved, spec_of)


def test_all_that_differs_is_listed_but_what_is_empty_on_one_side():
    full = {"state": {"0": {"step": 3}}, "groups": [1]}
    assert _report({"state": {}, "groups": [1]}, full).exact
    assert _report(full, {"state": {}, "groups": [1]}).exact
    mine = {"a": np.zeros(3), "b": 1, "c": {"d": 2}, "same": 0}
    saved = {"a": np.zeros(4), "b": np.zeros(1), "c": {"e": 2}, "same": 1}
    report = _report(mine, saved)
    assert report.loaded == ["same"]
    assert report.missing == ["c.d"]
    assert report.unexpected == ["c.e"]
    assert report.mismatched == [
        "a: float64 [4] was saved, float64 [3] is there",
        "b: a tensor was saved, a plain value is there now",
    ]


@pytest.mark.parametrize(
    ("notes", "inexact", "ending"),
    [
        ([], [], "continues after step 3, exactly as it was"),
        ([NO_LOADER], [], "continues after step 3, exactly as it was, if its data is"),
        ([NO_LOADER], ["other ranks"], "continues after step 3, which may not be exact"),
    ],
)
def test_exactness_is_not_promised_of_data_that_is_not_saved(notes, inexact, ending):
    report = ResumeReport("4dd7ba7e", "gpt", 3, ref="gpt@3", notes=notes, inexact=inexact)
    assert str(report).splitlines()[0] == f"run gpt (4dd7ba7e) {ending}"
