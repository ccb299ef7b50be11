"""What is put into the trash stays whole, comes back as it was, and goes when it should."""

import errno
import os
from datetime import UTC, datetime, timedelta
from pathlib import Path

import msgspec
import numpy as np
import pytest
from blake3 import blake3

from standfast import Run, Store
from standfast.errors import (
    DamagedFile,
    MissingData,
    RefNotFound,
    RunCollision,
    StepExists,
    WriteFailed,
)
from standfast.store.backends.memory import MemoryBackend
from standfast.store.maintenance.doctor import clean, examine
from standfast.store.retention.restoring import Restored, restore
from standfast.store.retention.trash import KEPT, Trash
from standfast.store.retention.trash_entry import Entry, encode
from standfast.store.schema import names
from standfast.store.schema.run_file import encode as encode_run
from tests.kit.seams import Seams
from tests.kit.stores import data_path, flip, folder, overwrite, record_path, same
from tests.store.retention.states import OWN, SHARED, make_whole, on_disk, state, steps


@pytest.fixture(params=["local", "memory"])
def anywhere(request: pytest.FixtureRequest, tmp_path: Path) -> Store:
    return Store(tmp_path) if request.param == "local" else Store(MemoryBackend())


@pytest.fixture
def run(tmp_path: Path) -> Run:
    return filled(Store(tmp_path))


def filled(store: Store) -> Run:
    run = store.run("gpt", hp={"lr": 0.1})
    for step in (1, 2, 3):
        run.save(step, state(step), metrics={"loss": 1 / step})
    run.close()
    return run


def trash_of(run: Run) -> Trash:
    return Trash(run.store.backend)


def only_entry(run: Run) -> Entry:
    (entry,) = trash_of(run).entries()
    return entry


def restored(run: Run, *steps: int) -> Restored:
    return restore(run.store.backend, run.store.index, run.hash, steps or None)


def path_of(run: Run, entry: Entry, name: str = "") -> Path:
    path = run.store.backend.path(f"{entry.path}/{name}" if name else entry.path)
    assert path is not None
    return path


@pytest.mark.guarantee("G15")
def test_what_was_deleted_comes_back_as_it_was(anywhere):
    run = filled(anywhere)
    run.checkpoint(2).note("the one with the bug")
    head = run.checkpoint(2).head
    run.delete(1, 2, trash="rm")
    assert steps(run) == [3]
    entry = only_entry(run)
    assert (entry.run, entry.name, entry.steps, entry.by) == (run.hash, "gpt", [1, 2], "rm")
    back = restored(run)
    assert (back.steps, back.left) == ([1, 2], {})
    assert steps(run) == [1, 2, 3]
    assert same(run.load(1), state(1))
    assert same(run.load(2), state(2))
    assert run.checkpoint(2).head == head
    assert [note.text for note in run.checkpoint(2).notes] == ["the one with the bug"]
    assert trash_of(run).entries() == []
    assert examine(anywhere.backend, anywhere.index).orphans == {}


def test_a_whole_run_comes_back(anywhere):
    run = filled(anywhere)
    backend = anywhere.backend
    beside = [
        names.config_file(run.hash),
        names.data_state_file(run.hash),
        names.architecture_file(run.hash),
    ]
    for name in beside:
        backend.replace(name, b"{}")
    run.delete_all(trash="rm")
    for name in beside:
        backend.delete([name])
    anywhere.index.refresh()
    assert anywhere.index.runs() == []
    entry = only_entry(run)
    assert (entry.whole, entry.steps) == (True, [1, 2, 3])
    assert restored(run).steps == [1, 2, 3]
    again = anywhere.find_run("gpt")
    assert again.hyperparameters == {"lr": 0.1}
    assert same(again.load(2), state(2))
    assert [backend.read(name) for name in beside] == [b"{}"] * 3
    assert trash_of(run).entries() == []


@pytest.mark.guarantee("G15")
def test_an_entry_is_complete_by_itself(run):
    run.delete(1, trash="rm")
    run.delete_all()
    files = {path.name for path in path_of(run, only_entry(run)).iterdir()}
    assert f"{run.hash}_step_000001.json" in files
    assert any(name.endswith(".safetensors") for name in files)
    assert trash_of(run).nbytes() > SHARED.nbytes
    assert restored(run, 1).steps == [1]
    again = run.store.find_run(run.hash)
    assert again.file == run.file
    assert same(again.load(1), state(1))


def test_some_of_an_entry_come_back_and_the_others_stay(run):
    run.delete(1, 2, trash="gc")
    before = only_entry(run)
    assert restored(run, 1).steps == [1]
    entry = only_entry(run)
    assert (entry.folder, entry.steps, entry.time) == (before.folder, [2], before.time)
    left = {path.name for path in path_of(run, entry).iterdir()}
    assert f"{run.hash}_step_000001.json" not in left
    assert restore(run.store.backend, run.store.index, entry).steps == [2]
    assert steps(run) == [1, 2, 3]
    assert trash_of(run).entries() == []


def test_what_is_not_in_the_trash_cannot_come_back(run):
    with pytest.raises(RefNotFound, match=f"{run.hash}"):
        restored(run)
    run.delete(1, trash="rm")
    with pytest.raises(RefNotFound, match="2"):
        restored(run, 1, 2)
    assert steps(run) == [2, 3]


def test_a_step_that_was_saved_again_is_not_replaced(run):
    run.delete(1, 2, trash="rm")
    run.save(1, state(11))
    with pytest.raises(StepExists, match="1"):
        restored(run, 1)
    back = restored(run)
    assert (back.steps, list(back.left)) == ([2], [1])
    assert same(run.load(1), state(11))
    assert only_entry(run).steps == [1]
    with pytest.raises(StepExists):
        restored(run)


def test_of_two_deletions_of_a_step_the_later_comes_back(run):
    run.delete(1, trash="rm")
    run.save(1, state(11))
    run.delete(1, trash="rm")
    assert len(trash_of(run).entries()) == 2
    restored(run, 1)
    assert same(run.load(1), state(11))
    assert len(trash_of(run).entries()) == 1


def test_what_came_back_is_in_no_entry_any_more(run):
    trash = trash_of(run)
    trash.put(run.hash, [1, 2], "rm", "killed after it had deleted the first")
    run.delete(1)
    run.delete(2, trash="rm")
    assert [entry.steps for entry in trash.entries()] == [[1, 2], [2]]
    assert restored(run, 2).steps == [2]
    assert only_entry(run).steps == [1]


@pytest.mark.guarantee("G12")
def test_marks_of_a_checkpoint_that_was_never_deleted_stay(run):
    run.checkpoint(1).note("before")
    trash_of(run).put(run.hash, [1], "rm", "killed before it was deleted")
    run.checkpoint(1).tag("paper")
    run.checkpoint(1).note("after")
    assert run.store.restore(run.hash, 1).steps == [1]
    assert run.checkpoint(1).tags == ["paper"]
    assert [note.text for note in run.checkpoint(1).notes] == ["before", "after"]
    assert trash_of(run).entries() == []


def test_another_run_of_the_same_short_hash_is_not_mixed_up(run):
    run.delete(1, trash="rm")
    path = folder(run) / f"{run.hash}_run.json"
    other = {**run.file.identity, "hp": "0" * 64}
    overwrite(path, encode_run(msgspec.structs.replace(run.file, identity=other)))
    with pytest.raises(RunCollision):
        restored(run)


def cut(path: Path) -> None:
    overwrite(path, path.read_bytes()[:-1])


@pytest.mark.parametrize(
    ("pattern", "damage", "error"),
    [
        ("*_step_000001.json", flip, DamagedFile),
        ("*_step_000001.json", Path.unlink, MissingData),
        ("*_step_000001.*.safetensors", cut, DamagedFile),
        ("*_step_000001.*.safetensors", Path.unlink, MissingData),
    ],
    ids=["record", "no record", "cut", "no data"],
)
def test_a_damaged_entry_is_refused(run, pattern, damage, error):
    run.save(4, {"x": np.random.default_rng(9).random((96, 100))})
    run.delete(1, 2, 3, trash="rm")
    entry = only_entry(run)
    damage(next(path_of(run, entry).glob(pattern)))
    before = {path.name for path in folder(run).iterdir()}
    with pytest.raises(error):
        restored(run, 1)
    assert {path.name for path in folder(run).iterdir()} == before
    if pattern.endswith(".safetensors"):  # all three refer to it
        with pytest.raises(error):
            restored(run)
        return
    back = restored(run)
    assert (back.steps, list(back.left)) == ([2, 3], [1])
    assert only_entry(run).steps == [1]
    assert same(run.load(2), state(2))


@pytest.mark.parametrize(
    "text", [b"", b"{}", b"\xff" * 100, b'{"format":"standfast trash 9","seal":"']
)
def test_an_entry_that_cannot_be_read_says_so_and_can_be_emptied(run, text):
    run.delete(1, trash="rm")
    overwrite(path_of(run, only_entry(run), "entry.json"), text)
    entry = only_entry(run)
    assert entry.problem is not None
    with pytest.raises(RefNotFound):
        restored(run)
    later = datetime.now(UTC) + timedelta(days=100)
    assert trash_of(run).empty(older_than=KEPT, now=later) == 0
    assert trash_of(run).empty() > 0
    assert trash_of(run).entries() == []


@pytest.mark.guarantee("G14")
def test_an_entry_that_cannot_be_read_does_not_go_for_its_space(run):
    run.delete(1, trash="rm")
    run.delete(2, trash="rm")
    trash = trash_of(run)
    unreadable, _ = trash.entries()
    overwrite(path_of(run, unreadable, "entry.json"), b"cannot be read at this moment")
    run.retain(budget=1)
    assert [entry.folder for entry in trash.entries()] == [unreadable.folder]
    assert trash.empty(need=1 << 40) == 0
    assert [entry.folder for entry in trash.entries()] == [unreadable.folder]


def test_an_entry_of_another_run_is_refused(run):
    run.delete(1, trash="rm")
    entry = only_entry(run)
    other = Entry(entry.folder, "0" * 24, None, entry.checkpoints, False, entry.time, "rm", "")
    overwrite(path_of(run, entry, "entry.json"), encode(other))
    assert "run '000000" in str(only_entry(run).problem)


def test_emptying_frees_what_only_the_trash_holds(run):
    run.checkpoint(3).verify()
    whole = on_disk(run.store)
    run.delete(1, 2, trash="rm")
    deleted = on_disk(run.store)
    assert deleted - whole == path_of(run, only_entry(run), "entry.json").stat().st_size
    nbytes = trash_of(run).nbytes()
    assert nbytes > OWN
    assert trash_of(run).empty() == nbytes
    assert deleted - on_disk(run.store) == nbytes
    assert trash_of(run).nbytes() == trash_of(run).empty() == 0
    assert same(run.load(3), state(3))


def test_the_oldest_go_first_and_no_more_than_needed(anywhere):
    run = filled(anywhere)
    for step in (1, 2):
        run.delete(step, trash="rm")
    first, second = trash_of(run).entries()
    assert (first.steps, second.steps) == ([1], [2])
    assert trash_of(run).empty(need=0) == 0
    assert trash_of(run).empty(need=1) > 0
    assert trash_of(run).entries() == [second]


def test_entries_stay_for_their_time(run):
    run.delete(1, trash="rm")
    now, trash = datetime.now(UTC), trash_of(run)
    for days in (6.9, -100):
        assert trash.empty(older_than=KEPT, now=now + timedelta(days=days)) == 0
    assert trash.empty(older_than=KEPT, now=now + timedelta(days=7.1)) > 0
    assert trash.entries() == []


def test_putting_it_in_again_makes_no_second_entry(anywhere):
    run = filled(anywhere)
    trash = trash_of(run)
    first = trash.put(run.hash, [1], "rm", "it was killed then")
    nbytes = trash.nbytes()
    second = trash.put(run.hash, [1], "rm", "it came again now.")
    assert first is not None
    assert second is not None
    assert trash.entries() == [second]
    assert trash.nbytes() == nbytes
    third = trash.put(run.hash, [1, 2], "gc", "")
    assert trash.entries() == [third]
    fourth = trash.put(run.hash, [2], "gc", "")
    assert trash.entries() == [third, fourth]
    whole = trash.put(run.hash, None, "rm", "")
    assert trash.entries() == [whole]


def test_a_run_that_another_process_has_deleted_is_not_put_in_again(anywhere):
    run = filled(anywhere)
    again = Store(anywhere.backend).open_run(run.hash)
    run.delete_all(trash="rm")
    again.delete_all(trash="rm")
    assert only_entry(run).whole
    assert restored(run).steps == [1, 2, 3]


def test_folders_without_an_entry_are_swept(run):
    left = path_of(run, Entry(f"{run.hash}.{'0' * 8}", run.hash))
    left.mkdir(parents=True)
    os.link(record_path(run, 1), left / record_path(run, 1).name)
    foreign = left.with_name("notes")
    foreign.mkdir()
    assert trash_of(run).entries() == []
    run.delete(2, trash="rm")
    assert not left.exists()
    assert foreign.exists()
    assert only_entry(run).steps == [2]


def test_a_checkpoint_that_lacks_a_file_can_be_put_in(run):
    run.save(4, {"x": np.random.default_rng(9).random((96, 100))})
    data_path(run, 2).unlink()
    run.delete(2, trash="rm")
    with pytest.raises(MissingData):
        restored(run, 2)
    assert only_entry(run).steps == [2]


def test_without_links_there_is_no_trash(run, seams):
    run.delete(1, trash="rm")
    seams.backend(link=lambda link, *_, **__: False)
    with pytest.raises(WriteFailed):
        restored(run)
    assert only_entry(run).steps == [1]
    assert trash_of(run).put(run.hash, [2], "rm", "") is None
    run.delete(2, trash="rm")
    assert steps(run) == [3]
    assert only_entry(run).steps == [1]


def test_the_trash_is_no_run_and_no_orphan(run):
    store = run.store
    run.delete(1, trash="rm")
    found = examine(store.backend, store.index)
    assert (found.runs, found.orphans, found.foreign, found.sound) == (1, {}, [], True)
    clean(store.backend, store.index)
    with run:
        run.save(9, state(9))
    assert only_entry(run).steps == [1]
    assert [each.run for each in store.index.runs(empty=True)] == [run.hash]


def test_the_second_name_of_a_whole_file_is_made_again(run):
    whole = make_whole(run, 3)
    second = folder(run) / f"{run.hash}_step_000003.pt"
    text, _, _ = record_path(run, 3).read_bytes().rpartition(b'{"digest":"')
    overwrite(
        record_path(run, 3), text + b'{"digest":"' + blake3(text).hexdigest().encode() + b'"}\n'
    )
    run.save(4, state(4))
    run.store.index.refresh()
    run.delete(3, trash="rm")
    second.unlink(missing_ok=True)
    restored(run)
    assert second.samefile(whole)


def test_a_link_in_the_trash_leads_nowhere(run, tmp_path):
    other = filled(Store(tmp_path / "other"))
    before = sorted(path.name for path in folder(other).iterdir())
    run.delete(1, trash="rm")
    trash = path_of(run, only_entry(run)).parent
    (trash / f"{other.hash}.00000000").symlink_to(folder(other))
    run.save(4, state(4))
    trash_of(run).empty()
    assert sorted(path.name for path in folder(other).iterdir()) == before
    assert steps(other) == [1, 2, 3]


def test_the_next_save_empties_what_has_had_its_time_and_does_not_fail_if_it_cannot(run, seams):
    def refused(remove: object, path: Path) -> None:
        raise PermissionError(errno.EACCES, "Permission denied")

    run.delete(1, trash="rm")
    run.save(4, state(4))
    run.close()
    assert len(trash_of(run).entries()) == 1
    seams.bound("trash kept", 0.0)
    with Seams.until_end() as failing:
        failing.disk(remove=refused, remove_folder=refused)
        run.save(5, state(5))
        run.close()
    assert steps(run) == [2, 3, 4, 5]
    run.save(6, state(6))
    assert trash_of(run).entries() == []
