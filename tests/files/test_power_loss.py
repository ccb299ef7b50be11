"""Whenever the power fails, the old file or the new one is there; after a save, the new one."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

import standfast
from standfast.files import disk, ring
from tests.files.states import NEW, OLD, SMALL_BLOCK
from tests.kit.power import LoggingDisk, Operation, folder_state, states_after_power_cut


class Save:
    """A save of NEW, logged."""

    def __init__(self, folder: Path, over_old: bool, patch: pytest.MonkeyPatch) -> None:
        path = folder / "state.safetensors"
        patch.setattr(ring, "BLOCK", SMALL_BLOCK)
        if over_old:
            standfast.save(path, OLD)
        # What a killed save left behind is removed on the way.
        killed = folder / next(_leftover_names(path))
        killed.write_bytes(b"half a file")
        self.names, self.contents = folder_state(folder)
        self.old = path.read_bytes() if over_old else None
        logging = LoggingDisk()
        patch.setattr(disk, "LOCAL", logging)
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


def _leftover_names(path: Path) -> Iterator[str]:
    from blake3 import blake3

    yield f".{blake3(path.name.encode()).hexdigest(8)}.00000000.standfast"


@pytest.fixture(params=[True, False], ids=["over a file", "as a new file"])
def logged(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Save:
    return Save(tmp_path, request.param, monkeypatch)


@pytest.mark.guarantee("G2")
def test_a_power_cut_at_any_moment_leaves_the_old_file_or_the_new_one(logged: Save) -> None:
    kinds = [operation.kind for operation in logged.log]
    assert kinds.count("write") >= 4
    assert logged.violations(logged.log) == 0


def test_every_sync_is_needed(logged: Save) -> None:
    syncs = [i for i, operation in enumerate(logged.log) if operation.kind.startswith("sync")]
    assert [logged.log[i].kind for i in syncs] == ["sync", "sync_folder"]
    for i in syncs:
        assert logged.violations(logged.log[:i] + logged.log[i + 1 :]) > 0


def test_the_sync_must_come_before_the_rename(logged: Save) -> None:
    log = list(logged.log)
    sync = next(i for i, operation in enumerate(log) if operation.kind == "sync")
    rename = next(i for i, operation in enumerate(log) if operation.kind == "rename")
    log[sync], log[rename] = log[rename], log[sync]
    assert logged.violations(log) > 0
