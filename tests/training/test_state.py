"""The parts of a training state: what can be one, and how it comes back."""

from __future__ import annotations

import random
from collections import OrderedDict
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import standfast
from standfast import errors
from standfast.training.comparison import compare
from standfast.training.state import TrainingState, model_of, tree_of
from tests.kit.walk import checkpointer


def _saved(store: Path, **parts: Any) -> None:
    with checkpointer(store, standfast.TrainingState(**parts), name="parts") as ckpt:
        ckpt.step()
        ckpt.save()


def _restored(store: Path, **parts: Any) -> standfast.TrainingState:
    state = standfast.TrainingState(**parts)
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


def test_parts_are_attributes_and_items() -> None:
    counter = Counter()
    state = standfast.TrainingState(counter=counter, weights=np.zeros(3))
    assert state.counter is counter
    assert state["counter"] is counter
    assert list(state) == ["counter", "weights"]
    assert repr(state) == "TrainingState(counter=Counter, weights=ndarray)"
    with pytest.raises(AttributeError, match="no part 'model'"):
        _ = state.model


def test_a_tree_comes_back_into_its_own_containers_and_tensors(tmp_path: Path) -> None:
    _saved(
        tmp_path,
        array=np.arange(3.0),
        tree={"a": np.arange(4), "b": [1, np.ones(2)], "c": (np.full(2, 5), "text"), "n": None},
        history=[0.5, 0.25],
        ordered=OrderedDict(z=1, y=2),
        counter=Counter(7),
        nothing=None,
    )
    array, inner, last = np.zeros(3), np.zeros(4, np.int64), np.zeros(2)
    tree = {"a": inner, "b": [0, last], "c": (np.zeros(2, np.int64), ""), "n": None}
    history: list[float] = []
    state = _restored(
        tmp_path,
        array=array,
        tree=tree,
        history=history,
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
    assert state.ordered == OrderedDict(z=1, y=2)
    assert state.counter.count == 7


@pytest.mark.parametrize("value", [3, 1.5, "text", object(), np.float64(1.0), {1, 2}])
def test_what_cannot_be_put_back_is_refused_by_name(value: Any) -> None:
    with pytest.raises(errors.RefusedState, match=r"count: .* dict that holds the value"):
        standfast.TrainingState(count=value)


def test_an_object_that_only_gives_its_state_is_refused() -> None:
    class Half:
        def state_dict(self) -> dict[str, Any]:
            return {}

    with pytest.raises(errors.RefusedState, match="no load_state_dict"):
        standfast.TrainingState(half=Half())


def test_parts_have_names() -> None:
    for make in (standfast.TrainingState, lambda: standfast.TrainingState(Counter())):
        with pytest.raises(errors.RefusedState, match=r"TrainingState\(model=model"):
            make()


def test_the_name_of_the_random_states_is_taken() -> None:
    with pytest.raises(errors.RefusedState, match="random"):
        standfast.TrainingState(random=random.Random())


def test_an_object_that_refuses_its_state_is_named(tmp_path: Path) -> None:
    class Picky(Counter):
        def load_state_dict(self, state: dict[str, Any]) -> None:
            raise KeyError("version")

    _saved(tmp_path, counter=Counter(1))
    with pytest.raises(errors.StateMismatch, match=r"counter: Picky\.load_state_dict refused"):
        _restored(tmp_path, counter=Picky())


def test_the_identity_of_a_tree_is_its_tensors_not_its_values() -> None:
    def model(**values: Any) -> Any:
        return model_of(standfast.TrainingState(model={"w": np.ones(3), **values}))

    assert model(count=1) == model(count=2)
    assert model() != model_of(standfast.TrainingState(model={"w": np.ones(4)}))
    assert model_of(standfast.TrainingState(other=np.ones(3))) is None


def _report(mine: Any, saved: Any) -> Any:
    from standfast.store.load.filling import spec_of

    return compare(mine, saved, spec_of)


def test_what_is_empty_on_one_side_is_no_difference() -> None:
    full = {"state": {"0": {"step": 3}}, "groups": [1]}
    assert _report({"state": {}, "groups": [1]}, full).exact
    assert _report(full, {"state": {}, "groups": [1]}).exact


def test_all_that_differs_is_listed() -> None:
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


def test_a_container_that_was_empty_is_emptied_and_a_list_may_have_grown(tmp_path: Path) -> None:
    _saved(tmp_path, counts={}, history=[1, 2])
    state = _restored(tmp_path, counts={"a": 1}, history=[1, 2, 3, 4])
    assert state.counts == {}
    assert state.history == [1, 2]


def test_a_part_that_is_set_is_the_one_that_is_saved() -> None:
    state = TrainingState(params={"w": np.zeros(2)})
    state.params = {"w": np.ones(2)}
    assert tree_of(state)["params"]["w"].tolist() == [1.0, 1.0]
    assert state["params"] is state.params
    with pytest.raises(AttributeError, match="no part 'weights'"):
        state.weights = {}
    with pytest.raises(errors.RefusedState):
        state.params = object()
