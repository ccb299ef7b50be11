"""The checkpoint system: one for a process, which saves what is watched when it is due."""

import os
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import standfast
from standfast import errors
from standfast.experiments import CheckpointSystem, get_checkpoint_system, watch
from standfast.experiments.registry import watched
from standfast.identity import identify
from tests.experiments.models import DATA, HP, bits, fill, new_model, new_optimizer, train_step


@pytest.fixture
def system(tmp_path: Path) -> Iterator[CheckpointSystem]:
    with closing(get_checkpoint_system(tmp_path, checkpoint_frequency=10)) as system:
        yield system


def steps_of(system: CheckpointSystem, exp_hash: str) -> Any:
    return system.manager.get_checkpoint_info(exp_hash)["steps"]


def test_a_process_has_one_system_until_it_is_closed(tmp_path):
    first = get_checkpoint_system(tmp_path)
    assert first.checkpoint_frequency == 100
    assert get_checkpoint_system(tmp_path, 100) is first
    assert get_checkpoint_system(os.path.relpath(tmp_path)) is first
    with pytest.raises(errors.BadOption, match="close"):
        get_checkpoint_system(tmp_path / "other")
    with pytest.raises(errors.BadOption, match="100"):
        get_checkpoint_system(tmp_path, 20)
    watch(model=new_model())
    first.close()
    assert watched.names() == []
    second = get_checkpoint_system(tmp_path / "other", 5)
    first.close()  # again, which does not end the other
    assert get_checkpoint_system(tmp_path / "other") is second is not first
    second.close()
    for wrong in (0, -1, 1.5, True):
        with pytest.raises(errors.BadOption, match="checkpoint_frequency"):
            get_checkpoint_system(tmp_path, wrong)
    get_checkpoint_system(tmp_path, 1).close()  # none was left behind


def test_multiples_of_the_frequency_are_saved(system):
    model = new_model()
    optimizer = new_optimizer(model)
    watch(model=model, optimizer=optimizer, hyperparameters=HP, data_state=DATA)
    made = identify(hp=HP, model=model, data=DATA).hash
    saved = {}
    for step in range(1, 26):
        train_step(model, optimizer, step)
        if path := system.on_training_step(step):
            saved[step] = path.name
            content = torch.load(path)  # it is committed
            assert bits(content["model_state_dict"]) == bits(model.state_dict())
            assert "optimizer_state_dict" in content
    assert saved == {step: f"{made}_step_0000{step}.pt" for step in (10, 20)}
    assert steps_of(system, made) == [10, 20]


def test_without_a_step_it_counts_on_from_the_latest(tmp_path, system):
    made = fill(tmp_path, 19)
    watch(model=new_model(), hyperparameters=HP, data_state=DATA)
    saved = [path for _ in range(11) if (path := system.on_training_step())]
    assert [path.name for path in saved] == [f"{made}_step_0000{step}.pt" for step in (20, 30)]
    system.on_training_step(38)
    assert system.on_training_step() is None
    assert system.on_training_step() is not None
    assert system.get_status()["step"] == 40
    assert steps_of(system, made) == [19, 20, 30, 40]


def test_with_nothing_watched_the_first_due_step_raises(system):
    for _ in range(9):
        assert system.on_training_step() is None
    with pytest.raises(errors.NotOpen, match="watch"):
        system.on_training_step()
    with pytest.raises(errors.NotOpen, match="watch"):
        system.on_training_step(100)
    with pytest.raises(errors.BadOption):
        watch()


def test_what_is_changed_in_place_is_seen_when_a_step_is_due(tmp_path):
    hp = dict(HP)
    data: dict[str, Any] = {"uids": ["a", "b"], "discarded": [], "tags": {}}
    watch(model=new_model())  # before there is a system
    with closing(get_checkpoint_system(tmp_path, 10)) as system:
        watch(hyperparameters=hp, data_state=data)
        first = system.on_training_step(10).name[:24]
        assert first == identify(hp=HP, model=new_model(), data=data).hash
        hp["lr"] = 0.5
        data["tags"] = {"a": ["hard"]}
        second = system.on_training_step(20).name[:24]
        assert second == identify(hp=hp, model=new_model(), data=data).hash
        assert system.manager.get_checkpoint_info(second)["parent"] == f"{first}@10"
        assert steps_of(system, first) == [10]


def test_changes_are_pending_until_training_goes_on(system):
    hp = dict(HP)
    watch(model=new_model(), hyperparameters=hp)
    assert system.on_training_step(3, force_dump=True) is None
    before = system.manager.list_experiment_hashes()
    assert before == [identify(hp=HP, model=new_model()).hash]
    assert steps_of(system, before[0]) == []
    hp["lr"] = 0.5
    made, is_new, changed = system.on_config_change()
    assert (is_new, changed) == (True, {"hp"})
    status = system.get_status()
    assert (status["has_pending_changes"], status["pending_components"]) == (True, {"hp"})
    assert system.manager.list_experiment_hashes() == before
    assert system.on_training_step(11) is None  # training goes on
    assert system.manager.list_experiment_hashes() == sorted([*before, made])
    assert system.get_status()["has_pending_changes"] is False


def test_others_are_watched_from_a_change_on(system):
    watch(model=new_model(), hyperparameters=HP)
    assert system.on_model_change(new_model(width=4))[2] == {"hp", "model"}
    assert system.on_config_change({"lr": 3})[2] == {"hp"}
    assert system.on_data_change(DATA)[2] == {"data"}
    path = system.on_training_step(10)
    assert path.name[:24] == identify(hp={"lr": 3}, model=new_model(width=4), data=DATA).hash
    assert torch.load(path)["model_state_dict"]["0.weight"].shape == (4, 10)


def test_an_event_is_in_the_metadata_of_the_next_checkpoint(system):
    model = new_model()
    watch(model=model)
    first = system.on_training_step(10)
    model.append(nn.ReLU())
    assert system.on_model_state_change("layer added")[1:] == (True, {"model"})
    second, third = system.on_training_step(20), system.on_training_step(30)
    assert torch.load(second)["metadata"] == {"events": ["layer added"]}
    assert "metadata" not in torch.load(first) | torch.load(third)
    assert first.name[:24] != second.name[:24]


def test_the_status_says_where_it_stands(tmp_path, system):
    assert system.get_status() == {
        "root_log_dir": str(tmp_path),
        "checkpoint_frequency": 10,
        "step": None,
        "last_saved_step": None,
        "exp_hash": None,
        "has_pending_changes": False,
        "pending_components": set(),
        "watched": [],
    }
    watch(model=new_model(), hyperparameters=HP)
    system.on_training_step(10)
    system.on_training_step(12)
    status = system.get_status()
    assert (status["step"], status["last_saved_step"]) == (12, 10)
    assert status["exp_hash"] == system.manager.get_latest_hash()
    assert status["watched"] == ["model", "hyperparameters"]


def test_a_step_is_saved_once_and_again_if_it_failed(tmp_path, system):
    watch(model=new_model())
    system.on_training_step(1, force_dump=True)
    lock = standfast.Store(tmp_path).backend.lock(str(system.manager.current_exp_hash))
    with lock, pytest.raises(errors.RunBusy):
        system.on_training_step(10)
    assert system.on_training_step(10) is not None
    assert system.on_training_step(10) is None
    assert system.on_training_step(11) is None
    assert system.on_training_step(10) is not None  # a user went back


def test_a_forked_process_has_no_system(system, tmp_path):
    child = os.fork()
    if not child:
        try:
            get_checkpoint_system(tmp_path / "child")  # errors.BadOption if it were the parent's
            os._exit(0)
        finally:
            os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
