"""The Checkpointer, called as a training loop calls it."""

from __future__ import annotations

import itertools
import random
import re
import time
import warnings
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import standfast
from standfast import errors
from tests.kit.cases import kept
from tests.kit.walk import Walk, checkpointer, walk


class Stop(Exception):
    """Ends a program as a crash would."""


def _steps(ckpt: standfast.Checkpointer) -> list[int]:
    return [checkpoint.step for checkpoint in ckpt.run.checkpoints()]


def _crash(store: Path, at: int, steps: int = 60, **options: Any) -> None:
    def program() -> None:
        np.random.seed(0)
        walk = Walk()
        with checkpointer(store, walk.state, **options) as ckpt:
            for step in ckpt.steps(steps):
                ckpt.step(step, value=walk.train())
                if step == at:
                    raise Stop

    with pytest.raises(Stop):
        program()


@pytest.mark.parametrize("asynchronous", [False, True])
@pytest.mark.parametrize("at", kept([1, 9, 10, 35, 59], 9, 35))
def test_a_run_that_was_stopped_ends_as_if_it_had_not_been(
    tmp_path: Path, at: int, asynchronous: bool
) -> None:
    whole = walk(tmp_path / "whole", 60)
    _crash(tmp_path / "stopped", at, asynchronous=asynchronous)
    again = walk(tmp_path / "stopped", 60, asynchronous=asynchronous)
    assert again.weights.tobytes() == whole.weights.tobytes()
    assert again.state.walk["steps"] == 60


def test_steps_are_handed_out_from_behind_the_last_checkpoint(tmp_path: Path) -> None:
    _crash(tmp_path, at=35)
    program = Walk()
    with checkpointer(tmp_path, program.state) as ckpt:
        assert ckpt.next_step == 31
        assert next(ckpt.steps(60)) == 31
        assert program.state.walk["steps"] == 30


def test_the_saved_tree_has_the_names_of_the_parts_and_random(tmp_path: Path) -> None:
    program = Walk()
    with checkpointer(tmp_path, program.state) as ckpt:
        for step in ckpt.steps(3):
            ckpt.step(step)
        state = ckpt.run.load()
    assert set(state) == {"walk", "random"}
    assert set(state["random"]) >= {"python", "numpy"}


def test_saves_fall_on_the_schedule_and_the_last_step(tmp_path: Path) -> None:
    program = Walk()
    with checkpointer(tmp_path, program.state, every=10) as ckpt:
        for step in ckpt.steps(25):
            ckpt.step(step)
        assert _steps(ckpt) == [10, 20, 25]


def test_a_body_that_does_not_call_step_is_saved_as_well(tmp_path: Path) -> None:
    program = Walk()
    with checkpointer(tmp_path, program.state, every=10) as ckpt:
        for _ in ckpt.steps(25):
            program.train()
        assert _steps(ckpt) == [10, 20, 25]


def test_a_schedule_may_start_late(tmp_path: Path) -> None:
    program = Walk()
    with checkpointer(tmp_path, program.state, every=standfast.Schedule(4, start=10)) as ckpt:
        for step in ckpt.steps(18):
            ckpt.step(step)
        assert _steps(ckpt) == [10, 14, 18]


def test_without_a_schedule_only_save_saves(tmp_path: Path) -> None:
    program = Walk()
    with checkpointer(tmp_path, program.state, every=None) as ckpt:
        for step in range(1, 8):
            ckpt.step(step)
            if step == 5:
                ckpt.save()
                ckpt.save()  # once is enough
        assert _steps(ckpt) == [5]


def test_steps_without_numbers_count_on(tmp_path: Path) -> None:
    program = Walk()
    with checkpointer(tmp_path, program.state, every=2) as ckpt:
        for _ in range(5):
            ckpt.step()
        assert _steps(ckpt) == [2, 4]


def test_a_finished_run_hands_out_nothing_and_a_longer_one_goes_on(tmp_path: Path) -> None:
    walk(tmp_path, 20, hp={"lr": 1, "max_steps": 20})
    program = Walk()
    with checkpointer(tmp_path, program.state, hp={"lr": 1, "max_steps": 20}) as ckpt:
        assert list(ckpt.steps(20)) == []
    with checkpointer(tmp_path, Walk().state, hp={"lr": 1, "max_steps": 30}) as ckpt:
        assert list(ckpt.steps(22)) == [21, 22]


def test_a_step_that_was_done_is_refused(tmp_path: Path) -> None:
    walk(tmp_path, 20)
    with checkpointer(tmp_path, Walk().state) as ckpt:
        with pytest.raises(errors.BadLabel, match="step 1 cannot be next: step 20 is done"):
            ckpt.step(1)
        with pytest.raises(errors.BadLabel, match="integer"):
            ckpt.step(21.0)  # type: ignore[arg-type]


def test_it_is_used_inside_its_with(tmp_path: Path) -> None:
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
    ("options", "message"),
    [
        ({"mode": "lowest"}, "'min' or 'max'"),
        ({"every": "often"}, "every cannot be"),
        ({"resume": True}, "resume is one of"),
    ],
)
def test_an_option_that_is_none_is_refused(
    tmp_path: Path, options: dict[str, Any], message: str
) -> None:
    with pytest.raises(errors.StandfastError, match=message):
        checkpointer(tmp_path, Walk().state, **options)


def test_a_state_that_is_no_training_state_is_refused(tmp_path: Path) -> None:
    with pytest.raises(errors.BadOption, match="pass TrainingState"):
        checkpointer(tmp_path, {"weights": np.zeros(3)})


@pytest.mark.parametrize("kind", [Path, standfast.Store])
def test_the_environment_does_not_move_the_store_that_a_program_names(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: Any
) -> None:
    monkeypatch.setenv("STANDFAST_STORE", str(tmp_path / "there"))
    walk(kind(tmp_path / "here"), 10)
    assert not (tmp_path / "there").exists()
    assert standfast.Store(tmp_path / "here").resolve("latest").step == 10


def test_a_run_that_nothing_identifies_is_called_as_the_program(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.argv", ["/somewhere/train.py", "--fast"])
    walk(tmp_path, 10)
    assert [run.name for run in standfast.Store(tmp_path).runs()] == ["train"]


def test_a_store_in_memory_can_be_saved_into(tmp_path: Path) -> None:
    from standfast.store.backends.memory import MemoryBackend

    store = standfast.Store(MemoryBackend())
    walk(store, 15, asynchronous=True)
    assert (
        walk(store, 30, asynchronous=True).weights.tobytes() == walk(tmp_path, 30).weights.tobytes()
    )


def test_random_states_are_put_back_when_the_first_step_is_handed_out(tmp_path: Path) -> None:
    def draws(ckpt: standfast.Checkpointer, steps: int) -> list[Any]:
        random.random(), np.random.random()  # what building an iterator may do
        return [(step, random.random(), np.random.random()) for step in ckpt.steps(steps)]

    random.seed(1)
    np.random.seed(1)
    with checkpointer(tmp_path / "whole", Walk().state) as ckpt:
        whole = draws(ckpt, 20)
    random.seed(1)
    np.random.seed(1)
    with checkpointer(tmp_path / "parts", Walk().state) as ckpt:
        first = draws(ckpt, 10)
    random.seed(99)
    np.random.seed(99)
    with checkpointer(tmp_path / "parts", Walk().state) as ckpt:
        assert first + draws(ckpt, 20) == whole


# Epochs


def _epochs(store: Path, total: int, stop: int | None = None, **options: Any) -> list[int]:
    """Epochs of three batches; a crash after so many of them."""
    np.random.seed(0)
    program = Walk()
    seen = []
    with checkpointer(store, program.state, **{"every": 1, **options}) as ckpt:
        for epoch in ckpt.epochs(total):
            for _ in range(3):
                program.train()
                ckpt.step(value=float(program.weights[0]))
                seen.append(epoch)
                if len(seen) == stop:
                    raise Stop
        final = program.weights.tobytes()
    assert final == program.weights.tobytes()
    return seen


def test_without_a_loader_epochs_are_saved_at_their_end(tmp_path: Path) -> None:
    with pytest.raises(Stop):
        _epochs(tmp_path, 4, stop=8)  # in the middle of the third
    run = standfast.Store(tmp_path).runs()[0]
    assert [(c.epoch, c.step) for c in run.checkpoints()] == [(1, 3), (2, 6)]
    assert _epochs(tmp_path, 4) == [3, 3, 3, 4, 4, 4]
    whole = tmp_path / "whole"
    assert _epochs(whole, 4) == [1] * 3 + [2] * 3 + [3] * 3 + [4] * 3
    other = standfast.Store(whole).runs()[0]
    assert run.load()["walk"]["weights"].tobytes() == other.load()["walk"]["weights"].tobytes()


def test_an_epoch_whose_body_calls_no_step_is_a_step(tmp_path: Path) -> None:
    for total in (2, 4):
        program = Walk()
        with checkpointer(tmp_path, program.state, every=1) as ckpt:
            handed_out = [epoch for epoch in ckpt.epochs(total) if program.train() is not None]
        assert handed_out == [total - 1, total]
    run = standfast.Store(tmp_path).runs()[0]
    assert [(c.epoch, c.step) for c in run.checkpoints()] == [(n, n) for n in (1, 2, 3, 4)]


# Metrics and the best


def test_the_best_is_the_strictly_better_one_and_never_nan(tmp_path: Path) -> None:
    values = [5.0, float("nan"), 3.0, 3.0, 4.0]
    with checkpointer(tmp_path, Walk().state, every=1, monitor="loss") as ckpt:
        for step in ckpt.steps(5):
            ckpt.step(step, loss=values[step - 1])
        assert ckpt.run.checkpoint("best").step == 3
        assert ckpt.run.checkpoint("best").metrics == {"loss": 3.0}


def test_the_best_is_kept_over_resumes(tmp_path: Path) -> None:
    for total, values in ((2, [1.0, 2.0]), (4, [1.5, 1.0]), (5, [3.0])):
        with checkpointer(tmp_path, Walk().state, every=1, monitor="acc", mode="max") as ckpt:
            for step, value in zip(ckpt.steps(total), values, strict=False):
                ckpt.step(step, acc=value)
    store = standfast.Store(tmp_path)
    assert store.runs()[0].checkpoint("best").step == 5
    with checkpointer(tmp_path, Walk().state, every=1, monitor="acc", mode="max") as ckpt:
        ckpt.step(6, acc=3.0)  # not strictly better
        assert ckpt.run.checkpoint("best").step == 5


def test_a_metric_that_comes_late_may_make_the_best(tmp_path: Path) -> None:
    with checkpointer(tmp_path, Walk().state, every=1, monitor="val", mode="max") as ckpt:
        for step in ckpt.steps(4):
            ckpt.step(step, val=0.5 if step == 3 else None)
        assert ckpt.run.checkpoint("best").step == 3
        ckpt.report(1, val=0.7)
        ckpt.report(2, val=0.6)
        assert ckpt.run.checkpoint("best").step == 1
        assert ckpt.run.checkpoint(2).metrics == {"val": 0.6}
        ckpt.report(2, val=0.8)
        assert ckpt.run.checkpoint("best").step == 2
        ckpt.step(5, val=0.9)
        assert ckpt.run.checkpoint("best").step == 5
    with checkpointer(tmp_path, Walk().state, every=1, monitor="val", mode="max") as ckpt:
        ckpt.step(6, val=0.85)
        assert ckpt.run.checkpoint("best").step == 5
        with pytest.raises(errors.BadLabel, match="not done yet"):
            ckpt.report(7, val=1.0)


def test_every_metric_is_in_the_log_which_is_cut_back_on_resume(tmp_path: Path) -> None:
    from standfast.training.metrics import read_metrics

    _crash(tmp_path, at=35)
    path = next((tmp_path / "logs").iterdir())
    assert path.name == f"{standfast.Store(tmp_path).runs()[0].hash}_metrics.jsonl"
    assert [line.step for line in read_metrics(path)] == list(range(1, 36))
    with checkpointer(tmp_path, Walk().state):
        assert [line.step for line in read_metrics(path)] == list(range(1, 31))
    walk(tmp_path, 60)
    whole = walk(tmp_path / "whole", 60)
    log = next((tmp_path / "whole" / "logs").iterdir())
    assert [(line.step, line.metrics) for line in read_metrics(path)] == [
        (line.step, line.metrics) for line in read_metrics(log)
    ]
    assert list(read_metrics(path))[-1].metrics == {"value": whole.weights.sum()}


# Which run


def test_auto_begins_another_run_for_other_settings_and_says_what_differs(tmp_path: Path) -> None:
    walk(tmp_path, 10, name="first", hp={"lr": 0.1, "deep": {"layers": 2}})
    with checkpointer(tmp_path, Walk().state, hp={"lr": 0.2, "deep": {"layers": 2}}) as ckpt:
        text = str(ckpt.resume_report)
        assert ckpt.next_step == 1
    assert "'first'" in text
    assert "lr: 0.1, and here 0.2" in text
    assert "layers" not in text


def test_must_refuses_to_begin(tmp_path: Path) -> None:
    with (
        pytest.raises(errors.RefNotFound, match="must"),
        checkpointer(tmp_path, Walk().state, resume="must"),
    ):
        pass
    assert not (tmp_path / "checkpoints").exists()
    walk(tmp_path, 10)
    with checkpointer(tmp_path, Walk().state, resume="must") as ckpt:
        assert ckpt.next_step == 11


def test_never_takes_the_next_free_trial(tmp_path: Path) -> None:
    runs = []
    for _ in range(3):
        with checkpointer(tmp_path, Walk().state, hp={"lr": 1}, resume="never") as ckpt:
            assert ckpt.next_step == 1
            ckpt.step()
            ckpt.save()
            runs.append(ckpt.run)
    assert len({run.hash for run in runs}) == 3
    assert [run.file.trial for run in runs] == [None, 2, 3]
    walk(tmp_path, 10, hp={"lr": 1}, trial="mine")
    with (
        pytest.raises(errors.RunExists, match="another trial"),
        checkpointer(tmp_path, Walk().state, hp={"lr": 1}, trial="mine", resume="never"),
    ):
        pass


def test_a_reference_branches_with_its_parent_and_goes_on_when_started_again(
    tmp_path: Path,
) -> None:
    walk(tmp_path, 30, name="trunk", hp={"lr": 1})
    _crash(tmp_path, at=35, hp={"lr": 2}, resume="trunk@20")
    with checkpointer(tmp_path, Walk().state, hp={"lr": 2}, resume="trunk@20") as ckpt:
        assert ckpt.next_step == 31
        assert not ckpt.resume_report.branched
        branch = ckpt.run
    assert branch.parent is not None
    assert branch.parent.step == 20
    first = branch.checkpoints()[0]
    assert first.step == 30
    assert first.parent is not None
    assert first.parent.ref == standfast.Store(tmp_path).resolve("trunk@20").ref


def test_a_branch_with_the_same_settings_is_a_trial_of_its_own(tmp_path: Path) -> None:
    trunk = walk(tmp_path, 30, name="trunk", hp={"lr": 1})
    options = {"name": "trunk", "hp": {"lr": 1}, "resume": "trunk@10"}
    with checkpointer(tmp_path, Walk().state, **options) as ckpt:
        assert ckpt.resume_report.branched
        assert ckpt.next_step == 11
        program = Walk()
        program.weights[:] = ckpt.state.walk["weights"]
        for _ in ckpt.steps(30):
            program.train()
        assert ckpt.run.file.trial == 2
    assert program.weights.tobytes() == trunk.weights.tobytes()


def test_a_run_that_another_process_writes_into_is_not_entered(tmp_path: Path) -> None:
    import subprocess
    import sys

    code = (
        "import sys, standfast, numpy as np\n"
        "state = standfast.TrainingState(walk={'w': np.zeros(2)})\n"
        "ckpt = standfast.Checkpointer(sys.argv[1], state, name='shared', quiet=True)\n"
        "with ckpt: print('in', flush=True); sys.stdin.read()\n"
    )
    other = subprocess.Popen(
        [sys.executable, "-c", code, str(tmp_path)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    with other:
        assert other.stdout is not None
        assert other.stdout.readline() == "in\n"
        with (
            pytest.raises(errors.RunBusy),
            checkpointer(tmp_path, Walk().state, name="shared"),
        ):
            pass
        assert other.stdin is not None
        other.stdin.close()
    assert other.returncode == 0


# Bad input


def test_a_damaged_checkpoint_is_passed_over_loudly(tmp_path: Path) -> None:
    _crash(tmp_path, at=45)
    newest = max(tmp_path.rglob("*step_000040*.safetensors"))
    data = bytearray(newest.read_bytes())
    data[-9] ^= 1
    newest.write_bytes(data)
    with pytest.warns(errors.FellBack):
        program = walk(tmp_path, 60)
    assert program.weights.tobytes() == walk(tmp_path / "whole", 60).weights.tobytes()
    run = standfast.Store(tmp_path).runs()[0]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert run.checkpoint(40).verify().tensors > 0


@pytest.mark.guarantee("G14")
def test_a_run_that_cannot_be_read_is_not_taken_for_a_new_one_and_deleted(tmp_path: Path) -> None:
    walk(tmp_path, 20)
    [run] = standfast.Store(tmp_path).runs()
    kept = {path: path.read_bytes() for path in (tmp_path / "checkpoints").rglob("*_step_*.*")}
    records = [path for path in kept if path.suffix == ".json"]
    next(tmp_path.rglob(f"{run.hash}_run.json")).unlink()
    for path in records:
        path.write_bytes(b"cannot be read at this moment\n")
    with pytest.warns(errors.FellBack, match="its config has the same"):
        again = standfast.Store(tmp_path).find_run(run.hash)
    assert again.file == run.file
    with pytest.warns(errors.FellBack), pytest.raises(errors.DamagedFile):
        walk(tmp_path, 40)
    for path in records:
        path.write_bytes(kept[path])
    assert {path: path.read_bytes() for path in kept} == kept
    assert standfast.Store(tmp_path).resolve(run.hash).verify().nbytes


def test_another_architecture_is_refused_with_the_difference(tmp_path: Path) -> None:
    walk(tmp_path, 10, name="old")
    program = Walk(size=5)
    program.state.walk["bias"] = np.zeros(2)
    with (
        pytest.raises(errors.StateMismatch) as refusal,
        checkpointer(tmp_path, program.state, hp={"wide": 1}, resume="old@10"),
    ):
        pass
    text = str(refusal.value)
    assert "walk.weights: float64 [4] was saved, float64 [5] is there" in text
    assert "missing in the checkpoint: walk.bias" in text
    assert not program.weights.any()


def test_what_fits_is_restored_if_asked_and_called_inexact(tmp_path: Path) -> None:
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


def test_an_unwritable_folder_is_found_before_training_starts(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    with (
        pytest.raises(errors.FileError),
        checkpointer(tmp_path / "file" / "store", Walk().state),
    ):
        pass


@pytest.mark.parametrize("asynchronous", [False, True])
def test_a_full_disk_is_found_before_training_starts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, asynchronous: bool
) -> None:
    from standfast.store.backends.local import LocalBackend

    monkeypatch.setattr(LocalBackend, "free", lambda self: 100)
    with (
        pytest.raises(errors.NotEnoughSpace, match="100 are free"),
        checkpointer(tmp_path, Walk().state, asynchronous=asynchronous),
    ):
        pass
    monkeypatch.undo()
    walk(tmp_path, 10)  # the run was let go of


def test_the_report_says_what_was_saved_by_another_release(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    walk(tmp_path, 10)
    monkeypatch.setattr(
        "standfast.training.resuming.software", lambda: {"python": "3.9.0", "numpy": "1.0"}
    )
    with checkpointer(tmp_path, Walk().state) as ckpt:
        assert not ckpt.resume_report.exact
        assert f"numpy {np.__version__} saved it, and 1.0 is running" in ckpt.resume_report.inexact


def test_an_object_that_does_not_take_its_state_is_called_inexact(tmp_path: Path) -> None:
    class Forgetful:
        def __init__(self) -> None:
            self.value = np.zeros(3)

        def state_dict(self) -> dict[str, Any]:
            return {"value": self.value}

        def load_state_dict(self, state: dict[str, Any]) -> None:
            pass

    part = Forgetful()
    with checkpointer(tmp_path, standfast.TrainingState(part=part)) as ckpt:
        part.value += 1
        ckpt.step()
        ckpt.save()
    with checkpointer(tmp_path, standfast.TrainingState(part=Forgetful())) as ckpt:
        assert list(ckpt.resume_report.inexact) == [
            "part.value is not what was saved, though it was put back"
        ]


def test_an_error_of_the_program_comes_out_and_what_was_saved_is_committed(tmp_path: Path) -> None:
    def program() -> None:
        with checkpointer(tmp_path, Walk().state, every=1, asynchronous=True) as ckpt:
            ckpt.step(1)
            raise Stop

    with pytest.raises(Stop):
        program()
    assert standfast.Store(tmp_path).resolve("latest").step == 1


def test_how_long_saves_held_the_loop_up_is_known_afterwards(tmp_path: Path) -> None:
    with checkpointer(tmp_path, Walk().state, every=1) as ckpt:
        ckpt.step(1)
        inside = ckpt.held
    assert ckpt.held >= inside > 0


def test_what_is_printed_is_the_report(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    walk(tmp_path, 10, quiet=False)
    walk(tmp_path, 20, quiet=False)
    printed = capsys.readouterr().err
    assert "begins" in printed
    assert "continues after step 10, exactly as it was" in printed


# What programs do


def test_a_report_of_the_last_step_is_in_the_checkpoint_that_follows(tmp_path: Path) -> None:
    with checkpointer(tmp_path, Walk().state, every=None, monitor="val") as ckpt:
        for epoch in range(1, 4):
            ckpt.step(loss=1.0)
            ckpt.step(loss=0.5)
            ckpt.report(val=1.0 / epoch)
            ckpt.save()
        assert [c.metrics for c in ckpt.run.checkpoints()] == [
            {"loss": 0.5, "val": 1.0 / epoch} for epoch in range(1, 4)
        ]
        assert ckpt.run.checkpoint("best").step == 6


def test_a_metric_that_is_monitored_and_never_comes_is_said(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    walk(tmp_path / "a", 10, monitor="vla_loss", quiet=False)
    assert "no step that was saved came with 'vla_loss'" in capsys.readouterr().err
    walk(tmp_path / "b", 10, monitor="value", quiet=False)
    assert "no step that was saved" not in capsys.readouterr().err


def test_two_checkpointers_do_not_share_a_run(tmp_path: Path) -> None:
    with checkpointer(tmp_path, Walk().state, name="one"):
        with (
            pytest.raises(errors.RunBusy, match="another Checkpointer of this process"),
            checkpointer(tmp_path, Walk().state, name="one"),
        ):
            pass
        with checkpointer(tmp_path, Walk().state, name="two"):
            pass
    with checkpointer(tmp_path, Walk().state, name="one"):
        pass


def test_a_branch_goes_on_by_the_name_that_it_shares_with_its_parent(tmp_path: Path) -> None:
    walk(tmp_path, 20, name="a", hp={"lr": 1})
    walk(tmp_path, 30, name="a", hp={"lr": 2}, resume="a@10")
    with checkpointer(tmp_path, Walk().state, name="a", hp={"lr": 2}, resume="a@10") as ckpt:
        assert ckpt.next_step == 31


def test_a_reference_to_nothing_says_what_can_be_given(tmp_path: Path) -> None:
    with (
        pytest.raises(errors.RefNotFound, match="resume='yes' is none of 'auto', 'never', 'must'"),
        checkpointer(tmp_path, Walk().state, resume="yes"),
    ):
        pass


def test_hyperparameters_that_do_not_count_are_recorded_as_they_are_now(tmp_path: Path) -> None:
    walk(tmp_path, 10, hp={"lr": 1, "max_steps": 10})
    with checkpointer(tmp_path, Walk().state, hp={"lr": 1, "max_steps": 20}) as ckpt:
        assert "max_steps: 10, and here 20" in str(ckpt.resume_report)
    assert standfast.Store(tmp_path).runs()[0].hyperparameters == {"lr": 1, "max_steps": 20}


def test_a_run_that_is_done_says_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    walk(tmp_path, 10)
    walk(tmp_path, 10, quiet=False)
    assert "nothing is left to do: step 10 of 10 is done" in capsys.readouterr().err


def test_an_error_says_where_the_run_can_be_continued(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    _crash(tmp_path, at=15, quiet=False)
    assert "ended by Stop; its last checkpoint is that of step 10" in capsys.readouterr().err


def test_the_number_of_steps_is_an_integer(tmp_path: Path) -> None:
    with (
        checkpointer(tmp_path, Walk().state) as ckpt,
        pytest.raises(errors.BadOption, match="an integer, not a float"),
    ):
        next(ckpt.steps(1e3))  # type: ignore[arg-type]


# What goes wrong and is put right


def test_a_save_that_failed_can_be_made_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from standfast.store.backends.local import LocalBackend

    def refuse(*arguments: Any, **options: Any) -> None:
        raise errors.WriteFailed(28, "disk full")

    with checkpointer(tmp_path, Walk().state, every=1, asynchronous=True) as ckpt:
        with monkeypatch.context() as patched:
            patched.setattr(LocalBackend, "create", refuse)
            ckpt.step(1)
            with pytest.raises(errors.WriteFailed, match="disk full"):
                ckpt.wait()
        ckpt.save()
        ckpt.wait()
        assert _steps(ckpt) == [1]


@pytest.mark.parametrize("asynchronous", [False, True])
def test_a_state_that_was_saved_and_changed_is_saved_again(
    tmp_path: Path, asynchronous: bool
) -> None:
    program = Walk()
    options: dict[str, Any] = {"monitor": "loss", "asynchronous": asynchronous, "every": 1}
    with checkpointer(tmp_path, program.state, **options) as ckpt:
        ckpt.step(1, loss=1.0)
        program.weights += 7
        ckpt.save()
        ckpt.wait()
        assert ckpt.run.load()["walk"]["weights"].tolist() == [7.0] * 4
        assert ckpt.run.checkpoint("best").metrics == {"loss": 1.0}


def test_a_save_within_an_epoch_that_no_loader_knows_is_made_at_its_end(tmp_path: Path) -> None:
    def run(stop: int | None) -> list[tuple[int, int]]:
        seen = []
        with checkpointer(tmp_path, Walk().state, every=None) as ckpt:
            for epoch in ckpt.epochs(3):
                for batch in range(3):
                    seen.append((epoch, batch))
                    ckpt.step()
                    ckpt.save()
                    if len(seen) == stop:
                        return seen
        return seen

    assert run(stop=5) == [(1, 0), (1, 1), (1, 2), (2, 0), (2, 1)]
    assert run(stop=None) == [(e, b) for e in (2, 3) for b in range(3)]


def test_steps_after_epochs_are_saved_on_schedule(tmp_path: Path) -> None:
    with checkpointer(tmp_path, Walk().state, every=5) as ckpt:
        for _ in ckpt.epochs(2):
            ckpt.step()
        for step in ckpt.steps(12):
            ckpt.step(step)
        assert _steps(ckpt) == [2, 5, 10, 12]
        assert ckpt.run.checkpoint(12).epoch == 2


def test_a_refused_branch_leaves_nothing_behind(tmp_path: Path) -> None:
    walk(tmp_path, 10, name="old")
    other = {"name": "new", "hp": {"wide": 1}}
    with (
        pytest.raises(errors.StateMismatch),
        checkpointer(tmp_path, Walk(size=5).state, resume="old@10", **other),
    ):
        pass
    with checkpointer(tmp_path, Walk(size=5).state, **other) as ckpt:
        assert ckpt.next_step == 1


def test_a_branch_of_the_latest_goes_on_when_started_again(tmp_path: Path) -> None:
    walk(tmp_path, 10, name="old")
    for total in (15, 20, 25):
        walk(tmp_path, total, hp={"lr": 2}, resume="latest")
    assert len(standfast.Store(tmp_path).runs()) == 2


def test_the_best_is_that_of_the_steps_that_stay(tmp_path: Path) -> None:
    def run(steps: int, **options: Any) -> None:
        with checkpointer(tmp_path, Walk().state, every=1, **options) as ckpt:
            for step in ckpt.steps(steps):
                ckpt.step(step, loss=[3.0, 2.0, 1.0, 4.0][step - 1])

    run(3, monitor="loss")
    newest = max(tmp_path.rglob("*step_000003*.safetensors"))
    newest.write_bytes(newest.read_bytes()[:-1])
    with pytest.warns(errors.FellBack):
        run(3, monitor="loss")
    best = standfast.Store(tmp_path).runs()[0].checkpoint("best")
    assert best.step == 3
    run(4, monitor="loss", mode="max")
    assert standfast.Store(tmp_path).runs()[0].checkpoint("best").step == 4
    with checkpointer(tmp_path, Walk().state, monitor="loss", mode="min") as ckpt:
        assert ckpt.run.checkpoint("best").step == 3


def test_reports_are_checked(tmp_path: Path) -> None:
    with checkpointer(tmp_path, Walk().state, every=1) as ckpt:
        ckpt.step(1)
        ckpt.report(np.int64(1), value=1.0, other=None)
        assert ckpt.run.checkpoint(1).metrics == {"value": 1.0}
        for step in (-1, 2, 1.0, True):
            with pytest.raises(errors.BadLabel):
                ckpt.report(step, value=1.0)  # type: ignore[arg-type]


def test_a_checkpoint_without_random_states_is_called_inexact(tmp_path: Path) -> None:
    run = standfast.Store(tmp_path).run("bare")
    run.save(1, {"walk": {"weights": np.ones(4), "steps": 1}})
    run.close()
    with checkpointer(tmp_path, Walk().state, name="bare") as ckpt:
        assert ckpt.next_step == 2
        assert "no state of Python's generator" in " ".join(ckpt.resume_report.inexact)


def test_metrics_do_not_pile_up_between_saves(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from standfast.training.metrics import read_metrics

    monkeypatch.setattr("standfast.training.checkpointer._MANY", 10)
    with checkpointer(tmp_path, Walk().state, every=None) as ckpt:
        for step in range(1, 31):
            ckpt.step(step, value=float(step))
        log = next((tmp_path / "logs").iterdir())
        assert len(list(read_metrics(log))) >= 20
        ckpt.save()
        assert ckpt.run.checkpoint(30).metrics == {"value": 30.0}


def test_a_forked_child_that_leaves_the_with_writes_nothing(tmp_path: Path) -> None:
    import os

    from standfast.training.metrics import read_metrics

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
    log = next((tmp_path / "logs").iterdir())
    assert [line.step for line in read_metrics(log)] == [1, 2]


# When


def test_saves_by_the_clock_and_by_a_share_of_the_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = SimpleNamespace(monotonic=itertools.count(step=0.01).__next__)
    monkeypatch.setattr("standfast.training.checkpointer.time", clock)
    monkeypatch.setattr("standfast.training.saves.time", clock)
    for every in ("60ms", "50%"):
        with checkpointer(tmp_path / every, Walk().state, every=every) as ckpt:
            for step in ckpt.steps(40):
                ckpt.step(step)
            steps = _steps(ckpt)
        assert 2 <= len(steps) < 40
        assert steps[-1] == 40


def test_a_save_that_waits_for_the_one_before_says_how_long(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from standfast.store.backends.local import LocalBackend

    create = LocalBackend.create

    def slowly(self: LocalBackend, name: str, data: bytes) -> None:
        time.sleep(0.8)
        create(self, name, data)

    options: dict[str, Any] = {"every": 1, "asynchronous": True, "quiet": False}
    with checkpointer(tmp_path, Walk().state, **options) as ckpt:
        monkeypatch.setattr(LocalBackend, "create", slowly)
        ckpt.step(1)
        ckpt.step(2)  # there is a second staging, or will be, unless memory is short
        ckpt.step(3)
    assert re.search(r"step [23] waited [\d.]+ s for the saves before it", capsys.readouterr().err)
