"""What differs between two runs."""

from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import torch

from standfast import Store
from standfast.store.query.changes import ABSENT, RunChanges, changes, sample_changes
from standfast.store.schema import names
from standfast.store.schema.run_file import encode
from standfast.tensors import TensorSpec
from tests.kit.stores import overwrite


def between(store: Store, before: dict[str, Any], after: dict[str, Any]) -> RunChanges:
    return changes(store.run(**before), store.run(**after))


def net(width: int, *more: torch.nn.Module) -> torch.nn.Module:
    return torch.nn.Sequential(torch.nn.Linear(3, width), torch.nn.ReLU(), *more)


def test_hyperparameters_by_their_paths(store):
    before = {"lr": 0.1, "adam": {"eps": 1e-8, "betas": [0.9, 0.99]}, "seed": 1, "old": None}
    after = {"lr": 0.1, "adam": {"eps": 1e-6, "betas": [0.9, 0.98]}, "seed": 1.0, "new": {}}
    found = between(store, {"hp": before}, {"hp": after})
    assert found.hyperparameters == {
        "adam.eps": (1e-8, 1e-6),
        "adam.betas": ([0.9, 0.99], [0.9, 0.98]),
        "seed": (1, 1.0),
        "old": (None, ABSENT),
        "new": (ABSENT, {}),
    }
    assert found.identity == ("hp",)
    assert not found.uncounted
    run = store.run(hp=before, model=net(2), data={"uids": [1]})
    assert not changes(run, run)


def test_hyperparameters_that_are_not_in_the_hash_are_told_apart(store):
    old = {"lr": 0.1, "root_log_dir": "a", "logging": {"experiment_name": "x"}}
    new = {"lr": 0.2, "root_log_dir": "b", "logging": {"experiment_name": "y"}}
    found = between(store, {"hp": old}, {"hp": new})
    assert found.uncounted == {"root_log_dir"}  # of those inside others, none is left out
    one, two = ({"hp": {"steps": n}, "data": {"uids": [n]}, "volatile": ("steps",)} for n in (1, 2))
    found = between(store, one, two)
    assert found.identity == ("data",)
    assert found.uncounted == {"steps"}


def test_trials_and_hyperparameters_that_are_no_mapping(store):
    found = between(store, {"hp": [1], "trial": 1}, {"hp": [1], "trial": "two"})
    assert (found.trial, dict(found.hyperparameters)) == ((1, "two"), {})
    found = between(store, {"hp": [1]}, {"hp": [2]})
    assert (found.trial, found.hyperparameters) == (None, {"hyperparameters": ([1], [2])})
    assert between(store, {"hp": 1}, {"hp": 1, "trial": 2}).trial == (ABSENT, 2)


def test_layers_by_class_and_by_the_specs_of_their_tensors(store):
    found = between(
        store,
        {"model": net(4, torch.nn.Tanh(), torch.nn.LayerNorm(4))},
        {"model": net(5, torch.nn.GELU(), torch.nn.LayerNorm(4, bias=False))},
    ).layers
    ((name, (_, after)),) = found.modules.items()
    assert (name, after.rpartition(":")[2]) == ("2", "GELU")
    assert found.tensors == {
        "0.weight": (TensorSpec("float32", (4, 3)), TensorSpec("float32", (5, 3))),
        "0.bias": (TensorSpec("float32", (4,)), TensorSpec("float32", (5,))),
        "3.bias": (TensorSpec("float32", (4,)), ABSENT),
    }
    assert found.layers == {"0", "2", "3"}


def test_a_weight_that_is_tied_is_another_one(store):
    tied = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.Linear(2, 2))
    tied[1].weight = tied[0].weight
    apart = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.Linear(2, 2))
    found = between(store, {"model": apart}, {"model": tied}).layers
    assert found.tensors == {"1.weight": (TensorSpec("float32", (2, 2)), "the same as 0.weight")}


def test_a_model_that_is_tensors_by_name(store):
    before = {"mlp": {"w": np.zeros((2, 3)), "b": np.zeros(3)}, "kind": "small"}
    after = {"mlp": {"w": np.zeros((2, 4)), "b": np.zeros(3)}, "kind": "large"}
    found = between(store, {"model": before}, {"model": after}).layers
    assert found.tensors == {
        "mlp.w": (TensorSpec("float64", (2, 3)), TensorSpec("float64", (2, 4))),
        "kind": ("small", "large"),
    }


def test_samples_that_came_went_and_changed(store):
    before = {"uids": [1, 2, 3, 4], "discarded": [2, 3], "tags": {1: ["a", "b"], 4: ["c"]}}
    after = {"uids": [4, 2, 1, 9, 8], "discarded": [2, 1], "tags": {1: ["b", "a"], 9: ["d"]}}
    found = between(store, {"data": before}, {"data": after}).samples
    assert (found.counts, found.added, found.removed) == ((4, 5), [9, 8], [3])
    assert (found.discarded, found.restored) == ([1], [3])
    assert found.tags == {4: (["c"], []), 9: ([], ["d"])}
    assert found.count == 2 + 1 + 1 + 1 + 2


def test_a_duplicate_sample_and_data_that_are_no_samples_are_differences(store):
    found = between(store, {"data": {"path": "a"}}, {"data": {"path": "b"}}).samples
    assert found
    assert found.other == {"data": ({"path": "a"}, {"path": "b"})}
    assert found.count == 0
    found = sample_changes({"uids": [1, 2]}, {"uids": [1, 2, 2]})
    assert found
    assert (found.counts, found.added) == ((2, 3), [])


def test_what_nobody_described_is_not_known(store):
    before = store.run(model=net(4), data={"uids": [1]})
    after = store.run(model=net(5), data={"uids": [2]})
    store.backend.delete([names.architecture_file(before.hash)])
    overwrite(Path(store.url, names.data_state_file(after.hash)), b"\x00 not YAML: [")
    found = changes(before, after)
    assert found.identity == ("model", "data")
    assert (found.layers, found.samples) == (None, None)
    assert found


def test_large_descriptions_are_left_alone_when_there_is_no_time(store):
    before = store.run(model=net(4), data={"uids": list(range(1000))})
    after = store.run(model=net(5), data={"uids": list(range(999))})
    found = changes(before, after, largest=2000)
    assert found.layers
    assert found.samples is None


def test_values_may_be_as_deep_as_a_file_can_be(store):
    before, after = store.run(hp={"a": 1}), store.run(hp={"a": 2})
    for run, value in ((before, 1), (after, 2)):
        trial: Any = value
        for _ in range(800):
            trial = [trial]
        file = msgspec.structs.replace(run.file, trial=trial)
        overwrite(Path(store.url, names.run_file(run.hash)), encode(file))
    found = changes(store.open_run(before.hash), store.open_run(after.hash))
    assert found.trial is not None
