"""The index is a view: cold, warm, deleted, garbled or stale, it says what the records say."""

import os
import shutil
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from standfast import Run, Store, errors
from standfast.store.index import database
from tests.kit.stores import folder, overwrite, random_bytes, record_path
from tests.store.meanwhile import again


@pytest.fixture
def run(store: Store) -> Run:
    run = store.run("a")
    for step in (1, 2, 3):
        run.save(step, {"step": step, "x": np.full(2, step)}, best=step == 2)
    run.checkpoint(1).tag("paper")
    run.close()
    return run


def _file(store: Store) -> Path:
    return Path(store.url) / ".standfast" / database.NAME


def _says(store: Store) -> Any:
    """All that an index is asked for."""
    store.index.refresh()
    return (
        [(each.run, each.step, each.head) for each in store.index.newest()],
        [best.step for each in store.index.runs() if (best := store.index.best(each.run))],
        store.index.runs(),
        store.index.highest(),
        store.index.tagged("paper"),
        [store.index.files(each.run) for each in store.index.runs()],
        store.index.unreadable(),
    )


def test_it_says_what_the_records_say(store, run):
    newest, best, runs, highest, tagged, (files,), problems = _says(store)
    assert [step for _, step, _ in newest] == [3, 2, 1]
    assert best == [2]
    assert [(each.run, each.name) for each in runs] == [(run.hash, "a")]
    assert highest == 3
    assert tagged == [(run.hash, 1)]
    assert len(files) == 3
    assert problems == []


def _execute(*statements: str) -> Callable[[Path], None]:
    def execute(path: Path) -> None:
        with closing(sqlite3.connect(path)) as other, other:
            for statement in statements:
                other.execute(statement)

    return execute


HARM: dict[str, Callable[[Path], object]] = {
    "deleted": Path.unlink,
    "its folder deleted": lambda path: shutil.rmtree(path.parent),
    "cut": lambda path: os.truncate(path, path.stat().st_size // 2),
    "garbage": lambda path: path.write_bytes(os.urandom(10_000)),
    "without a table": _execute("DROP TABLE records"),
    "with another table": _execute("DROP TABLE records", "CREATE TABLE records (a TEXT)"),
    "with other rows": _execute("UPDATE records SET head = x'00'"),
}


@pytest.mark.guarantee("G17")
@pytest.mark.parametrize("how", HARM)
def test_what_becomes_of_it_does_not_matter(store, run, how):
    expected = _says(store)
    path = _file(store)
    store.index.close()
    HARM[how](path)
    for each in (again(store), store):
        assert _says(each) == expected
    with closing(sqlite3.connect(path)) as other:  # it is a file again, for all to use
        assert other.execute("SELECT count(*) FROM records").fetchone() == (3,)
    assert store.resolve("paper").step == 1
    assert store.run("a").load()["step"] == 3


def test_it_is_deleted_while_it_is_open(store, run):
    expected = _says(store)
    shutil.rmtree(_file(store).parent)
    assert _says(store) == expected
    run.save(4, {"step": 4})
    assert store.resolve("latest").step == 4
    assert again(store).resolve("latest").step == 4


def test_where_it_cannot_be_written_it_lives_in_memory(store, run, seams):
    expected = _says(store)
    seams.backend(cache=None)
    assert _says(again(store)) == expected
    run = again(store).run("a")
    run.save(4, {"step": 4})
    assert run.load()["step"] == 4


def test_a_warm_index_looks_into_no_folder_that_did_not_change(store, run, seams):
    seams.bound("settled folder", -1)  # the clock of the disk has gone on
    expected = _says(store)
    refuse = lambda *_, **__: pytest.fail("it looked into a folder")  # noqa: E731
    seams.backend(list=refuse, read=refuse, open=refuse)
    assert _says(store) == expected
    assert _says(again(store)) == expected


def test_what_another_process_does_is_seen(store, run):
    _says(store)
    other = again(store)
    other.run("b").save(1, {"who": "b"})
    assert store.resolve("latest").state()["who"] == "b"
    other.run("a").delete(3)
    assert store.resolve("a").step == 2
    other.untag("paper")
    with pytest.raises(errors.RefNotFound):
        store.resolve("paper")
    other.find_run("b").delete_all()
    assert [each.run for each in store.index.runs()] == [run.hash]
    shutil.rmtree(folder(run))
    with pytest.raises(errors.RefNotFound):
        store.run("c").load()
    assert list(store.index.newest()) == []


def test_a_change_within_the_same_tick_of_the_clock_is_not_overlooked(store, run):
    _says(store)
    for step in (4, 5):
        before = folder(run).stat().st_mtime_ns
        run.save(step, {"step": step})
        os.utime(folder(run), ns=(before, before))
        assert store.resolve("latest").step == step
        assert again(store).resolve("latest").step == step
    run.delete(5)
    os.utime(folder(run), ns=(before, before))
    assert store.resolve("latest").step == 4


def test_a_clock_that_was_set_back_hides_nothing(store, run):
    def changed_in(seconds: int) -> None:
        time_of = time.time_ns() + seconds * 10**9
        os.utime(folder(run), ns=(time_of, time_of))

    _says(store)
    changed_in(3600)
    _says(store)
    run.save(4, {"step": 4})
    assert store.resolve("latest").step == 4
    changed_in(-3600)
    assert store.resolve("latest").step == 4


def test_a_record_that_was_replaced_is_read_again(store, run, seams):
    other = again(store)
    other.index.refresh()
    for count in range(1, 4):
        run.save(2, {"step": 2, "count": count}, replace=True)
        assert other.resolve("a@2").state()["count"] == count
        assert other.resolve("latest").sequence == 3 + count
    seams.backend(cache=None)
    other = again(store)
    other.index.refresh()
    inode = record_path(run, 2).stat().st_ino
    run.save(2, {"count": 4}, replace=True)
    for count in range(5, 400):  # until the record has the inode that this index saw
        run.save(2, {"count": count}, replace=True)
        if record_path(run, 2).stat().st_ino == inode:
            break
    else:
        pytest.skip("this disk does not use inodes again")
    assert other.resolve("a@2").state()["count"] == count


def test_a_damaged_record_is_known_as_such_until_it_is_mended(store, run):
    path = record_path(run, 3)
    good = path.read_bytes()
    overwrite(path, b"garbage")
    store.index.refresh()
    assert [each[:2] for each in store.index.unreadable()] == [(run.hash, 3)]
    assert store.index.unreadable(run.hash) == store.index.unreadable()
    assert store.index.unreadable("f" * 24) == []
    overwrite(path, good)
    store.index.refresh()
    assert store.index.unreadable() == []
    assert store.resolve("latest").step == 3


def test_foreign_files_and_folders_are_no_part_of_it(store, run):
    expected = _says(store)
    (folder(run) / "notes.txt").write_text("x")
    (folder(run) / f"{run.hash}_step_000009.json.bak").write_text("x")
    (folder(run) / f"{'f' * 24}_step_000009.json").write_bytes(record_path(run, 3).read_bytes())
    (folder(run) / "folder").mkdir()
    (folder(run).parent / "something else").mkdir()
    (folder(run).parent / ("f" * 24)).write_text("no folder")
    assert _says(store) == expected


def test_a_long_head_is_read_whole_and_many_page_by_page(store):
    run = store.run("many")
    metrics = {f"metric {i}": float(i) for i in range(2000)}
    for step in range(60):
        run.save(step, {}, metrics=metrics if step == 59 else {})
    assert record_path(run, 59).read_bytes().index(b"\n") > 3 * 8192
    assert again(store).resolve("many").metrics == metrics
    store.index.refresh()
    assert [each.step for each in store.index.newest(run.hash)] == list(range(59, -1, -1))
    assert store.index.count() == store.index.count(run.hash) == 60
    assert store.index.steps(run.hash) == list(range(60))


@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
def test_a_forked_child_asks_with_the_same_store(store, run):
    assert store.resolve("latest").step == 3
    child = os.fork()
    if not child:
        mine = store.run("child")
        mine.save(9, {"x": random_bytes(100_000)})
        os._exit(store.resolve("latest").step)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 9
    assert store.resolve("latest").state()["x"].size == 100_000
    run.save(10, {})
    assert store.resolve("latest").step == 10


def test_another_process_that_ends_leaves_it_to_those_who_have_it_open(store, run):
    both = [store, again(store)]  # the second must not take away the locks of the first
    expected = [_says(each) for each in both]
    program = "import sys, standfast; print(standfast.Store(sys.argv[1]).resolve('latest').step)"
    command = [sys.executable, "-c", program, str(Path(store.url).parent)]
    assert subprocess.run(command, check=True, capture_output=True).stdout == b"3\n"
    for suffix in ("-wal", "-shm"):
        assert _file(store).with_name(f"{database.NAME}{suffix}").exists()
    assert [_says(each) for each in both] == expected


def test_threads_share_an_index(store, run):
    def work(number: int) -> None:
        mine = store.run(f"thread {number}")
        for step in range(5):
            mine.save(step, {"number": number})
            assert mine.load()["number"] == number

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(work, range(4)))
    sequences = [each.head.sequence for each in store.index.newest()]
    assert len(sequences) == 23
    assert sequences == sorted(sequences, reverse=True)


def test_a_file_that_is_given_up_goes_after_its_shared_memory(store, run, seams):
    # Beside a new file, SQLite would cut it under those who have it for the old one: SIGBUS.
    store.index.refresh()
    removed: list[str] = []

    def noted(remove: Callable[[Path], None], path: Path) -> None:
        removed.append(path.name.removeprefix(database.NAME))
        remove(path)

    seams.disk(remove=noted)
    store.index._database._delete()
    assert removed == ["-shm", "-wal", ""]
    assert not list(_file(store).parent.glob(f"{database.NAME}*"))


@pytest.mark.guarantee("G7")
def test_a_clock_that_is_ahead_of_the_disks_hides_no_change(tmp_path, seams):
    """Two changes within a tick of the disk's clock leave one version of the folder."""
    store, other = Store(tmp_path), Store(tmp_path)
    run = store.run("a")
    run.save(1, {"n": 1})
    ahead = time.time_ns() + 86400 * 10**9
    seams.system(time, time_ns=lambda _: ahead)
    other.index.refresh()
    versions = store.backend.folders("models")
    run.save(2, {"n": 2})
    seams.backend(folders=lambda *_: versions)
    other.index.refresh()
    assert other.index.steps(run.hash) == [1, 2]
