"""Whenever the power fails while a folder is replaced, the old one or the new one is there."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.files.folder_swap.folder_states import NEW, OLD, OTHERS, prepare, save
from tests.kit.power import LoggingDisk, Operation, Tree, read_tree, trees_after_power_cut


class Save:
    """A save of NEW, logged."""

    def __init__(self, folder: Path, is_there: bool) -> None:
        path = prepare(folder / "model", is_there)
        self.before = read_tree(folder)
        self.states = [NEW | OTHERS, OLD | OTHERS] if is_there else [NEW, {}]
        disk = LoggingDisk(folder)
        save(path, disk)
        self.log = disk.log

    def violations(self, log: list[Operation]) -> int:
        """How many states after a power cut are neither the old folder nor the new one."""
        return sum(
            _model(tree) not in (self.states[:1] if is_over else self.states)
            for is_over, tree in trees_after_power_cut(log, self.before)
        )


def _model(tree: Tree) -> Tree:
    below = {name.removeprefix("model/"): tree[name] for name in tree if name.startswith("model/")}
    return {name: content for name, content in below.items() if name}


@pytest.fixture(params=[True, False], ids=["over a folder", "as a new folder"])
def logged(request: pytest.FixtureRequest, tmp_path: Path) -> Save:
    return Save(tmp_path, request.param)


def test_a_power_cut_at_any_moment_leaves_the_old_folder_or_the_new_one(logged: Save) -> None:
    assert logged.violations(logged.log) == 0


def _last(log: list[Operation], *kinds: str) -> int:
    return max(i for i, operation in enumerate(log) if operation.kind in kinds)


def test_the_new_folder_is_synced_after_the_last_link_and_before_the_exchange(
    tmp_path: Path,
) -> None:
    logged = Save(tmp_path, is_there=True)
    exchange = _last(logged.log, "exchange")
    sync = max(i for i in range(exchange) if logged.log[i].kind == "sync_folder")
    assert _last(logged.log, "link") < sync
    assert logged.violations(logged.log[:sync] + logged.log[sync + 1 :]) > 0


def test_the_folder_above_is_synced_before_the_old_one_is_removed(tmp_path: Path) -> None:
    logged = Save(tmp_path, is_there=True)
    (sync,) = (
        i
        for i, operation in enumerate(logged.log)
        if (operation.kind, operation.name) == ("sync_folder", "")
    )
    assert _last(logged.log, "exchange") < sync
    assert "remove" not in [operation.kind for operation in logged.log[:sync]]
    moved = [*logged.log[:sync], *logged.log[sync + 1 :], logged.log[sync]]
    assert logged.violations(moved) > 0
