"""What many ranks save is one checkpoint: the union of what they have."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from standfast import KeepLast, Store
from standfast.errors import (
    NotEnoughSpace,
    Protected,
    RanksDisagree,
    RefusedState,
    RunBusy,
    StandfastError,
    StepExists,
)
from standfast.files.disk import Disk
from standfast.parallel.single import SingleRank
from standfast.store.maintenance.doctor import examine
from standfast.store.save.ranks import save_together
from standfast.store.schema import names
from tests.kit.rank_threads import ThreadRanks, attempt_on_ranks, on_ranks
from tests.kit.stores import MIB, bytes_written, data_files, folder, random_bytes, same

BIG = 200_000
"""Large enough to be referred to, not written again."""


def part(rank: int, seed: int = 0, changed: int = 0) -> dict[str, Any]:
    """What a rank has: some large tensors, the first `changed` of another seed, and small ones."""
    slabs = [
        random_bytes(BIG, 100 * rank + n + (1000 * seed if n < changed else 0)) for n in range(8)
    ]
    shared = np.arange(10.0)
    state: dict[str, Any] = {
        f"rank{rank}": {"slabs": slabs, "seed": seed, "views": [shared, shared[2:5]]},
        f"loose{rank}": np.full(5, rank, np.int16),
    }
    return ({"simulation": {"time": 0.5, "name": "heat"}} if rank == 0 else {}) | state


def union(count: int, seed: int = 0, changed: int = 0) -> dict[str, Any]:
    return {k: v for rank in range(count) for k, v in part(rank, seed, changed).items()}


Save = Callable[[ThreadRanks], Any]


def saving(path: Path, step: int, state: Callable[[int], dict[Any, Any]], **options: Any) -> Save:
    """A program that saves on each rank what it has, with a store of its own."""

    def program(comm: ThreadRanks) -> Any:
        store = Store(path)
        try:
            return save_together(store.run("heat"), comm, step, state(comm.rank), **options)
        finally:
            store.close()

    return program


def raised(outcomes: list[Any], kind: type[StandfastError]) -> str:
    """The message of the error of this class, which is the same on all ranks."""
    assert [type(each) for each in outcomes] == [kind] * len(outcomes)
    (text,) = {str(each) for each in outcomes}
    return text


@pytest.mark.parametrize("count", [1, 2, 3, 4])
def test_the_union_comes_back_equal(count: int, tmp_path: Path) -> None:
    saved = on_ranks(count, saving(tmp_path, 5, part, metrics={"loss": 0.5}, epoch=3, best=True))
    run = Store(tmp_path).run("heat")
    assert same(run.load(), union(count))
    checkpoint = run.checkpoint("best")
    assert (checkpoint.step, checkpoint.epoch, checkpoint.metrics) == (5, 3, {"loss": 0.5})
    assert [each.head for each in saved] == [checkpoint.head] * count
    assert checkpoint.verify().nbytes == checkpoint.nbytes
    assert examine(run.store.backend, run.store.index).sound
    loaded = run.load()[f"rank{count - 1}"]["views"]
    loaded[0][2] = -1
    assert loaded[1][0] == -1


def test_a_rank_alone_saves_as_ever(tmp_path: Path) -> None:
    run = Store(tmp_path).run("heat")
    saved = save_together(run, SingleRank(), 1, part(0), metrics={"loss": 2}, epoch=4, best=True)
    assert saved == run.checkpoint("best")
    assert (saved.epoch, saved.metrics) == (4, {"loss": 2})
    assert same(run.load(), part(0))
    with pytest.raises(StepExists, match=r"^run"):
        save_together(run, SingleRank(), 1, part(0))
    assert save_together(run, SingleRank(), 1, [part(0)], replace=True).sequence == 2  # type: ignore[arg-type]
    assert same(run.load(), [part(0)])


def test_the_record_is_that_of_one_process(tmp_path: Path) -> None:
    on_ranks(3, saving(tmp_path / "ranks", 5, part))
    by_ranks = Store(tmp_path / "ranks").run("heat").checkpoint().record
    alone = Store(tmp_path / "alone").run("heat").save(5, union(3)).record
    assert by_ranks.tree == alone.tree
    assert by_ranks.names == alone.names
    assert by_ranks.kinds == alone.kinds
    assert by_ranks.specs == alone.specs
    assert by_ranks.digests == alone.digests
    assert by_ranks.views == alone.views
    assert by_ranks.head.parts == alone.head.parts
    assert by_ranks.head.nbytes == alone.head.nbytes


def test_keys_of_all_kinds_come_back(tmp_path: Path) -> None:
    states: list[dict[Any, Any]] = [
        {1: {"a": np.ones(2)}, "$x": 4},
        {},
        {"1": {"a": np.zeros(2)}, "1.a": np.ones(3), None: [np.arange(3)], "later": {"b": "c"}},
    ]
    on_ranks(3, saving(tmp_path, 1, states.__getitem__))
    assert same(Store(tmp_path).run("heat").load(), {**states[0], **states[1], **states[2]})


def test_what_a_rank_saved_before_is_referred_to(tmp_path: Path) -> None:
    run = Store(tmp_path).run("heat")
    on_ranks(4, saving(tmp_path, 1, part))
    first = sum(data_files(run).values())
    assert first > 4 * 8 * BIG
    new = bytes_written(
        run, lambda: on_ranks(4, saving(tmp_path, 2, lambda rank: part(rank, 1, changed=1)))
    )
    assert 4 * BIG < new < 4 * (BIG + 16384)
    assert same(run.load(2), union(4, 1, changed=1))
    assert same(run.load(1), union(4))


def test_what_another_rank_saved_before_is_referred_to(tmp_path: Path) -> None:
    run = Store(tmp_path).run("heat")
    on_ranks(3, saving(tmp_path, 1, lambda rank: {f"rank{rank}": {"x": random_bytes(BIG, rank)}}))
    turned = {f"rank{rank}": {"x": random_bytes(BIG, (rank + 1) % 3)} for rank in range(3)}
    new = bytes_written(
        run,
        lambda: on_ranks(
            3, saving(tmp_path, 2, lambda rank: {f"rank{rank}": turned[f"rank{rank}"]})
        ),
    )
    assert new == 0
    assert same(run.load(2), turned)


def test_what_another_run_has_is_linked_in(tmp_path: Path) -> None:
    other = Store(tmp_path).run("other")
    other.save(1, {"model": part(0)["rank0"]})
    on_ranks(2, saving(tmp_path, 1, lambda rank: {f"rank{rank}": {"x": part(0)["rank0"]["slabs"]}}))
    run = Store(tmp_path).run("heat")
    assert sum(data_files(other).values()) in data_files(run).values()
    other.delete_all()
    assert run.checkpoint().verify().tensors == 16


def test_ranks_save_again_and_again(tmp_path: Path) -> None:
    def program(comm: ThreadRanks) -> None:
        run = Store(tmp_path).run("heat")
        for step in range(1, 5):
            save_together(run, comm, step, part(comm.rank, step, changed=step))

    on_ranks(2, program)
    run = Store(tmp_path).run("heat")
    assert [each.step for each in run.checkpoints()] == [1, 2, 3, 4]
    assert [each.sequence for each in run.checkpoints()] == [1, 2, 3, 4]
    for step in range(1, 5):
        assert same(run.load(step), union(2, step, changed=step))


def test_a_step_that_is_there_is_refused_on_all_ranks_or_replaced(tmp_path: Path) -> None:
    on_ranks(2, saving(tmp_path, 1, part))
    before = listed(tmp_path)
    text = raised(attempt_on_ranks(2, saving(tmp_path, 1, part)), StepExists)
    assert "step 1 already" in text
    assert "rank 0 of 2" in text
    assert listed(tmp_path) == before
    on_ranks(2, saving(tmp_path, 1, lambda rank: part(rank, 3, changed=8), replace=True))
    run = Store(tmp_path).run("heat")
    assert same(run.load(1), union(2, 3, changed=8))
    assert len(data_files(run)) == 4, "what the old one had is deleted"
    run.checkpoint(1).tag("paper")
    outcomes = attempt_on_ranks(2, saving(tmp_path, 1, part, replace=True))
    assert "is tagged 'paper'" in raised(outcomes, Protected)


def test_a_run_that_another_process_writes_is_refused_on_all_ranks(tmp_path: Path) -> None:
    store = Store(tmp_path)
    run = store.run("heat")
    with store.backend.lock(run.hash) as lock:  # type: ignore[union-attr]
        assert lock.is_held()
        text = raised(attempt_on_ranks(2, saving(tmp_path, 1, part)), RunBusy)
    assert "writes into it" in text
    assert "rank 0 of 2" in text
    on_ranks(2, saving(tmp_path, 1, part))
    assert same(store.run("heat").load(), union(2))


def test_ranks_wait_for_another_change_no_longer_than_for_each_other(tmp_path: Path) -> None:
    Store(tmp_path).run("heat")  # making it takes the lock that rank 0 holds below

    def program(comm: ThreadRanks) -> Any:
        run = Store(tmp_path).run("heat")
        if comm.rank != 0:
            return save_together(run, comm, 1, part(1))
        with run, run.store.backend.lock(f"{run.hash}.change"):  # type: ignore[union-attr]
            return save_together(run, comm, 1, part(0))

    outcomes = attempt_on_ranks(2, program, timeout=8.0)
    assert "is changing it" in raised(outcomes, RunBusy)


def test_what_ranks_disagree_on_is_refused(tmp_path: Path) -> None:
    def disagreeing(**options: list[Any]) -> str:
        def program(comm: ThreadRanks) -> Any:
            given = {key: values[comm.rank] for key, values in options.items()}
            step, name = given.pop("step", 1), given.pop("name", "heat")
            run = Store(tmp_path).run(name)
            return save_together(run, comm, step, part(comm.rank), **given)

        return raised(attempt_on_ranks(2, program), RanksDisagree)

    assert "the step: rank 0 has 1, and rank 1 has 2" in disagreeing(step=[1, 2])
    assert "the epoch" in disagreeing(epoch=[None, 0])
    assert "`best`" in disagreeing(best=[True, False])
    assert "`replace`" in disagreeing(replace=[False, True])
    assert "the run" in disagreeing(name=["heat", "other"])
    assert "the metrics: rank 0 has {" in disagreeing(metrics=[{"loss": 1.0}, {}])
    assert listed(tmp_path / "checkpoints" / "models", "*_step_*") == []


def test_a_key_that_two_ranks_have_is_refused(tmp_path: Path) -> None:
    states: list[dict[Any, Any]] = [{"a": 1}, {1: 2, "b": 3}, {1.0: 4}]
    text = raised(attempt_on_ranks(3, saving(tmp_path, 1, states.__getitem__)), RanksDisagree)
    assert "ranks 1 and 2 both have '1.0'" in text
    text = raised(
        attempt_on_ranks(2, saving(tmp_path, 1, lambda rank: {"model": {}})), RanksDisagree
    )
    assert "ranks 0 and 1 both have 'model'" in text


def test_what_one_rank_cannot_save_is_refused_on_all(tmp_path: Path) -> None:
    states: list[Any] = [{"a": 1}, {"b": {"c": object()}}, {"d": 1}]
    text = raised(attempt_on_ranks(3, saving(tmp_path, 1, states.__getitem__)), RefusedState)
    assert "rank 1 of 3: RefusedState: b.c" in text
    states[1] = [1, 2]
    text = raised(attempt_on_ranks(3, saving(tmp_path, 1, states.__getitem__)), RefusedState)
    assert "not a list" in text


def test_the_space_must_suffice_for_all_ranks_together(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    on_ranks(2, saving(tmp_path, 1, part))
    before = listed(tmp_path)
    # The margin, and what one of the two needs, with all that is not a slab.
    monkeypatch.setattr(Disk, "free", lambda *_: MIB + 8 * BIG + 20_000)
    other = saving(tmp_path, 2, lambda rank: part(rank, 2, changed=8))
    assert "nothing was written" in raised(attempt_on_ranks(2, other), NotEnoughSpace)
    assert listed(tmp_path) == before
    # Dedup lets it fit: half of each is there already.
    on_ranks(2, saving(tmp_path, 2, lambda rank: part(rank, 2, changed=4)))
    assert same(Store(tmp_path).run("heat").load(), union(2, 2, changed=4))


def test_links_that_were_made_to_find_out_the_space_are_kept_or_go(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    Store(tmp_path).run("other").save(1, {"model": part(0)["rank0"]})
    monkeypatch.setattr(Disk, "free", lambda *_: MIB + BIG)

    def state(rank: int, more: int = 0) -> dict[str, Any]:
        new = random_bytes(more, 1000 + rank)
        return {f"rank{rank}": {"old": part(0)["rank0"]["slabs"], "new": new}}

    outcomes = attempt_on_ranks(2, saving(tmp_path, 1, lambda rank: state(rank, BIG)))
    raised(outcomes, NotEnoughSpace)
    run = Store(tmp_path).run("heat")
    assert data_files(run) == {}
    on_ranks(2, saving(tmp_path, 1, state))
    assert same(run.load(), state(0) | state(1))


def test_rank_0_deletes_what_the_run_does_not_keep(tmp_path: Path) -> None:
    Store(tmp_path).run("heat").retain(KeepLast(1))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for step in (1, 2, 3):
            on_ranks(2, saving(tmp_path, step, lambda rank: part(rank, step, changed=8)))  # noqa: B023
    run = Store(tmp_path).run("heat")
    assert [each.step for each in run.checkpoints()] == [3]
    assert len(data_files(run)) == 4


def test_the_files_of_one_save_have_one_token(tmp_path: Path) -> None:
    on_ranks(3, saving(tmp_path, 7, part))
    run = Store(tmp_path).run("heat")
    found = [name.split(".") for name in data_files(run)]
    assert sorted(label for _, _, label, _ in found) == [
        "rank0",
        "rank1",
        "rank2",
        "state",
        "state-2",
        "state-3",
    ]
    assert len({token for _, token, _, _ in found}) == 1
    assert all(names.parse(name, run.hash) for name in data_files(run))


def listed(path: Path, pattern: str = "*") -> list[str]:
    """The files of a store that count."""
    return sorted(
        str(file.relative_to(path))
        for file in path.rglob(pattern)
        if file.is_file() and ".standfast" not in file.parts and file.name != names.MANIFEST
    )


def test_long_labels_stay_apart(tmp_path: Path) -> None:
    long = "x" * 60
    states = [
        {f"{long}{n}{rank}": {"w": random_bytes(2 * MIB, 9 * rank + n)} for n in range(3)}
        for rank in range(2)
    ]
    on_ranks(2, saving(tmp_path, 1, states.__getitem__))
    run = Store(tmp_path).run("heat")
    assert same(run.load(), states[0] | states[1])
    assert len(list(folder(run).glob("*.safetensors"))) == 6
