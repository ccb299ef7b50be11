"""Fail the 1st file operation of a save, then the 2nd, … until none is left."""

from __future__ import annotations

import errno
import subprocess
import sys
from pathlib import Path

import pytest

import standfast
from standfast import errors
from tests.files.states import NEW, OLD, SMALL_BLOCK, is_state, leftovers
from tests.kit.disk_faults import FaultyDisk, raising
from tests.kit.seams import Seams

FAULTS = {
    "ENOSPC": OSError(errno.ENOSPC, "No space left on device"),
    "EIO": OSError(errno.EIO, "Input/output error"),
    "a bug": RuntimeError("injected"),
    "Ctrl-C": KeyboardInterrupt(),
}


@pytest.mark.parametrize("exists", [True, False], ids=["over a file", "as a new file"])
@pytest.mark.parametrize("fault", FAULTS)
def test_a_save_that_fails_leaves_the_old_file_or_the_new_one_and_nothing_else(
    fault: str, exists: bool, tmp_path: Path, seams: Seams
) -> None:
    seams.bound("blocks of the ring", SMALL_BLOCK)
    struck = []
    for at in range(1, 100):
        path = tmp_path / str(at) / "state.safetensors"
        path.parent.mkdir()
        if exists:
            standfast.save(path, OLD)
        caught: BaseException | None = None
        with Seams.until_end() as faults:
            faulty = faults.disk(FaultyDisk(at, raising(FAULTS[fault])))
            try:
                standfast.save(path, NEW)
            except (errors.WriteFailed, RuntimeError, KeyboardInterrupt) as error:
                caught = error
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
        standfast.save(path, NEW)
        assert is_state(path, NEW)
    expected = {"abandoned", "create", "reserve", "write", "truncate", "sync", "rename"}
    assert expected | {"close", "sync_folder"} <= set(struck)
    assert struck.count("write") >= 4


@pytest.mark.guarantee("G1")
def test_a_save_killed_at_any_operation_leaves_the_old_file_or_the_new_one(tmp_path: Path) -> None:
    child = [sys.executable, "-m", "tests.files.killed", str(tmp_path), "file"]
    done = subprocess.run(child, check=False, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    *killed, last = map(int, done.stdout.split())
    assert (set(killed), last) == ({-9}, 0), done.stderr
    orphans = 0
    for at in range(1, len(killed) + 1):
        path = tmp_path / str(at) / "state.safetensors"
        assert is_state(path, OLD) or is_state(path, NEW)
        orphans += len(leftovers(path))
        standfast.save(path, NEW)  # removes what the killed one left behind
        assert is_state(path, NEW)
        assert leftovers(path) == []
    assert len(killed) > 10
    assert orphans > 3, "no kill left anything behind: were they early enough?"
