"""A training that fails to start deletes the run that it made, and never what others saved."""

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import standfast
from standfast.errors import RunBusy, StandfastError, WriteFailed
from standfast.lightning.run import TrainerRun
from standfast.store.backends.local import LocalBackend
from standfast.training.beginning import Settings
from standfast.training.best import Best
from tests.kit.seams import Seams
from tests.kit.stores import folder, record_path
from tests.kit.walk import Walk, checkpointer


def _checkpointer(place: Path) -> None:
    with checkpointer(place, Walk().state, name="a", monitor="loss"):
        pass


def _lightning(place: Path) -> None:
    settings, best = Settings("a", None, None, None, None, ()), Best("loss", "min")
    TrainerRun(standfast.Store(place), settings, best, None, print).begin("auto", False, None)


STARTS = pytest.mark.parametrize("start", [_checkpointer, _lightning])


def refused(operation: Any, name: Any, *data: bytes) -> None:
    """Refuse to change the file of a run."""
    if "_run.json" in str(name):
        raise WriteFailed(operation.__name__)
    operation(name, *data)


@pytest.fixture(autouse=True)
def fails_late(seams: Seams) -> None:
    """Let a start fail after the run was made and taken: its file cannot be replaced."""

    seams.backend(replace=refused)


def _before_taking(seams: Seams, act: Callable[[LocalBackend, str], Any]) -> None:
    """Let another process act when the run is made, and before its lock is taken."""
    done: list[str] = []

    def late(lock: Any, name: str, *args: Any, **options: Any) -> Any:
        if len(name) == 24 and not done:
            done.append(name)
            act(lock.__self__, name)
        return lock(name, *args, **options)

    seams.backend(lock=late)


@STARTS
@pytest.mark.parametrize("is_deleted", [True, False])
def test_a_run_that_was_made_for_it_is_deleted_or_the_failure_to_do_so_noted(
    start, is_deleted, tmp_path, seams
):
    if not is_deleted:
        seams.backend(delete=refused)
    with pytest.raises(WriteFailed, match="replace") as caught:
        start(tmp_path)
    runs = [run.hash for run in standfast.Store(tmp_path).runs()]
    notes = getattr(caught.value, "__notes__", [])
    assert (runs == []) == is_deleted
    assert [run for run in runs if run not in "".join(notes)] == []


@STARTS
@pytest.mark.guarantee("G14")
@pytest.mark.parametrize("is_damaged", [False, True])
def test_what_another_process_saved_into_it_stays(start, is_damaged, tmp_path, seams):
    with standfast.Store(tmp_path / "other").run("a") as other:
        other.save(1, {"walk": {"weights": np.ones(4), "steps": 1}})
    if is_damaged:
        record_path(other, 1).write_bytes(b"garbage")
    saved = {path.name: path.read_bytes() for path in folder(other).iterdir()}
    there = tmp_path / "store" / folder(other).relative_to(tmp_path / "other")

    def save(backend: LocalBackend, run: str) -> None:
        assert run == other.hash
        shutil.copytree(folder(other), there, dirs_exist_ok=True)

    _before_taking(seams, save)
    with pytest.raises(StandfastError):
        start(tmp_path / "store")
    assert {name: (there / name).read_bytes() for name in saved} == saved


@STARTS
def test_a_run_that_another_process_has_taken_stays(start, tmp_path, seams):
    held: list[Any] = []
    _before_taking(seams, lambda backend, run: held.append((run, backend.lock(run))))
    with pytest.raises(RunBusy):
        start(tmp_path)
    [(run, lock)] = held
    lock.release()
    assert [each.hash for each in standfast.Store(tmp_path).runs()] == [run]
