"""Manifest, index and locks may be lost, garbled or in the way: no checkpoint is."""

from __future__ import annotations

import os
import shutil
import sqlite3
from collections.abc import Callable
from pathlib import Path

import pytest

from standfast.errors import RunBusy
from standfast.files import disk
from standfast.store import Store
from standfast.store.index import database
from tests.kit.fault_states import (
    UnsyncedDisk,
    check_between,
    check_next_save,
    leftovers,
    state,
)
from tests.kit.stores import same
from tests.store.faults.damage import HELD, Damaged

VIEWS = ["manifest.yaml", f".standfast/{database.NAME}"]


@pytest.fixture
def store(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Damaged:
    monkeypatch.setattr(disk, "LOCAL", UnsyncedDisk())
    return Damaged(folder / "store")


def remove(path: Path) -> None:
    path.unlink(missing_ok=True)


def fill_with_garbage(path: Path) -> None:
    path.write_bytes(bytes(range(256)) * 100)


def cut(path: Path) -> None:
    os.truncate(path, path.stat().st_size // 2)


def empty(path: Path) -> None:
    os.truncate(path, 0)


def become_a_folder(path: Path) -> None:
    path.unlink()
    (path / "something").mkdir(parents=True)


def become_a_link_to_nowhere(path: Path) -> None:
    path.unlink()
    path.symlink_to("no/where")


DAMAGES = [remove, fill_with_garbage, cut, empty, become_a_folder, become_a_link_to_nowhere]


@pytest.mark.guarantee("G17")
@pytest.mark.parametrize("is_open", [False, True], ids=["between runs", "while it is open"])
@pytest.mark.parametrize("view", VIEWS)
@pytest.mark.parametrize("damage", DAMAGES)
def test_a_view_that_is_damaged_is_made_again(
    damage: Callable[[Path], None], view: str, is_open: bool, store: Damaged
) -> None:
    opened = Store(store.path)
    assert len(opened.runs()) == 2
    if not is_open:
        opened.index.close()
        opened = Store(store.path)
    damage(store.checkpoints / view)
    assert check_between(opened, {}, HELD)
    check_next_save(opened, HELD)
    assert same(Store(store.path).run("second").load(1), HELD["second", 1])
    in_the_way = damage in (become_a_folder, become_a_link_to_nowhere)
    if "index" in view and not in_the_way and not is_open:
        assert has_all_runs(store.checkpoints / view)


def has_all_runs(index: Path) -> bool:
    with sqlite3.connect(index) as connection:
        found = connection.execute("SELECT count(*) FROM runs").fetchone()
    connection.close()
    return bool(found == (2,))


def test_the_manifest_comes_back_with_the_next_save(store: Damaged) -> None:
    manifest = store.checkpoints / "manifest.yaml"
    manifest.write_bytes(b"garbage")
    run = store.run()
    run.save(50, state(50))
    run.close()
    text = manifest.read_text()
    assert f"\nlatest_hash: '{run.hash}'\n" in text
    assert store.run("second").hash in text


@pytest.mark.parametrize("is_empty", [True, False])
def test_an_index_with_other_tables_is_made_again(is_empty: bool, store: Damaged) -> None:
    index = store.checkpoints / ".standfast" / database.NAME
    index.unlink()
    connection = sqlite3.connect(index)
    connection.execute("PRAGMA user_version = 99")
    if not is_empty:
        connection.execute("CREATE TABLE records (sequence TEXT)")
    connection.commit()
    connection.close()
    assert check_between(Store(store.path), {}, HELD)
    assert has_all_runs(index)


def test_the_index_of_another_version_is_left_to_it(
    store: Damaged, monkeypatch: pytest.MonkeyPatch
) -> None:
    """To delete it would pull its memory from under those who have it open."""
    theirs = store.checkpoints / ".standfast" / database.NAME
    before = theirs.stat().st_ino
    monkeypatch.setattr(database, "NAME", "index-99.sqlite")
    assert check_between(Store(store.path), {}, HELD)
    assert has_all_runs(theirs.with_name("index-99.sqlite"))
    assert theirs.stat().st_ino == before


def test_an_index_with_a_garbled_row_is_made_again(store: Damaged) -> None:
    index = store.checkpoints / ".standfast" / database.NAME
    connection = sqlite3.connect(index)
    connection.execute("UPDATE records SET head = x'00'")
    connection.commit()
    connection.close()
    assert check_between(Store(store.path), {}, HELD)


def test_an_index_that_cannot_be_written_is_done_without(
    store: Damaged, monkeypatch: pytest.MonkeyPatch
) -> None:
    index = store.checkpoints / ".standfast" / database.NAME
    before = index.read_bytes()
    real = sqlite3.connect

    def connect(path: object, **options: object) -> sqlite3.Connection:
        if str(path) == ":memory:":
            return real(path, **options)  # type: ignore[call-overload, no-any-return]
        return real(f"file:{path}?mode=ro", uri=True, **options)  # type: ignore[call-overload, no-any-return]

    class ReadOnly(UnsyncedDisk):
        def remove(self, path: Path) -> None:
            if path.name.startswith(database.NAME):
                raise PermissionError(13, "Permission denied")
            super().remove(path)

    monkeypatch.setattr(sqlite3, "connect", connect)
    monkeypatch.setattr(disk, "LOCAL", ReadOnly())
    opened = Store(store.path)
    assert check_between(opened, {}, HELD)
    check_next_save(opened, HELD)
    opened.index.close()
    assert index.read_bytes() == before


@pytest.mark.guarantee("G17")
@pytest.mark.parametrize("how", ["deleted", "a file in its place"])
def test_all_of_standfasts_own_folder_may_vanish_between_saves(how: str, store: Damaged) -> None:
    own = store.checkpoints / ".standfast"
    run = store.run()
    for step in (10, 11, 12):
        new = state(step, weight=4)
        shutil.rmtree(own)
        if how == "deleted" or step == 12:
            run.save(step, new)
        else:
            own.write_bytes(b"")
            with pytest.raises(OSError, match=r"\.standfast"):
                run.save(step, new)
            own.unlink()
            run.save(step, new)
        assert same(run.load(), new)
    run.close()
    opened = Store(store.path)
    for key, expected in HELD.items():
        assert same(opened.run(key[0]).load(key[1]), expected)
    assert leftovers(opened) == []
    files = {name for name in os.listdir(store.folder()) if "weight" in name or "_00001" in name}
    assert sum("model" in name for name in files) == 3  # each has its own bias, none the weight
    assert all((store.folder() / name).stat().st_size < 8192 for name in files if "model" in name)


def test_if_standfasts_own_folder_vanishes_during_a_save_it_is_refused_or_committed_whole(
    store: Damaged,
) -> None:
    class Vanishing(UnsyncedDisk):
        def link(self, source: Path, target: Path) -> None:
            if target.suffix == ".safetensors":
                shutil.rmtree(store.checkpoints / ".standfast", ignore_errors=True)
            super().link(source, target)

    run = store.run()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(disk, "LOCAL", Vanishing())
        with pytest.raises(RunBusy, match="its lock was deleted during the save"):
            run.save(10, state(10))
    opened = Store(store.path)
    assert check_between(opened, {}, HELD)
    run.save(10, state(10))
    assert same(run.load(), state(10))
    run.close()
    check_next_save(Store(store.path), HELD)
