"""What deleting checkpoints frees is known before, to the byte."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

from standfast import Run, Store
from standfast.store.backends.memory import MemoryBackend
from standfast.store.load.reading import read_record
from standfast.store.retention.removal import delete_checkpoints, delete_run, delete_unused
from standfast.store.retention.space import Space
from standfast.store.retention.trash import Trash
from standfast.store.schema import names
from standfast.store.schema.decoder import decode_head
from standfast.store.schema.record import encode, encode_head
from tests.kit.stores import data_path, folder, overwrite, record_path

SHARED = np.random.default_rng(0).random((128, 256))


def state(step: int, weight: Any = SHARED) -> dict[str, Any]:
    own = np.random.default_rng(step).random((96, 100))
    return {"base": {"w": weight}, "head": {"own": own, "step": step}}


def on_disk(store: Store) -> int:
    """The bytes of all files of runs and of the trash, each once."""
    found = {}
    for path in _files(store):
        status = path.stat()
        found[status.st_ino] = status.st_size
    return sum(found.values())


def _files(store: Store) -> Iterator[Path]:
    for top in (names.MODELS, names.SETTINGS, names.SAMPLES, names.TRASH):
        for path in Path(store.url, top).rglob("*"):
            if path.is_file() and path.suffix != ".txt":
                yield path


def space_of(store: Store, *runs: str) -> Space:
    store.index.refresh()
    return Space(store.backend, store.index, runs or None)


def delete(store: Store, run: str, *steps: int) -> None:
    delete_checkpoints(store.backend, store.index, run, steps)


@pytest.fixture
def store(tmp_path: Path) -> Store:
    """Two runs with a weight in common, of which the first has another for its last step."""
    store = Store(tmp_path)
    for name, steps in (("a", 5), ("b", 3)):
        with store.run(name) as run:
            for step in range(1, steps + 1):
                run.save(step, state(step + 100 * ord(name), SHARED + (step == 5)))
    return store


def test_the_total_is_what_lies_on_the_disk(store: Store) -> None:
    run = store.find_run("a")
    run.checkpoint(1).note("a mark is a file too")
    (folder(run) / "mine.txt").write_bytes(bytes(1000))
    assert space_of(store).total == on_disk(store)
    assert space_of(store, run.hash).total < on_disk(store)


@pytest.mark.parametrize("order", [(1, 2, 3, 4), (4, 3, 2, 1), (5, 1, 3, 2)])
def test_each_deletion_frees_what_was_said(store: Store, order: tuple[int, ...]) -> None:
    run = store.find_run("a").hash
    store.checkpoint(run, order[1]).note("not needed")
    space = space_of(store)
    for step in order:
        said, before = space.frees(run, step), on_disk(store)
        assert space.delete(run, step) == said > 0
        delete(store, run, step)
        assert before - on_disk(store) == said
        assert space.total == on_disk(store)


def test_a_file_is_free_with_the_last_run_that_refers_to_it(store: Store) -> None:
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


def test_a_name_outside_of_the_store_keeps_a_file(store: Store, tmp_path: Path) -> None:
    run = store.find_run("a")
    path = data_path(run, 4)
    before = space_of(store).frees(run.hash, 4)
    os.link(path, tmp_path / "backup")
    assert before - space_of(store).frees(run.hash, 4) == path.stat().st_size


def test_the_trash_keeps_a_file_until_it_is_emptied(store: Store) -> None:
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


def test_what_is_put_into_the_trash_still_counts(store: Store) -> None:
    run = store.find_run("a").hash
    space, other = space_of(store), space_of(store)
    freed = [space.put_in_trash(run, step) for step in (1, 2)]
    assert freed == [other.delete(run, step) for step in (1, 2)]
    assert space.put == sum(freed)
    assert space.total == on_disk(store)
    assert space.empty_put() == sum(freed)
    assert (space.put, space.total) == (0, other.total)


def test_a_second_name_of_a_whole_file_goes_with_it(store: Store) -> None:
    run = store.find_run("a")
    data = data_path(run, 3)
    whole = folder(run) / names.data_file(run.hash, 3, "0" * 8, "state", ".pth")
    os.rename(data, whole)
    record = record_path(run, 3)
    overwrite(record, renamed(record, data.name, whole.name))
    os.link(whole, folder(run) / f"{run.hash}_step_000003.pt")
    (folder(run) / f"{run.hash}_step_000004.pt").write_bytes(bytes(5000))  # somebody else's
    space = space_of(store)
    assert space.total == on_disk(store) - 5000
    assert space.frees(run.hash, 3) > whole.stat().st_size
    assert space.frees(run.hash, 4) < data_path(run, 4).stat().st_size + 5000


def renamed(record: Path, old: str, new: str) -> bytes:
    """A record that speaks of another file; of it, only the head is read here."""
    line, _, rest = record.read_bytes().partition(b"\n")
    head = decode_head(line, record.parent.name, 3)
    files = [
        msgspec.structs.replace(file, name=new) if file.name == old else file for file in head.files
    ]
    return encode_head(msgspec.structs.replace(head, files=files)) + b"\n" + rest


def test_a_record_that_cannot_be_read_keeps_all_data_files(store: Store) -> None:
    run = store.find_run("a")
    small = record_path(run, 2).stat().st_size
    overwrite(record_path(run, 1), b"nothing")
    (data_path(run, 2).with_name(f"{run.hash}_step_000009.00000000.x.safetensors")).write_bytes(
        bytes(99)
    )
    space = space_of(store)
    assert space.frees(run.hash, 2) == space.delete(run.hash, 2) == small
    assert space.orphans(run.hash) == 0
    freed = space.delete(run.hash, 1)
    delete(store, run.hash, 2, 1)
    assert freed > SHARED.nbytes // 8
    assert space.total == on_disk(store)


def test_orphans_are_counted_and_swept(store: Store) -> None:
    run = store.find_run("a")
    orphan = folder(run) / names.data_file(run.hash, 9, "0" * 8, "x")
    orphan.write_bytes(bytes(12345))
    space = space_of(store)
    assert space.orphans(run.hash) == space.sweep(run.hash) == 12345
    assert space.orphans(run.hash) == space.sweep(run.hash) == 0
    delete_unused(store.backend, store.index, run.hash)
    assert space.total == on_disk(store)


def test_a_whole_run_frees_what_no_other_needs(store: Store) -> None:
    run = store.find_run("a").hash
    space = space_of(store)
    freed = space.delete_run(run)
    delete_run(store.backend, store.index, run)
    assert freed > 0
    assert space.total == on_disk(store)


def test_a_store_in_memory() -> None:
    store = Store(MemoryBackend())
    run = store.run("a")
    for step in (1, 2):
        run.save(step, state(step))
    space = space_of(store)
    freed = space.delete(run.hash, 1)
    delete(store, run.hash, 1)
    assert freed > 0
    assert space_of(store).total == space.total > SHARED.nbytes


def test_thousands_of_checkpoints_are_counted_in_no_time(tmp_path: Path) -> None:
    store = Store(tmp_path)
    run = store.run("a")
    head = run.save(1, {"x": np.zeros(4)}).head
    _copy(run, 1500)
    store.index.refresh()
    listed = list(store.index.newest(run.hash))
    assert len(listed) == 1500
    started = time.thread_time()
    space = Space(store.backend, store.index)
    freed = sum(space.delete(run.hash, each.step) for each in reversed(listed[1:]))
    taken = time.thread_time() - started
    small = record_path(run, 1500).stat().st_size + head.files[0].size
    assert freed > 1400 * record_path(run, 2).stat().st_size
    assert space.total >= small
    assert taken < 3


def _copy(run: Run, count: int) -> None:
    """Many records that refer to one file, by hand: to save them would take minutes."""
    record = read_record(run.store.backend, run.hash, 1)
    for step in range(2, count + 1):
        head = msgspec.structs.replace(record.head, step=step, sequence=step)
        record_path(run, step).write_bytes(encode(replace(record, head=head)))
