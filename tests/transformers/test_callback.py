"""A Trainer that saves into a store: killed, continued, kept, refused."""

import json
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("transformers")

import torch
from transformers import EarlyStoppingCallback, GPT2LMHeadModel, Trainer

from standfast import KeepAll, KeepLast, Run, Store, errors
from standfast.store.load.filling import leaves_of
from standfast.transformers import StandfastCallback
from standfast.transformers import folder as transformers_folder
from tests import python_path
from tests.kit.stores import flip, same
from tests.transformers.programs import ranks as transformers_ranks
from tests.transformers.programs import train as transformers_train
from tests.transformers.programs.train import At, small_model, trainer_with

_MEASURED = ("runtime", "per_second")
"""What a log has of the clock."""


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """The run that never stopped."""
    folder = tmp_path_factory.mktemp("whole")
    keeper = StandfastCallback(folder / "store", quiet=True)
    trainer = trainer_with(folder, keeper)
    assert keeper.latest() is None
    trainer.train(resume_from_checkpoint=keeper.latest())
    assert _steps(keeper.run) == [5, 10, 15, 20, 24]
    return keeper.run


def _steps(run: Run) -> list[int]:
    return [checkpoint.step for checkpoint in run.checkpoints()]


def _state(run: Run, step: int) -> dict[str, Any]:
    """All that a checkpoint holds, but for what the clock says and where the output goes."""
    state = run.load(step)
    state["trainer"]["arguments"].pop("output_dir")
    for entry in state["trainer"]["state"]["log_history"]:
        for name in [name for name in entry if name.endswith(_MEASURED)]:
            del entry[name]
    return dict(sorted(leaves_of(state).items()))


def test_a_killed_training_goes_on_as_if_nothing_had_happened(tmp_path, whole):
    program = [sys.executable, transformers_train.__file__, tmp_path, "18"]
    done = subprocess.run(program, capture_output=True, timeout=120, check=False)
    assert done.returncode == -signal.SIGKILL, done.stderr.decode()
    store = Store(tmp_path / "store")
    assert _steps(store.runs()[0]) == [5, 10, 15]

    keeper = StandfastCallback(tmp_path / "store", quiet=True)
    trainer = trainer_with(tmp_path, keeper)
    folder = Path(keeper.latest() or "")
    assert folder.name == "checkpoint-15"
    for file in ("optimizer.pt", "scheduler.pt", "rng_state.pth"):
        torch.load(folder / file, weights_only=True)
    loaded = GPT2LMHeadModel.from_pretrained(folder).state_dict()
    assert same(dict(loaded), dict(whole.load(15, part="model")))

    random = torch.get_rng_state()
    trainer.train(resume_from_checkpoint=str(folder))
    assert not torch.equal(random, torch.get_rng_state())
    assert _steps(keeper.run) == [5, 10, 15, 20, 24]
    for step in (20, 24):
        assert same(_state(keeper.run, step), _state(whole, step))
    assert not folder.exists()
    assert not [*(tmp_path / "small").glob("checkpoint-*")]
    metrics = [checkpoint.metrics["eval_loss"] for checkpoint in keeper.run.checkpoints()]
    assert metrics == [checkpoint.metrics["eval_loss"] for checkpoint in whole.checkpoints()]
    assert keeper.run.hyperparameters["learning_rate"] == 0.01


@pytest.mark.long
def test_a_signal_saves_the_step_and_stops(tmp_path):
    options = {
        "gradient_accumulation_steps": 2,
        "eval_strategy": "epoch",
        "save_strategy": "epoch",
        "restore_callback_states_from_checkpoint": True,
        "metric_for_best_model": "loss",
    }

    def train(folder: Path, stop_at: int) -> tuple[Run, Trainer]:
        keeper = StandfastCallback(folder / "store", quiet=True)
        stop = At(stop_at, lambda: os.kill(os.getpid(), signal.SIGTERM))
        trainer = trainer_with(folder, stop, keeper, EarlyStoppingCallback(9), **options)
        trainer.train(resume_from_checkpoint=keeper.latest())
        return keeper.run, trainer

    before = signal.getsignal(signal.SIGTERM)
    expected, _ = train(tmp_path / "whole", 99)
    stopped, trainer = train(tmp_path / "stopped", 8)
    assert trainer.state.global_step == 8
    assert signal.getsignal(signal.SIGTERM) == before
    assert _steps(expected) == [6, 12]
    assert _steps(stopped) == [6, 8]
    goes_on, _ = train(tmp_path / "stopped", 99)
    assert _steps(goes_on) == [6, 8, 12]
    assert same(_state(goes_on, 12), _state(expected, 12))
    early = goes_on.load(12)["trainer"]["state"]["stateful_callbacks"]["EarlyStoppingCallback"]
    assert early["attributes"]["early_stopping_patience_counter"] is not None


def test_a_step_that_ends_an_epoch_is_saved_with_its_evaluation(tmp_path):
    keeper = StandfastCallback(tmp_path / "store", asynchronous=False, quiet=True)
    trainer = trainer_with(tmp_path, keeper, eval_strategy="epoch", save_steps=6)
    trainer.train()
    assert _steps(keeper.run) == [6, 12, 18, 24]
    evaluated = [
        [entry["step"] for entry in history if "eval_loss" in entry]
        for step in (6, 12, 24)
        for history in [keeper.run.load(step)["trainer"]["state"]["log_history"]]
    ]
    assert evaluated == [[], [12], [12, 24]]
    assert "eval_loss" in keeper.run.checkpoint(12).metrics


def test_the_best_is_kept_and_loaded_at_the_end(tmp_path):
    losses = iter([3.0, 1.0, 2.0, 4.0, 5.0])
    keeper = StandfastCallback(tmp_path / "store", quiet=True)
    trainer = trainer_with(
        tmp_path,
        keeper,
        save_total_limit=2,
        load_best_model_at_end=True,
        metric_for_best_model="score",
        greater_is_better=False,
    )
    trainer.compute_metrics = lambda _: {"score": next(losses)}
    trainer.train()
    run = keeper.run
    assert _steps(run) == [10, 24]
    assert run.checkpoint("best").step == 10
    assert trainer.state.best_model_checkpoint == f"{run.hash}@10"
    best = run.load(10, part="model")
    assert same(dict(trainer.model.state_dict()), dict(best))
    assert not same(dict(run.load(24, part="model")), dict(best))
    assert not [*(tmp_path / "small").glob("checkpoint-*")]
    folder = Path(keeper.best() or "")
    assert folder.name == "checkpoint-10"
    assert json.loads((folder / "trainer_state.json").read_text())["global_step"] == 10
    keeper.close()
    assert not folder.exists()


@pytest.mark.long
def test_a_damaged_checkpoint_is_passed_over(tmp_path):
    options = {"every": 6, "quiet": True, "asynchronous": False}
    first = StandfastCallback(tmp_path / "store", **options)
    trainer_with(tmp_path, first, save_strategy="no", max_steps=12).train()
    assert _steps(first.run) == [6, 12]
    for file in (tmp_path / "store").rglob("*_step_000012.*.safetensors"):
        flip(file, -9)
    keeper = StandfastCallback(tmp_path / "store", **options)
    trainer = trainer_with(tmp_path, keeper, max_steps=14)
    with pytest.warns(errors.FellBack):
        folder = keeper.latest()
    assert Path(folder or "").name == "checkpoint-6"
    place = Path(folder or "").parent
    assert [path.name for path in place.iterdir() if path.name != "lock"] == ["checkpoint-6"]
    trainer.train(resume_from_checkpoint=folder)
    assert sorted(_steps(keeper.run)) == [6, 12, 14]
    keeper.run.checkpoint(12).verify()


@pytest.mark.long
@pytest.mark.guarantee("G14")
def test_a_run_that_cannot_be_read_is_not_taken_for_an_empty_one(tmp_path):
    keeper = StandfastCallback(tmp_path / "store", asynchronous=False, quiet=True)
    trainer_with(tmp_path, keeper, max_steps=5).train()
    for record in (tmp_path / "store").rglob("*_step_*.json"):
        record.write_bytes(b"cannot be read at this moment\n")
    again = StandfastCallback(tmp_path / "store", quiet=True)
    trainer = trainer_with(tmp_path, again, max_steps=10)
    with pytest.raises(errors.StandfastError):
        again.latest()
    with pytest.raises(errors.RunExists):
        trainer.train()


def test_what_would_mix_two_trainings_is_refused(tmp_path):
    keeper = StandfastCallback(tmp_path / "store", asynchronous=False, quiet=True)
    with pytest.raises(errors.NotOpen):
        keeper.latest()
    trainer_with(tmp_path, keeper, max_steps=10).train()
    again = StandfastCallback(tmp_path / "store", quiet=True)
    trainer = trainer_with(tmp_path, again, max_steps=10)
    with pytest.raises(errors.RunExists, match="10"):
        trainer.train()
    with pytest.raises(errors.RunExists, match="5"):
        trainer.train(resume_from_checkpoint=again.folder(5))
    trainer.model = small_model(width=8)
    with pytest.raises(errors.StateMismatch):
        again.latest()

    branch = StandfastCallback(tmp_path / "store", name="branch", asynchronous=False, quiet=True)
    trainer = trainer_with(tmp_path, branch, max_steps=7)
    trainer.train(resume_from_checkpoint=branch.folder("small@5"))
    assert _steps(branch.run) == [7]
    parent = branch.run.parent
    assert parent is not None
    assert (parent.run, parent.step) == (keeper.run.hash, 5)


@pytest.mark.parametrize(
    ("options", "arguments", "named"),
    [
        ({}, {"push_to_hub": True, "hub_token": "none"}, "hub_strategy"),
        ({}, {"enable_jit_checkpoint": True}, "enable_jit_checkpoint"),
        ({"every": 5}, {"save_strategy": "best", "metric_for_best_model": "loss"}, "every"),
        ({"keep": KeepLast(1)}, {"save_total_limit": 2}, "keep"),
    ],
    ids=["hub", "jit", "best", "keep"],
)
def test_what_could_not_be_done_as_expected_is_refused(tmp_path, options, arguments, named, seams):
    seams.system(Trainer, init_hf_repo=lambda init, *_: None)
    keeper = StandfastCallback(tmp_path / "store", quiet=True, **options)
    before = signal.getsignal(signal.SIGTERM)
    try:
        trainer = trainer_with(tmp_path, keeper, **arguments)
        with pytest.raises(errors.BadOption, match=named):
            trainer.train()
    finally:
        signal.signal(signal.SIGTERM, before)


def test_parts_that_were_not_kept_are_not_resumed_from(tmp_path):
    keep = KeepLast(1) | KeepAll(without="optimizer")
    keeper = StandfastCallback(
        tmp_path / "store", name="parts", keep=keep, asynchronous=False, quiet=True
    )
    trainer_with(tmp_path, keeper, max_steps=10).train()
    assert _steps(keeper.run) == [5, 10]
    with pytest.raises(errors.StateMismatch, match="optimizer"):
        keeper.folder(5)
    folder = Path(keeper.folder(5, model_only=True))
    GPT2LMHeadModel.from_pretrained(folder)
    assert not (folder / "trainer_state.json").exists()


@pytest.mark.long
def test_the_ranks_of_a_training_go_on_with_their_own_random_states(tmp_path):
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    both = {"WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    own = {**os.environ, **both, "PYTHONPATH": python_path()}
    ranks = [
        subprocess.Popen(
            [sys.executable, transformers_ranks.__file__, tmp_path],
            env={**own, "RANK": rank, "LOCAL_RANK": rank},
            stderr=subprocess.PIPE,
        )
        for rank in "01"
    ]
    try:
        said = [rank.communicate(timeout=150)[1].decode() for rank in ranks]
    finally:
        for rank in ranks:
            rank.kill()
    assert [rank.returncode for rank in ranks] == [0, 0], "\n".join(said)
    whole, stopped = (Store(tmp_path / name / "store").runs()[0] for name in ("whole", "stopped"))
    assert _steps(stopped) == _steps(whole) == [5, 10, 12]
    assert same(_state(stopped, 12), _state(whole, 12))
    first, second = whole.load(12)["ranks"]
    assert not same(first["random"]["torch"]["cpu"], second["random"]["torch"]["cpu"])
    best = dict(whole.load("best", part="model"))
    for name in ("best_0.pt", "best_1.pt"):
        mine = torch.load(tmp_path / "stopped" / name, weights_only=True)
        assert same(dict(mine), best)


@pytest.mark.parametrize("name", ["../a", "/a", "a/../b", ".hidden", "", "a/b/c/d", "a\0b", 5])
def test_no_name_out_of_a_checkpoint_leads_elsewhere(name):
    with pytest.raises(errors.BadName):
        transformers_folder._checked_name(name)


def test_a_folder_goes_with_its_process(tmp_path):
    store = Store(tmp_path)
    store.run("any").close()
    living = transformers_folder.Shelter(store)
    dead = living.path.parent / "dead"
    (dead / "checkpoint-5").mkdir(parents=True)
    (dead / "lock").touch()
    other = transformers_folder.Shelter(store)
    assert not dead.exists()
    assert living.path.exists()
    living.close()
    other.close()
    assert list(living.path.parent.iterdir()) == []
