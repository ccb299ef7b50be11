"""Somebody deletes files of a store while it is in use."""

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from standfast.errors import FellBack, MissingData, RefNotFound, StandfastError, StoreError
from standfast.store import Store
from tests.kit.fault_states import leftovers, state
from tests.kit.seams import Seams
from tests.kit.stores import same
from tests.store.faults.damage import HELD, NEWEST


def test_a_run_deleted_between_two_saves_begins_anew(store):
    run = store.run()
    run.save(10, state(10, weight=1))
    shutil.rmtree(store.folder())
    new = state(11, weight=1)
    run.save(11, new)
    assert same(run.load(), new)
    assert [each.step for each in run.checkpoints()] == [11]
    assert run.checkpoint().head.parent is None
    assert same(store.run("second").load(1), HELD["second", 1])
    assert same(Store(store.path).resolve("latest").state(), new)
    run.close()
    fresh = store.run()
    fresh.save(12, state(12, weight=1))
    assert same(fresh.load(11), new)
    assert leftovers(Store(store.path)) == []


@pytest.mark.parametrize("is_fresh", [False, True], ids=["the same object", "another one"])
def test_a_run_deleted_before_a_load_is_not_there(is_fresh, store):
    run = store.run()
    assert same(run.load(), HELD["first", NEWEST])
    shutil.rmtree(store.folder())
    run = store.run() if is_fresh else run
    for ref in ("latest", "best", 1):
        with pytest.raises(RefNotFound):
            run.load(ref)
    assert same(Store(store.path).resolve("latest").state(), HELD["second", 1])


@pytest.mark.guarantee("G18")
@pytest.mark.parametrize("name", ["first", "second"])
def test_a_run_that_shares_with_a_deleted_one_is_whole(name, store):
    other = "second" if name == "first" else "first"
    shutil.rmtree(store.folder(other))
    for key, expected in HELD.items():
        if key[0] == name:
            run = store.run(name)
            assert same(run.load(key[1]), expected)
            run.checkpoint(key[1]).verify()
    run = store.run(name)
    run.save(10, state(10, weight=1))
    assert same(run.load(), state(10, weight=1))
    run = store.run(other)
    run.save(10, state(11, weight=1))
    assert same(run.load(), state(11, weight=1))
    assert leftovers(Store(store.path)) == []


def test_the_whole_store_deleted_between_two_saves_begins_anew(store):
    run = store.run()
    run.save(10, state(10))
    shutil.rmtree(store.path)
    with pytest.raises(StoreError):
        run.load()
    run.save(11, state(11))
    assert same(run.load(), state(11))
    assert [each.name for each in Store(store.path).runs()] == ["first"]


class Deleting:
    """Deletes the folder of a run after the n-th write, rename or link of a save."""

    def __init__(self, at: int, folder: Path, record: Path) -> None:
        self.left, self.is_too_late = at, False
        self._folder, self._record = folder, record

    def operation(self, real: Callable[..., None], *given: Any) -> None:
        real(*given)
        self.left -= 1
        if self.left == 0:
            self.is_too_late = self._record.exists()
            shutil.rmtree(self._folder)


def test_a_run_deleted_during_a_save_leaves_an_error_or_a_whole_checkpoint(store):
    outcomes = set()
    for at in range(1, 30):
        run, failed = store.run(), False
        deleting = Deleting(at, store.folder(), store.record(10 + at))

        def delete(real: Callable[..., None], *given: Any, by: Deleting = deleting) -> None:
            by.operation(real, *given)

        with Seams.until_end() as seams:
            seams.disk(write=delete, rename=delete, link=delete)
            try:
                run.save(10 + at, state(at))
            except StandfastError:
                failed = True
        if deleting.left > 0:
            break
        outcomes.add(failed)
        steps = [each.step for each in run.checkpoints()]
        assert steps == ([] if failed or deleting.is_too_late else [10 + at])
        for step in steps:
            assert same(run.load(step), state(at))
        run.save(100 + at, state(at))
        assert same(run.load(), state(at))
        assert [each.step for each in run.checkpoints()] == [*steps, 100 + at]
        assert same(store.run("second").load(1), HELD["second", 1])
        run.close()
    assert at > 5
    assert outcomes == {True, False}


def test_a_run_file_deleted_by_hand_is_made_again(store):
    run = store.run()
    file = store.folder() / f"{run.hash}_run.json"
    file.unlink()
    with pytest.warns(FellBack):
        assert same(store.run().load(), HELD["first", NEWEST])
    run.save(10, state(10))
    assert file.exists()
    assert same(store.run().load(), state(10))


def test_a_record_deleted_by_hand_is_a_checkpoint_deleted(store):
    run = store.run()
    store.record().unlink()
    assert same(run.load(), HELD["first", 2])
    with pytest.raises(RefNotFound):
        run.load(NEWEST)
    run.save(NEWEST, state(9))
    assert same(run.load(), state(9))
    run.close()
    store.run().save(10, state(10))
    assert leftovers(Store(store.path)) == []


def test_a_file_deleted_while_a_save_refers_to_it_is_missed_before_the_commit(store):
    referred_to = store.data_file("model")

    def deleting(link: Callable[..., None], source: Path, target: Path) -> None:
        if target.suffix == ".safetensors":
            referred_to.unlink(missing_ok=True)
        link(source, target)

    run = store.run()
    with Seams.until_end() as seams:
        seams.disk(link=deleting)
        with pytest.raises(MissingData, match=referred_to.name):
            run.save(10, state(10, weight=4))
    assert [each.step for each in run.checkpoints()] == [1, 2, NEWEST]
    run.save(10, state(10, weight=4))
    assert same(run.load(), state(10, weight=4))
    run.close()
    assert leftovers(Store(store.path)) == []
