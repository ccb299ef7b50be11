"""Tags and notes: given once in a store, added, removed, and a protection while they are there."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from standfast import Checkpoint, Run, Store
from standfast.errors import AmbiguousRef, BadLabel, DamagedFile, Protected, RefNotFound
from standfast.store.schema import names
from tests.kit.stores import folder, same


@pytest.fixture
def run(store: Store) -> Run:
    run = store.run("a")
    for step in (1, 2):
        run.save(step, {"step": step, "x": np.full(2, step)})
    return run


def _again(store: Store) -> Store:
    return Store(Path(store.url).parent)


def test_a_tag_is_found_by_everybody(store: Store, run: Run) -> None:
    run.checkpoint(1).tag("paper")
    for each in (store, _again(store)):
        assert each.resolve("paper") == run.checkpoint(1)
        assert each.resolve("paper").tags == ["paper"]
    assert run.load("paper")["step"] == 1
    assert run.checkpoint(2).tags == []


def test_a_checkpoint_bears_several_tags_each_once(store: Store, run: Run) -> None:
    checkpoint = run.checkpoint(1)
    for tag in ("x", "y", "x"):
        checkpoint.tag(tag)
    assert checkpoint.tags == ["x", "y"]
    assert store.resolve("x") == store.resolve("y") == checkpoint


def test_a_tag_is_given_once_in_a_store(store: Store, run: Run) -> None:
    run.checkpoint(1).tag("paper")
    other = store.run("b")
    for taken in (run.checkpoint(2), other.save(1, {})):
        with pytest.raises(AmbiguousRef, match=rf"{run.hash}@1.*untag"):
            taken.tag("paper")
        assert taken.tags == []
    assert store.resolve("paper").step == 1


def test_a_tag_moves_by_being_removed_first(store: Store, run: Run) -> None:
    run.checkpoint(1).tag("paper")
    store.untag("paper")
    run.checkpoint(2).tag("paper")
    assert _again(store).resolve("paper").step == 2
    assert run.checkpoint(1).tags == []


def test_a_tag_that_is_not_there_cannot_be_removed(store: Store, run: Run) -> None:
    with pytest.raises(RefNotFound):
        store.untag("paper")
    with pytest.raises(RefNotFound):
        run.checkpoint(1).untag("paper")
    run.checkpoint(1).tag("paper")
    with pytest.raises(RefNotFound):
        run.checkpoint(2).untag("paper")
    assert store.resolve("paper").step == 1


def test_removing_one_tag_leaves_the_others(store: Store, run: Run) -> None:
    checkpoint = run.checkpoint(1)
    checkpoint.tag("x")
    checkpoint.tag("y")
    checkpoint.untag("x")
    assert checkpoint.tags == ["y"]
    with pytest.raises(RefNotFound):
        _again(store).resolve("x")
    assert _again(store).resolve("y") == checkpoint


def test_every_change_of_tags_is_seen_at_once(store: Store, run: Run) -> None:
    """A file may get the inode of the one before the last; it is another file all the same."""
    checkpoint = run.checkpoint(1)
    for number in range(10):
        checkpoint.tag(f"a{number}")
        checkpoint.tag(f"b{number}")
        checkpoint.untag(f"a{number}")
        store.index.refresh()
        assert store.index.tagged(f"a{number}") == []
        assert store.index.tagged(f"b{number}") == [(run.hash, 1)]
        checkpoint.untag(f"b{number}")


@pytest.mark.parametrize("tag", ["", "latest", "best", "a/b", "a@1", "\n", "x" * 201, 5, None])
def test_a_tag_that_is_no_name_is_refused(run: Run, tag: Any) -> None:
    with pytest.raises(BadLabel, match="a tag"):
        run.checkpoint(1).tag(tag)
    assert run.checkpoint(1).tags == []


@pytest.mark.guarantee("G12")
def test_a_tagged_checkpoint_is_neither_deleted_nor_replaced(store: Store, run: Run) -> None:
    run.checkpoint(1).tag("paper")
    with pytest.raises(Protected, match="'paper'"):
        run.delete(1)
    with pytest.raises(Protected, match="'paper'"):
        run.save(1, {}, replace=True)
    with pytest.raises(Protected, match="'paper'"):
        run.delete_all()
    with pytest.raises(Protected, match="'paper'"):
        run.delete(2, 1)
    assert [each.step for each in run.checkpoints()] == [1, 2]
    assert same(run.load(1), {"step": 1, "x": np.full(2, 1)})
    store.untag("paper")
    run.save(1, {"step": 1}, replace=True)
    run.delete(1)
    assert [each.step for each in run.checkpoints()] == [2]


@pytest.mark.guarantee("G12")
def test_a_tag_that_another_process_gave_protects_too(store: Store, run: Run) -> None:
    _again(store).resolve("a@1").tag("paper")
    with pytest.raises(Protected):
        run.delete(1)
    with pytest.raises(Protected):
        run.save(1, {}, replace=True)


def test_marks_that_cannot_be_read_protect_what_they_may_have_tagged(run: Run) -> None:
    run.checkpoint(1).tag("paper")
    (folder(run) / names.marks_file(run.hash, 1).rpartition("/")[2]).write_bytes(b"garbage")
    run._store.index.rebuild()
    with pytest.raises((Protected, DamagedFile)):
        run.delete(1)


def test_damaged_marks_do_not_keep_the_state_from_being_loaded(run: Run) -> None:
    run.checkpoint(1).tag("paper")
    path = folder(run) / names.marks_file(run.hash, 1).rpartition("/")[2]
    path.write_bytes(path.read_bytes()[:-5])
    assert run.load(1)["step"] == 1
    with pytest.raises(DamagedFile, match=r"marks\.json"):
        _ = run.checkpoint(1).tags


def test_notes_are_added_in_their_order(store: Store, run: Run) -> None:
    checkpoint = run.checkpoint(1)
    checkpoint.note("first")
    checkpoint.tag("paper")
    _again(store).resolve("a@1").note("second\nline, grün")
    assert [note.text for note in checkpoint.notes] == ["first", "second\nline, grün"]
    assert all(note.time.endswith("Z") for note in checkpoint.notes)
    assert checkpoint.tags == ["paper"]


@pytest.mark.parametrize("text", ["", "  ", None, 5])
def test_a_note_that_says_nothing_is_refused(run: Run, text: Any) -> None:
    with pytest.raises(BadLabel, match="note"):
        run.checkpoint(1).note(text)
    assert run.checkpoint(1).notes == []


def test_marks_change_neither_the_record_nor_the_data(run: Run) -> None:
    before = {path.name: path.read_bytes() for path in folder(run).iterdir()}
    run.checkpoint(1).tag("paper")
    run.checkpoint(1).note("text")
    after = {path.name: path.read_bytes() for path in folder(run).iterdir()}
    marks = names.marks_file(run.hash, 1).rpartition("/")[2]
    assert after.pop(marks)
    assert after == before


def test_the_marks_of_a_deleted_checkpoint_are_gone(store: Store, run: Run) -> None:
    checkpoint = run.checkpoint(1)
    checkpoint.note("text")
    run.delete(1)
    assert not list(folder(run).glob("*_000001.marks.json"))
    for change in (lambda: checkpoint.tag("late"), lambda: checkpoint.note("late")):
        with pytest.raises(RefNotFound):
            change()
    assert not list(folder(run).glob("*_000001.marks.json"))
    run.save(1, {})
    assert run.checkpoint(1).notes == []


def test_of_many_threads_that_give_one_tag_one_succeeds(store: Store, run: Run) -> None:
    for step in range(3, 9):
        run.save(step, {})
    given: list[int] = []
    refused: list[AmbiguousRef] = []

    def give(checkpoint: Checkpoint) -> None:
        try:
            checkpoint.tag("paper")
            given.append(checkpoint.step)
        except AmbiguousRef as error:
            refused.append(error)

    threads = [threading.Thread(target=give, args=(each,)) for each in run.checkpoints()]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(given) == 1
    assert len(refused) == 7
    assert store.resolve("paper").step == given[0]


@pytest.mark.guarantee("G12")
def test_marks_do_not_survive_the_replacement_of_their_checkpoint(store: Store, run: Run) -> None:
    """The process died after the commit of the new record, before it deleted the old marks."""
    old = run.checkpoint(1)
    old.note("diverged")
    old.add_metrics({"val": 9.0}, best=True)
    path = folder(run) / names.marks_file(run.hash, 1).rpartition("/")[2]
    left = path.read_bytes()
    run.save(1, {"step": 1}, replace=True)
    run.close()
    path.write_bytes(left)
    other = _again(store)
    new = other.resolve("a@1")
    assert (new.notes, new.tags, new.metrics) == ([], [], {})
    assert other.index.best(run.hash) is None
    assert other.index.late_metrics(run.hash) == {}
    new.note("its own")
    assert [note.text for note in new.notes] == ["its own"]
    path.write_bytes(left)
    other.find_run("a").save(3, {})  # takes the run, and cleans up
    assert not path.exists()


def test_who_has_the_old_checkpoint_changes_no_marks_of_the_new_one(run: Run) -> None:
    old = run.checkpoint(1)
    run.save(1, {"step": 1}, replace=True)
    new = run.checkpoint(1)
    new.tag("paper")
    with pytest.raises(RefNotFound, match="saved again"):
        old.note("diverged")
    assert (new.tags, new.notes) == (["paper"], [])


def test_a_tag_left_by_a_dead_process_neither_protects_nor_refers(store: Store, run: Run) -> None:
    old = run.checkpoint(1)
    old.tag("paper")
    path = folder(run) / names.marks_file(run.hash, 1).rpartition("/")[2]
    left = path.read_bytes()
    old.untag("paper")
    run.save(1, {"step": 1}, replace=True)
    path.write_bytes(left)
    other = _again(store)
    with pytest.raises(RefNotFound):
        other.resolve("paper")
    run.checkpoint(2).tag("paper")
    run.delete(1)
    assert _again(store).resolve("paper").step == 2
