"""What was found damaged is known to every run, process and host, until no link to it is left."""

import errno
import os
import shutil
import sqlite3
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from standfast import Run, Store, errors
from standfast.store.index.database import NAME
from standfast.store.maintenance.doctor import examine
from standfast.store.maintenance.verify import verify_store
from standfast.store.schema.damage import trust
from tests.kit.seams import Seams
from tests.kit.stores import MIB, chunks, data_files, data_path, flip, folder, random_bytes
from tests.store.meanwhile import again

STATE = {"frozen": random_bytes(MIB), "n": np.ones(1)}
SHARED = {"frozen": random_bytes(MIB), "more": 1}


@pytest.fixture
def run(store: Store) -> Run:
    run = store.run("a")
    run.save(1, STATE)
    return run


def without_views(store: Store) -> None:
    store.close()
    shutil.rmtree(Path(store.url, ".standfast"))


def fail_reads(seams: Seams, path: Path) -> None:
    """Let the disk fail to read the data of a file, beyond its header."""

    def read(do: Any, fd: int, what: Any, at: int, *flags: int) -> Any:
        end = at + (what if isinstance(what, int) else sum(map(len, what)))
        if os.readlink(f"/proc/self/fd/{fd}") == str(path) and end > 200_000:
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        return do(fd, what, at, *flags)

    seams.system(os, pread=read, preadv=read)


@pytest.mark.guarantee("G9")
def test_a_rotten_chunk_is_not_referred_to_once_it_was_found(store, run):
    flip(data_path(run, 1))
    with pytest.raises(errors.DamagedFile):
        run.load(1)
    run.close()
    without_views(store)
    other = again(store)
    found = other.run("a")
    found.save(2, STATE)
    assert found.checkpoint(2).verify().nbytes > MIB
    assert len(data_files(found)) == 2
    assert other.index.damaged_files() == {data_path(run, 1).name}


def test_another_run_does_not_link_to_it(store, run):
    flip(data_path(run, 1))
    with pytest.raises(errors.DamagedFile):
        run.checkpoint(1).verify()
    branch = again(store).run("b")
    branch.save(1, SHARED)
    branch.checkpoint(1).verify()
    assert data_path(run, 1).name not in data_files(branch)


def test_files_of_others_among_the_marks_are_left_alone(store, run):
    note = Path(store.url, "damaged", "report of march.json")
    note.parent.mkdir()
    note.write_bytes(b"{}")
    run.save(3, {"n": np.ones(3)})
    assert note.read_bytes() == b"{}"


def test_it_is_forgotten_with_the_last_link(store, run):
    branch = store.run("b")
    branch.save(1, SHARED)
    name = data_path(run, 1).name
    assert name in data_files(branch)
    path = data_path(run, 1)
    path.write_bytes(path.read_bytes()[:-1] + b"x")  # in place: all names are of one file
    with pytest.raises(errors.DamagedFile):
        run.load(1)
    run.delete_all()
    with branch:
        branch.save(2, {"more": 2})
        assert store.index.damaged_files() == {name}
    branch.delete(1)
    with branch:
        branch.save(3, {"more": 3})
    assert store.index.damaged_files() == set()


def test_a_repaired_file_is_trusted_once_all_its_names_are_intact(store, run):
    """A store that was copied without its links has two files of one name, each on its own."""
    branch = store.run("b")
    branch.save(1, SHARED)
    name = data_path(run, 1).name
    flip(folder(branch) / name, MIB // 2)
    with pytest.raises(errors.DamagedFile):
        branch.load(1)
    trust(store.backend, run.hash, name)  # that one is intact, but the other is not
    assert store.index.damaged_files() == {name}
    assert examine(store.backend, store.index).sound
    assert store.index.damaged_files() == set()
    branch.checkpoint(1).verify()


def test_a_chunk_that_the_disk_cannot_read_is_not_referred_to_again(store, run):
    path = data_path(run, 1)
    run.close()
    with Seams.until_end() as seams:
        fail_reads(seams, path)
        with pytest.raises(errors.UnreadableFile):
            again(store).find_run("a").checkpoint(1).state(mapped=False)
    found = again(store).find_run("a")
    found.save(2, STATE)
    assert path.name not in {file.name for file in found.checkpoint(2).head.files}


def test_a_chunk_that_verify_cannot_read_is_marked(store, run, seams):
    mounts = Path("/proc/self/mountinfo").read_text().splitlines()
    kinds = {mount.partition(" - ")[2].split()[0] for mount in mounts}
    seams.bound("network file systems", kinds)  # files there are not mapped
    fail_reads(seams, data_path(run, 1))
    assert verify_store(store).damaged.keys() == {f"{run.hash}@1"}
    assert store.index.damaged_files() == {data_path(run, 1).name}


def test_an_unreadable_folder_keeps_its_damage(store, run, seams):
    flip(data_path(run, 1))
    with pytest.raises(errors.DamagedFile):
        run.load(1)
    run.close()

    def refusing(size: Any, name: str) -> Any:
        if run.hash in name:
            raise errors.UnreadableFile(errno.EACCES, f"cannot read {name}: Permission denied")
        return size(name)

    seams.backend(size=refusing)
    again(store).run("b").save(1, {"n": np.ones(1)})
    assert store.index.damaged_files() == {data_path(run, 1).name}


@pytest.mark.guarantee("G17")
@pytest.mark.parametrize("kind", [ValueError, sqlite3.ProgrammingError, sqlite3.OperationalError])
def test_a_foreign_exception_keeps_the_index(store, run, kind):
    path = Path(store.url, ".standfast", NAME)
    before = path.stat().st_ino

    def fails(connection: sqlite3.Connection) -> None:
        if kind is sqlite3.OperationalError:
            connection.execute("SELECT nonsense FROM records")
        raise kind("a defect elsewhere")

    with pytest.raises(kind):
        store.index._database.do(fails)
    assert path.stat().st_ino == before
    other = again(store)
    other.index.refresh()
    assert other.index.steps(run.hash) == [1]


def test_a_checkpoint_is_verified_for_every_host(store, run):
    assert store.index.verified(run.hash) == {}
    run.checkpoint(1).verify()
    run.close()
    without_views(store)
    other = again(store)
    other.index.refresh()
    assert [*other.index.verified(run.hash)] == [1]
    run.save(1, {"x": chunks(1)[:9]}, replace=True)
    other.index.refresh()
    assert other.index.verified(run.hash) == {}
