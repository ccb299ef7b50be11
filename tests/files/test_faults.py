"""Fail or kill a save at its 1st operation, then the 2nd, …, and cut the power anywhere."""

import errno
import subprocess
import sys
from pathlib import Path

import pytest

import standfast
from standfast import errors
from standfast.files.atomic import aside_prefix
from tests.files.states import NEW, OLD, SMALL_BLOCK, is_state, leftovers
from tests.kit.disk_faults import FaultyDisk, raising
from tests.kit.power import LoggingDisk, Operation, folder_state, states_after_power_cut
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
    fault, exists, tmp_path, seams
):
    seams.bound("blocks of the ring", SMALL_BLOCK)
    struck = []
    expected = errors.WriteFailed if "E" in fault else type(FAULTS[fault])
    for at in range(1, 100):
        path = tmp_path / str(at) / "state.safetensors"
        path.parent.mkdir()
        if exists:
            standfast.save(path, OLD)
        with Seams.until_end() as faults:
            faulty = faults.disk(FaultyDisk(at, raising(FAULTS[fault])))
            try:
                standfast.save(path, NEW)
            except expected:
                assert faulty.struck
            else:
                assert faulty.struck is None
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
        standfast.save(path, NEW)
        assert is_state(path, NEW)
    assert set(struck) >= {"abandoned", "create", "reserve", "write", "truncate"}
    assert set(struck) >= {"sync", "rename", "close", "sync_folder"}
    assert struck.count("write") >= 4


@pytest.mark.guarantee("G1")
def test_a_save_killed_at_any_operation_leaves_the_old_file_or_the_new_one(tmp_path):
    child = [sys.executable, "-m", "tests.files.killed", str(tmp_path), "file"]
    done = subprocess.run(child, capture_output=True, text=True)
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


class Save:
    """A save of NEW, logged."""

    def __init__(self, folder: Path, over_old: bool, seams: Seams) -> None:
        path = folder / "state.safetensors"
        seams.bound("blocks of the ring", SMALL_BLOCK)
        if over_old:
            standfast.save(path, OLD)
        # What a killed save left behind is removed on the way.
        killed = folder / f"{aside_prefix(path)}00000000.standfast"
        killed.write_bytes(b"half a file")
        self.names, self.contents = folder_state(folder)
        self.old = path.read_bytes() if over_old else None
        logging = seams.disk(LoggingDisk())
        standfast.save(path, NEW)
        self.log = logging.log
        self.new = path.read_bytes()
        assert not killed.exists()

    def violations(self, log: list[Operation]) -> int:
        """How many states after a power cut are neither the old file nor the new one."""
        states = states_after_power_cut(log, self.names, self.contents, "state.safetensors")
        return sum(
            content != self.new if returned else content not in (self.old, self.new)
            for returned, content in states
        )


@pytest.fixture(params=[True, False], ids=["over a file", "as a new file"])
def logged(request: pytest.FixtureRequest, tmp_path: Path, seams: Seams) -> Save:
    return Save(tmp_path, request.param, seams)


@pytest.mark.guarantee("G2")
def test_a_power_cut_at_any_moment_leaves_the_old_file_or_the_new_one(logged):
    kinds = [operation.kind for operation in logged.log]
    assert kinds.count("write") >= 4
    assert logged.violations(logged.log) == 0


def test_every_sync_is_needed_and_comes_before_the_rename(logged):
    kinds = [operation.kind for operation in logged.log]
    sync, rename, sync_folder = map(kinds.index, ("sync", "rename", "sync_folder"))
    assert [kind for kind in kinds if kind.startswith("sync")] == ["sync", "sync_folder"]
    for at in (sync, sync_folder):
        assert logged.violations(logged.log[:at] + logged.log[at + 1 :]) > 0
    log = list(logged.log)
    log[sync], log[rename] = log[rename], log[sync]
    assert logged.violations(log) > 0
