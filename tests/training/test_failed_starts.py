"""A training that fails to start deletes the run that it made, and never what others saved."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import standfast
from standfast.errors import RunBusy, WriteFailed
from standfast.lightning.run import TrainerRun
from standfast.store.schema import names
from standfast.training.beginning import Settings
from standfast.training.best import Best
from tests.kit.stores import folder, record_path
from tests.kit.walk import Walk, checkpointer

HP = {"lr": 1}


def _checkpointer(place: Path) -> None:
    with checkpointer(place, Walk().state, name="a", hp=HP):
        pass


def _lightning(place: Path) -> None:
    settings = Settings("a", HP, None, None, None, ())
    TrainerRun(standfast.Store(place), settings, Best(None, "min"), None, print).begin(
        "auto", False, None
    )


STARTS = pytest.mark.parametrize("start", [_checkpointer, _lightning])


@pytest.fixture(autouse=True)
def no_space(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a start fail after the run was made and taken."""

    def refuse(*_: Any) -> None:
        raise WriteFailed("no more")

    monkeypatch.setattr(Best, "recall", refuse)


def _after_making(monkeypatch: pytest.MonkeyPatch, act: Callable[[standfast.Run], Any]) -> None:
    """Have another process act as soon as the run is made, and before it is taken."""
    make = standfast.Store.run

    def late(self: standfast.Store, *given: Any, **options: Any) -> standfast.Run:
        made = make(self, *given, **options)
        monkeypatch.setattr(standfast.Store, "run", make)
        act(standfast.Store(Path(self.url).parent).open_run(made.hash))
        return made

    monkeypatch.setattr(standfast.Store, "run", late)


@STARTS
def test_a_run_that_was_made_for_it_is_deleted(start: Any, tmp_path: Path) -> None:
    with pytest.raises(WriteFailed, match="no more"):
        start(tmp_path)
    assert standfast.Store(tmp_path).runs() == []


@STARTS
def test_that_it_could_not_be_deleted_is_noted_and_masks_nothing(
    start: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(run: standfast.Run) -> None:
        raise RunBusy("in use")

    monkeypatch.setattr(standfast.Run, "delete_empty", refuse)
    with pytest.raises(WriteFailed, match="no more") as caught:
        start(tmp_path)
    assert "could not be deleted: in use" in caught.value.__notes__[0]


@STARTS
@pytest.mark.guarantee("G14")
@pytest.mark.parametrize("is_damaged", [False, True])
def test_what_another_process_saved_into_it_stays(
    start: Any, is_damaged: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before: dict[Path, bytes] = {}

    def save(run: standfast.Run) -> None:
        with run:
            run.save(1, {"walk": {"weights": np.ones(4), "steps": 1}})
        if is_damaged:
            record_path(run, 1).write_bytes(b"garbage")
        before.update({path: path.read_bytes() for path in folder(run).iterdir()})

    _after_making(monkeypatch, save)
    with pytest.raises(standfast.errors.StandfastError):
        start(tmp_path)
    assert before
    assert {path: path.read_bytes() for path in before} == before


@STARTS
def test_that_another_process_has_it_is_said(
    start: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    held: list[Any] = []
    _after_making(monkeypatch, lambda run: held.append((run, run.store.backend.lock(run.hash))))
    with pytest.raises(RunBusy):
        start(tmp_path)
    [(run, lock)] = held
    assert lock is not None
    lock.release()
    assert run.store.backend.exists(names.run_file(run.hash))
