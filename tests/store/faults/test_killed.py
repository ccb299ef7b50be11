"""Whenever a change of a store is killed, the old state or the new one is there."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from standfast.files import disk
from standfast.store import Store
from standfast.store.maintenance.doctor import examine
from tests.kit.cases import kept
from tests.kit.fault_states import (
    DAMAGED,
    UnsyncedDisk,
    check_between,
    check_next_save,
    leftovers,
)
from tests.store.faults.changes import CHANGES


@pytest.mark.guarantee("G1")
@pytest.mark.parametrize("stride", [3, pytest.param(1, marks=pytest.mark.long)])
@pytest.mark.parametrize("name", kept(CHANGES, *list(CHANGES)[1:4], "a delete"))
def test_a_change_killed_at_any_operation_leaves_the_old_state_or_the_new_one(
    name: str, stride: int, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(disk, "LOCAL", UnsyncedDisk())
    change = CHANGES[name]
    child = [sys.executable, "-m", "tests.store.faults.killed", name, str(folder)]
    done = subprocess.run(child, check=False, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    *killed, last = map(int, done.stdout.split())
    assert last == 0, done.stderr
    assert set(killed) == {-signal.SIGKILL}
    left = 0
    is_new = []
    for at in range(1, len(killed) + 1):
        store = Store(folder / str(at))
        is_new.append(check_between(store, change.before, change.after))
        left += len(leftovers(store))
        if at % stride == 0:
            if DAMAGED not in change.before.values():
                assert examine(store.backend, store.index).sound
            check_next_save(store, change.ever)
        store.index.close()
    assert is_new == sorted(is_new), "the new state was there, and then the old one again"
    assert {True, False} == set(is_new)
    assert check_between(Store(folder / str(len(killed) + 1)), change.before, change.after)
    assert left > 0, "no kill left anything behind: were they early enough?"
