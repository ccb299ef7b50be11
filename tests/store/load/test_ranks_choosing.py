"""One checkpoint for all ranks, and what becomes of it when one of them cannot have it."""

import warnings
from pathlib import Path
from typing import Any

import pytest

from standfast import KeepBest, Store
from standfast.errors import DigestMismatch, FellBack, RankFailed, RefNotFound, RunBusy
from standfast.store.backends.local import LocalBackend
from standfast.store.checkpoint import Checkpoint
from standfast.store.index import database
from standfast.store.load.ranks_choosing import with_checkpoint_together
from standfast.store.save.changing import change_of
from standfast.store.save.ranks import save_together
from tests.kit.rank_threads import ThreadRanks, attempt_on_ranks, on_ranks
from tests.kit.stores import data_path, flip
from tests.store.save.rank_states import part


class OwnIndex(LocalBackend):
    """A backend whose index no other rank sees, as on nodes that share a network disk."""

    cache = None


def _save(folder: Path, comm: ThreadRanks, *steps: int) -> None:
    run = Store(folder).run("heat")
    for step in steps:
        save_together(run, comm, step, part(comm.rank, step))


def _load(run: Any, comm: ThreadRanks, ref: int | str = "latest") -> int:
    def load(checkpoint: Checkpoint) -> int:
        numbers = [
            n for n, name in enumerate(checkpoint.record.names) if f"rank{comm.rank}" in name
        ]
        with checkpoint.data(tensors=numbers) as data:
            data.check()
        return checkpoint.step

    return with_checkpoint_together(run, comm, ref, load)


@pytest.mark.parametrize("damaged", [0, 1, 2])
def test_a_damaged_step_is_saved_again_whoever_found_it(damaged, tmp_path):
    on_ranks(3, lambda comm: _save(tmp_path, comm, 1, 2))
    flip(data_path(Store(tmp_path).run("heat"), 2, f"rank{damaged}"))

    def resume(comm: ThreadRanks) -> tuple[int, int]:
        run = Store(OwnIndex(tmp_path / "checkpoints")).run("heat")
        found = _load(run, comm)
        return found, save_together(run, comm, 2, part(comm.rank, 2)).step

    with pytest.warns(FellBack):
        assert on_ranks(3, resume) == [(1, 2)] * 3
    run = Store(tmp_path).run("heat")
    assert run.checkpoint("latest").step == 2
    run.checkpoint(2).verify()


def test_a_step_that_is_damaged_for_one_rank_is_so_for_all(tmp_path):
    on_ranks(3, lambda comm: _save(tmp_path, comm, 1, 2))
    flip(data_path(Store(tmp_path).run("heat"), 2, "rank1"))
    outcomes = attempt_on_ranks(3, lambda comm: _load(Store(tmp_path).run("heat"), comm, 2))
    assert {type(each) for each in outcomes} == {DigestMismatch}
    assert len({str(each) for each in outcomes}) == 1


def test_a_checkpoint_that_is_not_there_is_missed_by_all(tmp_path):
    outcomes = attempt_on_ranks(3, lambda comm: _load(Store(tmp_path).run("heat"), comm))
    assert [type(each) for each in outcomes] == [RefNotFound] * 3


@pytest.mark.parametrize("who", [0, 1])
def test_a_rank_that_is_interrupted_keeps_no_other_waiting(who, tmp_path):
    on_ranks(2, lambda comm: _save(tmp_path, comm, 1))

    def load(comm: ThreadRanks) -> Any:
        def interrupted(checkpoint: Checkpoint) -> None:
            if comm.rank == who:
                raise KeyboardInterrupt

        run = Store(tmp_path).run("heat")
        try:
            with_checkpoint_together(run, comm, "latest", interrupted)
        except BaseException as error:
            return type(error), _load(run, comm)  # all ranks are still in step

    outcomes = on_ranks(2, load)
    assert outcomes[who] == (KeyboardInterrupt, 1)
    assert outcomes[1 - who] == (RankFailed, 1)


def test_ranks_on_a_store_that_is_new_share_its_index(tmp_path):
    def save(comm: ThreadRanks) -> Path | None:
        store = Store(tmp_path / "new")
        run = store.run("heat")
        run.checkpoints()  # opens the index, before there is a folder for it
        save_together(run, comm, 1, part(comm.rank, 1))
        store.index.refresh()
        (row,) = store.index._database.all("PRAGMA database_list")
        return Path(row[2]).name if row[2] else None

    assert on_ranks(3, save) == [database.NAME] * 3


def test_a_run_that_is_being_changed_is_busy_for_all_before_they_give_up(tmp_path):
    run = Store(tmp_path).run("heat")
    with change_of(run.store.backend, run.hash):
        outcomes = attempt_on_ranks(2, lambda comm: _save(tmp_path, comm, 1), timeout=4.0)
    assert [type(each) for each in outcomes] == [RunBusy] * 2


def test_what_cannot_be_deleted_is_told_to_all_where_warnings_are_errors(tmp_path):
    on_ranks(2, lambda comm: _save(tmp_path, comm, 1))
    Store(tmp_path).run("heat").retain(KeepBest(1, "loss"))  # which nobody has

    with warnings.catch_warnings(action="error"):
        outcomes = attempt_on_ranks(2, lambda comm: _save(tmp_path, comm, 2))
    assert [type(each) for each in outcomes] == [RankFailed] * 2
    assert "NotDeleted" in str(outcomes[1])
    assert Store(tmp_path).run("heat").checkpoint("latest").step == 2
