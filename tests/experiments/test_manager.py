"""`CheckpointManagerV2`: what it writes and when, and what comes back."""

from __future__ import annotations

import warnings
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
from standfast.errors import (
    AmbiguousRef,
    BadOption,
    DamagedFile,
    MissingFile,
    NotOpen,
    NotVerified,
    RefNotFound,
    RefusedPickle,
    RefusedState,
    RunBusy,
    StateMismatch,
    UnstableValue,
    WriteFailed,
)
from standfast.experiments import CheckpointManagerV2, watch
from standfast.experiments.registry import watched
from standfast.identity import identify
from standfast.store.query.lineage import lineage
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


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path / "experiments"


@pytest.fixture
def manager(root: Path) -> CheckpointManagerV2:
    return CheckpointManagerV2(root)


def test_the_folders_of_the_layout_are_made(root: Path, manager: CheckpointManagerV2) -> None:
    assert {"data", "logs", "checkpoints/models", "checkpoints/HP", "checkpoints/data"} < tree(root)
    assert manager.root_log_dir == root
    assert manager.checkpoints_dir == root / "checkpoints"
    assert manager.models_dir == root / "checkpoints/models"
    assert manager.hp_dir == root / "checkpoints/HP"
    assert manager.data_checkpoint_dir == root / "checkpoints/data"
    assert manager.manifest_file == root / "checkpoints/manifest.yaml"
    assert manager.current_exp_hash is None


def test_an_empty_root_has_no_experiments(manager: CheckpointManagerV2) -> None:
    assert manager.get_latest_hash() is None
    assert manager.get_all_hashes() == []
    assert manager.list_experiment_hashes() == []
    assert manager.get_hashes_by_component(hp_hash="00000000") == []
    with pytest.raises(RefNotFound, match="no experiment"):
        manager.load_latest_checkpoint()
    with pytest.raises(RefNotFound):
        manager.load_checkpoint("a" * 24)


def test_nothing_is_written_until_training_goes_on(
    root: Path, manager: CheckpointManagerV2
) -> None:
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


def test_what_is_not_given_stays_what_it_was(manager: CheckpointManagerV2) -> None:
    model = new_model()
    first, _, _ = manager.update_experiment_hash(model, HP, DATA)
    second, is_new, changed = manager.update_experiment_hash(hp_snapshot={"lr": 1.0})
    assert (is_new, changed) == (True, {"hp"})
    assert second[8:] == first[8:]
    assert manager.update_experiment_hash() == (second, False, set())
    assert manager.update_experiment_hash(hp_snapshot=HP) == (first, True, {"hp"})


def test_a_change_that_is_taken_back_is_not_pending(manager: CheckpointManagerV2) -> None:
    manager.update_experiment_hash(hp_snapshot=HP, dump_immediately=True)
    manager.update_experiment_hash(hp_snapshot={"lr": 5})
    assert manager.has_pending_changes() == (True, {"hp"})
    manager.update_experiment_hash(hp_snapshot=HP)
    assert manager.has_pending_changes() == (False, set())
    assert manager.dump_pending_changes() is False


def test_a_snapshot_does_not_change_with_what_it_was_taken_of(
    manager: CheckpointManagerV2,
) -> None:
    hp = {"lr": 0.1, "layers": [1, 2]}
    data: dict[str, Any] = {"uids": ["a"], "discarded": [], "tags": {"a": ["x"]}}
    made, _, _ = manager.update_experiment_hash(hp_snapshot=hp, dfm_snapshot=data)
    hp["layers"].append(3)  # type: ignore[attr-defined]
    data["tags"]["a"].append("y")
    assert manager.dump_pending_changes() is True
    assert manager.list_experiment_hashes() == [made]
    assert manager.load_config(made) == {"lr": 0.1, "layers": [1, 2]}
    assert manager.load_checkpoint(made, load_weights=False)["data_state"]["tags"] == {"a": ["x"]}


def test_force_counts_everything_as_changed(manager: CheckpointManagerV2) -> None:
    made, _, _ = manager.update_experiment_hash(hp_snapshot=HP, dump_immediately=True)
    assert manager.update_experiment_hash(force=True) == (made, True, {"hp"})
    assert manager.has_pending_changes() == (True, {"hp"})
    assert manager.dump_pending_changes() is True
    assert manager.has_pending_changes() == (False, set())
    assert manager.dump_pending_changes(force=True) is True


def test_an_experiment_is_needed_before_a_checkpoint(manager: CheckpointManagerV2) -> None:
    assert manager.dump_pending_changes() is False
    with pytest.raises(NotOpen, match="update_experiment_hash"):
        manager.save_model_checkpoint(new_model(), step=1)
    with pytest.raises(NotOpen, match="update_experiment_hash"):
        manager.dump_pending_changes(force=True)
    for nothing in ({}, {"dfm_snapshot": {"discarded": []}}):
        with pytest.raises(BadOption, match="hp_snapshot"):
            manager.update_experiment_hash(**nothing)
        assert manager.current_exp_hash is None
    manager.update_experiment_hash(hp_snapshot=HP)
    with pytest.raises(NotOpen, match="watch"):
        manager.save_model_checkpoint(step=1)


def test_a_checkpoint_is_a_whole_torch_file(manager: CheckpointManagerV2) -> None:
    model = new_model()
    optimizer = new_optimizer(model)
    made, _, _ = manager.update_experiment_hash(model, HP, DATA)
    train_step(model, optimizer, 1)
    path = manager.save_model_checkpoint(
        model, 100, metadata={"note": "first", "loss": 0.5}, optimizer=optimizer
    )
    assert path == manager.models_dir / made / f"{made}_step_000100.pt"
    saved = torch.load(path, weights_only=True)
    assert set(saved) == {
        *("step", "model_state_dict", "optimizer_state_dict", "timestamp", "exp_hash", "metadata")
    }
    assert (saved["step"], saved["exp_hash"]) == (100, made)
    assert saved["metadata"] == {"note": "first", "loss": 0.5}
    assert bits(saved["model_state_dict"]) == bits(model.state_dict())
    other = new_optimizer(new_model())
    other.load_state_dict(saved["optimizer_state_dict"])
    assert standfast.load(path)["model_state_dict.0.weight"].shape == (8, 10)


def test_the_optimizer_is_left_out_when_it_is_not_wanted(manager: CheckpointManagerV2) -> None:
    model = new_model()
    manager.update_experiment_hash(model)
    path = manager.save_model_checkpoint(
        model, 1, save_optimizer=False, optimizer=new_optimizer(model)
    )
    assert set(torch.load(path)) == {"step", "model_state_dict", "timestamp", "exp_hash"}


def test_the_files_of_an_experiment_are_those_of_the_layout(
    root: Path, manager: CheckpointManagerV2
) -> None:
    made = fill(root, 100)
    config = yaml.safe_load((manager.hp_dir / made / f"{made}_config.yaml").read_text())
    assert config["hyperparameters"] == HP
    assert config["exp_hash"] == made
    data_file = manager.data_checkpoint_dir / made / f"{made}_data_state.yaml"
    assert yaml.safe_load(data_file.read_text()) == DATA
    assert (manager.models_dir / made / f"{made}_architecture.json").exists()
    assert not (manager.models_dir / made / f"{made}_architecture.pkl").exists()
    manager.get_latest_hash()
    manifest = yaml.safe_load(manager.manifest_file.read_text())
    assert manifest["latest_hash"] == made
    assert manifest["experiments"][made]["hp_hash"] == made[:8]


def test_a_step_that_is_saved_again_is_replaced(root: Path, manager: CheckpointManagerV2) -> None:
    made = fill(root, 1, 2)
    model = new_model(seed=5)
    manager.update_experiment_hash(model, HP, DATA)
    path = manager.save_model_checkpoint(model, 2)
    assert bits(torch.load(path)["model_state_dict"]) == bits(model.state_dict())
    assert manager.get_checkpoint_info(made)["steps"] == [1, 2]


def test_without_a_step_it_counts_on(root: Path, manager: CheckpointManagerV2) -> None:
    model = new_model()
    made, _, _ = manager.update_experiment_hash(model, HP, DATA)
    assert manager.save_model_checkpoint(model).name == f"{made}_step_000001.pt"
    manager.save_model_checkpoint(model, np.int64(7))
    assert manager.save_model_checkpoint(model).name == f"{made}_step_000008.pt"
    manager.load_checkpoint(made, target_step=1)
    assert manager.save_model_checkpoint().name == f"{made}_step_000002.pt"
    with pytest.raises(BadOption, match="whole number"):
        manager.save_model_checkpoint(model, 1.5)  # type: ignore[arg-type]


def test_a_model_that_was_changed_is_another_experiment(manager: CheckpointManagerV2) -> None:
    model = new_model()
    made, _, _ = manager.update_experiment_hash(model, HP)
    manager.save_model_checkpoint(model, 1)
    model[0] = nn.Linear(10, 16)
    model[2] = nn.Linear(16, 3)
    path = manager.save_model_checkpoint(model, 2)
    assert manager.current_exp_hash == path.name[:24] != made
    assert made[:8] == path.name[:8]
    assert manager.get_checkpoint_info(path.name[:24])["parent"] == f"{made}@1"


def test_a_model_that_was_changed_without_a_word_counts_as_it_is(
    manager: CheckpointManagerV2,
) -> None:
    model = new_model()
    made, _, _ = manager.update_experiment_hash(model, HP)
    manager.save_model_checkpoint(model, 1)
    model.append(nn.ReLU())
    manager.dump_pending_changes(force=True)
    expected = identify(hp=HP, model=model).hash
    assert manager.current_exp_hash == expected
    assert manager.list_experiment_hashes() == sorted([made, expected])
    assert manager.get_checkpoint_info(expected)["parent"] == f"{made}@1"
    assert manager.has_pending_changes() == (False, set())


def test_an_experiment_without_a_model_holds_any(manager: CheckpointManagerV2) -> None:
    made, _, _ = manager.update_experiment_hash(hp_snapshot=HP)
    assert manager.save_model_checkpoint(new_model(), 1).parent.name == made
    assert made[8:] == "0" * 16


def test_a_branch_knows_the_checkpoint_that_it_came_from(
    root: Path, manager: CheckpointManagerV2
) -> None:
    first = fill(root, 1, 2, 3)
    model = new_model()
    manager.update_experiment_hash(model, HP, DATA, dump_immediately=True)
    second, _, _ = manager.update_experiment_hash(
        hp_snapshot={"lr": 2}, dump_immediately=True
    )  # the latest of the experiment before
    assert manager.get_checkpoint_info(second)["parent"] == f"{first}@3"
    manager.load_checkpoint(first, target_step=1)
    third, _, _ = manager.update_experiment_hash(hp_snapshot={"lr": 3}, dump_immediately=True)
    assert manager.get_checkpoint_info(third)["parent"] == f"{first}@1"
    assert manager.get_checkpoint_info(first)["parent"] is None


def parents(manager: CheckpointManagerV2, *made: str) -> list[str | None]:
    return [manager.get_checkpoint_info(each)["parent"] for each in made]


@pytest.mark.parametrize("reuse", [False, True], ids=["a new model", "one that begins anew"])
@pytest.mark.parametrize(
    "how",
    ["at once", "when it is saved", "part by part", "and evaluated", "and looked at", "counted"],
)
def test_a_sweep_in_one_process_is_a_fan(
    manager: CheckpointManagerV2, reuse: bool, how: str
) -> None:
    """The seed: "Track experiment history"."""
    made = []
    model = new_model()
    for lr in (0.1, 0.01, 0.001):
        model = model if reuse else new_model()
        if how == "part by part":
            manager.save_config({"lr": lr})
            manager.save_model_architecture(model)
        at_once = how == "at once"
        hash, _, _ = manager.update_experiment_hash(model, {"lr": lr}, dump_immediately=at_once)
        for step in (1, 2, 3):
            manager.save_model_checkpoint(model, None if how == "counted" and not reuse else step)
        if how == "and evaluated" and not reuse:
            manager.load_latest_checkpoint(model)
        elif how in ("and looked at", "counted"):
            manager.load_checkpoint(hash)
            manager.load_latest_checkpoint()
        made.append(hash)
    assert parents(manager, *made) == [None] * 3
    manager.store.index.refresh()
    shown = list(lineage(manager.store.index).branches())  # as `standfast log` has it
    assert [branch.parent for branch in shown] == [None] * len(manager.list_experiment_hashes())


def test_a_sweep_from_one_checkpoint_is_a_fan_of_it(
    root: Path, manager: CheckpointManagerV2
) -> None:
    base = fill(root, 1, 2)
    made = []
    for lr in (0.1, 0.01):
        model = new_model()
        manager.load_latest_checkpoint(model, exp_hash=base)
        hash, _, _ = manager.update_experiment_hash(model, {"lr": lr}, dump_immediately=True)
        manager.save_model_checkpoint(model, 1)
        made.append(hash)
    assert parents(manager, *made) == [f"{base}@2"] * 2


@pytest.mark.parametrize("how", ["with it alone", "after a look", "with a new one by hand"])
def test_an_experiment_that_goes_on_with_the_model_is_a_chain(
    manager: CheckpointManagerV2, how: str
) -> None:
    model = new_model()
    first, _, _ = manager.update_experiment_hash(model, {"lr": 0.1})
    manager.save_model_checkpoint(model, 10)
    if how != "with it alone":
        weights = manager.load_checkpoint(first)["weights"]["model_state_dict"]
        model = model if how == "after a look" else new_model()
        model.load_state_dict(weights)
    second, _, _ = manager.update_experiment_hash(hp_snapshot={"lr": 0.01})
    manager.save_model_checkpoint(model, 20)
    third, _, _ = manager.update_experiment_hash(hp_snapshot={"lr": 0.001}, dump_immediately=True)
    assert parents(manager, first, second, third) == [None, f"{first}@10", f"{second}@20"]


def test_an_experiment_that_begins_anew_counts_from_one(manager: CheckpointManagerV2) -> None:
    for lr in (0.1, 0.01):
        model = new_model()
        manager.update_experiment_hash(model, {"lr": lr})
        assert manager.save_model_checkpoint(model).name.endswith("_step_000001.pt")


def test_a_first_experiment_has_no_parent(root: Path, manager: CheckpointManagerV2) -> None:
    fill(root, 1)
    made, _, _ = manager.update_experiment_hash(hp_snapshot={"lr": 9}, dump_immediately=True)
    assert manager.get_checkpoint_info(made)["parent"] is None


def test_the_closest_step_is_loaded_and_of_two_the_higher(
    root: Path, manager: CheckpointManagerV2
) -> None:
    made = fill(root, 10, 20, 40)
    expected = {0: 10, 14: 10, 15: 20, 29: 20, 30: 40, 1000: 40, 20: 20}
    found = {
        target: manager.load_checkpoint(made, target_step=target)["weights"]["step"]
        for target in expected
    }
    assert found == expected
    with pytest.raises(BadOption, match="target_step"):
        manager.load_checkpoint(made, target_step="20")  # type: ignore[arg-type]


def test_what_is_asked_for_is_loaded(root: Path, manager: CheckpointManagerV2) -> None:
    made = fill(root, 10)
    everything = manager.load_checkpoint(made)
    assert everything["loaded_components"] == {"weights", "config", "data"}
    assert everything["exp_hash"] == made
    assert everything["model"] is None
    assert everything["config"] == HP
    assert everything["data_state"] == DATA
    assert everything["weights"]["step"] == 10
    none = manager.load_checkpoint(made, load_weights=False, load_config=False, load_data=False)
    assert none["loaded_components"] == set()
    assert none["weights"] is none["config"] is none["data_state"] is None


def test_a_part_that_an_experiment_lacks_is_not_loaded(manager: CheckpointManagerV2) -> None:
    model = new_model()
    made, _, _ = manager.update_experiment_hash(model)
    manager.save_model_checkpoint(model, 1)
    assert manager.load_checkpoint(made)["loaded_components"] == {"weights"}
    assert manager.load_config(made) is None


def test_an_experiment_goes_by_the_beginning_of_its_hash_and_with_underscores(
    root: Path, manager: CheckpointManagerV2
) -> None:
    """The seed: "Old hash: a1b2c3d4_e5f6g7h8_i9j0k1l2"."""
    made = fill(root, 10)
    other = fill(root, 1, hp={"lr": 2})
    shared = next(i for i in range(24) if made[i] != other[i])
    short = [made[: shared + 1], made[:3]]
    for name in (made, f"{made[:8]}_{made[8:16]}_{made[16:]}", made[:8], made[:12], *short):
        assert manager.load_checkpoint(name)["exp_hash"] == made
        assert manager.load_config(name) == HP
        assert manager.get_checkpoint_info(name)["hash"] == made
        assert manager.load_latest_checkpoint(exp_hash=name)["step"] == 10
    for wrong in ("", "zz", made[:5] + "z"):
        with pytest.raises(RefNotFound):
            manager.load_config(wrong)


def test_a_beginning_that_several_experiments_have_is_ambiguous(
    root: Path, manager: CheckpointManagerV2
) -> None:
    made = [fill(root, 1, hp={"lr": lr}) for lr in range(17)]
    first = [hash[0] for hash in made]
    shared = next(digit for digit in first if first.count(digit) > 1)
    with pytest.raises(AmbiguousRef, match=shared):
        manager.load_config(shared)


def test_an_experiment_without_checkpoints_has_no_weights(manager: CheckpointManagerV2) -> None:
    """`docs/experiments.md`: "in `loaded_components` what of it there is"."""
    made, _, _ = manager.update_experiment_hash(
        hp_snapshot=HP, dfm_snapshot=DATA, dump_immediately=True
    )
    found = manager.load_checkpoint(made)
    assert found["loaded_components"] == {"config", "data"}
    assert (found["config"], found["data_state"], found["weights"]) == (HP, DATA, None)
    with pytest.raises(RefNotFound, match="no checkpoint"):
        manager.load_checkpoint(made, target_step=3)
    with pytest.raises(RefNotFound, match="no checkpoint"):
        manager.load_latest_checkpoint(exp_hash=made)


def test_the_latest_checkpoint_is_put_into_model_and_optimizer(
    root: Path, manager: CheckpointManagerV2
) -> None:
    fill(root, 1, 2, 3)
    trained = new_model()
    steps = new_optimizer(trained)
    for step in (1, 2, 3, 4):
        train_step(trained, steps, step)

    model = new_model(seed=9)
    optimizer = new_optimizer(model)
    assert manager.load_latest_checkpoint(model, optimizer=optimizer)["step"] == 3
    train_step(model, optimizer, 4)
    assert bits(model.state_dict()) == bits(trained.state_dict())


def test_without_its_optimizer_only_the_model_is_loaded(
    root: Path, manager: CheckpointManagerV2
) -> None:
    fill(root, 1)
    model = new_model(seed=9)
    optimizer = new_optimizer(model)
    manager.load_latest_checkpoint(model, load_optimizer=False, optimizer=optimizer)
    assert optimizer.state_dict()["state"] == {}
    with pytest.raises(StateMismatch, match="model"):
        manager.load_latest_checkpoint(new_model(width=4))


def test_the_current_experiment_comes_before_the_latest(
    root: Path, manager: CheckpointManagerV2
) -> None:
    first = fill(root, 1)
    second = fill(root, 2, hp={"lr": 2})
    assert manager.load_latest_checkpoint()["exp_hash"] == second
    manager.update_experiment_hash(new_model(), HP, DATA)
    assert manager.load_latest_checkpoint()["exp_hash"] == first
    manager.update_experiment_hash(hp_snapshot={"lr": 77})
    with pytest.raises(RefNotFound):
        manager.load_latest_checkpoint()


def test_what_is_watched_is_saved_and_filled(root: Path, manager: CheckpointManagerV2) -> None:
    model = new_model()
    try:
        watch(model=model, optimizer=new_optimizer(model))
        manager.update_experiment_hash(hp_snapshot=HP)
        path = manager.save_model_checkpoint(step=1)
        assert "optimizer_state_dict" in torch.load(path)
        before = bits(model.state_dict())
        with torch.no_grad():
            model[0].weight.zero_()
        manager.load_latest_checkpoint()
        assert bits(model.state_dict()) == before
    finally:
        watched.forget()


def test_a_model_with_compiled_parts_is_saved_under_its_own_names(
    manager: CheckpointManagerV2,
) -> None:
    model = nn.DataParallel(new_model())
    manager.update_experiment_hash(model)
    path = manager.save_model_checkpoint(model, 1)
    assert list(torch.load(path)["model_state_dict"]) == list(new_model().state_dict())


def test_configs_and_data_are_written_on_their_own(manager: CheckpointManagerV2) -> None:
    path = manager.save_config(HP)
    assert yaml.safe_load(path.read_text())["hyperparameters"] == HP
    path = manager.save_data_snapshot(DATA)
    made = manager.current_exp_hash
    assert made is not None
    assert path == manager.data_checkpoint_dir / made / f"{made}_data_state.yaml"
    assert yaml.safe_load(path.read_text()) == DATA
    assert made == identify(hp=HP, data=DATA).hash


def test_settings_that_do_not_count_are_recorded_as_they_are_now(
    manager: CheckpointManagerV2,
) -> None:
    made, _, _ = manager.update_experiment_hash(hp_snapshot=HP, dump_immediately=True)
    path = manager.save_config(HP | {"pause_at_step": 30})
    assert manager.current_exp_hash == made
    assert manager.load_config(made) == HP | {"pause_at_step": 30}
    assert yaml.safe_load(path.read_text())["hyperparameters"]["pause_at_step"] == 30


def test_hyperparameters_may_be_a_namespace(manager: CheckpointManagerV2) -> None:
    hp = Namespace(**HP)
    made, _, _ = manager.update_experiment_hash(hp_snapshot=hp)
    hp.lr = 7.0  # after the snapshot
    manager.dump_pending_changes()
    assert manager.load_config(made) == HP
    assert manager.update_experiment_hash(hp_snapshot=HP) == (made, False, set())


@pytest.mark.parametrize(
    "hp",
    [
        {"class_weight": {0: 1.0, 1: 3.5}, "clip": float("inf")},
        {"seed": 2**70, "none": {None: 1}, "by_rate": {0.5: "low"}, "nan": float("nan")},
        {"tags": {"a", "b"}, "betas": (0.9, 0.999), "salt": b"\x00\xff", "pole": 1 - 2j},
        {"prior": np.arange(3.0), "mean": torch.tensor([0.5]), "path": Path("a")},
    ],
    ids=["keys", "numbers", "containers", "objects"],
)
def test_hyperparameters_that_are_loaded_continue_the_same_experiment(
    manager: CheckpointManagerV2, hp: dict[str, Any]
) -> None:
    """The seed: "config = config_data['hyperparameters']", with which training is resumed."""
    made, _, _ = manager.update_experiment_hash(hp_snapshot=hp, dump_immediately=True)
    found = manager.load_config(made)
    assert list(map(type, found.values())) == list(map(type, hp.values()))
    assert manager.update_experiment_hash(hp_snapshot=found) == (made, False, set())
    assert manager.load_checkpoint(made)["config"].keys() == hp.keys()
    path = manager.hp_dir / made / f"{made}_config.yaml"
    readable = yaml.safe_load(path.read_text())["hyperparameters"]
    assert readable.keys() == hp.keys()
    if "clip" in hp or "seed" in hp:  # YAML has these as they are
        assert identify(hp=readable).hash == made


def test_a_config_that_was_edited_by_hand_is_noticed(
    root: Path, manager: CheckpointManagerV2
) -> None:
    """The seed: "config_file = manager.hp_dir / latest_hash / f"{latest_hash}_config.yaml""."""
    made = fill(root, 1)
    path = manager.hp_dir / made / f"{made}_config.yaml"
    path.write_text(path.read_text().replace("batch: 8", "batch: 16"))
    with pytest.warns(NotVerified, match=r"_config\.yaml") as warned:
        assert manager.load_config(made) == HP
    assert warned[0].filename == __file__
    edited = path.read_text()
    manager.load_latest_checkpoint(exp_hash=made)
    manager.update_experiment_hash(new_model(), HP, DATA)
    manager.save_model_checkpoint(new_model(), 2)
    with pytest.warns(NotVerified, match=r"_config\.yaml"):
        assert manager.load_checkpoint(made)["config"] == HP
    assert path.read_text() == edited  # no load and no save undoes it
    manager.save_config()
    assert manager.load_config(made) == HP


def test_a_data_state_without_uids_is_under_the_keys_that_are_resumed_from(
    manager: CheckpointManagerV2,
) -> None:
    """The seed: "discarded_uids = set(data_state.get('discarded', []))" and
    "tags = data_state.get('tags', {})".
    """
    data = {"discarded": ["s17"], "tags": {"s3": ["hard"]}, "split": "train"}
    path = manager.save_data_snapshot(data)
    expected = {"uids": [], **data}
    assert yaml.safe_load(path.read_text()) == expected
    assert manager.load_checkpoint()["data_state"] == expected
    made = manager.current_exp_hash
    assert manager.update_experiment_hash(dfm_snapshot=expected) == (made, False, set())
    manager.save_data_snapshot({"tags": {"s3": ["hard"]}})
    assert manager.load_checkpoint()["data_state"]["tags"] == {"s3": ["hard"]}


@pytest.mark.parametrize("data", [{"discarded": {"s17": True}}, {"discarded": "s17"}])
def test_a_data_state_of_another_form_is_refused(
    manager: CheckpointManagerV2, data: dict[str, Any]
) -> None:
    with pytest.raises(UnstableValue, match=r"data\.discarded"):
        manager.update_experiment_hash(dfm_snapshot=data)


def test_an_architecture_is_pickled_when_asked_for(
    root: Path, manager: CheckpointManagerV2
) -> None:
    made = fill(root, 1)
    with pytest.raises(MissingFile, match="save_model_architecture"):
        manager.load_checkpoint(made, load_model=True, trust_architecture=True)
    manager.update_experiment_hash(new_model(), HP, DATA)
    path = manager.save_model_architecture(new_model())
    assert path == manager.models_dir / made / f"{made}_architecture.pkl"
    found = manager.load_checkpoint(made, load_model=True, trust_architecture=True)
    assert "model" in found["loaded_components"]
    found["model"].load_state_dict(found["weights"]["model_state_dict"])
    with pytest.raises(RefusedPickle, match="trust_architecture"):
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


def test_an_architecture_is_pickled_without_its_weights(
    manager: CheckpointManagerV2,
) -> None:
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


def on_disk(root: Path) -> int:
    """The bytes of all files, those with several names counted once."""
    files = {path.stat().st_ino: path.stat() for path in root.rglob("*") if path.is_file()}
    return sum(status.st_size for status in files.values())


def test_what_did_not_change_takes_no_space_again(root: Path) -> None:
    """The seed: "If you change only HP … The model and data directories for the old hash can be
    referenced/reused since those components haven't changed."

    A `.pt` file has the step, the time and the hash in it, so that each one is whole. The store's
    own format shares tensors.
    """
    manager = CheckpointManagerV2(root, pickle_architectures=True)
    model = nn.Linear(1000, 1000)
    weights = sum(tensor.nbytes for tensor in model.state_dict().values())  # 4 MB
    data: dict[str, Any] = {"uids": [f"sample-{i:08d}" for i in range(50_000)], "discarded": []}
    sizes = [on_disk(root)]

    def grown() -> int:
        sizes.append(on_disk(root))
        return sizes[-1] - sizes[-2]

    manager.update_experiment_hash(model, {"lr": 1}, data, dump_immediately=True)
    first = grown()  # no weights are in it
    assert 50_000 * 17 < first < 1_100_000
    manager.save_model_checkpoint(model, 1)
    whole = grown()
    assert weights < whole < weights + 50_000
    manager.update_experiment_hash(hp_snapshot={"lr": 2}, dump_immediately=True)
    assert grown() < 50_000  # architecture, pickle and samples are links
    manager.save_model_checkpoint(model, 2)
    assert weights < grown() < weights + 50_000  # a whole .pt file
    manager.update_experiment_hash(dfm_snapshot={"uids": ["a"]}, dump_immediately=True)
    assert grown() < 50_000
    with manager.store.run("shared") as run:
        for step in range(1, 4):
            run.save(step, {"step": step, "model": model.state_dict()})
    assert grown() < 200_000  # three checkpoints, whose tensors are those of the .pt files


def test_a_switch_pickles_every_architecture(root: Path) -> None:
    manager = CheckpointManagerV2(root, pickle_architectures=True)
    made, _, _ = manager.update_experiment_hash(new_model(), HP, dump_immediately=True)
    assert (manager.models_dir / made / f"{made}_architecture.pkl").exists()


def test_every_query_brings_the_manifest_up_to_date(
    root: Path, manager: CheckpointManagerV2
) -> None:
    made = fill(root, 1)
    for query in (
        manager.get_latest_hash,
        manager.get_all_hashes,
        manager.get_hashes_by_component,
        manager.list_experiment_hashes,
    ):
        manager.manifest_file.unlink()
        query()
        assert list(yaml.safe_load(manager.manifest_file.read_text())["experiments"]) == [made]


def test_lists_are_newest_first(root: Path, manager: CheckpointManagerV2) -> None:
    first = fill(root, 1)
    second = fill(root, 1, hp={"lr": 2})
    fill(root, 2)
    by_creation = manager.get_all_hashes(sort_by="created")
    assert [entry["hash"] for entry in by_creation] == [second, first]
    by_use = manager.get_all_hashes(sort_by="last_used")
    assert [entry["hash"] for entry in by_use] == [first, second]
    assert set(by_use[0]) == {
        *("hash", "hp_hash", "model_hash", "data_hash", "created", "last_used")
    }
    assert by_use[0]["model_hash"] == first[8:16]
    assert by_use[0]["created"] < by_use[0]["last_used"]
    assert manager.list_experiment_hashes() == sorted([first, second])
    with pytest.raises(BadOption, match="last_used"):
        manager.get_all_hashes(sort_by="name")


def test_an_experiment_that_is_used_is_the_one_that_was_used_last(
    root: Path, manager: CheckpointManagerV2
) -> None:
    """The seed: "Get the most recently used hash", "Track experiment history"."""
    first = fill(root, 1)
    second = fill(root, 1, hp={"lr": 2})
    third = fill(root, hp={"lr": 3})

    def by_use() -> list[str]:
        return [entry["hash"] for entry in manager.get_all_hashes(sort_by="last_used")]

    assert by_use() == [third, second, first]
    before = manager.get_checkpoint_info(first)["last_used"]
    manager.load_checkpoint(first)
    assert by_use() == [first, third, second]
    assert manager.get_checkpoint_info(first)["last_used"] > before
    manager.load_latest_checkpoint(exp_hash=second)
    assert by_use() == [second, first, third]
    manager.update_experiment_hash(new_model(), {"lr": 3}, DATA, dump_immediately=True)
    assert by_use() == [third, second, first]
    entries = yaml.safe_load(manager.manifest_file.read_text())["experiments"]
    assert sorted(entries, key=lambda each: str(entries[each]["last_used"])) == by_use()[::-1]
    assert manager.get_latest_hash() == second  # the run of the latest commit


def test_errors_suggest_what_the_manager_has(root: Path, manager: CheckpointManagerV2) -> None:
    with pytest.raises(UnstableValue) as refused:
        manager.update_experiment_hash(hp_snapshot={"callback": object()})
    made = fill(root, 1)
    lock = standfast.Store(root).backend.lock(made)
    assert lock is not None
    manager.update_experiment_hash(new_model(), HP, DATA)
    with lock, pytest.raises(RunBusy) as busy:
        manager.save_model_checkpoint(new_model(), 2)
    assert "leave it out" in str(refused.value)
    assert "other hyperparameters" in str(busy.value)
    for word in ("volatile", "trial"):
        assert word not in str(refused.value) + str(busy.value)


def test_experiments_are_found_by_their_parts(root: Path, manager: CheckpointManagerV2) -> None:
    first = fill(root, 1)
    second = fill(root, 1, hp={"lr": 2})
    assert manager.get_hashes_by_component(hp_hash=first[:8]) == [first]
    assert manager.get_hashes_by_component(model_hash=first[8:16]) == [second, first]
    assert manager.get_hashes_by_component(second[:8], second[8:16], second[16:]) == [second]
    assert manager.get_hashes_by_component(first[:8], data_hash="00000000") == []


def test_the_info_says_what_there_is(root: Path, manager: CheckpointManagerV2) -> None:
    made = fill(root, 1, 2, 3, best=2)
    info = manager.get_checkpoint_info(made)
    assert info["hash"] == made
    assert (info["hp_hash"], info["data_hash"]) == (made[:8], made[16:])
    assert info["steps"] == [1, 2, 3]
    assert (info["latest_step"], info["best_step"]) == (3, 2)
    assert info["config"] == HP
    assert info["nbytes"] == sum(each["nbytes"] for each in info["checkpoints"]) > 0
    assert [each["step"] for each in info["checkpoints"]] == [1, 2, 3]
    assert info["checkpoints"][0]["metrics"]["loss"] > 0
    assert info["checkpoints"][0]["path"] == manager.models_dir / made / f"{made}_step_000001.pt"


def test_a_store_and_a_manager_see_the_same_runs(root: Path, manager: CheckpointManagerV2) -> None:
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
    with pytest.raises(RefNotFound, match="model_state_dict"):
        manager.load_latest_checkpoint(model)


def test_a_damaged_data_state_is_no_data_state(root: Path, manager: CheckpointManagerV2) -> None:
    made = fill(root, 1)
    path = manager.data_checkpoint_dir / made / f"{made}_data_state.yaml"
    path.write_bytes(b"!!python/object/apply:os.system ['echo']")
    with pytest.raises(DamagedFile):
        manager.load_checkpoint(made)
    path.unlink()
    with pytest.raises(MissingFile, match="load_data=False"):
        manager.load_checkpoint(made)
    assert manager.load_checkpoint(made, load_data=False)["weights"]["step"] == 1


def test_a_data_state_that_was_changed_is_not_passed_off_as_the_one_that_was_saved(
    root: Path, manager: CheckpointManagerV2
) -> None:
    made = fill(root, 1)
    path = manager.data_checkpoint_dir / made / f"{made}_data_state.yaml"
    path.write_text(path.read_text().replace("night", "light"))
    with pytest.warns(NotVerified, match="data_state") as warned:
        state = manager.load_checkpoint(made)["data_state"]
    assert state["tags"]["a"] == ["hard", "light"]
    assert warned[0].filename == __file__


def test_data_of_any_other_form_comes_back_under_a_key(manager: CheckpointManagerV2) -> None:
    manager.save_data_snapshot({"folder": "images", "version": 3})
    state = manager.load_checkpoint(load_weights=False)["data_state"]
    assert state["data"] == {"folder": "images", "version": 3}


@pytest.mark.parametrize("data", [{"train": "a.csv", "seed": 1}, ["a", "b"], "a.csv", {}], ids=repr)
def test_data_of_any_other_form_that_is_given_back_is_the_same_experiment(
    root: Path, data: Any
) -> None:
    """The seed resumes with what it loaded: the same data is the same hash."""
    with CheckpointManagerV2(root) as manager:
        manager.update_experiment_hash(hp_snapshot=HP, dfm_snapshot=data, dump_immediately=True)
        made = manager.current_exp_hash
        assert made == identify(hp=HP, data=data).hash
        found = manager.load_checkpoint()["data_state"]
        assert manager.update_experiment_hash(dfm_snapshot=found) == (made, False, set())
    with CheckpointManagerV2(root) as manager:
        manager.update_experiment_hash(hp_snapshot=HP, dfm_snapshot=found, dump_immediately=True)
        assert manager.current_exp_hash == made
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            assert manager.load_checkpoint()["data_state"] == found
        assert manager.list_experiment_hashes() == [made]


@pytest.mark.parametrize(
    "hp",
    [
        {"cfg": MappingProxyType({"lr": 1, "at": MappingProxyType({})})},
        {
            "w": torch.ones(2, requires_grad=True) * 2,
            "all": [torch.ones(1, requires_grad=True) * 2],
        },
    ],
    ids=["a mapping that cannot be pickled", "a tensor that is no leaf"],
)
def test_hyperparameters_that_have_an_identity_can_be_saved(
    manager: CheckpointManagerV2, hp: dict[str, Any]
) -> None:
    manager.update_experiment_hash(hp_snapshot=hp, dump_immediately=True)
    assert manager.current_exp_hash == identify(hp=hp).hash
    assert identify(hp=manager.load_config()).hp == identify(hp=hp).hp


@dataclass
class Copied:
    """It has an identity, and cannot be copied."""

    lr: float = 0.1

    def __deepcopy__(self, memo: Any) -> Any:
        raise RuntimeError("not again")


def test_hyperparameters_that_cannot_be_copied_are_refused(manager: CheckpointManagerV2) -> None:
    manager.update_experiment_hash(hp_snapshot=HP)
    made = manager.current_exp_hash
    with pytest.raises(UnstableValue, match="Copied cannot be copied"):
        manager.update_experiment_hash(hp_snapshot={"a": Copied()})
    assert manager.current_exp_hash == made


def test_arguments_of_a_wrong_type_are_refused(root: Path, manager: CheckpointManagerV2) -> None:
    made = fill(root, 1)
    manager.update_experiment_hash(new_model(), HP, DATA)
    before = tree(manager.models_dir)
    for metadata in ("best", [("a", 1)], 5):
        with pytest.raises(BadOption, match="metadata"):
            manager.save_model_checkpoint(new_model(), 2, metadata=metadata)  # type: ignore[arg-type]
    for exp_hash in (5, b"x", [made]):
        for method in (manager.load_config, manager.load_checkpoint, manager.get_checkpoint_info):
            with pytest.raises(BadOption, match=type(exp_hash).__name__):
                method(exp_hash)  # type: ignore[arg-type]
    with pytest.raises(RefusedState, match="model"):
        manager.save_model_checkpoint(nn.Linear, 2)
    assert tree(manager.models_dir) == before


def test_a_class_as_the_model_is_refused_when_it_is_saved(manager: CheckpointManagerV2) -> None:
    manager.update_experiment_hash(nn.Linear, HP)
    with pytest.raises(RefusedState, match="model"):
        manager.save_model_checkpoint(nn.Linear, 1)


@pytest.mark.filterwarnings("ignore:.*torch.jit:DeprecationWarning")
def test_a_scripted_model_is_saved_and_loaded(manager: CheckpointManagerV2) -> None:
    model = torch.jit.script(new_model())
    manager.update_experiment_hash(model, HP)
    manager.save_model_checkpoint(model, 1)
    before = bits(model.state_dict())
    other = torch.jit.script(new_model(seed=1))
    manager.load_latest_checkpoint(other)
    assert bits(other.state_dict()) == before


def compiled(model: nn.Module) -> Any:
    return torch.compile(model, backend="eager")


@pytest.mark.parametrize("wrap", [compiled, nn.DataParallel])
def test_a_wrapped_model_is_loaded_by_the_module_inside(
    manager: CheckpointManagerV2, wrap: Any
) -> None:
    """The seed: "model.load_state_dict(checkpoint['model_state_dict'])"."""
    model, fresh = wrap(new_model()), wrap(new_model(seed=1))
    manager.update_experiment_hash(model, HP)
    checkpoint = torch.load(manager.save_model_checkpoint(model, 1))
    inside = fresh._orig_mod if wrap is compiled else fresh.module
    inside.load_state_dict(checkpoint["model_state_dict"])
    assert bits(fresh.state_dict()) == bits(model.state_dict())
    other = wrap(new_model(seed=2))
    manager.load_latest_checkpoint(other)
    assert bits(other.state_dict()) == bits(model.state_dict())


def test_files_that_were_lost_are_written_by_the_next_dump(
    root: Path, manager: CheckpointManagerV2
) -> None:
    made = fill(root, 1)
    files = [manager.hp_dir / made / f"{made}_config.yaml"]
    files.append(manager.data_checkpoint_dir / made / f"{made}_data_state.yaml")
    for file in files:
        before = file.read_text()
        file.unlink()
        CheckpointManagerV2(root).update_experiment_hash(
            new_model(), HP, DATA, dump_immediately=True
        )
        assert yaml.safe_load(file.read_text()).keys() == yaml.safe_load(before).keys()


def test_a_parent_that_was_deleted_is_none(root: Path, manager: CheckpointManagerV2) -> None:
    made = fill(root, 1)
    manager.load_checkpoint(made)
    standfast.Store(root).find_run(made).delete_all()
    other, _, _ = manager.update_experiment_hash(hp_snapshot={"lr": 2}, dump_immediately=True)
    assert manager.get_checkpoint_info(other)["parent"] is None


def test_a_root_that_cannot_be_made_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(WriteFailed, match="cannot make the folder"):
        CheckpointManagerV2(tmp_path / "file")


def test_closing_lets_another_process_in_and_writes_the_manifest(root: Path) -> None:
    manager = CheckpointManagerV2(root)
    model = new_model()
    made, _, _ = manager.update_experiment_hash(model)
    manager.save_model_checkpoint(model, 1)
    manager.manifest_file.unlink()
    manager.close()
    assert yaml.safe_load(manager.manifest_file.read_text())["latest_hash"] == made
    assert manager.store.backend.lock(made) is not None
    with warnings.catch_warnings():
        manager.close()  # again
