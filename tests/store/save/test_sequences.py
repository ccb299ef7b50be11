"""Sequence numbers: one bound for writers and readers, a margin for records from elsewhere."""

import shutil
from pathlib import Path

import numpy as np
import pytest

from standfast import Run, Store, errors
from standfast.store.maintenance.verify import verify_store
from standfast.store.schema import marks, names, settings
from standfast.store.schema.names import FORGED_SEQUENCE, LAST_COPIED
from tests.kit.stores import folder, record_path
from tests.store.schema.edits import resealed, rewritten

STATE = {"w": np.arange(10_000.0)}


def renumbered(run: Run, sequence: int) -> None:
    """Let the record of step 1 have another sequence number, with all its digests right."""
    rewritten(record_path(run, 1), sequence=sequence)


def forged(run: Run, **members: int) -> None:
    """Let the marks of step 1 say that it was made the best, and something else."""
    run.save(1, STATE)
    run.checkpoint(1).add_metrics({"loss": 1.0}, best=True)
    resealed(Path(run.store.url, names.marks_file(run.hash, 1)), marks.FORMAT, **members)


@pytest.mark.guarantee("G7")
def test_a_record_beyond_the_bound_spoils_no_save_of_others(tmp_path):
    """Its folder was copied into the store, as docs/copying.md says one may."""
    other = Store(tmp_path / "other").run("foreign")
    other.save(1, STATE)
    renumbered(other, 1 << 53)
    store = Store(tmp_path / "store")
    run = store.run("own")
    run.save(1, STATE)
    shutil.copytree(folder(other), folder(run).parent / other.hash)
    run.save(2, STATE)
    store.index.rebuild()
    assert run.load("latest")["w"][-1] == 9999
    assert [each.sequence for each in run.checkpoints()] == [1, 2]
    assert run.checkpoint(2).parent == run.checkpoint(1)


@pytest.mark.parametrize("sequence", [FORGED_SEQUENCE - 1, FORGED_SEQUENCE + 5, (1 << 53) - 1])
def test_a_forged_number_stops_saves_until_it_is_deleted(tmp_path, sequence):
    """A save with a number above it could be copied nowhere, not even after it is deleted."""
    store = Store(tmp_path / "store")
    run, foreign = store.run("own"), store.run("foreign")
    run.save(1, STATE)
    foreign.save(1, STATE)
    renumbered(foreign, sequence)
    with pytest.raises(errors.RefusedState, match=f"{foreign.hash}_step_000001.json"):
        run.save(2, STATE)
    assert run.load()["w"][-1] == 9999
    assert store.resolve("latest").run.hash == foreign.hash
    foreign.close()
    foreign.delete_all()
    assert run.save(2, STATE).sequence == 2
    run.delete(2)
    assert run.save(3, STATE).sequence == 3  # a number that was counted is not used again
    run.checkpoint(3).copy_to(Store(tmp_path / "mirror"))


@pytest.mark.guarantee("G7")
def test_the_number_of_a_deleted_checkpoint_is_never_used_again(tmp_path):
    with Store(tmp_path).run("r") as run:
        run.save(1, STATE)
        run.save(2, STATE)
        run.delete(2)
    with Store(tmp_path).run("r") as again:
        assert again.save(3, STATE).sequence == 3


def test_a_number_without_a_margin_is_not_copied_into_a_store(tmp_path):
    source, target = Store(tmp_path / "a"), Store(tmp_path / "b")
    run = source.run("r")
    run.save(1, STATE)
    renumbered(run, LAST_COPIED + 1)
    with pytest.raises(errors.LimitExceeded):
        run.checkpoint(1).copy_to(target)
    assert not list((tmp_path / "b").rglob("*.json"))
    renumbered(run, LAST_COPIED)
    run.checkpoint(1).copy_to(target)
    assert target.run("r").save(2, STATE).sequence == LAST_COPIED + 1


def test_best_without_a_margin_is_not_copied_into_a_store(tmp_path):
    run, target = Store(tmp_path / "a").run("r"), Store(tmp_path / "b")
    forged(run, best=LAST_COPIED + 1)
    run.checkpoint(1).copy_to(target)
    copy = target.run("r")
    assert copy.checkpoint(1).metrics == {}
    copy.save(2, STATE, best=True)
    assert copy.checkpoint("best").step == 2


@pytest.mark.parametrize(
    "forgery", [{"best": 1 << 53}, {"best": 1 << 64}, {"best": -1}, {"sequence": 1 << 64}], ids=str
)
def test_marks_with_a_number_beyond_the_bound_are_damaged_and_spoil_nothing(tmp_path, forgery):
    run = Store(tmp_path).run("r")
    forged(run, **forgery)
    store = Store(tmp_path)
    assert [each.name for each in store.runs()] == ["r"]
    store.run("other").save(1, STATE)
    again = store.find_run("r")
    again.save(2, STATE, best=True)
    with pytest.warns(errors.FellBack):  # they may have made step 1 the best since
        assert again.checkpoint("best").step == 2
    assert [*verify_store(store).damaged] == [names.marks_file(run.hash, 1)]


def test_a_store_file_with_a_number_beyond_the_bound_spoils_no_save(tmp_path):
    store = Store(tmp_path)
    run = store.run("r")
    run.save(1, STATE)
    store.budget = "1TB"
    path = Path(store.url, settings.NAME)
    resealed(path, settings.FORMAT, highest=names.MAX_SEQUENCE - 1)
    with pytest.warns(
        errors.NotDeleted, match=settings.NAME
    ):  # nothing is deleted for a budget unknown
        assert run.save(2, STATE).sequence == 2
    assert [*verify_store(store).damaged] == [settings.NAME]


def test_a_state_that_could_not_be_loaded_again_is_not_committed(run):
    run.save(1, STATE)
    before = sorted(folder(run).iterdir())
    keys = {(2**61 - 1) * factor: 0 for factor in range(8, 2000)}  # which all have one hash
    with pytest.raises(errors.RefusedState):
        run.save(2, {"w": np.arange(20_000.0), "keys": keys})
    assert sorted(folder(run).iterdir()) == before
    assert run.save(2, STATE).sequence == 2
