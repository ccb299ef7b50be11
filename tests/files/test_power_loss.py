"""Whenever the power fails, the old file or the new one is there; after a save, the new one."""

from __future__ import annotations

from pathlib import Path

import pytest

import standfast
from standfast.files.atomic import aside_prefix
from tests.files.states import NEW, OLD, SMALL_BLOCK
from tests.kit.power import LoggingDisk, Operation, folder_state, states_after_power_cut
from tests.kit.seams import Seams


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
def test_a_power_cut_at_any_moment_leaves_the_old_file_or_the_new_one(logged: Save) -> None:
    kinds = [operation.kind for operation in logged.log]
    assert kinds.count("write") >= 4
    assert logged.violations(logged.log) == 0


def test_every_sync_is_needed_and_comes_before_the_rename(logged: Save) -> None:
    kinds = [operation.kind for operation in logged.log]
    sync, rename, sync_folder = map(kinds.index, ("sync", "rename", "sync_folder"))
    assert [kind for kind in kinds if kind.startswith("sync")] == ["sync", "sync_folder"]
    for at in (sync, sync_folder):
        assert logged.violations(logged.log[:at] + logged.log[at + 1 :]) > 0
    log = list(logged.log)
    log[sync], log[rename] = log[rename], log[sync]
    assert logged.violations(log) > 0
