"""What a Checkpointer keeps: over restarts, in branches, and when it is killed."""

import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import standfast
from standfast import KeepAll, KeepBest, KeepLast, Store
from standfast.errors import BadOption, NotDeleted, StateMismatch
from standfast.store.maintenance.doctor import examine
from standfast.store.retention.pins import pinned_steps
from standfast.training.checkpointer import EVERY
from tests.kit.walk import Walk, checkpointer


def _train(
    store: Path, steps: int, losses: dict[int, float] | None = None, **options: Any
) -> list[int]:
    """Train, and return the steps that are there in the end."""
    with checkpointer(store, Walk().state, **{"every": 1, **options}) as ckpt:
        for step in ckpt.steps(steps):
            ckpt.step(step, loss=(losses or {}).get(step, 1.0))
    return _steps(store)


def _steps(store: Path) -> list[int]:
    (run,) = Store(store).runs()
    return [checkpoint.step for checkpoint in run.checkpoints()]


def test_only_what_is_kept_is_there_over_restarts(tmp_path):
    losses = {2: 0.1, 5: 0.2, 6: 0.3}
    keep = KeepLast(2) | KeepBest(2, "loss")
    assert _train(tmp_path, 9, losses, keep=keep) == [2, 5, 8, 9]
    # Without being told again, and the best of before the restart are still the best.
    assert _train(tmp_path, 12, {11: 0.15}) == [2, 11, 12]
    assert _train(tmp_path, 14, keep=KeepLast(3)) == [12, 13, 14]


def test_the_helper_process_deletes_and_the_training_process_does_not(tmp_path, seams):
    deleted = []
    seams.backend(delete=lambda delete, names: (deleted.extend(names := [*names]), delete(names)))
    with checkpointer(tmp_path, Walk().state, every=1, keep=KeepLast(1), asynchronous=True) as ckpt:
        for step in range(1, 6):
            ckpt.step(step)
            ckpt.wait()
        assert [each.step for each in ckpt.run.checkpoints()] == [5]
        assert not [name for name in deleted if "_step_" in name]


def test_where_a_run_came_from_stays_while_it_runs(tmp_path):
    _train(tmp_path, 3, keep=KeepAll())
    with checkpointer(tmp_path, Walk().state, every=1, keep=KeepLast(1)) as ckpt:
        for step in ckpt.steps(7):
            ckpt.step(step)
            assert {3, step} == {each.step for each in ckpt.run.checkpoints()}
        assert pinned_steps(ckpt.store.backend, ckpt.run.hash) == {3}
        why = {each.step: each.why[0] for each in ckpt.run.verdicts()}
        assert "in use" in why[3]
    assert _steps(tmp_path) == [7]


def test_a_branch_keeps_what_its_parent_does_and_the_parent_while_it_runs(tmp_path):
    _train(tmp_path, 4, name="first", keep=KeepAll())
    first = Store(tmp_path).find_run("first")
    with checkpointer(tmp_path, Walk().state, every=1, name="second", resume="first@2") as ckpt:
        assert ckpt.resume_report.branched
        first.retain(KeepLast(1))
        assert [each.step for each in first.checkpoints()] == [2, 4]
        for step in ckpt.steps(5):
            ckpt.step(step)
    first.retain()
    assert [each.step for each in first.checkpoints()] == [4]
    with checkpointer(tmp_path, Walk().state, every=1, name="third", resume="first") as ckpt:
        for step in ckpt.steps(9):
            ckpt.step(step)
        assert [each.step for each in ckpt.run.checkpoints()] == [9]


def test_metrics_that_came_after_the_last_save_are_seen_in_the_end(tmp_path):
    with checkpointer(tmp_path, Walk().state, every=1, keep=KeepBest(1), monitor="loss") as ckpt:
        for step in ckpt.steps(4):
            ckpt.step(step)
            ckpt.report(loss=float(step))
    assert _steps(tmp_path) == [1, 4]


def test_the_names_of_other_frameworks(tmp_path):
    losses = {1: 0.5, 2: 0.1, 3: 0.7, 4: 0.3}
    options: dict[str, Any] = {"save_top_k": 2, "monitor": "loss", "mode": "max"}
    assert _train(tmp_path / "lightning", 4, losses, **options) == [1, 3, 4]
    options = {"save_total_limit": 2, "metric_for_best_model": "loss", "save_steps": 2}
    assert _train(tmp_path / "transformers", 9, losses, every=EVERY, **options) == [2, 9]
    wrong = {"save_steps": {"save_steps": 2}, "save_top_k": {"save_topk": 2}}
    for name, options in {**wrong, "KeepBest": {"keep": KeepBest(2)}}.items():
        with pytest.raises(BadOption, match=name):
            checkpointer(tmp_path, Walk().state, **options)


def test_what_lost_its_optimizer_is_not_resumed_from(tmp_path):
    def state() -> standfast.TrainingState:
        return standfast.TrainingState(
            model={"weight": np.zeros(300_000)}, optimizer={"moments": np.zeros(300_000)}
        )

    keep = KeepLast(1) | KeepAll(without="optimizer")
    with checkpointer(tmp_path, state(), name="a", every=1, keep=keep) as ckpt:
        for step in ckpt.steps(3):
            ckpt.step(step)
        run = ckpt.run
    assert [each.head.dropped for each in run.checkpoints()] == [["optimizer"]] * 2 + [[]]
    assert set(run.load(1)) == {"model", "random"}
    with (
        pytest.raises(StateMismatch, match="optimizer"),
        checkpointer(tmp_path, state(), name="b", resume="a@1"),
    ):
        pass
    with checkpointer(tmp_path, state(), name="a") as ckpt:
        assert ckpt.resume_report.step == 3


@pytest.mark.parametrize("asynchronous", [False, True])
def test_what_goes_wrong_with_the_deletion_is_said(tmp_path, capsys, asynchronous):
    options = {"keep": KeepLast(1), "asynchronous": asynchronous, "quiet": False}
    with checkpointer(tmp_path, Walk().state, every=1, **options) as ckpt:
        assert ckpt.store.logs is not None
        (ckpt.store.logs / f"{ckpt.run.hash}_retention.jsonl").mkdir()
        ckpt.step(1)
        if asynchronous:
            ckpt.step(2)
            ckpt.wait()
            assert "_retention.jsonl" in capsys.readouterr().err
        else:
            with pytest.warns(NotDeleted, match="_retention.jsonl"):
                ckpt.step(2)
    assert _steps(tmp_path) == [2], "a history that cannot be written keeps nothing from going"


PROGRAM = """
import sys, numpy as np, standfast
state = standfast.TrainingState(model={"w": np.zeros(200_000)}, optimizer={"m": np.zeros(200_000)})
keep = standfast.KeepLast(2) | standfast.KeepBest(1, "loss")
with standfast.Checkpointer(sys.argv[1], state, every=1, keep=keep) as ckpt:
    for step in ckpt.steps(10_000):
        state.model["w"] += 1
        state.optimizer["m"] += step
        ckpt.step(step, loss=abs(step % 7 - 3))
"""


@pytest.mark.long
def test_killed_at_any_moment_it_leaves_a_sound_store(tmp_path):
    chance = random.Random(6)
    last = 0
    for _ in range(60):
        process = subprocess.Popen(
            [sys.executable, "-c", PROGRAM, str(tmp_path)],
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        _wait_for_more_than(last, tmp_path)
        time.sleep(chance.random() / 2)
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        store = Store(tmp_path)
        found = examine(store.backend, store.index)
        assert found.sound, found.damaged
        (run,) = store.runs()
        there = [each.step for each in run.checkpoints()]
        assert len(there) <= 5, "two, the best, where it came from, and one that was on its way"
        assert there[-1] > last, "nothing that was committed is lost"
        last = there[-1]
        state = run.load()
        assert float(state["model"]["w"][0]) == last
        assert float(state["optimizer"]["m"][0]) == last * (last + 1) / 2


def _wait_for_more_than(last: int, store: Path) -> None:
    """Wait until a later step is committed."""
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        for record in store.glob("checkpoints/models/*/*_step_*.json"):
            step = record.name.partition("_step_")[2].partition(".")[0]
            if int(step) > last + 1:
                return
        time.sleep(0.01)
