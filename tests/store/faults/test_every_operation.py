"""Fail the 1st file operation of each change of a store, then the 2nd, … until none is left."""

from __future__ import annotations

import errno
import itertools
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

from standfast.errors import WriteFailed
from standfast.files import disk
from standfast.store import Run, Store
from tests.kit.fault_states import (
    Faulty,
    State,
    UnsyncedDisk,
    check_between,
    check_next_save,
    copy_store,
    state,
)
from tests.kit.stores import same
from tests.store.faults.changes import CHANGES, Change

FAULTS: dict[str, Callable[[], BaseException]] = {
    "ENOSPC": lambda: OSError(errno.ENOSPC, "No space left on device"),
    "Ctrl-C": KeyboardInterrupt,
    "EIO": lambda: OSError(errno.EIO, "Input/output error"),
    "a bug": lambda: RuntimeError("injected"),
}
IN_TURN = "each in turn"


# The lock of a writer that is dropped goes with it, and no Ctrl-C comes out of there.
pytestmark = pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")


@pytest.mark.guarantee("G1", "G5")
@pytest.mark.parametrize(
    "faults", [IN_TURN, *(pytest.param(each, marks=pytest.mark.long) for each in FAULTS)]
)
@pytest.mark.parametrize("name", CHANGES)
def test_a_change_that_fails_leaves_the_old_state_or_the_new_one(
    name: str, faults: str, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(disk, "LOCAL", UnsyncedDisk())
    change = CHANGES[name]
    change.prepare(folder / "prepared")
    kinds = itertools.cycle(FAULTS if faults == IN_TURN else [faults])
    struck = []
    for at, kind in zip(range(1, 200), kinds, strict=False):
        path = folder / str(at)
        copy_store(folder / "prepared", path)
        store = Store(path)
        hit, caught = fail(change, store, at, kind, monkeypatch)
        if hit is None:
            assert caught is None
            break
        struck.append(hit)
        where = f"{kind} at {hit}, operation {at}"
        # Whoever comes next, the program that had the fault or another, cleans up after it.
        store = store if at % 8 < 4 else Store(path)
        assert check_between(store, change.before, change.after) or caught, where
        check_error(caught, kind)
        if faults != IN_TURN or at % 3 == 0:
            check_next_save(store, change.ever)
        store.index.close()
    assert len(struck) > 10
    assert {"write", "sync", "sync_folder"} <= set(struck)
    assert {"rename", "remove"} & set(struck)


def fail(
    change: Change, store: Store, at: int, kind: str, monkeypatch: pytest.MonkeyPatch
) -> tuple[str | None, str | None]:
    """Make a change with a fault: the operation that was hit, and the error in words."""

    def fault() -> None:
        raise FAULTS[kind]()

    faulty = Faulty(at, fault)
    caught = None
    with monkeypatch.context() as patch:
        patch.setattr(disk, "LOCAL", faulty)
        try:
            change.act(store)
        except (WriteFailed, RuntimeError, KeyboardInterrupt) as error:
            caught = f"{type(error).__name__}: {error}"
    return faulty.struck, caught


def check_error(caught: str | None, kind: str) -> None:
    if caught is not None:
        fault = FAULTS[kind]()
        if isinstance(fault, OSError):
            assert caught.startswith("WriteFailed: ")
            assert fault.strerror in caught
        else:
            assert caught == f"{type(fault).__name__}: {fault}"


@pytest.mark.guarantee("G5")
def test_a_run_whose_save_failed_goes_on_saving(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(disk, "LOCAL", UnsyncedDisk())
    run = Store(folder).run("first")
    run.save(0, state(0, weight=7))
    step = 0
    outcomes = set()
    for at, kind in zip(range(1, 200), itertools.cycle(FAULTS), strict=False):
        step += 1
        new = state(step, weight=7)
        change = Change(
            lambda path: None, partial(_save, run, step, new), {}, {("first", step): new}
        )
        hit, caught = fail(change, Store(folder), at, kind, monkeypatch)
        if hit is None:
            break
        check_error(caught, kind)
        committed = [each.step for each in run.checkpoints()]
        assert step in committed or caught
        outcomes.add(step in committed)
        # The same step, or the next one if it is there: no retry is in its own way.
        step += step in committed
        new = state(step, weight=7)
        run.save(step, new)
        assert same(run.load(), new)
    assert at > 20
    assert outcomes == {True, False}
    for checkpoint in run.checkpoints():
        assert same(checkpoint.state(), state(checkpoint.step, weight=7))
    run.close()
    check_next_save(Store(folder), {("first", 0): None})


def _save(run: Run, step: int, new: State, store: Store) -> None:
    run.save(step, new)
