"""Golden stores: what a version wrote, every later one opens; and the one from the future."""

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from standfast import KeepLast, Store
from standfast.errors import Protected, StandfastError, TooNew
from standfast.store.maintenance.doctor import examine
from tests.kit.stores import same
from tests.store.golden.make import FUTURE, RUNS, TODAY, state

OPENED = ("today", "future")


@pytest.fixture
def copied(tmp_path: Path) -> Callable[[Path], Store]:
    def copy(golden: Path) -> Store:
        return Store(shutil.copytree(golden, tmp_path / golden.name))

    return copy


def contents(folder: Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file() and ".standfast" not in path.parts and path.name != "manifest.yaml"
    }


@pytest.mark.guarantee("G4")
@pytest.mark.parametrize("name", RUNS)
def test_the_store_of_this_version_holds_what_was_saved(copied, name):
    run = copied(TODAY).find_run(name)
    dropped = {1, 2, 3} if name == "whole" else set()
    for checkpoint in run.checkpoints():
        expected = state(checkpoint.step)
        if checkpoint.head.dropped:
            del expected["optimizer"]
        checkpoint.verify()
        assert same(checkpoint.state(), expected)
    assert {each.step for each in run.checkpoints() if each.head.dropped} <= dropped
    first, second = run.checkpoint(1), run.checkpoint(2)
    assert (first.tags, first.notes[0].text) == ([f"paper-{name}"], "the figure in the text")
    assert second.metrics == {"loss": 0.5, "val": 0.25}
    assert run.checkpoint("best") == first
    assert second.parent == first


def test_a_later_save_refers_to_what_it_holds(copied):
    run = copied(TODAY).find_run("columns")
    files = {file.name for file in run.checkpoint(2).head.files}
    saved = run.save(3, state(3))
    assert {file.name for file in saved.head.files} & files
    assert same(run.load(), state(3))


def test_what_is_only_added_is_read_and_kept(copied):
    run = copied(FUTURE).find_run("columns")
    assert same(run.load("latest"), state(2))
    run.rename("other")
    run.checkpoint(1).note("seen")
    run.save(3, state(3))
    assert run.file.others == run.checkpoint(2).head.others == {"colour": "blue"}
    assert run.checkpoint(2).record.others.keys() == {"origin"}
    assert run.checkpoint(1).tags == ["paper-columns"]


@pytest.mark.guarantee("G14")
@pytest.mark.parametrize("name", ["needs", "version"])
def test_a_record_from_the_future_is_refused_by_name_and_left_alone(copied, name):
    store = copied(FUTURE)
    run = store.find_run(name)
    before = contents(Path(store.url))
    for refused in (
        lambda: run.load(),
        lambda: run.load(2),
        lambda: store.resolve(f"{name}@2").verify(),
        lambda: run.save(2, state(2), replace=True),
        lambda: run.save(9, state(9)),
        lambda: run.retain(KeepLast(1)),
    ):
        with pytest.raises(TooNew, match="step_000002"):
            refused()
    with pytest.raises(StandfastError):
        run.delete(2)
    with pytest.raises(StandfastError):
        run.delete_all()
    assert contents(Path(store.url)) == before
    assert same(run.load(1), state(1))


def test_marks_from_the_future_protect_their_checkpoint(copied):
    run = copied(FUTURE).find_run("marks")
    with pytest.raises(TooNew):
        _ = run.checkpoint(1).tags
    with pytest.raises(Protected):
        run.delete(1)
    assert same(run.load(), state(2))


def test_a_run_from_the_future_is_not_written_to(copied):
    # The run file of the future store cannot be read, so its name is unknown there.
    run_hash = copied(TODAY).find_run("run-file").hash
    with pytest.raises(TooNew):
        copied(FUTURE).open_run(run_hash).save(3, state(3))


def test_the_doctor_changes_nothing_from_the_future(copied):
    store = copied(FUTURE)
    before = contents(Path(store.url))
    found = examine(store.backend, store.index)
    assert contents(Path(store.url)) == before
    assert not found.restored
