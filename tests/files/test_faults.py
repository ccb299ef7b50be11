"""Fail the 1st file operation of a save, then the 2nd, … until none is left."""

from __future__ import annotations

import errno
import subprocess
import sys
from pathlib import Path

import pytest

import standfast
from standfast import errors
from standfast.files import disk, ring
from tests.files.states import NEW, OLD, SMALL_BLOCK, is_state, leftovers
from tests.kit.disk_faults import FaultyDisk, raising

FAULTS = {
    "ENOSPC": OSError(errno.ENOSPC, "No space left on device"),
    "EIO": OSError(errno.EIO, "Input/output error"),
    "a bug": RuntimeError("injected"),
    "Ctrl-C": KeyboardInterrupt(),
}


@pytest.mark.parametrize("exists", [True, False], ids=["over a file", "as a new file"])
@pytest.mark.parametrize("fault", FAULTS)
def test_a_save_that_fails_leaves_the_old_file_or_the_new_one_and_nothing_else(
    fault: str, exists: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ring, "BLOCK", SMALL_BLOCK)
    struck = []
    for at in range(1, 100):
        path = tmp_path / str(at) / "state.safetensors"
        path.parent.mkdir()
        if exists:
            standfast.save(path, OLD)
        faulty = FaultyDisk(at, raising(FAULTS[fault]))
        with monkeypatch.context() as patch:
            patch.setattr(disk, "LOCAL", faulty)
            try:
                standfast.save(path, NEW)
            except (errors.WriteFailed, RuntimeError, KeyboardInterrupt) as error:
                caught: BaseException | None = error
            else:
                caught = None
        if faulty.struck is None:
            assert caught is None
            break
        struck.append(faulty.struck)
        # Only what comes after the rename may have put the new file there.
        renamed = faulty.struck in ("close", "sync_folder")
        if path.exists():
            assert is_state(path, NEW) if renamed or not exists else is_state(path, OLD)
        else:
            assert not exists
            assert not renamed
        assert leftovers(path) == []
        assert isinstance(caught, errors.WriteFailed if "E" in fault else type(FAULTS[fault]))
        if fault == "ENOSPC":
            assert "free some space" in str(caught)
        standfast.save(path, NEW)
        assert is_state(path, NEW)
    expected = {"abandoned", "create", "reserve", "write", "truncate", "sync", "rename"}
    assert expected | {"close", "sync_folder"} <= set(struck)
    assert struck.count("write") >= 4


@pytest.mark.guarantee("G1")
def test_a_save_killed_at_any_operation_leaves_the_old_file_or_the_new_one(tmp_path: Path) -> None:
    orphans = 0
    for at in range(1, 100):
        path = tmp_path / str(at) / "state.safetensors"
        path.parent.mkdir()
        standfast.save(path, OLD)
        child = [sys.executable, "-m", "tests.files.killed_save", str(path), str(at)]
        done = subprocess.run(child, check=False, capture_output=True, text=True)
        if done.returncode == 0:
            break
        assert done.returncode == -9, done.stderr
        assert is_state(path, OLD) or is_state(path, NEW)
        orphans += len(leftovers(path))
        standfast.save(path, NEW)  # removes what the killed one left behind
        assert is_state(path, NEW)
        assert leftovers(path) == []
    assert at > 10
    assert orphans > 3, "no kill left anything behind: were they early enough?"
