"""StandfastCheckpoint under the real Lightning: what is saved, when, and how it comes back."""

import argparse
import datetime
import os
import random
import signal
import subprocess
import sys
import warnings
from collections import OrderedDict
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch

import standfast
from standfast import errors
from tests import python_path
from tests.kit.stores import data_path, flip, same

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    pytest.importorskip("lightning.pytorch")
    from lightning.pytorch.utilities.parsing import AttributeDict

    from standfast.lightning import StandfastCheckpoint, load_checkpoint
    from standfast.lightning.resume import EXTRA, Extra
    from standfast.lightning.values import again, plain
    from standfast.training.beginning import program_name
    from tests.lightning.programs.training import BATCHES, QUIET, Data, Net, fit, trainer_of

pytestmark = QUIET
PROGRAM = Path(__file__).parent / "programs" / "training.py"
IMPORTED = "import sys; from tests.lightning.programs import training as it; it.main(*sys.argv[1:])"


def saver(store: Path, **options: Any) -> Any:
    """A callback that saves each step and waits for it, unless told otherwise."""
    options = {"save_top_k": -1, "quiet": True, "asynchronous": False} | options
    return StandfastCheckpoint(store, **{"name": "net", "every_n_train_steps": 1} | options)


def final(checkpoint: Any) -> dict[str, Any]:
    return load_checkpoint(checkpoint.last_model_path)


def steps(store: Path, run: str = "net") -> list[int]:
    return [each.step for each in standfast.Store(store).find_run(run).checkpoints()]


WHOLE = {"max_steps": 12, "max_epochs": None}
NEVER = {"plateau": False, "validation": False}
WAYS: dict[str, tuple[dict[str, Any], tuple[int, ...]]] = {
    "epochs": ({}, (3, 5)),
    "steps": (WHOLE, ()),
    "no validation": (NEVER, ()),
    "no validation, steps": (NEVER | WHOLE, ()),
    "validation within epochs": ({"plateau": False, "val_check_interval": 2}, (2,)),
    "validation by batches": (
        {"plateau": False, "val_check_interval": 3, "check_val_every_n_epoch": None},
        (),
    ),
    "gradients of two batches": ({"accumulate_grad_batches": 2}, (3,)),
    "some of the batches": ({"limit_train_batches": 3}, ()),
    "a loader without a state": ({"resumable": False}, (5,)),
}
"""Of each way of training its options, and steps to go on from in a short test."""


def _train(checkpoint: Any, options: dict[str, Any], seed: int) -> Any:
    options = {"max_epochs": 3, **options}
    model = Net(options.pop("plateau", True))
    data = Data(options.pop("resumable", True), options.pop("validation", True))
    return fit(checkpoint, model, data, seed, **options)[0]


@pytest.mark.parametrize(
    ("way", "chosen"),
    [
        *(pytest.param(way, chosen, id=way) for way, (_, chosen) in WAYS.items() if chosen),
        *(pytest.param(way, None, marks=pytest.mark.long, id=f"{way}, each step") for way in WAYS),
    ],
)
def test_a_training_that_goes_on_ends_as_if_it_had_never_stopped(tmp_path, way, chosen):
    options, _ = WAYS[way]
    whole = saver(tmp_path, every_n_train_steps=1 if options.get("resumable", True) else BATCHES)
    model = _train(whole, options, 3)
    run, expected = standfast.Store(tmp_path).find_run("net").hash, final(whole)
    saved = steps(tmp_path)
    for step in chosen or saved[:-1]:
        branch = saver(
            tmp_path, every_n_train_steps=saved[-1], resume=f"{run}@{step}", trial=100 + step
        )
        rest = _train(branch, options, seed=4)
        assert branch.resume_report.exact, branch.resume_report
        assert branch.resume_report.step == step
        assert same(expected, final(branch))
        assert rest.seen
        assert rest.seen == model.seen[-len(rest.seen) :]
        assert rest.hooks == model.hooks[len(model.hooks) - len(rest.hooks) :]


def _run(store: Path, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    imported = "LIGHTNING_IMPORTED" in environment
    program = ["-c", IMPORTED] if imported else [str(PROGRAM)]
    return subprocess.run(
        [sys.executable, "-W", "ignore", *program, str(store), *arguments],
        env={**os.environ, "PYTHONPATH": python_path(), **environment},
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )


def test_a_killed_training_continues_exactly(tmp_path):
    whole = saver(tmp_path / "whole", every_n_train_steps=3)
    model, _ = fit(whole)
    # The classes of a script have other names, which make another model.
    killed = _run(tmp_path / "killed", "9", LIGHTNING_IMPORTED="1")  # within the second epoch
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    assert steps(tmp_path / "killed") == [3, 6]
    rest = saver(tmp_path / "killed", every_n_train_steps=3, asynchronous=True)
    resumed, _ = fit(rest, seed=4)
    assert rest.resume_report.exact
    assert rest.resume_report.step == 6
    assert resumed.seen == model.seen[6:]
    assert same(final(whole), final(rest))


def test_a_training_that_is_made_longer_goes_on_within_its_epoch(tmp_path):
    whole = saver(tmp_path / "whole", every_n_train_steps=12)
    model, _ = fit(whole, max_steps=12)
    fit(saver(tmp_path / "longer", every_n_train_steps=12), max_steps=7)
    longer = saver(tmp_path / "longer", every_n_train_steps=12)
    rest, _ = fit(longer, seed=4, max_steps=12)
    assert rest.seen == model.seen[7:]
    assert same(final(whole), final(longer))


@pytest.mark.long
def test_two_ranks_that_were_killed_continue_exactly(tmp_path):
    whole = _run(tmp_path / "whole", "0", "2")
    assert whole.returncode == 0, whole.stderr
    killed = _run(tmp_path / "killed", "9", "2")
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    assert steps(tmp_path / "killed") == [3, 6]
    rest = _run(tmp_path / "killed", "0", "2", SEED="4")
    assert rest.returncode == 0, rest.stderr
    assert "step 6, exactly" in rest.stderr
    assert sorted(rest.stdout.splitlines()) == sorted(whole.stdout.splitlines())
    assert len(rest.stdout.splitlines()) == 2
    states = [
        standfast.Store(tmp_path / each).find_run("net").load() for each in ("whole", "killed")
    ]
    assert same(*states)
    ranks = states[0][EXTRA]["ranks"]
    assert len(ranks) == 2
    assert not same(ranks[0]["random"]["torch"], ranks[1]["random"]["torch"])


@pytest.mark.long
def test_the_other_package_of_lightning_works_too(tmp_path):
    done = _run(tmp_path, LIGHTNING_NAME="pytorch_lightning")
    assert done.returncode == 0, done.stderr
    assert steps(tmp_path) == [3, 6, 9, 12, 15, 18, 20]


def test_each_trigger_saves_when_modelcheckpoint_would(tmp_path):
    def saved(name: str, options: dict[str, Any] | None = None, **triggers: Any) -> list[int]:
        triggers = {"every_n_train_steps": None, **triggers}
        fit(saver(tmp_path / name, **triggers), **(options or {}))
        return steps(tmp_path / name)

    two = {"max_epochs": 2}
    assert saved("by default", two) == [5, 10]
    assert saved("steps", two, every_n_train_steps=4) == [4, 8, 10]
    assert saved("epochs", {"max_epochs": 3}, every_n_epochs=2) == [10, 15]
    assert saved("validations", {**two, "val_check_interval": 2}) == [2, 4, 7, 9, 10]
    assert saved("time", two, train_time_interval=timedelta(0)) == list(range(1, 11))
    assert saved("the last step", {"max_steps": 7}, every_n_train_steps=5) == [5, 7]
    assert saved("seldom", two, train_time_interval=timedelta(days=1)) == [10]


def _break(step: int) -> None:
    if step == 8:
        raise ArithmeticError("it is broken")


def test_an_exception_saves_if_it_is_asked_to(tmp_path):
    whole, _ = fit(saver(tmp_path / "whole", every_n_train_steps=20), max_epochs=2)
    for asked, expected in ((True, [5, 7]), (False, [5])):
        store = tmp_path / str(asked)
        with pytest.raises(ArithmeticError):
            fit(saver(store, every_n_train_steps=5, save_on_exception=asked), Net(before=_break))
        assert steps(store) == expected
        rest = saver(store, every_n_train_steps=5)
        model, _ = fit(rest, max_epochs=2)
        assert rest.resume_report.exact is not asked
        # The batch that was being used is not done, and is used now.
        assert [each[:3] for each in model.seen] == [
            each[:3] for each in whole.seen[expected[-1] :]
        ]


def _tell_to_end(step: int) -> None:
    if step == 8:
        os.kill(os.getpid(), signal.SIGTERM)


def test_a_program_that_is_told_to_end_saves_and_continues_exactly(tmp_path):
    whole = saver(tmp_path / "whole", every_n_train_steps=5)
    model, _ = fit(whole, max_epochs=2)
    before = signal.getsignal(signal.SIGTERM)
    try:
        with pytest.raises(BaseException) as stopped:
            fit(saver(tmp_path / "told", every_n_train_steps=5), partial(Net, before=_tell_to_end))
    finally:
        signal.signal(signal.SIGTERM, before)
    assert type(stopped.value).__name__ == "SIGTERMException"
    assert steps(tmp_path / "told") == [5, 8]
    rest = saver(tmp_path / "told", every_n_train_steps=5)
    resumed, _ = fit(rest, Net(), seed=4, max_epochs=2)
    assert rest.resume_report.exact
    assert resumed.seen == model.seen[8:]
    assert same(final(whole), final(rest))


def test_the_best_are_kept_and_the_best_of_all_is_known(tmp_path):
    best = saver(tmp_path, every_n_train_steps=None, monitor="val", save_top_k=2)
    _, trainer = fit(best, Net(plateau=False))
    run = standfast.Store(tmp_path).find_run("net")
    values = {each.step: each.metrics["val"] for each in run.checkpoints()}
    assert len(values) == 2 + (20 not in sorted(values, key=values.__getitem__)[:2])
    assert best.best_model_score == min(values.values())
    assert best.best_model_path.endswith(f"@{run.checkpoint('best').step}")
    assert run.checkpoint("best").metrics["val"] == best.best_model_score

    other = Net()
    found = trainer.validate(other, datamodule=Data(), ckpt_path="best", verbose=False)
    at = load_checkpoint(best.best_model_path)
    assert same(dict(at["state_dict"]), dict(other.state_dict()))
    assert found[0]["val"] != 0


def test_weights_alone_are_saved_and_not_continued(tmp_path):
    weights = saver(tmp_path, every_n_train_steps=10, save_weights_only=True)
    fit(weights)
    assert "optimizer_states" not in final(weights)
    with pytest.raises(errors.StateMismatch):
        fit(saver(tmp_path))
    fit(saver(tmp_path, resume="never", every_n_train_steps=10), max_epochs=1)


def test_a_damaged_checkpoint_is_passed_over(tmp_path):
    fit(saver(tmp_path, every_n_train_steps=5), max_epochs=2)
    flip(data_path(standfast.Store(tmp_path).find_run("net"), 10))
    rest = saver(tmp_path, every_n_train_steps=5)
    with pytest.warns(errors.FellBack):
        fit(rest, max_epochs=2)
    assert rest.resume_report.step == 5
    assert steps(tmp_path) == [5, 10]


def test_hyperparameters_of_the_module_make_the_run_of_which_the_last_is_kept(tmp_path):
    class Sized(Net):
        def __init__(self, rate: float) -> None:
            super().__init__()
            self.save_hyperparameters()

    for rate in (0.1, 0.2, 0.1):
        last = StandfastCheckpoint(tmp_path, every_n_train_steps=2, quiet=True, asynchronous=False)
        fit(last, Sized(rate), max_epochs=1)
    runs = standfast.Store(tmp_path).runs()
    assert [run.hyperparameters for run in runs] == [{"rate": 0.2}, {"rate": 0.1}]
    assert [[each.step for each in run.checkpoints()] for run in runs] == [[5], [5]]
    assert final(last)["hyper_parameters"] == {"rate": 0.1}
    fit(StandfastCheckpoint(tmp_path / "without", quiet=True), fast_dev_run=True)
    assert not (tmp_path / "without" / "checkpoints").exists()  # of a trial nothing is saved
    fit(StandfastCheckpoint(tmp_path / "without", quiet=True, asynchronous=False), max_epochs=1)
    [run] = standfast.Store(tmp_path / "without").runs()
    assert (run.name, run.file.trial) == (program_name(), None)


def test_a_path_that_is_given_is_taken_instead(tmp_path):
    first = saver(tmp_path, every_n_train_steps=5)
    fit(first, max_epochs=2)
    given = first.last_model_path.replace("@10", "@5")
    trainer = trainer_of(saver(tmp_path, every_n_train_steps=5), max_epochs=2)
    model = Net()
    trainer.fit(model, datamodule=Data(), ckpt_path=given)
    assert [each[0] for each in model.seen] == [5, 6, 7, 8, 9]
    assert steps(tmp_path) == [5, 10]


def test_a_run_that_another_trainer_saves_into_is_refused(tmp_path):
    class Second(Net):
        def on_train_start(self) -> None:
            with pytest.raises(errors.RunBusy):
                fit(saver(tmp_path), Second())
            self.trainer.should_stop = True

    fit(saver(tmp_path), Second())


def test_what_cannot_be_kept_is_refused_with_where_it_comes_from(tmp_path):
    class Odd(Net):
        def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
            checkpoint["mine"] = {"tool": random.Random(1)}

    with pytest.raises(errors.RefusedState, match="on_save_checkpoint"):
        fit(saver(tmp_path), Odd())
    assert steps(tmp_path) == []

    class OddlySet(Net):
        def __init__(self, tool: Any) -> None:
            super().__init__()
            self.save_hyperparameters()

    with pytest.raises(errors.RefusedState, match=r"hyper_parameters\.tool"):
        fit(saver(tmp_path, hp={}), OddlySet(random.Random(1)))


def test_values_that_can_be_made_again_are(tmp_path):
    value = {
        "a": AttributeDict(x=1, y=AttributeDict(z=2)),
        "b": argparse.Namespace(rate=0.1, path=Path("a/b")),
        "c": [timedelta(1, 2, 3), datetime.date(2020, 1, 2), datetime.datetime(2020, 1, 2, 3)],
        "d": ({1, 2}, frozenset("a"), range(3), torch.Size([2, 3]), torch.float16),
        "e": OrderedDict(x=torch.device("cpu"), y=datetime.time(1, 2)),
    }
    kept = standfast.Store(tmp_path).run("values")
    kept.save(1, plain(value))
    back = again(kept.load())
    assert repr(back) == repr(value)
    assert type(back["a"]["y"]) is AttributeDict
    unchanged = {"x": [1, (2, OrderedDict(y=torch.ones(2)))]}
    assert plain(unchanged) is unchanged


@pytest.mark.parametrize(
    ("kind", "value"),
    [
        *(("code", "x"), ("dtype", "nn"), ("timedelta", [1]), ("set", [[]]), (["set"], [])),
        *(("namespace", {1: 2}), ("device", "nowhere"), ("set", None)),
    ],
)
def test_what_was_never_written_is_not_made(kind, value):
    with pytest.raises(errors.BadField):
        again({"x": [{"standfast.kind": kind, "value": value}]})
    with pytest.raises(errors.BadField):
        again({"x": [{"standfast.kind": "set"}]})


def test_what_was_never_saved_with_a_checkpoint_is_refused():
    sound = Extra("step", [{"random": {}, "loaders": []}], 1, [], {}).tree()
    assert Extra.read(sound).kind == "step"
    for field, wrong in {
        "version": 2,
        "kind": "other",
        "ranks": [1],
        "world_size": 1.5,
        "plateaus": None,
        "metrics": {"a": "b"},
    }.items():
        with pytest.raises(errors.BadField, match=field):
            Extra.read({**sound, field: wrong})
    with pytest.raises(errors.BadField):
        Extra.read({})


@pytest.mark.parametrize(
    "options",
    [
        {"every_n_train_steps": 2, "every_n_epochs": 1},
        {"every_n_train_steps": -1},
        {"train_time_interval": 5},
        {"save_top_k": 3},
        {"save_top_k": 2, "monitor": "val", "keep": standfast.KeepLast(1)},
        {"mode": "least", "monitor": "val"},
        {"save_last": "maybe"},
        {"resume": True},
    ],
    ids=str,
)
def test_options_that_make_no_sense_are_refused(tmp_path, options):
    with pytest.raises(errors.BadOption):
        StandfastCheckpoint(tmp_path, **options)
