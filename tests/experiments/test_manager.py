"""`CheckpointManagerV2`: what it writes and when, and what comes back."""

import itertools
import os
import pickle
import subprocess
import sys
from argparse import Namespace
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

import dill
import numpy as np
import pytest
import torch
import yaml
from torch import nn

import standfast
from standfast import errors
from standfast.experiments import CheckpointManagerV2 as Manager
from standfast.experiments import watch
from standfast.experiments.registry import watched
from standfast.identity import identify
from standfast.store.query.lineage import lineage
from tests import ROOT
from tests.experiments.models import (
    DATA,
    HP,
    bits,
    fill,
    new_model,
    new_optimizer,
    train_step,
    tree,
)
from tests.experiments.saver import SIZE
from tests.kit.cases import kept


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path / "experiments"


@pytest.fixture
def manager(root: Path) -> Manager:
    return Manager(root)


def test_an_empty_root_has_the_folders_of_the_layout_and_no_experiments(root, manager):
    assert {"data", "logs", "checkpoints/models", "checkpoints/HP", "checkpoints/data"} < tree(root)
    assert manager.root_log_dir == root
    assert manager.checkpoints_dir == root / "checkpoints"
    assert manager.models_dir == root / "checkpoints/models"
    assert manager.hp_dir == root / "checkpoints/HP"
    assert manager.data_checkpoint_dir == root / "checkpoints/data"
    assert manager.manifest_file == root / "checkpoints/manifest.yaml"
    assert manager.current_exp_hash is manager.get_latest_hash() is None
    assert manager.get_all_hashes() == manager.list_experiment_hashes() == []
    assert manager.get_hashes_by_component(hp_hash="00000000") == []
    with pytest.raises(errors.RefNotFound):
        manager.load_latest_checkpoint()
    for method in (manager.load_checkpoint, manager.load_config, manager.get_checkpoint_info):
        with pytest.raises(errors.RefNotFound):
            method("a" * 24)
    (root / "file").touch()
    with pytest.raises(errors.WriteFailed):
        Manager(root / "file")


def test_nothing_is_written_until_training_goes_on(root, manager):
    before = tree(root)
    model = new_model()
    made = manager.update_experiment_hash(model, HP, DATA)
    expected = identify(hp=HP, model=model, data=DATA).hash
    assert made == (expected, True, {"hp", "model", "data"})
    assert manager.current_exp_hash == expected
    assert manager.has_pending_changes() == (True, {"hp", "model", "data"})
    assert tree(root) == before
    manager.save_model_checkpoint(model, step=1)
    assert manager.has_pending_changes() == (False, set())
    assert manager.list_experiment_hashes() == [expected]


def test_a_change_is_pending_until_it_is_written_or_taken_back(manager):
    made, _, _ = manager.update_experiment_hash(new_model(), HP, DATA, dump_immediately=True)
    second, is_new, changed = manager.update_experiment_hash(hp_snapshot={"lr": 5})
    assert (is_new, changed) == (True, {"hp"})
    assert second[8:] == made[8:]  # what is not given stays what it was
    assert manager.update_experiment_hash() == (second, False, set())
    assert manager.has_pending_changes() == (True, {"hp"})
    assert manager.update_experiment_hash(hp_snapshot=HP) == (made, True, {"hp"})
    assert manager.has_pending_changes() == (False, set())
    assert manager.dump_pending_changes() is False
    everything = {"hp", "model", "data"}
    assert manager.update_experiment_hash(force=True) == (made, True, everything)
    assert manager.has_pending_changes() == (True, everything)
    assert manager.dump_pending_changes() is True
    assert manager.has_pending_changes() == (False, set())
    assert manager.dump_pending_changes(force=True) is True


def test_an_experiment_is_needed_before_a_checkpoint(manager):
    assert manager.dump_pending_changes() is False
    with pytest.raises(errors.NotOpen, match="update_experiment_hash"):
        manager.save_model_checkpoint(new_model(), step=1)
    with pytest.raises(errors.NotOpen, match="update_experiment_hash"):
        manager.dump_pending_changes(force=True)
    for nothing in ({}, {"dfm_snapshot": {"discarded": []}}):
        with pytest.raises(errors.BadOption, match="hp_snapshot"):
            manager.update_experiment_hash(**nothing)
        assert manager.current_exp_hash is None
    manager.update_experiment_hash(hp_snapshot=HP)
    with pytest.raises(errors.NotOpen, match="watch"):
        manager.save_model_checkpoint(step=1)


def test_a_checkpoint_is_a_whole_torch_file(manager):
    model = new_model()
    optimizer = new_optimizer(model)
    made, _, _ = manager.update_experiment_hash(model, HP, DATA)
    train_step(model, optimizer, 1)
    metadata = {"note": "first", "loss": 0.5}
    path = manager.save_model_checkpoint(model, 100, metadata=metadata, optimizer=optimizer)
    assert path == manager.models_dir / made / f"{made}_step_000100.pt"
    saved = torch.load(path, weights_only=True)
    always = {"step", "model_state_dict", "timestamp", "exp_hash"}
    assert set(saved) == {*always, "optimizer_state_dict", "metadata"}
    assert (saved["step"], saved["exp_hash"], saved["metadata"]) == (100, made, metadata)
    assert bits(saved["model_state_dict"]) == bits(model.state_dict())
    new_optimizer(new_model()).load_state_dict(saved["optimizer_state_dict"])
    assert standfast.load(path)["model_state_dict.0.weight"].shape == (8, 10)
    path = manager.save_model_checkpoint(model, 101, save_optimizer=False, optimizer=optimizer)
    assert set(torch.load(path)) == always


def test_steps_are_counted_and_replaced(manager):
    model = new_model()
    made, _, _ = manager.update_experiment_hash(model, HP, DATA)
    assert manager.save_model_checkpoint(model).name == f"{made}_step_000001.pt"
    manager.save_model_checkpoint(model, np.int64(7))
    assert manager.save_model_checkpoint(model).name == f"{made}_step_000008.pt"
    manager.load_checkpoint(made, target_step=1)
    assert manager.save_model_checkpoint().name == f"{made}_step_000002.pt"
    with torch.no_grad():
        model[0].weight.fill_(5)
    path = manager.save_model_checkpoint(model, 2)
    assert bits(torch.load(path)["model_state_dict"]) == bits(model.state_dict())
    assert manager.get_checkpoint_info(made)["steps"] == [1, 2, 7, 8]
    with pytest.raises(errors.BadOption, match="step"):
        manager.save_model_checkpoint(model, 1.5)  # type: ignore[arg-type]


@pytest.mark.parametrize("how", ["saved", "dumped"])
def test_a_model_that_changed_is_another_experiment(manager, how):
    model = new_model()
    made, _, _ = manager.update_experiment_hash(model, HP)
    manager.save_model_checkpoint(model, 1)
    model.append(nn.ReLU())
    if how == "saved":
        manager.save_model_checkpoint(model, 2)
    else:
        manager.dump_pending_changes(force=True)
    expected = identify(hp=HP, model=model).hash
    assert manager.current_exp_hash == expected
    assert manager.list_experiment_hashes() == sorted([made, expected])
    assert manager.get_checkpoint_info(expected)["parent"] == f"{made}@1"
    assert manager.has_pending_changes() == (False, set())


def test_a_branch_knows_the_checkpoint_that_it_came_from(root, manager):
    def parent(lr: int) -> Any:
        made, _, _ = manager.update_experiment_hash(hp_snapshot={"lr": lr}, dump_immediately=True)
        return manager.get_checkpoint_info(made)["parent"]

    first = fill(root, 1, 2, 3)
    assert parent(1) is None  # nothing of it was loaded or current
    manager.update_experiment_hash(new_model(), HP, DATA, dump_immediately=True)
    assert parent(2) == f"{first}@3"  # the latest of the experiment before
    manager.load_checkpoint(first, target_step=1)
    assert parent(3) == f"{first}@1"
    manager.load_checkpoint(first)
    standfast.Store(root).find_run(first).delete_all()
    assert parent(4) is None


def parents(manager: Manager, *made: str) -> list[str | None]:
    return [manager.get_checkpoint_info(each)["parent"] for each in made]


@pytest.mark.parametrize(
    ("how", "reuse"),
    kept(
        itertools.product(
            ["at once", "on save", "in parts", "evaluated", "looked at", "counted"], [False, True]
        ),
        *[("on save", True), ("in parts", False), ("evaluated", False), ("counted", False)],
    ),
)
def test_a_sweep_in_one_process_is_a_fan(manager, how, reuse):
    """With a new model for each experiment, or with one that starts again at step 1."""
    made = []
    model = new_model()
    counted = how == "counted" and not reuse
    for lr in (0.1, 0.01, 0.001):
        model = model if reuse else new_model()
        if how == "in parts":
            manager.save_config({"lr": lr})
            manager.save_model_architecture(model)
        at_once = how == "at once"
        hash, _, _ = manager.update_experiment_hash(model, {"lr": lr}, dump_immediately=at_once)
        for step in (1, 2, 3):
            path = manager.save_model_checkpoint(model, None if counted else step)
            assert path.name == f"{hash}_step_{step:06d}.pt"
        if how == "evaluated" and not reuse:
            manager.load_latest_checkpoint(model)
        elif how in ("looked at", "counted"):
            manager.load_checkpoint(hash)
            manager.load_latest_checkpoint()
        made.append(hash)
    assert parents(manager, *made) == [None] * 3
    manager.store.index.refresh()
    shown = list(lineage(manager.store.index).branches())  # as `standfast log` has it
    assert [branch.parent for branch in shown] == [None] * len(manager.list_experiment_hashes())


def test_a_sweep_from_one_checkpoint_is_a_fan_of_it(root, manager):
    base = fill(root, 1, 2)
    made = []
    for lr in (0.1, 0.01):
        model = new_model()
        manager.load_latest_checkpoint(model, exp_hash=base)
        made.append(manager.update_experiment_hash(model, {"lr": lr}, dump_immediately=True)[0])
        manager.save_model_checkpoint(model, 1)
    assert parents(manager, *made) == [f"{base}@2"] * 2


def test_the_closest_step_is_loaded_and_of_two_the_higher(root, manager):
    fill(root, 10, 20, 40)
    for target, expected in {0: 10, 14: 10, 15: 20, 29: 20, 30: 40, 1000: 40, 20: 20}.items():
        assert manager.load_checkpoint(target_step=target)["weights"]["step"] == expected


def test_an_experiment_goes_by_the_start_of_its_hash(root, manager):
    made = fill(root, 10)
    other = fill(root, 1, hp={"lr": 2})
    shared = next(i for i in range(24) if made[i] != other[i])
    for name in (made, f"{made[:8]}_{made[8:16]}_{made[16:]}", made[:8], made[: shared + 1]):
        assert manager.load_checkpoint(name)["exp_hash"] == made
        assert manager.load_config(name) == HP
        assert manager.get_checkpoint_info(name)["hash"] == made
        assert manager.load_latest_checkpoint(exp_hash=name)["step"] == 10
    for wrong in ("", "zz", made[:5] + "z"):
        with pytest.raises(errors.RefNotFound):
            manager.load_config(wrong)
    for lr in range(3, 20):  # two of them begin with the same digit
        manager.update_experiment_hash(hp_snapshot={"lr": lr}, dump_immediately=True)
    first = [each[0] for each in manager.list_experiment_hashes()]
    with pytest.raises(errors.AmbiguousRef):
        manager.load_config(next(digit for digit in first if first.count(digit) > 1))


def test_what_is_asked_for_is_loaded_if_the_experiment_has_it(root, manager):
    made = fill(root, 10)
    found = manager.load_checkpoint(made)
    assert found["loaded_components"] == {"weights", "config", "data"}
    assert (found["exp_hash"], found["config"], found["data_state"]) == (made, HP, DATA)
    assert found["model"] is None
    assert found["weights"]["step"] == 10
    none = manager.load_checkpoint(made, load_weights=False, load_config=False, load_data=False)
    assert none["loaded_components"] == set()
    assert none["weights"] is none["config"] is none["data_state"] is None
    model = new_model()
    manager.update_experiment_hash(model)
    manager.save_model_checkpoint(model, 1)
    assert manager.load_checkpoint()["loaded_components"] == {"weights"}
    assert manager.load_config() is None


def test_an_experiment_without_checkpoints_has_no_weights(manager):
    made, _, _ = manager.update_experiment_hash(None, HP, DATA, dump_immediately=True)
    found = manager.load_checkpoint(made)
    assert found["loaded_components"] == {"config", "data"}
    assert (found["config"], found["data_state"], found["weights"]) == (HP, DATA, None)
    with pytest.raises(errors.RefNotFound):
        manager.load_checkpoint(made, target_step=3)
    with pytest.raises(errors.RefNotFound):
        manager.load_latest_checkpoint(exp_hash=made)
    assert manager.save_model_checkpoint(new_model(), 1).parent.name == made  # any model


def test_the_latest_is_put_into_model_and_optimizer(root, manager):
    fill(root, 1, 2, 3)
    trained = new_model()
    steps = new_optimizer(trained)
    for step in (1, 2, 3, 4):
        train_step(trained, steps, step)
    model = new_model(seed=9)
    optimizer = new_optimizer(model)
    manager.load_latest_checkpoint(model, load_optimizer=False, optimizer=optimizer)
    assert optimizer.state_dict()["state"] == {}
    assert manager.load_latest_checkpoint(model, optimizer=optimizer)["step"] == 3
    train_step(model, optimizer, 4)
    assert bits(model.state_dict()) == bits(trained.state_dict())
    with pytest.raises(errors.StateMismatch):
        manager.load_latest_checkpoint(new_model(width=4))


def test_the_current_experiment_comes_before_the_latest(root, manager):
    first = fill(root, 1)
    second = fill(root, 2, hp={"lr": 2})
    assert manager.load_latest_checkpoint()["exp_hash"] == second
    manager.update_experiment_hash(new_model(), HP, DATA)
    assert manager.load_latest_checkpoint()["exp_hash"] == first
    manager.update_experiment_hash(hp_snapshot={"lr": 77})
    with pytest.raises(errors.RefNotFound):
        manager.load_latest_checkpoint()


def test_what_is_watched_is_saved_and_filled(manager):
    model = new_model()
    try:
        watch(model=model, optimizer=new_optimizer(model))
        manager.update_experiment_hash(hp_snapshot=HP)
        assert "optimizer_state_dict" in torch.load(manager.save_model_checkpoint(step=1))
        before = bits(model.state_dict())
        with torch.no_grad():
            model[0].weight.zero_()
        manager.load_latest_checkpoint()
        assert bits(model.state_dict()) == before
    finally:
        watched.forget()


def test_configs_and_data_are_written_on_their_own(manager):
    path = manager.save_config(HP)
    made = manager.current_exp_hash
    config = yaml.safe_load(path.read_text())
    assert path == manager.hp_dir / made / f"{made}_config.yaml"
    assert (config["hyperparameters"], config["exp_hash"]) == (HP, made)
    path = manager.save_config(HP | {"pause_at_step": 30})  # which does not count
    assert manager.current_exp_hash == made
    assert manager.load_config(made) == HP | {"pause_at_step": 30}
    assert yaml.safe_load(path.read_text())["hyperparameters"]["pause_at_step"] == 30
    path = manager.save_data_snapshot(DATA)
    made = manager.current_exp_hash
    assert path == manager.data_checkpoint_dir / made / f"{made}_data_state.yaml"
    assert yaml.safe_load(path.read_text()) == DATA
    assert made == identify(hp=HP, data=DATA).hash


def test_a_snapshot_does_not_change_with_its_source(manager):
    hp = Namespace(lr=0.1, layers=[1, 2])
    data: dict[str, Any] = {"uids": ["a"], "discarded": [], "tags": {"a": ["x"]}}
    made, _, _ = manager.update_experiment_hash(hp_snapshot=hp, dfm_snapshot=data)
    hp.layers.append(3)
    data["tags"]["a"].append("y")
    assert manager.dump_pending_changes() is True
    assert manager.list_experiment_hashes() == [made]
    assert manager.load_config(made) == {"lr": 0.1, "layers": [1, 2]}
    assert manager.load_checkpoint(made, load_weights=False)["data_state"]["tags"] == {"a": ["x"]}


@pytest.mark.parametrize(
    "hp",
    [
        {"class_weight": {0: 1.0, 1: 3.5}, "clip": float("inf")},
        {"seed": 2**70, "none": {None: 1}, "by_rate": {0.5: "low"}, "nan": float("nan")},
        {"tags": {"a", "b"}, "betas": (0.9, 0.999), "salt": b"\x00\xff", "pole": 1 - 2j},
        {"prior": np.arange(3.0), "mean": torch.tensor([0.5]), "path": Path("a")},
        {"mapping": MappingProxyType({"lr": 1, "at": MappingProxyType({})})},
        {"not a leaf": [torch.ones(2, requires_grad=True) * 2]},
    ],
    ids=["keys", "numbers", "containers", "objects", "no pickles", "no leaves"],
)
def test_loaded_hyperparameters_continue_the_experiment(manager, hp):
    made, _, _ = manager.update_experiment_hash(hp_snapshot=hp, dump_immediately=True)
    assert made == identify(hp=hp).hash
    found = manager.load_config(made)
    if "mapping" not in hp:
        assert list(map(type, found.values())) == list(map(type, hp.values()))
    assert manager.update_experiment_hash(hp_snapshot=found) == (made, False, set())
    assert manager.load_checkpoint(made)["config"].keys() == hp.keys()
    path = manager.hp_dir / made / f"{made}_config.yaml"
    readable = yaml.safe_load(path.read_text())["hyperparameters"]
    assert readable.keys() == hp.keys()
    if "clip" in hp or "seed" in hp:  # YAML has these as they are
        assert identify(hp=readable).hash == made


def test_a_config_that_was_edited_by_hand_is_noticed(root, manager):
    made = fill(root, 1)
    path = manager.hp_dir / made / f"{made}_config.yaml"
    edited = path.read_text().replace("batch: 8", "batch: 16")
    path.write_text(edited)
    with pytest.warns(errors.NotVerified, match=r"_config\.yaml") as warned:
        assert manager.load_config(made) == HP
    assert warned[0].filename == __file__
    manager.load_latest_checkpoint(exp_hash=made)
    manager.update_experiment_hash(new_model(), HP, DATA)
    manager.save_model_checkpoint(new_model(), 2)
    with pytest.warns(errors.NotVerified, match=r"_config\.yaml"):
        assert manager.load_checkpoint(made)["config"] == HP
    assert path.read_text() == edited  # no load and no save undoes it
    manager.save_config()
    assert manager.load_config(made) == HP


def test_a_data_state_without_uids_has_the_usual_keys(manager):
    path = manager.save_data_snapshot(
        {"discarded": ["s17"], "tags": {"s3": ["hard"]}, "split": "a"}
    )
    expected = {"uids": [], "discarded": ["s17"], "tags": {"s3": ["hard"]}, "split": "a"}
    assert yaml.safe_load(path.read_text()) == expected
    assert manager.load_checkpoint()["data_state"] == expected
    made = manager.current_exp_hash
    assert manager.update_experiment_hash(dfm_snapshot=expected) == (made, False, set())
    manager.save_data_snapshot({"tags": {"s3": ["hard"]}})
    assert manager.load_checkpoint()["data_state"]["tags"] == {"s3": ["hard"]}
    with pytest.raises(errors.UnstableValue, match=r"data\.discarded"):
        manager.update_experiment_hash(dfm_snapshot={"discarded": {"s17": True}})
    with pytest.raises(errors.UnstableValue, match=r"data\.discarded"):
        manager.update_experiment_hash(dfm_snapshot={"discarded": "s17"})


def test_an_architecture_is_pickled_when_asked_for(root, manager):
    made = fill(root, 1)
    path = manager.models_dir / made / f"{made}_architecture.pkl"
    assert path.with_suffix(".json").exists()
    assert not path.exists()
    with pytest.raises(errors.MissingFile, match="save_model_architecture"):
        manager.load_checkpoint(made, load_model=True, trust_architecture=True)
    manager.update_experiment_hash(new_model(), HP, DATA)
    assert manager.save_model_architecture(new_model()) == path
    found = manager.load_checkpoint(made, load_model=True, trust_architecture=True)
    assert "model" in found["loaded_components"]
    found["model"].load_state_dict(found["weights"]["model_state_dict"])
    with pytest.raises(errors.RefusedPickle, match="trust_architecture"):
        manager.load_checkpoint(made, load_model=True)


class Positional(nn.Module):
    """A model with a table that no state dict has."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 4)
        self.tied = nn.Linear(4, 4)
        self.tied.weight = self.layer.weight
        self.register_buffer("count", torch.ones(3))
        self.register_buffer("table", torch.arange(5.0), persistent=False)
        self.scale = torch.tensor([2.5])
        self.layer.bias.requires_grad_(False)


def test_an_architecture_is_pickled_without_its_weights(manager):
    model = Positional()
    manager.update_experiment_hash(model, HP)
    found = dill.loads(manager.save_model_architecture().read_bytes())
    assert not any(tensor.any() for tensor in found.state_dict().values())
    assert found.table.tolist() == model.table.tolist()
    assert found.scale.tolist() == [2.5]
    assert found.tied.weight is found.layer.weight
    assert [each.requires_grad for each in found.parameters()] == [
        each.requires_grad for each in model.parameters()
    ]
    found.load_state_dict(model.state_dict())
    assert bits(found.state_dict()) == bits(model.state_dict())
    assert bits(model.state_dict())["count"] == bits({"": torch.ones(3)})[""]


def test_what_did_not_change_takes_no_space_again(root):
    """A `.pt` file has the step, the time and the hash in it, so each one is whole; all else is
    shared with the experiment before, and a store's own format shares tensors with `.pt` files.
    """
    manager = Manager(root, pickle_architectures=True)
    model = nn.Linear(500, 500)
    weights = sum(tensor.nbytes for tensor in model.state_dict().values())  # 1 MB
    data: dict[str, Any] = {"uids": [f"sample-{i:08d}" for i in range(10_000)], "discarded": []}

    def size() -> int:
        """Of all files, those with several names counted once."""
        files = {path.stat().st_ino: path.stat() for path in root.rglob("*") if path.is_file()}
        return sum(status.st_size for status in files.values())

    sizes = [size()]

    def grown() -> int:
        sizes.append(size())
        return sizes[-1] - sizes[-2]

    made, _, _ = manager.update_experiment_hash(model, {"lr": 1}, data, dump_immediately=True)
    assert (manager.models_dir / made / f"{made}_architecture.pkl").exists()
    assert 10_000 * 17 < grown() < 400_000  # no weights are in it
    manager.save_model_checkpoint(model, 1)
    assert weights < grown() < weights + 50_000
    manager.update_experiment_hash(hp_snapshot={"lr": 2}, dump_immediately=True)
    assert grown() < 50_000  # architecture, pickle and samples are links
    manager.save_model_checkpoint(model, 2)
    assert weights < grown() < weights + 50_000
    manager.update_experiment_hash(dfm_snapshot={"uids": ["a"]}, dump_immediately=True)
    assert grown() < 50_000
    with manager.store.run("shared") as run:
        for step in range(1, 4):
            run.save(step, {"step": step, "model": model.state_dict()})
    assert grown() < 200_000  # their tensors are those of the .pt files


@pytest.mark.parametrize("lost", [Path.unlink, lambda path: os.truncate(path, 100)])
def test_every_query_makes_a_lost_or_torn_manifest_again(root, manager, lost):
    made = fill(root, 1)
    for query in (
        manager.get_latest_hash,
        manager.get_all_hashes,
        manager.get_hashes_by_component,
        manager.list_experiment_hashes,
    ):
        lost(manager.manifest_file)
        query()
        manifest = yaml.safe_load(manager.manifest_file.read_text())
        assert manifest["latest_hash"] == made
        assert manifest["experiments"].keys() == {made}
        assert manifest["experiments"][made]["hp_hash"] == made[:8]


def test_lists_are_by_last_use_or_creation(root, manager):
    first = fill(root, 1)
    second = fill(root, 1, hp={"lr": 2})
    third = fill(root, hp={"lr": 3})

    def listed(by: str) -> list[str]:
        return [entry["hash"] for entry in manager.get_all_hashes(sort_by=by)]

    assert listed("last_used") == [third, second, first]
    before = manager.get_checkpoint_info(first)["last_used"]
    manager.load_checkpoint(first)
    assert listed("last_used") == [first, third, second]
    assert manager.get_checkpoint_info(first)["last_used"] > before
    manager.load_latest_checkpoint(exp_hash=second)
    assert listed("last_used") == [second, first, third]
    manager.update_experiment_hash(new_model(), {"lr": 3}, DATA, dump_immediately=True)
    assert listed("last_used") == [third, second, first]
    entries = yaml.safe_load(manager.manifest_file.read_text())["experiments"]
    by_use = sorted(entries, key=lambda each: str(entries[each]["last_used"]), reverse=True)
    assert by_use == [third, second, first]
    assert manager.get_latest_hash() == second  # the run of the latest commit
    fill(root, 2)
    assert listed("last_used") == [first, third, second]
    assert listed("created") == [third, second, first]
    assert manager.list_experiment_hashes() == sorted([first, second, third])
    entry = manager.get_all_hashes(sort_by="last_used")[0]
    parts = {"hp_hash": first[:8], "model_hash": first[8:16], "data_hash": first[16:]}
    assert entry == {"hash": first, **parts} | {key: entry[key] for key in ("created", "last_used")}
    assert entry["created"] < entry["last_used"]
    with pytest.raises(errors.BadOption, match="last_used"):
        manager.get_all_hashes(sort_by="name")


def test_the_info_says_what_there_is(root, manager):
    made = fill(root, 1, 2, 3, best=2)
    info = manager.get_checkpoint_info(made)
    checkpoints = info["checkpoints"]
    assert (info["hash"], info["hp_hash"], info["data_hash"]) == (made, made[:8], made[16:])
    assert info["steps"] == [each["step"] for each in checkpoints] == [1, 2, 3]
    assert (info["latest_step"], info["best_step"], info["config"]) == (3, 2, HP)
    assert info["nbytes"] == sum(each["nbytes"] for each in checkpoints) > 0
    assert checkpoints[0]["metrics"]["loss"] > 0
    assert checkpoints[0]["path"] == manager.models_dir / made / f"{made}_step_000001.pt"


def test_a_store_and_a_manager_see_the_same_runs(root, manager):
    made = fill(root, 1)
    store = standfast.Store(root)
    assert [run.hash for run in store.runs()] == [made]
    state = store.resolve("latest").state()
    assert state["exp_hash"] == made
    run = store.run(hp={"by": "hand"})
    run.save(5, {"model": new_model(seed=3).state_dict()})
    assert manager.get_latest_hash() == run.hash
    model = new_model()
    manager.load_latest_checkpoint(model)
    assert bits(model.state_dict()) == bits(new_model(seed=3).state_dict())
    run.save(6, {"weights": {}})
    with pytest.raises(errors.RefNotFound, match="model_state_dict"):
        manager.load_latest_checkpoint(model)


def test_a_data_state_that_was_changed_or_damaged_is_noticed(root, manager):
    made = fill(root, 1)
    path = manager.data_checkpoint_dir / made / f"{made}_data_state.yaml"
    path.write_text(path.read_text().replace("night", "light"))
    with pytest.warns(errors.NotVerified, match="data_state") as warned:
        state = manager.load_checkpoint(made)["data_state"]
    assert state["tags"]["a"] == ["hard", "light"]
    assert warned[0].filename == __file__
    path.write_bytes(b"!!python/object/apply:os.system ['echo']")
    with pytest.raises(errors.DamagedFile):
        manager.load_checkpoint(made)
    path.unlink()
    with pytest.raises(errors.MissingFile, match="load_data=False"):
        manager.load_checkpoint(made)
    assert manager.load_checkpoint(made, load_data=False)["weights"]["step"] == 1


@pytest.mark.parametrize("data", [{"train": "a.csv", "seed": 1}, ["a", "b"], "a.csv", {}], ids=repr)
def test_data_of_any_other_form_is_the_same_when_given_back(root, data):
    with Manager(root) as manager:
        manager.update_experiment_hash(hp_snapshot=HP, dfm_snapshot=data, dump_immediately=True)
        made = manager.current_exp_hash
        assert made == identify(hp=HP, data=data).hash
        found = manager.load_checkpoint()["data_state"]
        assert not data or found["data"] == data
        assert manager.update_experiment_hash(dfm_snapshot=found) == (made, False, set())
    with Manager(root) as manager:
        manager.update_experiment_hash(hp_snapshot=HP, dfm_snapshot=found, dump_immediately=True)
        assert manager.load_checkpoint()["data_state"] == found
        assert manager.list_experiment_hashes() == [made] == [manager.current_exp_hash]


def test_hyperparameters_that_cannot_be_copied_are_refused(manager):
    @dataclass
    class Copied:
        lr: float = 0.1

        def __deepcopy__(self, memo: Any) -> Any:
            raise RuntimeError

    manager.update_experiment_hash(hp_snapshot=HP)
    made = manager.current_exp_hash
    for value, key in ((Copied(), "Copied"), (lambda: None, r"hp\.a")):
        with pytest.raises(errors.UnstableValue, match=key):
            manager.update_experiment_hash(hp_snapshot={"a": value})
        assert manager.current_exp_hash == made


def test_arguments_of_a_wrong_type_are_refused(root, manager):
    made = fill(root, 1)
    manager.update_experiment_hash(new_model(), HP, DATA)
    before = tree(manager.models_dir)
    for wrong in ("best", [("a", 1)], 5):
        with pytest.raises(errors.BadOption, match="metadata"):
            manager.save_model_checkpoint(new_model(), 2, metadata=wrong)
    for wrong in (5, b"x", [made]):
        for method in (manager.load_config, manager.load_checkpoint, manager.get_checkpoint_info):
            with pytest.raises(errors.BadOption, match=type(wrong).__name__):
                method(wrong)
    with pytest.raises(errors.BadOption, match="target_step"):
        manager.load_checkpoint(made, target_step="20")  # type: ignore[arg-type]
    with pytest.raises(errors.RefusedState, match="model"):
        manager.save_model_checkpoint(nn.Linear, 2)
    manager.update_experiment_hash(nn.Linear, HP)
    with pytest.raises(errors.RefusedState, match="model"):
        manager.save_model_checkpoint(nn.Linear, 1)
    assert tree(manager.models_dir) == before


def compiled(model: nn.Module) -> Any:
    return torch.compile(model, backend="eager")


@pytest.mark.filterwarnings("ignore:.*torch.jit:DeprecationWarning")
@pytest.mark.parametrize("wrap", [compiled, nn.DataParallel, torch.jit.script])
def test_a_wrapped_model_is_loaded_by_the_module_inside(manager, wrap):
    model, fresh = wrap(new_model()), wrap(new_model(seed=1))
    manager.update_experiment_hash(model, HP)
    checkpoint = torch.load(manager.save_model_checkpoint(model, 1))
    inside = {compiled: "_orig_mod", nn.DataParallel: "module"}.get(wrap)
    (getattr(fresh, inside) if inside else fresh).load_state_dict(checkpoint["model_state_dict"])
    assert bits(fresh.state_dict()) == bits(model.state_dict())
    other = wrap(new_model(seed=2))
    manager.load_latest_checkpoint(other)
    assert bits(other.state_dict()) == bits(model.state_dict())


def test_files_that_were_lost_are_written_by_the_next_dump(root, manager):
    made = fill(root, 1)
    files = [manager.hp_dir / made / f"{made}_config.yaml"]
    files.append(manager.data_checkpoint_dir / made / f"{made}_data_state.yaml")
    before = [yaml.safe_load(file.read_text()).keys() for file in files]
    for file in files:
        file.unlink()
        Manager(root).update_experiment_hash(new_model(), HP, DATA, dump_immediately=True)
    assert [yaml.safe_load(file.read_text()).keys() for file in files] == before


def test_closing_lets_another_process_in_and_writes_the_manifest(manager):
    model = new_model()
    made, _, _ = manager.update_experiment_hash(model)
    manager.save_model_checkpoint(model, 1)
    manager.manifest_file.unlink()
    manager.close()
    assert yaml.safe_load(manager.manifest_file.read_text())["latest_hash"] == made
    assert manager.store.backend.lock(made) is not None
    manager.close()  # again


@pytest.mark.parametrize("how", ["alone", "after a look", "with a new one by hand"])
def test_experiments_that_go_on_with_the_model_are_a_chain(manager, how):
    model = new_model()
    first, _, _ = manager.update_experiment_hash(model, {"lr": 0.1})
    manager.save_model_checkpoint(model, 10)
    if how != "alone":
        weights = manager.load_checkpoint(first)["weights"]["model_state_dict"]
        model = model if how == "after a look" else new_model()
        model.load_state_dict(weights)
    second, _, _ = manager.update_experiment_hash(hp_snapshot={"lr": 0.01})
    manager.save_model_checkpoint(model, 20)
    third, _, _ = manager.update_experiment_hash(hp_snapshot={"lr": 0.001}, dump_immediately=True)
    assert parents(manager, first, second, third) == [None, f"{first}@10", f"{second}@20"]


def test_a_process_is_kept_out_of_an_experiment_until_the_writer_is_killed(root):
    manager = Manager(root)
    model = {"weight": np.zeros(SIZE)}
    command = [sys.executable, "-m", "tests.experiments.saver", str(root), "0.1", "1"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=ROOT) as saver:
        assert saver.stdout is not None
        try:
            assert int(saver.stdout.readline()) == 1
            made, _, _ = manager.update_experiment_hash(model, {"lr": 0.1})
            with pytest.raises(errors.RunBusy):
                manager.save_model_checkpoint(model, 1)
            other, _, _ = manager.update_experiment_hash(model, {"lr": 0.2})
            manager.save_model_checkpoint(model, 7)
        finally:
            saver.kill()
        last = [1, *map(int, saver.stdout)][-1]  # printed before the kill came
    listed = yaml.safe_load((root / "checkpoints" / "manifest.yaml").read_text())["experiments"]
    assert listed.keys() <= {made, other}
    assert manager.list_experiment_hashes() == sorted([made, other])
    info = manager.get_checkpoint_info(made)
    assert set(range(1, last + 1)) <= set(info["steps"])
    for each in info["checkpoints"]:
        if each["path"] is None:  # the kill came between the commit and the V3 name
            assert each["step"] == max(info["steps"])
            continue
        saved = standfast.load(each["path"])["model_state_dict.weight"]
        assert saved.tobytes() == np.full(SIZE, float(each["step"])).tobytes()
    manager.update_experiment_hash(model, {"lr": 0.1})
    assert manager.load_latest_checkpoint()["step"] == info["latest_step"]
    assert manager.save_model_checkpoint(model, last + 2).exists()


class Attack:
    """Makes a file when it is unpickled."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> Any:
        return Path.touch, (self.path,)


def test_nothing_in_a_file_is_run_by_a_load(root, manager, tmp_path):
    made, trace = fill(root, 1), tmp_path / "trace"
    folder = manager.models_dir / made
    (folder / f"{made}_architecture.pkl").write_bytes(pickle.dumps(Attack(trace)))
    (path,) = folder.glob("*_step_000001.pt")
    (data,) = folder.glob("*_step_000001.*.pth")
    path.unlink()
    torch.save({"step": 1, "model_state_dict": Attack(trace)}, path)
    os.replace(path, data)
    for load in (manager.load_checkpoint, manager.load_latest_checkpoint):
        with pytest.raises(errors.DamagedFile):
            load(exp_hash=made)
    with pytest.raises(errors.RefusedPickle):
        manager.load_checkpoint(made, load_model=True, load_weights=False)
    assert not trace.exists()
    manager.load_checkpoint(made, load_model=True, load_weights=False, trust_architecture=True)
    assert trace.exists()  # so that the attack was one


def test_a_flipped_bit_is_found(root, manager):
    made = fill(root, 1, 2)
    first, second = (manager.models_dir / made / f"{made}_step_00000{step}.pt" for step in (1, 2))
    weight = torch.load(second)["model_state_dict"]["0.weight"].numpy().tobytes()
    offset = second.read_bytes().index(weight) + 5
    np.memmap(second, np.uint8, "r+")[offset] ^= 1
    with pytest.raises(errors.DigestMismatch):
        manager.load_checkpoint(made, target_step=2)
    with pytest.warns(errors.FellBack, match="step_000002"):
        assert manager.load_latest_checkpoint()["step"] == 1
    np.memmap(first, np.uint8, "r+")[offset] ^= 1
    with pytest.raises(errors.DamagedFile):
        manager.load_latest_checkpoint()


def test_the_latest_is_the_last_that_was_committed(root, manager):
    made = fill(root, 999_999, 1_000_000)  # "1000000" < "999999" as text
    assert manager.load_latest_checkpoint()["step"] == 1_000_000
    assert manager.get_checkpoint_info(made)["steps"] == [999_999, 1_000_000]
    assert manager.load_checkpoint(made, target_step=10**9)["weights"]["step"] == 1_000_000
    standfast.Store(root).find_run(made).retain(standfast.KeepLast(2))
    fill(root, 5)  # a user went back
    assert manager.load_latest_checkpoint()["step"] == 5
    info = manager.get_checkpoint_info(made)
    assert (info["latest_step"], info["steps"]) == (5, [5, 1_000_000])
    assert len(list((manager.models_dir / made).glob("*_step_*.pt"))) == 2
    assert manager.get_latest_hash() == made != fill(root, 1, hp={"lr": 2})
    assert manager.get_latest_hash() != made


def test_the_manifest_is_written_by_queries_and_not_by_every_save(manager):
    model = new_model()
    made, _, _ = manager.update_experiment_hash(model, HP)
    manager.save_model_checkpoint(model, 1)
    before = manager.manifest_file.stat()
    for step in range(2, 12):
        manager.save_model_checkpoint(model, step)
    after = manager.manifest_file.stat()
    assert (after.st_ino, after.st_mtime_ns) == (before.st_ino, before.st_mtime_ns)
    last_used = manager.get_all_hashes()[0]["last_used"]
    assert manager.manifest_file.stat().st_ino != before.st_ino
    manifest = yaml.safe_load(manager.manifest_file.read_text())
    assert manifest["experiments"][made]["last_used"] == last_used
