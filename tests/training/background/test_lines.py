"""What a Checkpointer that saves in the background says of its saves, and that it is true."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from standfast.store.run import Run
from standfast.training.background import background
from standfast.training.background.background import Background
from standfast.training.background.helpers import Helpers
from tests.kit.walk import Walk, checkpointer

MISSING = "no step that was saved came with"
SLOW = "for the saves before it to end"


def _train(place: Path, steps: int) -> None:
    with checkpointer(
        place, Walk().state, every=1, monitor="loss", asynchronous=True, quiet=False
    ) as ckpt:
        for step in ckpt.steps(steps):
            ckpt.step(step, loss=1.0)


def test_metrics_of_a_save_that_is_written_at_the_end_are_known(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    closing, close, ready = threading.Event(), Background.close, Helpers.ready
    monkeypatch.setattr(Background, "close", lambda self: (closing.set(), close(self))[1])
    monkeypatch.setattr(Helpers, "ready", lambda self: (closing.wait(), ready(self))[1])
    _train(tmp_path, 1)
    assert closing.is_set()
    assert MISSING not in capsys.readouterr().err


def test_metrics_that_are_reported_after_the_save_are_known(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with checkpointer(tmp_path, Walk().state, every=1, monitor="loss", quiet=False) as ckpt:
        for step in ckpt.steps(3):
            ckpt.step(step)
            ckpt.report(loss=1.0)
    assert ckpt.run.checkpoint("best").step == 1
    assert MISSING not in capsys.readouterr().err


@pytest.fixture
def pass_while_waiting(monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    """Let 100 seconds pass as soon as the loop waits for a save; only these do."""
    clock, waiting, take = [0.0], threading.Event(), Background._take

    def wait(self: Background, size: int) -> Any:
        with self._changed:
            if self._jobs and not self._stagings._is_ready(size):
                waiting.set()
        return take(self, size)

    def pass_on() -> None:
        waiting.wait()
        clock[0] += 100

    monkeypatch.setattr(Background, "_take", wait)
    now = SimpleNamespace(perf_counter=lambda: clock[0])
    monkeypatch.setattr(background, "time", now)
    monkeypatch.setattr("standfast.training.background.helpers.time", now, raising=False)
    return pass_on


def test_a_helper_that_starts_is_no_slow_save(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    pass_while_waiting: Callable[[], None],
) -> None:
    begin = Helpers.start
    monkeypatch.setattr(Helpers, "start", lambda self: None)  # it is started with the first job
    started: list[Helpers] = []

    def start(self: Helpers) -> None:
        if not started:
            started.append(self)
            monkeypatch.setattr(Helpers, "start", begin)
            pass_while_waiting()
        begin(self)

    ready = Helpers.ready

    def late(self: Helpers) -> Any:
        monkeypatch.setattr(Helpers, "ready", ready)
        monkeypatch.setattr(Helpers, "start", start)
        return ready(self)

    monkeypatch.setattr(Helpers, "ready", late)
    _train(tmp_path, 5)
    assert started
    assert SLOW not in capsys.readouterr().err


def test_a_slow_save_is_said(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    pass_while_waiting: Callable[[], None],
) -> None:
    commit = Run.commit

    def late(self: Run, *given: Any, **options: Any) -> Any:
        monkeypatch.setattr(Run, "commit", commit)
        pass_while_waiting()
        return commit(self, *given, **options)

    monkeypatch.setattr(Run, "commit", late)
    _train(tmp_path, 5)
    assert SLOW in capsys.readouterr().err
