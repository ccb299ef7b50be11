"""Manifest, index and locks may be lost, garbled or in the way: no checkpoint is."""

import errno
import os
import shutil
import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from standfast.errors import RunBusy
from standfast.store import Store
from standfast.store.index import database
from tests.kit.fault_states import check_between, check_next_save, leftovers, state
from tests.kit.seams import Seams
from tests.kit.stores import same
from tests.store.faults.damage import (
    HELD,
    become_a_folder,
    become_a_link_to_nowhere,
    rewritten,
)

INDEX = database.NAME
VIEWS = ["manifest.yaml", f".standfast/{INDEX}"]


DAMAGES: dict[str, Callable[[Path], object]] = {
    "missing": lambda path: path.unlink(missing_ok=True),
    "garbage": rewritten(lambda data: bytes(range(256)) * 100),
    "cut": rewritten(lambda data: data[: len(data) // 2]),
    "empty": rewritten(lambda data: b""),
    "a folder": become_a_folder,
    "a link to nowhere": become_a_link_to_nowhere,
}


@pytest.mark.guarantee("G17")
@pytest.mark.parametrize("is_open", [False, True], ids=["between runs", "while it is open"])
@pytest.mark.parametrize("view", VIEWS)
@pytest.mark.parametrize("damage", DAMAGES)
def test_a_view_that_is_damaged_is_made_again(damage, view, is_open, store):
    opened = Store(store.path)
    assert len(opened.runs()) == 2
    if not is_open:
        opened.index.close()
        opened = Store(store.path)
    DAMAGES[damage](store.checkpoints / view)
    assert check_between(opened, {}, HELD)
    check_next_save(opened, HELD)
    assert same(Store(store.path).run("second").load(1), HELD["second", 1])
    if "index" in view and not damage.startswith("a ") and not is_open:
        assert has_all_runs(store.checkpoints / view)


def has_all_runs(index: Path) -> bool:
    with sqlite3.connect(index) as connection:
        found = connection.execute("SELECT count(*) FROM runs").fetchone()
    connection.close()
    return bool(found == (2,))


def test_the_manifest_comes_back_with_the_next_save(store):
    manifest = store.checkpoints / "manifest.yaml"
    manifest.write_bytes(b"garbage")
    run = store.run()
    run.save(50, state(50))
    run.close()
    text = manifest.read_text()
    assert f"\nlatest_hash: '{run.hash}'\n" in text
    assert store.run("second").hash in text


@pytest.mark.parametrize("is_empty", [True, False])
def test_an_index_with_other_tables_is_made_again(is_empty, store):
    index = store.checkpoints / ".standfast" / INDEX
    index.unlink()
    connection = sqlite3.connect(index)
    connection.execute("PRAGMA user_version = 99")
    if not is_empty:
        connection.execute("CREATE TABLE records (sequence TEXT)")
    connection.commit()
    connection.close()
    assert check_between(Store(store.path), {}, HELD)
    assert has_all_runs(index)


def test_the_index_of_another_version_is_left_to_it(store, seams):
    """To delete it would pull its memory from under those who have it open."""
    theirs = store.checkpoints / ".standfast" / INDEX
    before = theirs.stat().st_ino
    seams.bound("name of the index", "index-99.sqlite")
    assert check_between(Store(store.path), {}, HELD)
    assert has_all_runs(theirs.with_name("index-99.sqlite"))
    assert theirs.stat().st_ino == before


def test_an_index_with_a_garbled_row_is_made_again(store):
    index = store.checkpoints / ".standfast" / INDEX
    connection = sqlite3.connect(index)
    connection.execute("UPDATE records SET head = x'00'")
    connection.commit()
    connection.close()
    assert check_between(Store(store.path), {}, HELD)


def test_an_index_that_cannot_be_written_is_done_without(store, seams):
    index = store.checkpoints / ".standfast" / INDEX
    before = index.read_bytes()

    def read_only(connect: Callable[..., Any], path: object, **options: Any) -> Any:
        if str(path) == ":memory:":
            return connect(path, **options)
        return connect(f"file:{path}?mode=ro", uri=True, **options)

    def kept(remove: Callable[[Path], None], path: Path) -> None:
        if path.name.startswith(INDEX):
            raise PermissionError(errno.EACCES, "Permission denied")
        remove(path)

    seams.system(sqlite3, connect=read_only)
    seams.disk(remove=kept)
    opened = Store(store.path)
    assert check_between(opened, {}, HELD)
    check_next_save(opened, HELD)
    opened.index.close()
    assert index.read_bytes() == before


@pytest.mark.guarantee("G17")
@pytest.mark.parametrize("how", ["deleted", "a file in its place"])
def test_all_of_standfasts_own_folder_may_vanish_between_saves(how, store):
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


def test_if_standfasts_own_folder_vanishes_during_a_save_nothing_is_committed(store):
    def vanishing(link: Callable[..., None], source: Path, target: Path) -> None:
        if target.suffix == ".safetensors":
            shutil.rmtree(store.checkpoints / ".standfast", ignore_errors=True)
        link(source, target)

    run = store.run()
    with Seams.until_end() as seams:
        seams.disk(link=vanishing)
        with pytest.raises(RunBusy):
            run.save(10, state(10))
    assert check_between(Store(store.path), {}, HELD)
    run.save(10, state(10))
    assert same(run.load(), state(10))
    run.close()
    check_next_save(Store(store.path), HELD)
