"""Whatever happens on the way into the trash or out of it, no checkpoint is lost."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from standfast.files import disk
from standfast.store import Store
from standfast.store.maintenance.doctor import examine
from standfast.store.retention.restoring import restore
from standfast.store.retention.trash import Trash
from standfast.store.schema import names
from tests.kit.fault_states import UnsyncedDisk, check_next_save, contents
from tests.kit.stores import same
from tests.store.faults.test_power_loss import Logged
from tests.store.faults.trash_changes import SHARED, TRASH_CHANGES

LOSING = "an emptied trash"


def check_nothing_is_lost(store: Store, emptied: bool) -> None:
    """All is there or in the trash, and comes back from it; the store is sound meanwhile."""
    found = contents(store)
    assert all(same(found[key], SHARED[key]) for key in found)
    assert examine(store.backend, store.index).sound
    for run in {entry.run for entry in Trash(store.backend).entries()}:
        restore(store.backend, store.index, run)
    again = contents(store)
    lost = {key for key in SHARED if key not in again}
    assert all(same(again[key], SHARED[key]) for key in again)
    assert lost <= ({("first", 2)} if emptied else set())
    assert Trash(store.backend).entries() == []


@pytest.mark.guarantee("G15")
@pytest.mark.parametrize("stride", [5, pytest.param(1, marks=pytest.mark.long)])
@pytest.mark.parametrize("name", TRASH_CHANGES)
def test_a_kill_at_any_operation_loses_nothing(
    name: str, stride: int, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(disk, "LOCAL", UnsyncedDisk())
    child = [sys.executable, "-m", "tests.store.faults.trash_changes", name, str(folder)]
    done = subprocess.run(child, check=False, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    *killed, last = map(int, done.stdout.split())
    assert (last, set(killed)) == (0, {-signal.SIGKILL}), done.stderr
    change = TRASH_CHANGES[name]
    both = 0
    for number, at in enumerate(range(1, len(killed) + 2, stride)):
        store = Store(folder / str(at))
        both += _is_twice(store)
        if number % 2 and not _is_done(store, name):
            whole = len(store.index.steps(store.run("first").hash)) == 3
            change.act(store)  # again: it makes no second copy of the same
            found = Trash(store.backend).entries()
            assert len(found) == ("through" in name) or (not whole and len(found) == 2)
        check_nothing_is_lost(store, name == LOSING)
        Trash(store.backend).empty()
        assert Trash(store.backend).nbytes() == 0
        if number % 3 == 0:
            check_next_save(store, SHARED)
        store.index.close()
    assert len(killed) > 10
    assert both or name == LOSING, "no kill came between the two halves"


def _is_done(store: Store, name: str) -> bool:
    """Whether a change that was killed had nothing left to do that could be asked for again."""
    if "through" in name:
        return ("first", 2) not in contents(store)
    return not Trash(store.backend).entries()


def _is_twice(store: Store) -> bool:
    """Whether a checkpoint is in its run and in the trash."""
    store.index.refresh()
    return any(
        step in store.index.steps(entry.run)
        for entry in Trash(store.backend).entries()
        for step in entry.steps
    )


@pytest.mark.guarantee("G2", "G15")
@pytest.mark.parametrize("name", TRASH_CHANGES)
def test_a_power_cut_at_any_moment_loses_nothing(
    name: str, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The model of the disk leaves out what is hidden: it may vanish, and here it should not.
    monkeypatch.setattr(names, "TRASH", "trash")
    logged = Logged(TRASH_CHANGES[name], folder, monkeypatch)
    trees = list(logged.trees(logged.log))
    assert len(trees) > 10
    for tree in trees[:: 1 + len(trees) // 15]:
        check_nothing_is_lost(Store(logged.laid_out(tree)), name == LOSING)
