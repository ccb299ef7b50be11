"""The Checkpointer, called as a training loop calls it."""

import os
import platform
import random
import re
import subprocess
import sys
import threading
import time
import warnings
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import standfast
from standfast import errors
from standfast.training.background.background import Background
from standfast.training.checkpointer import Checkpointer
from standfast.training.metrics import read_metrics
from tests.kit.cases import kept
from tests.kit.seams import Clock, Seams
from tests.kit.stores import data_path, flip
from tests.kit.walk import Walk, checkpointer, walk

USED = Background, Checkpointer
"""Modules that are imported late otherwise, after `seams.clock()`."""


class Stop(Exception):
    """Ends a program as a crash would."""


def _steps(ckpt: standfast.Checkpointer) -> list[int]:
    return [checkpoint.step for checkpoint in ckpt.run.checkpoints()]


def _crash(store: Path, at: int, **options: Any) -> None:
    np.random.seed(0)
    program = Walk()
    with suppress(Stop), checkpointer(store, program.state, **options) as ckpt:
        for step in ckpt.steps(60):
            ckpt.step(step, value=program.train())
            if step == at:
                raise Stop


def _log(store: Path) -> list[tuple[int, dict[str, Any]]]:
    (path,) = (store / "logs").iterdir()
    return [(line.step, dict(line.metrics)) for line in read_metrics(path)]


@pytest.mark.parametrize(
    ("at", "asynchronous"),
    kept([(at, way) for at in (1, 9, 10, 35, 59) for way in (False, True)], (9, False), (35, True)),
)
def test_a_run_that_was_stopped_ends_as_if_it_had_not_been(tmp_path, at, asynchronous):
    whole = walk(tmp_path / "whole", 60)
    _crash(tmp_path / "stopped", at, asynchronous=asynchronous)
    again = walk(tmp_path / "stopped", 60, asynchronous=asynchronous)
    assert again.weights.tobytes() == whole.weights.tobytes()
    state = standfast.Store(tmp_path / "stopped").resolve("latest").load()
    assert set(state) == {"walk", "random"}
    assert state["walk"]["steps"] == 60


@pytest.mark.parametrize("calls_step", [True, False])
@pytest.mark.parametrize(
    ("every", "saved"),
    [(10, [10, 20, 25]), (standfast.Schedule(4, start=17), [17, 21, 25]), (None, [25])],
)
def test_saves_fall_on_the_schedule_and_the_last_step(tmp_path, every, saved, calls_step):
    program = Walk()
    with checkpointer(tmp_path, program.state, every=every) as ckpt:
        for step in ckpt.steps(25):
            program.train()
            if calls_step:
                ckpt.step(step)
        assert _steps(ckpt) == saved


def test_steps_that_are_not_handed_out_are_saved_on_schedule_or_by_hand(tmp_path):
    with checkpointer(tmp_path, Walk().state, every=2) as ckpt:
        for _ in range(5):
            ckpt.step()
        assert _steps(ckpt) == [2, 4]
        ckpt.save()
        ckpt.save()
        assert _steps(ckpt) == [2, 4, 5]


def test_saves_by_the_clock_and_by_a_share_of_the_time(tmp_path, seams):
    clock = seams.clock()

    def slowly(create: Callable[..., None], name: str, data: bytes) -> None:
        clock.advance(2.0)
        create(name, data)

    seams.backend(create=slowly)
    for every, saved in (("5s", [5, 10, 15, 20]), ("20%", [1, 5, 20])):
        with checkpointer(tmp_path / every, Walk().state, every=every) as ckpt:
            for step in ckpt.steps(20):
                clock.advance(1.0)
                ckpt.step(step)
            assert _steps(ckpt) == saved


def test_a_finished_run_hands_out_nothing_and_a_longer_one_goes_on(tmp_path, capsys):
    walk(tmp_path, 20, hp={"lr": 1, "max_steps": 20})
    options = {"hp": {"lr": 1, "max_steps": 20}, "quiet": False}
    with checkpointer(tmp_path, Walk().state, **options) as ckpt:
        assert list(ckpt.steps(20)) == []
    assert "20 of 20" in capsys.readouterr().err
    options = {"hp": {"lr": 1, "max_steps": 30}}
    with checkpointer(tmp_path, Walk().state, **options) as ckpt:
        assert list(ckpt.steps(22)) == [21, 22]
        assert "max_steps: 20, and here 30" in str(ckpt.resume_report)
    assert standfast.Store(tmp_path).runs()[0].hyperparameters == {"lr": 1, "max_steps": 30}


def test_a_number_that_cannot_be_a_step_is_refused(tmp_path):
    walk(tmp_path, 20)
    with checkpointer(tmp_path, Walk().state) as ckpt:
        for step in (1, 20, 21.0):
            with pytest.raises(errors.BadLabel):
                ckpt.step(step)  # type: ignore[arg-type]
        with pytest.raises(errors.BadOption):
            next(ckpt.steps(1e3))  # type: ignore[arg-type]


def test_it_is_used_inside_its_with(tmp_path):
    ckpt = checkpointer(tmp_path, Walk().state)
    with pytest.raises(errors.NotOpen):
        ckpt.step(1)
    with ckpt:
        pass
    with pytest.raises(errors.NotOpen):
        ckpt.save()
    with pytest.raises(errors.NotOpen), ckpt:
        pass


@pytest.mark.parametrize(
    ("options", "kind"),
    [
        ({"mode": "lowest"}, errors.BadOption),
        ({"every": "often"}, errors.BadSchedule),
        ({"resume": True}, errors.BadOption),
        ({"state": {"weights": np.zeros(3)}}, errors.BadOption),
    ],
)
def test_an_option_that_cannot_be_is_refused(tmp_path, options, kind):
    with pytest.raises(kind, match=next(iter(options))):
        checkpointer(tmp_path, **{"state": Walk().state, **options})


@pytest.mark.parametrize("kind", [Path, standfast.Store])
def test_the_environment_does_not_move_the_store_that_a_program_names(tmp_path, monkeypatch, kind):
    monkeypatch.setenv("STANDFAST_STORE", str(tmp_path / "there"))
    walk(kind(tmp_path / "here"), 10)
    assert not (tmp_path / "there").exists()
    assert standfast.Store(tmp_path / "here").resolve("latest").step == 10


def test_a_run_that_nothing_identifies_is_called_as_the_program(tmp_path, seams):
    seams.system(sys, argv=["/somewhere/train.py", "--fast"])
    walk(tmp_path, 10)
    assert [run.name for run in standfast.Store(tmp_path).runs()] == ["train"]


def test_random_states_are_restored_when_the_first_step_is_handed_out(tmp_path):
    def draws(name: str, seed: int, steps: int) -> list[Any]:
        random.seed(seed)
        np.random.seed(seed)
        with checkpointer(tmp_path / name, Walk().state) as ckpt:
            random.random(), np.random.random()  # what building an iterator may do
            return [(step, random.random(), np.random.random()) for step in ckpt.steps(steps)]

    whole = draws("whole", 1, 20)
    assert draws("parts", 1, 10) + draws("parts", 99, 20) == whole


# Epochs


def _epochs(store: Path, total: int, stop: int | None = None) -> list[int]:
    """Epochs of three batches; a crash after so many batches."""
    np.random.seed(0)
    program, seen = Walk(), []
    with checkpointer(store, program.state, every=1) as ckpt:
        for epoch in ckpt.epochs(total):
            for _ in range(3):
                program.train()
                ckpt.step()
                ckpt.save()
                seen.append(epoch)
                if len(seen) == stop:
                    raise Stop
    return seen


def test_without_a_loader_epochs_are_saved_at_their_end(tmp_path):
    with pytest.raises(Stop):
        _epochs(tmp_path, 4, stop=8)  # in the middle of the third
    run = standfast.Store(tmp_path).runs()[0]
    assert [(c.epoch, c.step) for c in run.checkpoints()] == [(1, 3), (2, 6)]
    assert _epochs(tmp_path, 4) == [3, 3, 3, 4, 4, 4]
    assert _epochs(tmp_path / "whole", 4) == [1] * 3 + [2] * 3 + [3] * 3 + [4] * 3
    whole = standfast.Store(tmp_path / "whole").runs()[0]
    assert run.load()["walk"]["weights"].tobytes() == whole.load()["walk"]["weights"].tobytes()


def test_an_epoch_whose_body_calls_no_step_is_a_step(tmp_path):
    for total in (2, 4):
        program = Walk()
        with checkpointer(tmp_path, program.state, every=1) as ckpt:
            handed_out = [epoch for epoch in ckpt.epochs(total) if program.train() is not None]
        assert handed_out == [total - 1, total]
    run = standfast.Store(tmp_path).runs()[0]
    assert [(c.epoch, c.step) for c in run.checkpoints()] == [(n, n) for n in (1, 2, 3, 4)]


def test_steps_after_epochs_are_saved_on_schedule(tmp_path):
    with checkpointer(tmp_path, Walk().state, every=5) as ckpt:
        for _ in ckpt.epochs(2):
            ckpt.step()
        for step in ckpt.steps(12):
            ckpt.step(step)
        assert _steps(ckpt) == [2, 5, 10, 12]
        assert ckpt.run.checkpoint(12).epoch == 2


# Metrics and the best


def test_the_best_is_the_strictly_better_one_and_never_nan(tmp_path):
    values = [5.0, float("nan"), 3.0, 3.0, 4.0]
    with checkpointer(tmp_path, Walk().state, every=1, monitor="loss") as ckpt:
        for step in ckpt.steps(5):
            ckpt.step(step, loss=values[step - 1])
        assert ckpt.run.checkpoint("best").step == 3
        assert ckpt.run.checkpoint("best").metrics == {"loss": 3.0}


def test_the_best_is_kept_over_resumes(tmp_path):
    runs = ((2, [1.0, 2.0], 2), (4, [1.5, 1.0], 2), (5, [3.0], 5), (6, [3.0], 5))
    for total, values, best in runs:
        with checkpointer(tmp_path, Walk().state, every=1, monitor="acc", mode="max") as ckpt:
            for step, value in zip(ckpt.steps(total), values, strict=False):
                ckpt.step(step, acc=value)
            assert ckpt.run.checkpoint("best").step == best


def test_a_metric_that_comes_late_may_make_the_best(tmp_path):
    with checkpointer(tmp_path, Walk().state, every=1, monitor="val", mode="max") as ckpt:
        for step in ckpt.steps(4):
            ckpt.step(step, val=0.5 if step == 3 else None)
        assert ckpt.run.checkpoint("best").step == 3
        for step, value, best in ((1, 0.7, 1), (2, 0.6, 1), (2, 0.8, 2)):
            ckpt.report(np.int64(step), val=value, other=None)
            assert ckpt.run.checkpoint("best").step == best
            assert ckpt.run.checkpoint(step).metrics == {"val": value}
        ckpt.step(5, val=0.9)
        assert ckpt.run.checkpoint("best").step == 5
    with checkpointer(tmp_path, Walk().state, every=1, monitor="val", mode="max") as ckpt:
        ckpt.step(6, val=0.85)
        assert ckpt.run.checkpoint("best").step == 5
        for bad in (-1, 7, 1.0, True):
            with pytest.raises(errors.BadLabel):
                ckpt.report(bad, val=1.0)  # type: ignore[arg-type]


def test_a_report_of_the_last_step_is_in_the_checkpoint_that_follows(tmp_path):
    with checkpointer(tmp_path, Walk().state, every=None, monitor="val") as ckpt:
        for epoch in range(1, 4):
            ckpt.step(loss=1.0)
            ckpt.step(loss=0.5)
            ckpt.report(val=1.0 / epoch)
            ckpt.save()
        metrics = [checkpoint.metrics for checkpoint in ckpt.run.checkpoints()]
        assert metrics == [{"loss": 0.5, "val": 1.0 / epoch} for epoch in range(1, 4)]
        assert ckpt.run.checkpoint("best").step == 6


def test_the_best_is_that_of_the_steps_that_stay(tmp_path):
    def best(steps: int, mode: str) -> int:
        options = {"every": 1, "monitor": "loss", "mode": mode}
        with checkpointer(tmp_path, Walk().state, **options) as ckpt:
            for step in ckpt.steps(steps):
                ckpt.step(step, loss=[3.0, 2.0, 1.0, 4.0][step - 1])
        return standfast.Store(tmp_path).runs()[0].checkpoint("best").step

    assert best(3, "min") == 3
    flip(data_path(standfast.Store(tmp_path).runs()[0], 3))
    with pytest.warns(errors.FellBack):
        assert best(3, "min") == 3
    assert best(4, "max") == 4
    assert best(4, "min") == 3


def test_every_metric_is_in_the_log_which_is_cut_back_on_resume(tmp_path):
    _crash(tmp_path, at=35)
    assert [step for step, _ in _log(tmp_path)] == list(range(1, 36))
    with checkpointer(tmp_path, Walk().state) as ckpt:
        assert ckpt.next_step == 31
        assert [step for step, _ in _log(tmp_path)] == list(range(1, 31))
    walk(tmp_path, 60)
    whole = walk(tmp_path / "whole", 60)
    assert _log(tmp_path) == _log(tmp_path / "whole")
    assert _log(tmp_path)[-1] == (60, {"value": whole.weights.sum()})


def test_metrics_do_not_pile_up_between_saves(tmp_path, seams):
    seams.bound("steps of a long run", 10)
    with checkpointer(tmp_path, Walk().state, every=None) as ckpt:
        for step in range(1, 31):
            ckpt.step(step, value=float(step))
        assert len(_log(tmp_path)) >= 20
        ckpt.save()
        assert ckpt.run.checkpoint(30).metrics == {"value": 30.0}


# Which run


def test_auto_begins_another_run_for_other_settings_and_says_what_differs(tmp_path):
    walk(tmp_path, 10, name="first", hp={"lr": 0.1, "deep": {"layers": 2}})
    with checkpointer(tmp_path, Walk().state, hp={"lr": 0.2, "deep": {"layers": 2}}) as ckpt:
        text = str(ckpt.resume_report)
        assert ckpt.next_step == 1
    assert "'first'" in text
    assert "lr: 0.1, and here 0.2" in text
    assert "layers" not in text


@pytest.mark.parametrize("resume", ["must", "yes"])
def test_a_start_that_finds_nothing_to_resume_makes_no_run(tmp_path, resume):
    refused = pytest.raises(errors.RefNotFound, match=resume)
    with refused, checkpointer(tmp_path, Walk().state, resume=resume):
        pass
    assert not (tmp_path / "checkpoints").exists()
    walk(tmp_path, 10)
    with checkpointer(tmp_path, Walk().state, resume="must") as ckpt:
        assert ckpt.next_step == 11


def test_never_takes_the_next_free_trial(tmp_path):
    runs = []
    for _ in range(3):
        with checkpointer(tmp_path, Walk().state, hp={"lr": 1}, resume="never") as ckpt:
            assert ckpt.next_step == 1
            ckpt.step()
            ckpt.save()
            runs.append(ckpt.run)
    assert len({run.hash for run in runs}) == 3
    assert [run.file.trial for run in runs] == [None, 2, 3]
    options = {"hp": {"lr": 1}, "trial": "mine"}
    walk(tmp_path, 10, **options)
    taken = checkpointer(tmp_path, Walk().state, resume="never", **options)
    with pytest.raises(errors.RunExists), taken:
        pass


def test_a_reference_branches_with_its_parent_and_goes_on_when_started_again(tmp_path):
    walk(tmp_path, 30, name="trunk", hp={"lr": 1})
    options = {"name": "trunk", "hp": {"lr": 2}, "resume": "trunk@20"}
    _crash(tmp_path, at=35, **options)
    with checkpointer(tmp_path, Walk().state, **options) as ckpt:
        assert ckpt.next_step == 31
        assert not ckpt.resume_report.branched
        branch = ckpt.run
    first = branch.checkpoints()[0]
    assert (branch.parent and branch.parent.step, first.step) == (20, 30)
    trunk = next(r for r in standfast.Store(tmp_path).runs() if r.hyperparameters == {"lr": 1})
    assert first.parent is not None
    assert first.parent.ref == trunk.checkpoint(20).ref
    for total in (40, 45):
        walk(tmp_path, total, hp={"lr": 3}, resume="latest")
    assert len(standfast.Store(tmp_path).runs()) == 3


def test_a_branch_with_the_same_settings_is_a_trial_of_its_own(tmp_path):
    trunk = walk(tmp_path, 30, name="trunk", hp={"lr": 1})
    options = {"name": "trunk", "hp": {"lr": 1}, "resume": "trunk@10"}
    program = Walk()
    with checkpointer(tmp_path, program.state, **options) as ckpt:
        assert ckpt.resume_report.branched
        assert ckpt.next_step == 11
        for _ in ckpt.steps(30):
            program.train()
        assert ckpt.run.file.trial == 2
    assert program.weights.tobytes() == trunk.weights.tobytes()


def test_a_run_that_is_written_into_is_not_entered(tmp_path):
    code = (
        "import sys, standfast, numpy as np\n"
        "state = standfast.TrainingState(walk={'w': np.zeros(2)})\n"
        "options = {'name': 'shared', 'quiet': True, 'asynchronous': False}\n"
        "ckpt = standfast.Checkpointer(sys.argv[1], state, **options)\n"
        "with ckpt: print('in', flush=True); sys.stdin.read()\n"
    )
    command = [sys.executable, "-c", code, str(tmp_path)]
    streams: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    with subprocess.Popen(command, **streams) as other:
        assert other.stdout is not None
        assert other.stdout.readline() == "in\n"
        with pytest.raises(errors.RunBusy), checkpointer(tmp_path, Walk().state, name="shared"):
            pass
        other.communicate()
    assert other.returncode == 0
    with checkpointer(tmp_path, Walk().state, name="one"):
        with pytest.raises(errors.RunBusy), checkpointer(tmp_path, Walk().state, name="one"):
            pass
        with checkpointer(tmp_path, Walk().state, name="two"):
            pass
    with checkpointer(tmp_path, Walk().state, name="one"):
        pass


# Bad input


def test_a_damaged_checkpoint_is_passed_over_with_a_warning(tmp_path):
    _crash(tmp_path, at=45)
    run = standfast.Store(tmp_path).runs()[0]
    flip(data_path(run, 40), -9)
    with pytest.warns(errors.FellBack):
        program = walk(tmp_path, 60)
    assert program.weights.tobytes() == walk(tmp_path / "whole", 60).weights.tobytes()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert run.checkpoint(40).verify().tensors > 0


@pytest.mark.guarantee("G14")
def test_a_run_that_cannot_be_read_is_not_taken_for_a_new_one_and_deleted(tmp_path):
    walk(tmp_path, 20)
    [run] = standfast.Store(tmp_path).runs()
    kept = {path: path.read_bytes() for path in (tmp_path / "checkpoints").rglob("*_step_*.*")}
    records = [path for path in kept if path.suffix == ".json"]
    next(tmp_path.rglob(f"{run.hash}_run.json")).unlink()
    for path in records:
        path.write_bytes(b"cannot be read at this moment\n")
    with pytest.warns(errors.FellBack, match=run.hash):
        again = standfast.Store(tmp_path).find_run(run.hash)
    assert again.file == run.file
    with pytest.warns(errors.FellBack), pytest.raises(errors.DamagedFile):
        walk(tmp_path, 40)
    for path in records:
        path.write_bytes(kept[path])
    assert {path: path.read_bytes() for path in kept} == kept
    assert standfast.Store(tmp_path).resolve(run.hash).verify().nbytes


def test_another_architecture_is_refused_with_the_difference(tmp_path):
    walk(tmp_path, 10, name="old")
    program = Walk(size=5)
    program.state.walk["bias"] = np.zeros(2)
    other = {"name": "new", "hp": {"wide": 1}}
    ckpt = checkpointer(tmp_path, program.state, resume="old@10", **other)
    with pytest.raises(errors.StateMismatch) as refusal, ckpt:
        pass
    assert "walk.weights: float64 [4] was saved, float64 [5] is there" in str(refusal.value)
    assert "walk.bias" in str(refusal.value)
    assert not program.weights.any()
    with checkpointer(tmp_path, program.state, **other) as ckpt:
        assert ckpt.next_step == 1  # nothing of the refused branch is left


def test_what_fits_is_restored_if_asked_and_called_inexact(tmp_path):
    trunk = walk(tmp_path, 10, name="old")
    program = Walk()
    program.state.walk["bias"] = np.full(2, 7.0)
    options: dict[str, Any] = {"hp": {"wide": 1}, "resume": "old@10", "strict": False}
    with checkpointer(tmp_path, program.state, **options) as ckpt:
        report = ckpt.resume_report
    assert program.weights.tobytes() == trunk.weights.tobytes()
    assert program.state.walk["bias"].tolist() == [7.0, 7.0]
    assert report.missing == ["walk.bias"]
    assert not report.exact
    assert "walk.steps" in report.restored


@pytest.mark.parametrize("asynchronous", [False, True])
def test_a_store_that_cannot_be_written_is_found_before_training_starts(tmp_path, asynchronous):
    (tmp_path / "file").write_text("in the way")
    inside = checkpointer(tmp_path / "file" / "store", Walk().state, asynchronous=asynchronous)
    with pytest.raises(errors.FileError), inside:
        pass
    full = checkpointer(tmp_path, Walk().state, asynchronous=asynchronous)
    with Seams.until_end() as seams:
        seams.backend(free=lambda free: 100)
        with pytest.raises(errors.NotEnoughSpace, match="100"), full:
            pass
    walk(tmp_path, 10)  # the run was let go of


def test_the_report_names_what_is_not_as_it_was(tmp_path, seams):
    class Forgetful:
        def __init__(self) -> None:
            self.value = np.zeros(3)

        def state_dict(self) -> dict[str, Any]:
            return {"value": self.value}

        def load_state_dict(self, state: dict[str, Any]) -> None:
            pass

    part = Forgetful()
    with checkpointer(tmp_path, standfast.TrainingState(part=part), name="a") as ckpt:
        part.value += 1
        ckpt.step()
        ckpt.save()
    version = platform.python_version()
    seams.system(platform, python_version=lambda real: "3.9.0")
    with checkpointer(tmp_path, standfast.TrainingState(part=Forgetful()), name="a") as ckpt:
        assert not ckpt.resume_report.exact
        value, software = sorted(ckpt.resume_report.inexact, key=lambda text: "3.9.0" in text)
    assert "part.value" in value
    assert f"python {version}" in software

    run = standfast.Store(tmp_path).run("bare")
    run.save(1, {"walk": {"weights": np.ones(4), "steps": 1}})
    run.close()
    with checkpointer(tmp_path, Walk().state, name="bare") as ckpt:
        assert ckpt.next_step == 2
        assert "Python's generator" in " ".join(ckpt.resume_report.inexact)


# What goes wrong and is put right


def test_an_error_of_the_program_comes_out_and_what_was_saved_is_committed(tmp_path, capsys):
    options: dict[str, Any] = {"every": 1, "asynchronous": True, "quiet": False}
    ckpt = checkpointer(tmp_path, Walk().state, **options)

    def program() -> None:
        with ckpt:
            ckpt.step(1)
            raise Stop

    with pytest.raises(Stop):
        program()
    assert standfast.Store(tmp_path).resolve("latest").step == 1
    assert ckpt.held > 0
    (line,) = [line for line in capsys.readouterr().err.splitlines() if "Stop" in line]
    assert "step 1" in line


def test_a_save_that_failed_can_be_made_again(tmp_path):
    def refuse(create: Any, name: str, data: bytes) -> None:
        raise errors.WriteFailed(28, "disk full")

    with checkpointer(tmp_path, Walk().state, every=1, asynchronous=True) as ckpt:
        with Seams.until_end() as seams:
            seams.backend(create=refuse)
            ckpt.step(1)
            with pytest.raises(errors.WriteFailed) as raised:
                ckpt.wait()
            assert raised.value.errno == 28
        ckpt.save()
        ckpt.wait()
        assert _steps(ckpt) == [1]


@pytest.mark.parametrize("asynchronous", [False, True])
def test_a_state_that_was_saved_and_changed_is_saved_again(tmp_path, asynchronous):
    program = Walk()
    options: dict[str, Any] = {"monitor": "loss", "asynchronous": asynchronous, "every": 1}
    with checkpointer(tmp_path, program.state, **options) as ckpt:
        ckpt.step(1, loss=1.0)
        program.weights += 7
        ckpt.save()
        ckpt.wait()
        assert ckpt.run.load()["walk"]["weights"].tolist() == [7.0] * 4
        assert ckpt.run.checkpoint("best").metrics == {"loss": 1.0}


def test_a_forked_child_that_leaves_the_with_writes_nothing(tmp_path):
    with checkpointer(tmp_path, Walk().state, every=None) as ckpt:
        ckpt.step(1, value=1.0)
        child = os.fork()
        if child == 0:
            try:
                ckpt.__exit__(None, None, None)
            finally:
                os._exit(0)
        os.waitpid(child, 0)
        ckpt.step(2, value=2.0)
    assert [step for step, _ in _log(tmp_path)] == [1, 2]


# What it says


def test_what_is_printed_is_the_report(tmp_path, capsys):
    walk(tmp_path, 10, quiet=False)
    assert "continues" not in capsys.readouterr().err
    walk(tmp_path, 20, quiet=False)
    assert "continues after step 10, exactly as it was" in capsys.readouterr().err


@pytest.mark.parametrize("way", ["with the step", "reported", "never"])
def test_a_monitored_metric_that_never_came_is_named(tmp_path, capsys, way):
    with checkpointer(tmp_path, Walk().state, every=1, monitor="loss", quiet=False) as ckpt:
        for step in ckpt.steps(3):
            ckpt.step(step, loss=1.0 if way == "with the step" else None)
            if way == "reported":
                ckpt.report(loss=1.0)
    assert ("'loss'" in capsys.readouterr().err) == (way == "never")


def _pass_while_the_loop_waits(clock: Clock) -> None:
    """Let 100 seconds pass as soon as the main thread waits for another one."""
    main, deadline = threading.main_thread().ident or 0, time.monotonic() + 60
    while sys._current_frames()[main].f_code is not threading.Condition.wait.__code__:
        assert time.monotonic() < deadline
        time.sleep(0.001)
    clock.advance(100)


@pytest.mark.parametrize("late", ["save", "helper"])
def test_what_the_loop_waited_for_a_save_is_said_but_not_for_the_helper_to_start(
    tmp_path, seams, capsys, late
):
    clock, passed = seams.clock(), []

    def once(real: Any, *args: Any, **options: Any) -> Any:
        if not passed:
            passed.append(True)
            _pass_while_the_loop_waits(clock)
        return real(*args, **options)

    options: dict[str, Any] = {"every": 1, "asynchronous": True, "quiet": False, "monitor": "loss"}
    if late == "helper":
        seams.system(subprocess, Popen=once)
    with checkpointer(tmp_path, Walk().state, **options) as ckpt:
        if late == "save":
            seams.backend(create=once)
        for step in ckpt.steps(3):
            ckpt.step(step, loss=1.0)
    said = capsys.readouterr().err
    assert passed
    assert bool(re.search(r"step [23] waited 100\.0 s", said)) == (late == "save")
    assert "'loss'" not in said  # the metrics of a save that is written at the end are known
