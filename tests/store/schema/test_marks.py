"""Tags and notes: given once in a store, added, removed, and a protection while they are there."""

import json
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest

from standfast import Checkpoint, Run, Store, errors
from standfast.store.query.listing import checkpoints
from standfast.store.schema import names
from tests.kit.stores import folder, same
from tests.store.meanwhile import again


@pytest.fixture
def run(store: Store) -> Run:
    run = store.run("a")
    for step in (1, 2):
        run.save(step, {"step": step, "x": np.full(2, step)})
    return run


def _marks(run: Run) -> Path:
    return Path(run.store.url, names.marks_file(run.hash, 1))


def test_a_tag_is_given_once_in_a_store(store, run):
    run.checkpoint(1).tag("paper")
    for each in (store, again(store)):
        assert each.resolve("paper") == run.checkpoint(1)
        assert each.resolve("paper").tags == ["paper"]
    assert run.load("paper")["step"] == 1
    other = store.run("b")
    for taken in (run.checkpoint(2), other.save(1, {})):
        with pytest.raises(errors.AmbiguousRef, match=f"{run.hash}@1"):
            taken.tag("paper")
        assert taken.tags == []
    assert store.resolve("paper").step == 1
    store.untag("paper")
    run.checkpoint(2).tag("paper")
    assert again(store).resolve("paper").step == 2
    assert run.checkpoint(1).tags == []


def test_a_tag_is_removed_where_it_is_and_others_stay(store, run):
    checkpoint = run.checkpoint(1)
    for tag in ("x", "y", "x"):
        checkpoint.tag(tag)
    assert checkpoint.tags == ["x", "y"]
    checkpoint.untag("x")
    for remove in (
        lambda: store.untag("x"),
        lambda: checkpoint.untag("x"),
        lambda: run.checkpoint(2).untag("y"),
        lambda: again(store).resolve("x"),
    ):
        with pytest.raises(errors.RefNotFound):
            remove()
    assert checkpoint.tags == ["y"]
    assert again(store).resolve("y") == checkpoint


def test_every_change_of_tags_is_seen_at_once(store, run):
    checkpoint = run.checkpoint(1)
    for number in range(10):  # a file may get the inode of the one before the last
        checkpoint.tag(f"a{number}")
        checkpoint.tag(f"b{number}")
        checkpoint.untag(f"a{number}")
        store.index.refresh()
        assert store.index.tagged(f"a{number}") == []
        assert store.index.tagged(f"b{number}") == [(run.hash, 1)]
        checkpoint.untag(f"b{number}")


def test_a_tag_that_is_no_name_and_a_note_that_says_nothing_are_refused(run):
    checkpoint = run.checkpoint(1)
    for mark, texts in (
        (checkpoint.tag, ["", "latest", "a@1", "x" * 201, 5, None]),
        (checkpoint.note, ["", "  ", None, 5]),
    ):
        for text in texts:
            with pytest.raises(errors.BadLabel):
                mark(text)
    assert (checkpoint.tags, checkpoint.notes) == ([], [])


@pytest.mark.guarantee("G12")
def test_a_tagged_checkpoint_is_neither_deleted_nor_replaced(store, run):
    again(store).resolve("a@1").tag("paper")
    for change in (
        lambda: run.delete(1),
        lambda: run.delete(2, 1),
        lambda: run.save(1, {}, replace=True),
        run.delete_all,
    ):
        with pytest.raises(errors.Protected, match="'paper'"):
            change()
    assert [each.step for each in run.checkpoints()] == [1, 2]
    assert same(run.load(1), {"step": 1, "x": np.full(2, 1)})
    store.untag("paper")
    run.save(1, {"step": 1}, replace=True)
    run.delete(1)
    assert [each.step for each in run.checkpoints()] == [2]


def test_marks_that_cannot_be_read_protect_what_they_may_have_tagged(run):
    run.checkpoint(1).tag("paper")
    _marks(run).write_bytes(b"garbage")
    run._store.index.rebuild()
    with pytest.raises((errors.Protected, errors.DamagedFile)):
        run.delete(1)


def test_damaged_marks_do_not_keep_the_state_from_being_loaded(run):
    run.checkpoint(1).tag("paper")
    path = _marks(run)
    path.write_bytes(path.read_bytes()[:-5])
    assert run.load(1)["step"] == 1
    with pytest.raises(errors.DamagedFile, match=r"marks\.json"):
        _ = run.checkpoint(1).tags


def test_notes_are_added_in_their_order(store, run):
    checkpoint = run.checkpoint(1)
    checkpoint.note("first")
    checkpoint.tag("paper")
    again(store).resolve("a@1").note("second\nline, grün")
    assert [note.text for note in checkpoint.notes] == ["first", "second\nline, grün"]
    assert all(note.time.endswith("Z") for note in checkpoint.notes)
    assert checkpoint.tags == ["paper"]


def test_marks_change_neither_the_record_nor_the_data(run):
    before = {path: path.read_bytes() for path in folder(run).iterdir()}
    run.checkpoint(1).tag("paper")
    run.checkpoint(1).note("text")
    after = {path: path.read_bytes() for path in folder(run).iterdir()}
    text = after.pop(_marks(run))
    assert after == before
    assert not {"metrics", "best"} & json.loads(text).keys(), "there are none"


def test_the_marks_of_a_deleted_checkpoint_are_gone(store, run):
    checkpoint = run.checkpoint(1)
    checkpoint.note("text")
    run.delete(1)
    for change in (lambda: checkpoint.tag("late"), lambda: checkpoint.note("late")):
        with pytest.raises(errors.RefNotFound):
            change()
    assert not _marks(run).exists()
    run.save(1, {})
    assert run.checkpoint(1).notes == []


def test_of_many_threads_that_give_one_tag_one_succeeds(store, run):
    for step in range(3, 9):
        run.save(step, {})

    def give(checkpoint: Checkpoint) -> int | None:
        with suppress(errors.AmbiguousRef):
            checkpoint.tag("paper")
            return checkpoint.step
        return None

    with ThreadPoolExecutor(8) as pool:
        (given,) = filter(None, pool.map(give, run.checkpoints()))
    assert store.resolve("paper").step == given


@pytest.mark.guarantee("G12")
def test_marks_do_not_survive_the_replacement_of_their_checkpoint(store, run):
    """The process died after the commit of the new record, before it deleted the old marks."""
    old = run.checkpoint(1)
    old.note("diverged")
    old.add_metrics({"val": 9.0}, best=True)
    path = _marks(run)
    left = path.read_bytes()
    run.save(1, {"step": 1}, replace=True)
    run.close()
    path.write_bytes(left)
    other = again(store)
    new = other.resolve("a@1")
    assert (new.notes, new.tags, new.metrics) == ([], [], {})
    assert other.index.best(run.hash) is None
    assert other.index.late_metrics(run.hash) == {}
    new.note("its own")
    assert [note.text for note in new.notes] == ["its own"]
    path.write_bytes(left)
    other.find_run("a").save(3, {})  # takes the run, and cleans up
    assert not path.exists()


def test_who_has_the_old_checkpoint_changes_no_marks_of_the_new_one(run):
    old = run.checkpoint(1)
    run.save(1, {"step": 1}, replace=True)
    new = run.checkpoint(1)
    new.tag("paper")
    with pytest.raises(errors.RefNotFound):
        old.note("diverged")
    assert (new.tags, new.notes) == (["paper"], [])


def test_a_tag_left_by_a_dead_process_neither_protects_nor_refers(store, run):
    old = run.checkpoint(1)
    old.tag("paper")
    path = _marks(run)
    left = path.read_bytes()
    old.untag("paper")
    run.save(1, {"step": 1}, replace=True)
    path.write_bytes(left)
    other = again(store)
    with pytest.raises(errors.RefNotFound):
        other.resolve("paper")
    run.checkpoint(2).tag("paper")
    run.delete(1)
    assert again(store).resolve("paper").step == 2


def test_late_metrics_are_seen_beside_those_that_were_saved(store, run):
    checkpoint = run.save(3, {}, metrics={"loss": 1.0})
    checkpoint.tag("kept")
    with pytest.raises(errors.RefusedState):
        checkpoint.add_metrics({"val": "good"})
    assert checkpoint.metrics == {"loss": 1.0}
    checkpoint.add_metrics({"val": np.float32(0.5), "worst": float("inf")})
    other = again(store).resolve("a@3")
    for each in (checkpoint, other):
        assert each.metrics == {"loss": 1.0, "val": 0.5, "worst": float("inf")}
        assert each.tags == ["kept"]
    other.note("seen")
    assert other.metrics["val"] == 0.5


def test_the_last_one_that_was_made_the_best_is_it(store, run):
    for step, best in ((3, True), (4, False)):
        run.save(step, {}, best=best)
    assert run.checkpoint("best").step == 3
    for step in (2, 4, 1):  # after no further commit
        run.checkpoint(step).add_metrics({}, best=True)
        assert run.checkpoint("best").step == step
    run.save(5, {})
    assert run.checkpoint("best").step == 1
    run.save(6, {}, best=True)
    assert run.checkpoint("best").step == 6
    other = again(store)
    other.index.rebuild()
    marked = {entry.step: entry.marks for entry in checkpoints(other.index)}
    assert [step for step, marks in marked.items() if "best" in marks] == [6]
