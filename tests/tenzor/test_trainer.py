"""The trainer: learning rates, the best epoch, early stopping, and exact resuming."""

import math
import random
import shutil
import warnings
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import optim
from torch.utils.data import TensorDataset

import standfast
from standfast import errors
from standfast.tenzor import (
    BadConfig,
    Checkpoint,
    CheckpointMetadata,
    Trainer,
    TrainerConfig,
    TrainStats,
)
from tests.kit.stores import same
from tests.tenzor.models import bits, new_model, train


def new_trainer(folder: Path | None, seed: int = 0, **settings: Any) -> Trainer:
    model = new_model(seed=seed)
    optimizer = optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    config = TrainerConfig(checkpoint_dir=folder, **settings)
    return Trainer(config, model=model, optimizer=optimizer)


def run_epoch(trainer: Trainer, val_acc: float = 0.5, val_loss: float = 1.0) -> list[str]:
    """An epoch of two batches, which draws from every random generator."""
    trainer.begin_epoch(total_batches=2)
    for _ in range(2):
        draw = random.random() + np.random.rand() + torch.rand(1).item()
        with torch.no_grad():
            for parameter in trainer.model.parameters():
                parameter += draw
        step = trainer.state.global_step
        train(trainer.model, trainer.optimizer, range(step, step + 1))
        trainer.record_batch(draw, 0.5)
    return [path.name for path in trainer.end_epoch(val_loss, val_acc)]


@pytest.mark.parametrize(
    ("options", "batches", "expected"),
    [
        ({"scheduler": "constant"}, 2, [0.1] * 4),
        (
            {"scheduler": "step", "step_size": 2, "gamma": 0.5, "learning_rate": 0.4},
            *(3, [0.4, 0.4, 0.2, 0.2, 0.1, 0.1]),
        ),
        ({"min_lr": 0.02}, 4, [0.06 + 0.04 * math.cos(math.pi * i / 8) for i in range(8)]),
        ({"min_lr": 0.0}, None, [0.1, 0.05]),  # by epochs, without the number of batches
        *(
            ({"scheduler": name, "warmup_steps": 4, "learning_rate": 0.4}, 2, [0.1, 0.2, 0.3, 0.4])
            for name in ("constant", "step", "cosine")
        ),
    ],
)
def test_rates_fall_as_scheduled_after_a_warm_up(options, batches, expected):
    trainer = new_trainer(None, epochs=2, **options)
    rates = []
    for _ in range(2):
        trainer.begin_epoch(total_batches=batches or 0)
        for _ in range(batches or 1):
            assert trainer.state.lr == trainer.get_lr() == trainer.optimizer.param_groups[0]["lr"]
            rates.append(trainer.get_lr())
            trainer.record_batch(0.0)
        trainer.end_epoch(0.0, 0.0)
    assert rates == pytest.approx(expected)


def test_each_group_has_its_own_rate_unless_one_is_given():
    parameters, rate = list(new_model().parameters()), torch.tensor(0.4)
    groups = [{"params": parameters[:1], "lr": 0.1}, {"params": parameters[1:], "lr": rate}]
    optimizer = optim.Adam(groups)
    config = TrainerConfig(scheduler="step", step_size=1, gamma=0.5)
    trainer = Trainer(config, optimizer=optimizer)
    trainer.begin_epoch()
    trainer.record_batch(0.0)
    assert [group["lr"] for group in optimizer.param_groups] == [0.05, rate]
    assert optimizer.param_groups[1]["lr"] is rate, "a tensor stays one"
    assert rate.item() == pytest.approx(0.2)
    Trainer(TrainerConfig(learning_rate=0.3), optimizer=optimizer).begin_epoch()
    assert [float(group["lr"]) for group in optimizer.param_groups] == pytest.approx([0.3, 0.3])


def test_figures_are_means_of_the_epoch():
    trainer = Trainer(TrainerConfig(batch_size=4, epochs=3))
    assert trainer.begin_epoch(total_batches=2) == 1
    trainer.record_batch(torch.tensor(1.0), correct=torch.tensor(2))
    trainer.record_batch(3.0, 1.0, count=12)
    state = trainer.state
    assert (state.epoch, state.batch, state.global_step, state.total_batches) == (1, 2, 2, 2)
    assert (state.train_loss, state.train_acc) == (2.5, 0.875)
    trainer.end_epoch(0.5, 0.25)
    stats = trainer.get_stats()
    assert isinstance(stats, TrainStats)
    assert (stats.final_epoch, stats.final_train_loss, stats.final_val_loss) == (1, 2.5, 0.5)
    assert (stats.best_val_acc, stats.best_epoch, stats.stopped_early) == (0.25, 1, False)
    trainer.begin_epoch()
    assert (state.epoch, state.batch, state.global_step) == (2, 0, 2)


def test_it_goes_on_until_the_last_epoch_or_without_progress():
    trainer = Trainer(TrainerConfig(epochs=9, early_stopping_patience=2))
    for accuracy in (0.5, 0.5, 0.6, math.nan, 0.6):
        assert trainer.should_continue()
        trainer.begin_epoch()
        trainer.end_epoch(1.0, accuracy)
    assert not trainer.should_continue()
    assert (trainer.get_stats().stopped_early, trainer.state.best_epoch) == (True, 3)
    last = Trainer(TrainerConfig(epochs=1))
    assert last.should_continue()
    last.begin_epoch()
    last.end_epoch(0.0, 0.0)
    assert not last.should_continue()
    told = Trainer()
    told.state.should_stop = True
    assert not told.should_continue()


def test_each_nth_epoch_the_last_and_the_best_are_saved(tmp_path):
    folder = tmp_path / "new" / "checkpoints"
    trainer = new_trainer(folder, epochs=5)
    written = [run_epoch(trainer, accuracy) for accuracy in (0.5, 0.7, 0.7, math.nan, 0.6)]
    epochs = [f"epoch_{n}.tenzor" for n in range(1, 6)]
    assert written == [["best.tenzor", epochs[0]], ["best.tenzor", epochs[1]]] + [
        [name] for name in epochs[2:]
    ]
    with Checkpoint.load(folder / "best.tenzor") as best:
        assert (best.metadata.epoch, best.metadata.best_val_acc) == (2, 0.7)
    with Checkpoint.load(folder / "epoch_5.tenzor") as last:
        assert (last.metadata.best_epoch, last.metadata.global_step) == (2, 10)
    assert sorted(path.name for path in folder.iterdir()) == ["best.tenzor", *epochs]
    trainer = new_trainer(tmp_path, epochs=5, checkpoint_every=2)
    written = [run_epoch(trainer, 0.0) for _ in range(5)]
    assert written == [[], [epochs[1]], [], [epochs[3]], [epochs[4]]]


def test_a_caller_may_track_the_best_too(tmp_path):
    trainer = new_trainer(tmp_path, epochs=2)
    for val_acc in (0.5, 0.4):
        epoch = trainer.begin_epoch()
        if val_acc > trainer.state.best_val_acc:
            trainer.state.best_val_acc = val_acc
            trainer.state.best_epoch = epoch
        trainer.end_epoch(1.0, val_acc)
    assert (trainer.state.best_val_acc, trainer.state.best_epoch) == (0.5, 1)
    with Checkpoint.load(tmp_path / "best.tenzor") as best:
        assert best.metadata.epoch == 1


def test_the_best_may_be_that_of_the_least_loss(tmp_path):
    trainer = new_trainer(tmp_path, epochs=9, best_by="loss", early_stopping_patience=2)
    written = []
    for loss in (0.5, math.nan, 0.25, 0.25, 0.3):
        trainer.begin_epoch(total_batches=1)
        written.append([path.name for path in trainer.end_epoch(loss)])
    assert ["best.tenzor" in names for names in written] == [True, False, True, False, False]
    assert (trainer.state.best_val_loss, trainer.state.best_epoch) == (0.25, 3)
    assert trainer.state.should_stop
    assert math.isnan(trainer.history[0].val_acc)
    resumed = new_trainer(None, epochs=9, best_by="loss")
    assert resumed.resume(tmp_path / "best.tenzor") == []
    resumed.begin_epoch()
    resumed.end_epoch(0.2, 0.75)
    assert (resumed.state.best_val_loss, resumed.state.best_val_acc) == (0.2, 0.75)


@pytest.mark.parametrize(
    ("call", "field"),
    [
        (lambda trainer: trainer.end_epoch(0.5, None), "val_acc"),
        (lambda trainer: trainer.end_epoch("low", 0.5), "val_loss"),
        (lambda trainer: trainer.end_epoch(torch.ones(2), 0.5), "val_loss"),
        (lambda trainer: trainer.record_batch(None), "loss"),
        (lambda trainer: trainer.record_batch(1.0, "high"), "accuracy"),
        (lambda trainer: trainer.record_batch(1.0, count=-1), "count"),
        (lambda trainer: trainer.begin_epoch(total_batches="two"), "total_batches"),
    ],
)
def test_figures_that_are_not_numbers_are_refused_and_change_nothing(call, field):
    trainer = new_trainer(None)
    trainer.begin_epoch(total_batches=2)
    before = replace(trainer.state)
    with pytest.raises(errors.RefusedMetadata, match=field):
        call(trainer)
    assert (trainer.state, trainer.history) == (before, [])


@pytest.mark.parametrize(
    ("field", "value", "plain"),
    [
        *(("should_stop", np.bool_(True), True), ("should_stop", torch.tensor(True), True)),
        *(("epoch", np.int64(3), 3), ("global_step", torch.tensor(7), 7)),
        *(("train_loss", np.float64(math.inf), math.inf), ("lr", torch.tensor(0.5), 0.5)),
        ("best_val_acc", torch.tensor(0.875, requires_grad=True), 0.875),
    ],
)
def test_scalars_of_libraries_in_the_state_are_saved_as_plain_values(field, value, plain, tmp_path):
    trainer = new_trainer(tmp_path)
    run_epoch(trainer)
    setattr(trainer.state, field, value)
    trainer.end_epoch(1.0, 0.25)  # which puts it into the history too
    setattr(trainer.state, field, value)
    trainer.save_checkpoint(tmp_path / "set.tenzor")
    with Checkpoint.load(tmp_path / "set.tenzor") as loaded:
        assert bits(loaded.extra["trainer"]["state"][field]) == bits(plain)
    resumed = new_trainer(None)
    resumed.resume(tmp_path / "set.tenzor")
    if field != "should_stop":  # which is asked anew
        assert bits(getattr(resumed.state, field)) == bits(plain)
    assert {type(stats.epoch) for stats in resumed.history} == {int}


@pytest.mark.parametrize(
    ("field", "value"), [("should_stop", None), ("batch", "two"), ("learning_rate", torch.ones(2))]
)
def test_a_state_that_no_training_could_resume_is_not_saved(field, value, tmp_path):
    trainer = new_trainer(tmp_path)
    run_epoch(trainer)
    setattr(trainer.state, "lr" if field == "learning_rate" else field, value)
    with pytest.raises(errors.RefusedMetadata, match=field):
        trainer.save_checkpoint(tmp_path / "set.tenzor")
    assert not (tmp_path / "set.tenzor").exists()


@pytest.mark.parametrize("start", ["epoch_1.tenzor", "epoch_2.tenzor", "best.tenzor"])
def test_a_resumed_training_ends_with_the_same_bits(start, tmp_path):
    accuracies = (0.5, 0.2, 0.4, 0.6)
    whole = new_trainer(tmp_path / "whole", epochs=4)
    for accuracy in accuracies:
        run_epoch(whole, accuracy)
        if whole.state.epoch <= 2:
            shutil.copytree(tmp_path / "whole", tmp_path / "copy", dirs_exist_ok=True)
    random.seed(99)
    torch.rand(3)
    resumed = new_trainer(tmp_path / "again", seed=5, epochs=4)
    assert resumed.resume(tmp_path / "copy" / start) == []
    for accuracy in accuracies[resumed.state.epoch :]:
        run_epoch(resumed, accuracy)
    files = [standfast.load(tmp_path / name / "epoch_4.tenzor") for name in ("whole", "again")]
    assert same(*files)
    assert bits(resumed.optimizer.state_dict()) == bits(whole.optimizer.state_dict())
    assert (resumed.state, resumed.history) == (whole.state, whole.history)


BATCHES = torch.arange(60.0).reshape(10, 6)
"""Five batches of two."""
SHUFFLED = partial(standfast.ResumableLoader, shuffle=True, seed=3)


def loading_trainer(folder: Path, seed: int = 0, kind: Any = SHUFFLED) -> Trainer:
    model = new_model(seed=seed)
    loader = kind(TensorDataset(BATCHES), batch_size=2)
    return Trainer(
        TrainerConfig(epochs=2, checkpoint_dir=folder, learning_rate=0.01),
        model=model,
        optimizer=optim.SGD(model.parameters(), momentum=0.9),
        extra={"loader": loader},
    )


def run_to_end(trainer: Trainer, save_at: int | None = None, path: Path = Path()) -> None:
    """The rest of a training; saved once so many steps are done, in the middle of an epoch."""
    loader = trainer.extra["loader"]
    while trainer.should_continue():
        trainer.begin_epoch(total_batches=len(loader))
        for (inputs,) in loader:
            trainer.optimizer.zero_grad()
            loss = (trainer.model(inputs) ** 2).mean()
            loss.backward()
            trainer.optimizer.step()
            trainer.record_batch(loss, loss.detach() / 2, count=len(inputs))
            if trainer.state.global_step == save_at:
                trainer.save_checkpoint(path)
        trainer.end_epoch(1 / trainer.state.global_step, trainer.state.train_acc)


def stateful_loader(*data: Any, **options: Any) -> Any:
    """That of torchdata: its state alone says whether its epoch has ended."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from torchdata.stateful_dataloader import StatefulDataLoader
    return StatefulDataLoader(*data, **options)


@pytest.mark.parametrize("kind", [SHUFFLED, stateful_loader], ids=["ours", "torchdata"])
@pytest.mark.parametrize("step", [1, 4, 5, 7, 9, 10])
@pytest.mark.filterwarnings("ignore:'set_vital'")
def test_a_training_saved_within_an_epoch_goes_on_at_the_next_batch(step, kind, tmp_path):
    path = tmp_path / "within.tenzor"
    whole = loading_trainer(tmp_path / "whole", kind=kind)
    run_to_end(whole, save_at=step, path=path)
    resumed = loading_trainer(tmp_path / "again", seed=5, kind=kind)
    assert resumed.resume(path) == []
    assert (resumed.state.global_step, resumed.state.batch) == (step, (step - 1) % 5 + 1)
    run_to_end(resumed)
    assert bits(resumed.model.state_dict()) == bits(whole.model.state_dict())
    assert bits(resumed.optimizer.state_dict()) == bits(whole.optimizer.state_dict())
    assert resumed.state.global_step == 10
    assert (resumed.state, resumed.history) == (whole.state, whole.history)


def test_a_training_saved_after_its_batches_goes_on_at_the_next_epoch(tmp_path):
    trainer = loading_trainer(tmp_path)
    trainer.begin_epoch(total_batches=5)
    for number, _ in enumerate(trainer.extra["loader"]):
        trainer.record_batch(1.0)
        if number == 1:
            trainer.save_checkpoint(tmp_path / "within.tenzor")
    trainer.save_checkpoint(tmp_path / "after.tenzor")
    resumed = loading_trainer(tmp_path / "again")
    assert resumed.resume(tmp_path / "after.tenzor") == []
    assert (resumed.begin_epoch(total_batches=5), resumed.state.batch) == (2, 0)
    assert len(list(resumed.extra["loader"])) == 5
    copied = loading_trainer(tmp_path / "again")
    copied.resume(tmp_path / "within.tenzor")
    copied.save_checkpoint(tmp_path / "copy.tenzor")  # before it goes on
    again = loading_trainer(tmp_path / "more")
    again.resume(tmp_path / "copy.tenzor")
    assert (again.begin_epoch(total_batches=5), again.state.batch) == (1, 2)


def test_without_a_loader_a_note_says_which_batches_are_done(tmp_path):
    trainer = new_trainer(None)
    trainer.extra["averaged"] = new_model()  # which is iterable too, and no loader
    trainer.begin_epoch(total_batches=5)
    for _ in range(3):
        trainer.record_batch(1.0)
    trainer.save_checkpoint(tmp_path / "within.tenzor")
    resumed = new_trainer(None)
    resumed.extra["averaged"] = new_model()
    (note,) = resumed.resume(tmp_path / "within.tenzor")
    assert "3" in note
    with pytest.raises(errors.RefusedState, match=r"1.*3"):
        resumed.begin_epoch(2, total_batches=5)  # as the original's loops name their epochs
    assert (resumed.begin_epoch(1, total_batches=5), resumed.state.batch) == (1, 3)
    assert (resumed.begin_epoch(2, total_batches=5), resumed.state.batch) == (2, 0)


def test_an_epoch_of_unknown_length_is_saved_only_when_it_has_ended(tmp_path):
    trainer = new_trainer(None)
    trainer.begin_epoch()
    trainer.record_batch(1.0)
    with pytest.raises(errors.RefusedState):
        trainer.save_checkpoint(tmp_path / "within.tenzor")
    assert list(tmp_path.iterdir()) == []
    trainer.end_epoch(1.0, 0.5)
    trainer.save_checkpoint(tmp_path / "after.tenzor")
    resumed = new_trainer(None)
    resumed.resume(tmp_path / "after.tenzor")
    assert resumed.begin_epoch() == 2


def test_what_else_has_a_state_is_saved_and_resumed(tmp_path):
    trainer = new_trainer(tmp_path, epochs=1)
    averaged, other = new_model(seed=7), new_model(seed=8)
    trainer.extra["averaged"] = averaged
    run_epoch(trainer)
    path, again = tmp_path / "epoch_1.tenzor", new_trainer(None)
    again.extra["averaged"] = other
    again.resume(path)
    assert bits(other.state_dict()) == bits(averaged.state_dict())
    model = new_model(seed=3)
    before = bits(model.state_dict())
    for make, extra, told in (
        (optim.SGD, {}, "averaged"),
        (optim.Adam, {"averaged": other}, r"SGD.*Adam"),
    ):
        changed = Trainer(model=model, optimizer=make(model.parameters()), extra=extra)
        with pytest.raises(errors.StateMismatch, match=told):
            changed.resume(path)
        assert (bits(model.state_dict()), changed.state.epoch) == (before, 0)


def test_a_checkpoint_of_no_trainer_is_resumed_as_far_as_it_goes(tmp_path):
    model = new_model(seed=3)
    metadata = CheckpointMetadata(epoch=3, global_step=30, best_val_acc=0.75, best_epoch=2)
    Checkpoint.save(tmp_path / "it.tenzor", model, None, metadata)
    trainer = Trainer(TrainerConfig(), model=new_model())
    assert len(trainer.resume(tmp_path / "it.tenzor")) == 2, "no random states, and no Trainer"
    assert bits(trainer.model.state_dict()) == bits(model.state_dict())
    assert (trainer.state.epoch, trainer.state.best_val_acc) == (3, 0.75)


def test_a_longer_training_goes_on_and_patience_is_asked_anew(tmp_path):
    first = new_trainer(tmp_path, epochs=3, early_stopping_patience=1)
    run_epoch(first, 0.5)
    run_epoch(first, 0.5)
    assert first.state.should_stop
    same = new_trainer(tmp_path, epochs=3, early_stopping_patience=1)
    same.resume(tmp_path / "epoch_2.tenzor")
    assert not same.should_continue()
    patient = new_trainer(tmp_path, epochs=9, early_stopping_patience=2)
    patient.resume(tmp_path / "epoch_2.tenzor")
    assert patient.should_continue()
    assert patient.state.total_epochs == 9


def test_a_new_training_does_not_begin_among_old_checkpoints(tmp_path):
    run_epoch(new_trainer(tmp_path, epochs=1))
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    other = new_trainer(tmp_path, epochs=1)
    with pytest.raises(errors.AlreadyExists, match=r"epoch_1\.tenzor"):
        other.begin_epoch()
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before
    with pytest.raises(errors.WriteFailed):
        new_trainer(tmp_path / "epoch_1.tenzor")


@pytest.mark.parametrize(
    "setting",
    [
        *({"epochs": 0}, {"batch_size": 1.5}, {"learning_rate": 0}, {"learning_rate": math.nan}),
        *({"best_by": "recall"}, {"scheduler": "linear"}, {"early_stopping_patience": -1}),
        *({"gamma": math.inf}, {"model_name": "\ud800"}),
    ],
    ids=ascii,
)
def test_settings_that_cannot_be_are_refused_before_training(setting):
    with pytest.raises((BadConfig, errors.RefusedMetadata), match=next(iter(setting))):
        TrainerConfig(**setting)


def test_what_cannot_be_saved_is_refused_before_training(tmp_path):
    with pytest.raises(BadConfig, match="model"):
        Trainer(TrainerConfig(checkpoint_dir=tmp_path))
    with pytest.raises(BadConfig, match="scaler"):
        Trainer(model=new_model(), extra={"scaler": 3})
