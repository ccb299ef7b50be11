"""Whenever the power fails, a file of the store is whole or not there; after a sync it is there."""

from collections.abc import Callable
from pathlib import Path

import pytest

from standfast.store.backends.local import LocalBackend
from tests.kit.power import LoggingDisk, Operation, Tree, read_tree, trees_after_power_cut
from tests.kit.seams import Seams
from tests.store.backends.backend_suite import RUN, new_file

NAME = f"{RUN}/file"
BESIDE = f"{RUN}/beside"
OLD, NEW = b"old", bytes(range(256)) * 40


def logged(tmp_path: Path, change: Callable[[LocalBackend], None]) -> tuple[list[Operation], Tree]:
    """What a change asks of the disk, and what was there before."""
    before = read_tree(tmp_path)
    with Seams.until_end() as seams:
        log = seams.disk(LoggingDisk(tmp_path)).log
        change(LocalBackend(tmp_path / "checkpoints"))
    return log, before


def violations(log: list[Operation], before: Tree, may_be: tuple[bytes | None, ...]) -> int:
    """In how many states the file is torn, or not the new one though it was durable."""
    count = 0
    for ended, tree in trees_after_power_cut(log, before):
        content = tree.get(f"checkpoints/{NAME}")
        kept = tree.get(f"checkpoints/{BESIDE}") == before.get(f"checkpoints/{BESIDE}")
        count += (content != NEW if ended else content not in may_be) or not kept
    return count


CHANGES: dict[str, Callable[[LocalBackend], None]] = {
    "create": lambda backend: backend.create(NAME, NEW),
    "new": lambda backend: new_file(backend, NAME, NEW),
    "replace": lambda backend: backend.replace(NAME, NEW),
}


@pytest.mark.parametrize("where", ["in an empty folder", "beside another file"])
@pytest.mark.parametrize("change", CHANGES)
def test_a_power_cut_leaves_the_old_state_or_the_new_one(change, where, tmp_path):
    backend = LocalBackend(tmp_path / "checkpoints")
    old = None
    if "beside" in where:
        backend.create(BESIDE, b"beside")
        if change == "replace":
            backend.create(NAME, OLD)
            old = OLD
    log, before = logged(tmp_path, CHANGES[change])
    assert violations(log, before, (old, NEW)) == 0
    ended = [tree for over, tree in trees_after_power_cut(log, before) if over]
    assert all(tree[f"checkpoints/{NAME}"] == NEW for tree in ended)
    names = {name for tree in ended for name in tree if name.split("/")[-1][0] != "."}
    assert names == {f"checkpoints/{NAME}"} | set(before)


@pytest.mark.parametrize("change", CHANGES)
def test_every_sync_of_a_new_store_is_needed(change, tmp_path):
    log, before = logged(tmp_path, CHANGES[change])
    syncs = [i for i, operation in enumerate(log) if operation.kind.startswith("sync")]
    folders = [log[i].name for i in syncs if log[i].kind == "sync_folder"]
    assert folders == ["", "checkpoints", "checkpoints/models", f"checkpoints/{RUN}"]
    for i in syncs:
        assert violations(log[:i] + log[i + 1 :], before, (None, NEW)) > 0


def test_folders_of_a_killed_process_are_synced_by_the_next_and_once(tmp_path, seams):
    logging = seams.disk(LoggingDisk(tmp_path))
    for folder in ("checkpoints", "checkpoints/models", f"checkpoints/{RUN}"):
        logging.make_folder(tmp_path / folder)
    backend = LocalBackend(tmp_path / "checkpoints")
    backend.create(NAME, NEW)
    assert violations(logging.log, {}, (None, NEW)) == 0
    logging.log.clear()
    backend.create(f"{RUN}/second", b"x")
    kinds = [operation.kind for operation in logging.log]
    assert kinds == ["create", "write", "sync", "link", "remove", "sync_folder"]


def test_what_may_be_deleted_may_be_there_until_the_folder_is_synced(tmp_path):
    LocalBackend(tmp_path / "checkpoints").create(NAME, NEW)

    def delete(backend: LocalBackend) -> None:
        backend.delete([NAME])
        backend.delete_folder(RUN)

    log, before = logged(tmp_path, delete)
    ended = [tree for over, tree in trees_after_power_cut(log, before) if over]
    assert sorted(ended, key=len) == [
        {"checkpoints/models/": b""},
        {f"checkpoints/{RUN}/": b""},
        {f"checkpoints/{NAME}": NEW},
    ]


def test_the_model_of_links_and_folders(tmp_path):
    logging = LoggingDisk(tmp_path)
    logging.make_folder(tmp_path / "a")
    logging.make_folder(tmp_path / "b")
    logging.sync_folder(tmp_path)
    fd = logging.create(tmp_path / "a" / "x")
    logging.sync(fd)
    logging.close(fd)
    logging.sync_folder(tmp_path / "a")
    logging.link(tmp_path / "a" / "x", tmp_path / "b" / "y")
    logging.rename(tmp_path / "a" / "x", tmp_path / "b" / "z")
    states = [tree for ended, tree in trees_after_power_cut(logging.log, {}) if ended]
    # A rename from folder to folder may leave both names, or none.
    assert len(states) == 8
    assert {"a/": b"", "b/": b""} in states
    assert {"a/x": b"", "b/y": b"", "b/z": b""} in states
    logging.sync_folder(tmp_path / "b")
    logging.sync_folder(tmp_path / "a")
    states = [tree for ended, tree in trees_after_power_cut(logging.log, {}) if ended]
    assert states == [read_tree(tmp_path)] == [{"a/": b"", "b/y": b"", "b/z": b""}]
