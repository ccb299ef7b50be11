"""What a store takes, and what deleting checkpoints frees, is known before, to the byte."""

import os
from pathlib import Path

import pytest

from standfast import Store
from standfast.store.backends.memory import MemoryBackend
from standfast.store.query.listing import checkpoints, short_hashes, written
from standfast.store.retention.removal import delete_checkpoints, delete_run, delete_unused
from standfast.store.retention.space import Space
from standfast.store.retention.trash import Trash
from standfast.store.retention.usage import measure
from standfast.store.schema import names
from tests.kit.stores import data_path, folder, overwrite, record_path
from tests.store.retention.states import OWN, SHARED, make_whole, on_disk, state


def filled(store: Store) -> Store:
    """Two runs with a weight in common, of which the first has another for its last step."""
    for name, steps in (("a", 5), ("b", 3)):
        with store.run(name) as run:
            for step in range(1, steps + 1):
                run.save(step, state(step + 100 * ord(name), SHARED + (step == 5)))
    store.index.refresh()
    return store


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return filled(Store(tmp_path))


def space_of(store: Store, *runs: str) -> Space:
    store.index.refresh()
    return Space(store.backend, store.index, runs or None)


def delete(store: Store, run: str, *steps: int) -> None:
    delete_checkpoints(store.backend, store.index, run, steps)


@pytest.mark.parametrize("order", [(1, 2, 3, 4), (4, 3, 2, 1), (5, 1, 3, 2)])
def test_each_deletion_frees_what_was_said(store, order):
    run = store.find_run("a").hash
    store.checkpoint(run, order[1]).note("not needed")
    space = space_of(store)
    for step in order:
        said, before = space.frees(run, step), on_disk(store)
        assert space.delete(run, step) == said > 0
        delete(store, run, step)
        assert before - on_disk(store) == said
        assert space.total == on_disk(store)


def test_a_file_is_free_with_the_last_run_that_refers_to_it(store):
    a, b = store.find_run("a").hash, store.find_run("b").hash
    space = space_of(store)
    freed = [space.delete(a, step) for step in (1, 2, 3, 4)]
    assert max(freed) < SHARED.nbytes
    assert space.delete(b, 1) < SHARED.nbytes
    assert space.delete(b, 2) < SHARED.nbytes
    assert space.delete(b, 3) > SHARED.nbytes
    for run, steps in ((a, (1, 2, 3, 4)), (b, (1, 2, 3))):
        delete(store, run, *steps)
    assert space.total == on_disk(store)


def test_a_name_outside_of_the_store_keeps_a_file(store, tmp_path):
    run = store.find_run("a")
    path = data_path(run, 4)
    before = space_of(store).frees(run.hash, 4)
    os.link(path, tmp_path / "backup")
    assert before - space_of(store).frees(run.hash, 4) == path.stat().st_size


def test_the_trash_keeps_a_file_until_it_is_emptied(store):
    run = store.find_run("a").hash
    entry = Trash(store.backend).put(run, [4], "rm", "")
    assert entry is not None
    space = space_of(store)
    assert space.total == on_disk(store)
    kept = space.delete(run, 4)
    delete(store, run, 4)
    assert space.total == on_disk(store)
    assert kept == 0
    said = space.trashed(entry.folder)
    assert said == space.empty(entry.folder) > SHARED.nbytes // 8
    assert Trash(store.backend).empty() == said
    assert space.total == on_disk(store)


def test_what_is_put_into_the_trash_still_counts(store):
    run = store.find_run("a").hash
    space, other = space_of(store), space_of(store)
    freed = [space.put_in_trash(run, step) for step in (1, 2)]
    assert freed == [other.delete(run, step) for step in (1, 2)]
    assert space.put == sum(freed)
    assert space.total == on_disk(store)
    assert space.empty_put() == sum(freed)
    assert (space.put, space.total) == (0, other.total)


def test_a_second_name_of_a_whole_file_goes_with_it(store):
    run = store.find_run("a")
    whole = make_whole(run, 3)
    (folder(run) / f"{run.hash}_step_000004.pt").write_bytes(bytes(5000))  # not of ours
    space = space_of(store)
    assert space.total == on_disk(store) - 5000
    assert space.frees(run.hash, 3) > whole.stat().st_size
    assert space.frees(run.hash, 4) < data_path(run, 4).stat().st_size + 5000


def test_a_record_that_cannot_be_read_keeps_all_data_files(store):
    run = store.find_run("a")
    small = record_path(run, 2).stat().st_size
    overwrite(record_path(run, 1), b"nothing")
    (folder(run) / names.data_file(run.hash, 9, "0" * 8, "x")).write_bytes(bytes(99))
    space = space_of(store)
    assert space.frees(run.hash, 2) == space.delete(run.hash, 2) == small
    assert space.orphans(run.hash) == 0
    freed = space.delete(run.hash, 1)
    delete(store, run.hash, 2, 1)
    assert freed > SHARED.nbytes // 8
    assert space.total == on_disk(store)


def test_orphans_are_counted_and_swept(store):
    run = store.find_run("a")
    orphan = folder(run) / names.data_file(run.hash, 9, "0" * 8, "x")
    orphan.write_bytes(bytes(12345))
    space = space_of(store)
    assert space.orphans(run.hash) == space.sweep(run.hash) == 12345
    assert space.orphans(run.hash) == space.sweep(run.hash) == 0
    delete_unused(store.backend, store.index, run.hash)
    assert space.total == on_disk(store)


def test_a_whole_run_frees_what_no_other_needs(store):
    run = store.find_run("a").hash
    space = space_of(store)
    freed = space.delete_run(run)
    delete_run(store.backend, store.index, run)
    assert freed > 0
    assert space.total == on_disk(store)


# What is listed of it


def test_data_files_that_no_record_refers_to_are_orphans(store):
    run = store.find_run("a")
    orphan = folder(run) / names.data_file(run.hash, 9, "0" * 8, "x")
    orphan.write_bytes(bytes(10))
    (folder(run) / "notes.txt").write_bytes(bytes(100))
    before = measure(store.backend, store.index)
    assert before.orphans == {f"{names.run_folder(run.hash)}/{orphan.name}": 10}
    orphan.unlink()
    after = measure(store.backend, store.index)
    assert before.runs[run.hash].on_disk - after.runs[run.hash].on_disk == 10
    orphan.write_bytes(bytes(10))
    record_path(run, 9).write_bytes(b"what it refers to cannot be read")
    store.index.refresh()
    assert measure(store.backend, store.index).orphans == {}


def test_a_store_in_memory_is_measured_too():
    store = filled(Store(MemoryBackend()))
    usage = measure(store.backend, store.index)
    assert (usage.total.checkpoints, usage.total.logical) == (8, 8 * (SHARED.nbytes + OWN))
    run = store.find_run("b").hash
    space = space_of(store, run)
    assert space.total == space.delete_run(run) == usage.runs[run].on_disk > 0
    space = space_of(store)
    assert space.delete(run, 1) > 0
    delete(store, run, 1)
    assert space_of(store).total == space.total > SHARED.nbytes


def test_whole_files_of_weights_that_differ_save_nothing(tmp_path):
    store = Store(tmp_path)
    with store.run("whole") as run:
        for step in (1, 2):
            run.save(step, {"w": SHARED + step}, format="torch")
    store.index.refresh()
    total = measure(store.backend, store.index).total
    assert (total.held, total.saved, total.on_disk) == (total.logical, 0, on_disk(store))


def test_what_was_written_for_each_checkpoint(store):
    sizes = [written(entry.head) for entry in checkpoints(store.index) if entry.head]
    files = [path.stat() for path in Path(store.url, "models").rglob("*.safetensors")]
    assert sum(sizes) == sum({file.st_ino: file.st_size for file in files}.values())
    assert sum(size > SHARED.nbytes for size in sizes) == 2


def test_hashes_are_shortened_as_far_as_they_stay_apart():
    runs = ["a" * 24, "a" * 8 + "b" * 16, "c" * 24, "a" * 23 + "d"]
    assert short_hashes(runs) == {
        "a" * 24: "a" * 24,
        "a" * 23 + "d": "a" * 23 + "d",
        "a" * 8 + "b" * 16: "a" * 8 + "b",
        "c" * 24: "c" * 8,
    }
