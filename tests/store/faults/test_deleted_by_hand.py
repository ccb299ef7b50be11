"""Somebody deletes files of a store while it is in use."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from standfast.errors import FellBack, MissingData, RefNotFound, StandfastError, StoreError
from standfast.files import disk
from standfast.store import Store
from tests.kit.fault_states import UnsyncedDisk, leftovers, state
from tests.kit.stores import same
from tests.store.faults.damage import HELD, NEWEST, Damaged


@pytest.fixture
def store(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Damaged:
    monkeypatch.setattr(disk, "LOCAL", UnsyncedDisk())
    return Damaged(folder / "store")


def test_a_run_deleted_between_two_saves_begins_anew(store: Damaged) -> None:
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
def test_a_run_deleted_before_a_load_is_not_there(is_fresh: bool, store: Damaged) -> None:
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
def test_a_run_that_shares_with_a_deleted_one_is_whole(name: str, store: Damaged) -> None:
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


def test_the_whole_store_deleted_between_two_saves_begins_anew(store: Damaged) -> None:
    run = store.run()
    run.save(10, state(10))
    shutil.rmtree(store.path)
    with pytest.raises(StoreError):
        run.load()
    run.save(11, state(11))
    assert same(run.load(), state(11))
    assert [each.name for each in Store(store.path).runs()] == ["first"]


def test_a_run_deleted_during_a_save_leaves_an_error_or_a_whole_checkpoint(
    store: Damaged, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Deleting(UnsyncedDisk):
        at = 0

        def __init__(self) -> None:
            self.count = 0
            self.too_late = False

        def write(self, fd: int, data: object, offset: int) -> None:
            super().write(fd, data, offset)  # type: ignore[arg-type]
            self.hit()

        def rename(self, source: Path, target: Path) -> None:
            super().rename(source, target)
            self.hit()

        def link(self, source: Path, target: Path) -> None:
            super().link(source, target)
            self.hit()

        def hit(self) -> None:
            self.count += 1
            if self.count == self.at:
                self.too_late = record.exists()
                shutil.rmtree(folder)

    folder = store.folder()
    outcomes = set()
    for at in range(1, 30):
        monkeypatch.setattr(Deleting, "at", at)
        run = store.run()
        record = store.record(10 + at)
        deleting = Deleting()
        with monkeypatch.context() as patch:
            patch.setattr(disk, "LOCAL", deleting)
            try:
                run.save(10 + at, state(at))
            except StandfastError as error:
                failed = str(error)
            else:
                failed = ""
        if deleting.count < at:
            break
        outcomes.add(bool(failed))
        steps = [each.step for each in run.checkpoints()]
        assert steps == ([] if failed or deleting.too_late else [10 + at])
        for step in steps:
            assert same(run.load(step), state(at))
        run.save(100 + at, state(at))
        assert same(run.load(), state(at))
        assert [each.step for each in run.checkpoints()] == [*steps, 100 + at]
        assert same(store.run("second").load(1), HELD["second", 1])
        run.close()
    assert at > 5
    assert outcomes == {True, False}


def test_a_run_file_deleted_by_hand_is_made_again(store: Damaged) -> None:
    run = store.run()
    file = store.folder() / f"{run.hash}_run.json"
    file.unlink()
    with pytest.warns(FellBack):
        assert same(store.run().load(), HELD["first", NEWEST])
    run.save(10, state(10))
    assert file.exists()
    assert same(store.run().load(), state(10))


def test_a_record_deleted_by_hand_is_a_checkpoint_deleted(store: Damaged) -> None:
    run = store.run()
    store.record().unlink()
    assert same(run.load(), HELD["first", 2])
    with pytest.raises(RefNotFound, match=f"no checkpoint of step {NEWEST}"):
        run.load(NEWEST)
    run.save(NEWEST, state(9))
    assert same(run.load(), state(9))
    run.close()
    store.run().save(10, state(10))
    assert leftovers(Store(store.path)) == []


def test_a_file_deleted_while_a_save_refers_to_it_is_missed_before_the_commit(
    store: Damaged,
) -> None:
    class Deleting(UnsyncedDisk):
        def link(self, source: Path, target: Path) -> None:
            if target.suffix == ".safetensors":
                referred_to.unlink(missing_ok=True)
            super().link(source, target)

    referred_to = store.data_file("model")
    run = store.run()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(disk, "LOCAL", Deleting())
        with pytest.raises(MissingData, match=f"{referred_to.name} was deleted during the save"):
            run.save(10, state(10, weight=4))
    assert [each.step for each in run.checkpoints()] == [1, 2, NEWEST]
    run.save(10, state(10, weight=4))
    assert same(run.load(), state(10, weight=4))
    run.close()
    assert leftovers(Store(store.path)) == []
