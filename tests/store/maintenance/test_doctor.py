"""The doctor makes views again, says what is wrong, and mends what another copy can mend."""

import errno
import shutil
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import standfast
from standfast import Run, Store
from standfast.errors import DamagedFile, MissingFile, RefNotFound
from standfast.files.digests import CHUNK
from standfast.store.maintenance.doctor import Diagnosis, clean, examine
from standfast.store.schema import names, run_file
from standfast.store.schema.damage import damaged_files
from standfast.store.schema.seal import seal, unseal
from tests.kit.seams import Seams
from tests.kit.stores import (
    MIB,
    before_lock,
    chunks,
    data_files,
    data_path,
    flip,
    folder,
    overwrite,
    part_by_hand,
    random_bytes,
    record_path,
    same,
)
from tests.store.schema.test_versions import rewritten


def examined(store: Store) -> Diagnosis:
    return examine(store.backend, store.index)


def elsewhere(store: Store) -> Store:
    """The same store, as another process has it."""
    return Store(Path(store.url).parent)


def contents(store: Store) -> dict[str, bytes]:
    """All files of a store but its views."""
    root = Path(store.url)
    return {
        str(path.relative_to(root)): path.read_bytes()
        for path in root.rglob("*")
        if path.is_file()
        and not {".standfast", names.DAMAGED} & {*path.parts}
        and path.name != names.MANIFEST
    }


def test_a_sound_store_is_left_as_it_is(store, run):
    run.save(1, {"x": chunks(1, 2), "small": np.ones(3)})
    run.save(2, {"x": chunks(1, 3)})
    run.checkpoint(1).tag("paper")
    before = contents(store)
    found = examined(store)
    assert found.sound
    assert (found.runs, found.checkpoints) == (1, 2)
    assert found.nbytes == 3 * CHUNK + 24, "each chunk once"
    assert found == Diagnosis(runs=1, checkpoints=2, nbytes=found.nbytes)
    assert contents(store) == before


def test_views_are_made_again(store, run):
    run.save(1, {"x": np.ones(1)})
    run.checkpoint(1).tag("paper")
    run.close()
    shutil.rmtree(Path(store.url) / ".standfast")
    (Path(store.url) / names.MANIFEST).write_bytes(b"garbage")
    store = elsewhere(store)
    assert examined(store).sound
    assert run.hash in (Path(store.url) / names.MANIFEST).read_text()
    assert store.resolve("paper").step == 1


def test_orphans_torn_and_foreign_files_are_listed_and_let_be(store, run):
    run.save(1, {"x": random_bytes(MIB, 1)})
    run.save(2, {"x": random_bytes(MIB, 2)})
    run.close()
    orphan = f"{run.hash}_step_000009.0123abcd.model.safetensors"
    (folder(run) / orphan).write_bytes(b"x" * 1000)
    (folder(run) / "notes.txt").write_text("mine")
    torn = record_path(run, 2)
    overwrite(torn, torn.read_bytes()[:-10])
    before = contents(store)
    found = examined(store)
    prefix = names.run_folder(run.hash)
    assert found.orphans[f"{prefix}/{orphan}"] == 1000
    assert found.foreign == [f"{prefix}/notes.txt"]
    assert list(found.damaged) == [names.record_file(run.hash, 2)]
    assert not found.sound
    assert contents(store) == before


def test_damage_without_another_copy_is_named(store, run):
    run.save(1, {"model": {"a": random_bytes(MIB, 1), "b": random_bytes(MIB, 2)}})
    flip(data_path(run, 1), 4096 + 10)
    before = contents(store)
    found = examined(store)
    assert list(found.damaged) == [f"{run.hash}@1"]
    assert "model.a" in found.damaged[f"{run.hash}@1"]
    assert contents(store) == before


# Restoring


def test_a_damaged_small_tensor_is_found_in_another_step(store, run):
    run.save(1, {"x": random_bytes(1000), "n": 1})
    run.save(2, {"x": random_bytes(1000), "n": 2})
    rewritten(record_path(run, 1), lambda lines: lines.append(b'{"origin":{"x":"elsewhere"}}'))
    flip(data_path(run, 1))
    with pytest.raises(DamagedFile):
        run.load(1)
    found = examined(store)
    assert found.sound
    assert list(found.restored) == [f"{run.hash}@1"]
    assert b'{"origin":{"x":"elsewhere"}}' in record_path(run, 1).read_bytes().split(b"\n")
    assert same(run.load(1), {"x": random_bytes(1000), "n": 1})
    assert same(run.load(2), {"x": random_bytes(1000), "n": 2})
    run.checkpoint(1).verify()
    assert examined(store).restored == {}


def test_a_missing_file_is_found_in_another_step(store, run):
    state = {"a": {"x": random_bytes(2000, 1)}, "b": {"x": random_bytes(1000, 2)}}
    run.save(1, state)
    before = run.checkpoint(1)
    run.save(2, state)
    data_path(run, 1).unlink()
    assert examined(store).sound
    assert same(run.load(1), state)
    after = run.checkpoint(1)
    assert after == before, "it is the same checkpoint, at the same place in history"
    assert (after.head.time, after.head.parent) == (before.head.time, before.head.parent)
    assert run.checkpoint().step == 2


def separate(store: Store, *states: Any) -> list[Run]:
    """Runs that could not share, as on a disk without links."""
    runs = []
    with Seams.until_end() as seams:
        seams.backend(link=lambda link, *_: False)
        for number, state in enumerate(states):
            runs.append(store.run(f"run {number}"))
            runs[-1].save(1, state)
    return runs


@pytest.mark.parametrize("damage", ["flipped", "missing", "short"])
def test_a_chunk_is_found_in_another_run(store, damage):
    x = chunks(1, 2)
    first, second = separate(store, {"x": x}, {"other": {"name": x}})
    path = data_path(first, 1)
    if damage == "flipped":
        flip(path)
    elif damage == "missing":
        path.unlink()
    else:
        overwrite(path, path.read_bytes()[: CHUNK + 10_000])
    found = examined(store)
    assert found.sound
    assert list(found.restored) == [f"{first.hash}@1"]
    assert same(first.load(1), {"x": x})
    shutil.rmtree(folder(second))
    assert same(first.load(1), {"x": x}), "its folder has all that it needs"


@pytest.mark.parametrize("place", [".standfast/locks/RUN.change.lock", "store.json"])
def test_damage_is_reported_where_nothing_can_be_locked_or_mended(place, store, run):
    for step in (1, 2):
        run.save(step, {"x": random_bytes(MIB, step)})
        flip(data_path(run, step), 5000)
    run.close()
    path = Path(store.url, place.replace("RUN", run.hash))
    path.unlink(missing_ok=True)
    path.mkdir(parents=True)
    found = examined(store)
    assert {f"{run.hash}@1", f"{run.hash}@2"} <= found.damaged.keys()
    assert not found.restored


def test_all_records_that_refer_to_a_damaged_chunk_are_mended(store):
    x = random_bytes(MIB)
    first, _ = separate(store, {"x": x}, {"x": x})
    first.save(2, {"x": x, "n": 2})
    first.save(3, {"y": x, "n": 3})
    flip(data_path(first, 1))
    found = examined(store)
    assert sorted(found.restored) == [f"{first.hash}@{step}" for step in (1, 2, 3)]
    for step in (1, 2, 3):
        first.checkpoint(step).verify()


def test_of_two_copies_that_are_damaged_none_is_taken(store):
    x = random_bytes(MIB)
    runs = separate(store, {"x": x}, {"x": x})
    for run in runs:
        flip(data_path(run, 1))
    found = examined(store)
    assert sorted(found.damaged) == sorted(f"{run.hash}@1" for run in runs)
    assert found.restored == {}


@pytest.mark.parametrize("damage", ["missing", "flipped"])
def test_a_file_that_another_run_has_under_the_same_name_is_linked_again(store, run, damage):
    x = random_bytes(MIB)
    run.save(1, {"x": x})
    other = store.run("b")
    other.save(1, {"x": x})
    if damage == "missing":
        data_path(run, 1).unlink()
    else:  # as after a store was copied by a tool, without links
        part_by_hand(data_path(run, 1))
        flip(data_path(run, 1))
    other.checkpoint(1).verify()
    assert examined(store).sound
    assert same(run.load(1), {"x": x})


def test_a_mended_record_refers_to_whole_files_only(store, run):
    run.save(1, {"x": random_bytes(1000), "y": random_bytes(2000, 5)})
    run.save(2, {"x": random_bytes(1000), "y": random_bytes(3000, 6)})
    flip(data_path(run, 1), 4096)
    examined(store)
    for file in run.checkpoint(1).head.files:
        assert 0 < file.used <= file.held
    run.delete(2)
    assert run.checkpoint(1).state()["x"].size == 1000, "it keeps the file that it was mended with"


# What others change between its read and its lock


@pytest.mark.guarantee("G14")
@pytest.mark.parametrize("turn", [1, 2], ids=["before the check", "before the repair"])
def test_parts_that_retention_drops_meanwhile_stay_dropped(store, run, monkeypatch, turn):
    model = {"x": random_bytes(1000)}
    run.save(1, {"model": model, "optimizer": {"m": random_bytes(MIB, 1)}})
    run.save(2, {"model": model, "optimizer": {"m": random_bytes(MIB, 2)}})
    run.close()
    damaged = data_path(run, 1, "model")
    flip(damaged)
    other = elsewhere(store)

    def drop() -> None:
        done = other.open_run(run.hash).retain(standfast.KeepAll(without="optimizer"))
        assert (done.dropped, done.problems) == ({1: ("optimizer",)}, [])

    before_lock(store, monkeypatch, run.hash, drop, turn)
    found = examined(store)
    assert (found.sound, list(found.restored)) == (True, [f"{run.hash}@1"])
    assert run.checkpoint(1).head.dropped == ["optimizer"]
    assert same(run.load(1), {"model": model})
    assert store.index.damaged_files() == {damaged.name}
    assert examined(store).sound


def test_a_file_of_a_checkpoint_that_is_deleted_meanwhile_is_not_linked_again(
    store, run, monkeypatch
):
    x = random_bytes(MIB)
    run.save(1, {"x": x})
    run.save(2, {})
    store.run("b").save(1, {"x": x})
    run.close()
    path = data_path(run, 1)
    part_by_hand(path)
    flip(path)
    deleted = partial(elsewhere(store).open_run(run.hash).delete, 1)
    before_lock(store, monkeypatch, run.hash, deleted, turn=2)
    assert list(examined(store).restored) == []
    assert not path.exists()


def test_a_run_that_is_renamed_meanwhile_keeps_its_name(store, run, monkeypatch):
    run.save(1, {})
    run.close()
    path = folder(run) / f"{run.hash}_run.json"
    sound = path.read_bytes()
    overwrite(path, b"garbage")

    def mend_and_rename() -> None:
        overwrite(path, sound)
        elsewhere(store).open_run(run.hash).rename("b")

    before_lock(store, monkeypatch, run.hash, mend_and_rename)
    assert examined(store).sound
    assert store.open_run(run.hash).name == "b"


# Run files


def test_a_lost_run_file_is_made_again(store, run):
    run.save(1, {"x": np.ones(1)})
    path = folder(run) / f"{run.hash}_run.json"
    identity = run.file.identity
    for damage in (path.unlink, lambda: overwrite(path, b"garbage")):
        damage()
        found = examined(store)
        assert list(found.restored) == [names.run_file(run.hash)]
        assert found.sound
        again = elsewhere(store).run("a")
        assert again.file.identity == identity
        assert same(again.load(), {"x": np.ones(1)})


def test_a_run_file_of_a_newer_release_is_let_be(store, run):
    run.save(1, {"x": np.ones(1)})
    path = folder(run) / f"{run.hash}_run.json"
    fields = unseal(path.read_bytes().removesuffix(b"\n"), run_file.FORMAT)
    newer = seal("standfast run 2", fields) + b"\n"
    overwrite(path, newer)
    found = examined(store)
    assert path.read_bytes() == newer
    assert (list(found.unverified), found.code) == ([names.run_file(run.hash)], 2)


def test_damaged_marks_are_named(store, run):
    run.save(1, {})
    run.checkpoint(1).tag("paper")
    marks = names.marks_file(run.hash, 1)
    overwrite(Path(store.url) / marks, b"garbage")
    found = examined(store)
    assert list(found.damaged) == [marks]
    assert (Path(store.url) / marks).read_bytes() == b"garbage"


def test_a_damaged_header_is_named_and_does_no_harm(store, run):
    run.save(1, {"x": random_bytes(1000)})
    path = data_path(run, 1)
    flip(path, 300)
    found = examined(store)
    assert list(found.damaged) == [f"{names.run_folder(run.hash)}/{path.name}"]
    assert same(run.load(1), {"x": random_bytes(1000)})
    with pytest.raises(DamagedFile):
        standfast.verify(path)


# Cleaning


def littered(run: Run) -> tuple[Path, Path, Path]:
    run.save(1, {"x": random_bytes(MIB)})
    run.close()
    orphan = folder(run) / f"{run.hash}_step_000009.0123abcd.model.safetensors"
    aside = folder(run) / ".0123abcd.standfast"
    foreign = folder(run) / "notes.txt"
    for path in (orphan, aside, foreign):
        path.write_bytes(b"x")
    return orphan, aside, foreign


@pytest.mark.guarantee("G16")
def test_cleaning_deletes_what_crashes_left_while_no_process_writes(store, run):
    orphan, aside, foreign = littered(run)
    writer = store.backend.lock(run.hash)
    assert writer is not None
    clean(store.backend, store.index)
    assert orphan.exists()
    assert aside.exists()
    writer.release()
    clean(store.backend, store.index)
    assert not orphan.exists()
    assert not aside.exists()
    assert foreign.exists()
    assert same(run.load(), {"x": random_bytes(MIB)})


def test_no_data_is_cleaned_while_a_record_cannot_be_read(store, run):
    orphan, _, _ = littered(run)
    run.save(2, {"x": random_bytes(MIB, 2)})
    run.close()
    orphan.write_bytes(b"x")
    good = record_path(run, 2).read_bytes()
    overwrite(record_path(run, 2), b"garbage")
    clean(store.backend, store.index)
    assert orphan.exists()
    overwrite(record_path(run, 2), good)
    clean(store.backend, store.index)
    assert not orphan.exists()
    assert same(run.load(2), {"x": random_bytes(MIB, 2)})


def test_a_store_without_runs_is_sound(store):
    run = store.run("a")
    run.delete_all()
    assert examined(store).sound
    with pytest.raises(RefNotFound):
        run.load()
    assert data_files(run) == {}


@pytest.mark.guarantee("G9", "G16")
@pytest.mark.parametrize("deleted", [2, 3], ids=["not read so far", "being read"])
def test_a_checkpoint_that_is_deleted_during_an_examination_is_not_mended(store, run, deleted):
    run.save(1, {"x": random_bytes(MIB, 1)})
    run.save(2, {"x": random_bytes(MIB, 2)})
    store.run("b").save(1, {"x": random_bytes(MIB, 2)})  # of the same file
    run.save(3, {"x": random_bytes(MIB, 3)})  # the newest is examined first
    left = [path for name in data_files(run) if (path := folder(run) / name)]
    left.remove(data_path(run, deleted))
    deletions = iter([deleted])

    def progress(nbytes: int) -> None:
        for step in deletions:
            run.delete(step)

    found = examine(store.backend, store.index, progress)
    assert (found.damaged, found.restored, found.orphans) == ({}, {}, {})
    assert [*data_files(run)] == [path.name for path in left]


@pytest.mark.parametrize("is_restored", [False, True])
def test_a_run_that_is_deleted_during_an_examination_is_not_made_again(
    store, run, seams, is_restored
):
    times = iter([1])
    seams.bound("patience with a database", 0.1)  # which the examination is changing

    def overtaken(read: Callable[..., bytes], name: str, *given: Any) -> bytes:
        if name == names.run_file(run.hash):
            for _ in times:
                if is_restored:  # as between `rm` and `restore`
                    raise MissingFile(errno.ENOENT, name)
                elsewhere(store).open_run(run.hash).delete_all()
        return read(name, *given)

    run.save(1, {"x": np.ones(3)})
    run.close()
    seams.backend(store.backend, read=overtaken)
    found = examined(store)
    assert (found.restored, found.damaged) == ({}, {})
    assert folder(run).exists() == is_restored
    assert next(times, None) is None


@pytest.mark.guarantee("G9")
def test_a_file_that_is_deleted_and_restored_during_an_examination_is_not_damaged(
    store, run, seams
):
    gone = iter([1])

    def overtaken(open: Callable[[str], Any], name: str) -> Any:
        if name.endswith(".safetensors"):
            for _ in gone:  # as between `rm` and `restore`
                raise MissingFile(errno.ENOENT, name)
        return open(name)

    run.save(1, {"x": random_bytes(MIB, 1)})
    seams.backend(open=overtaken)
    assert examined(store).sound
    assert not damaged_files(store.backend)


def test_a_run_that_is_saved_into_after_its_deletion_has_all_its_files(store):
    run = store.run("a", hp={"lr": 1})
    elsewhere(store).open_run(run.hash).delete_all()
    run.save(1, {"x": np.ones(3)})
    found = examined(store)
    assert found.sound
    assert found.restored == {}
