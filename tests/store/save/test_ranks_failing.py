"""Whatever fails on whichever rank: all raise, and the store is as it was; or all is saved."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Any

import pytest

from standfast.errors import RankFailed, RankLost
from standfast.files import disk
from standfast.store import Store
from standfast.store.index.manifest import Manifest
from standfast.store.save.ranks import save_together
from standfast.store.schema import names
from tests.kit.cases import kept
from tests.kit.fault_states import UnsyncedDisk, copy_store, leftovers, make_small
from tests.kit.rank_threads import Killed, ThreadRanks, attempt_on_ranks, on_ranks
from tests.kit.stores import random_bytes, same
from tests.store.save.rank_faults import CHANGES, DONE, OF_FILES, QUESTIONS, FaultyBackend, fail

COUNT = 3
BIG = 70_000


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    make_small(monkeypatch)
    monkeypatch.setattr(disk, "LOCAL", UnsyncedDisk())
    monkeypatch.setattr(Manifest, "refresh", Manifest.mark)


def part(rank: int, seed: int) -> dict[str, Any]:
    """What a rank has: some of it as before, some from another run, some new."""
    return {
        f"rank{rank}": {
            "same": random_bytes(BIG, rank),
            "other": random_bytes(BIG, 900 + rank),
            "new": random_bytes(BIG, 100 * seed + rank),
            "seed": seed,
        }
    }


def union(seed: int) -> dict[str, Any]:
    return {key: value for rank in range(COUNT) for key, value in part(rank, seed).items()}


def save(store: Store, comm: ThreadRanks, step: int, seed: int, **options: Any) -> Any:
    try:
        return save_together(store.run("heat"), comm, step, part(comm.rank, seed), **options)
    finally:
        store.close()


def prepare(path: Path) -> None:
    """A store with a checkpoint of these ranks, and of another run, which the next shares with."""
    with Store(path) as store, store.run("other") as other:
        for rank in range(COUNT):
            other.save(rank, {"x": random_bytes(BIG, 900 + rank)})

    def first(comm: ThreadRanks) -> None:
        state = {f"rank{comm.rank}": {"same": random_bytes(BIG, comm.rank)}}
        with Store(path) as store:
            save_together(store.run("heat"), comm, 1, state)

    on_ranks(COUNT, first)


def listed(path: Path) -> dict[str, int]:
    """The files that count, each with how many names it has."""
    return {
        str(file.relative_to(path)): file.stat().st_nlink
        for file in path.rglob("*")
        if file.is_file()
        and not {".standfast", "logs"} & {*file.relative_to(path).parts}
        and file.name != names.MANIFEST
    }


Strike = Callable[[ThreadRanks, str], None]


class Faulted:
    """What came of a save in which something went wrong on one rank."""

    def __init__(
        self,
        path: Path,
        rank: int,
        at: int,
        strike: Strike,
        among: Collection[str],
        after: bool = False,
        replace: bool = False,
    ) -> None:
        self.struck: str | None = None

        def program(comm: ThreadRanks) -> Any:
            if comm.rank != rank:
                return save(Store(path), comm, 2, 2, replace=replace)
            root = path / "checkpoints"
            faulty = FaultyBackend(root, at, lambda name: strike(comm, name), among, after)
            store = Store(faulty)
            run = store.run("heat")
            faulty.armed = True
            try:
                return save_together(run, comm, 2, part(rank, 2), replace=replace)
            finally:
                faulty.armed = False
                self.struck = faulty.struck
                store.close()

        self.outcomes = attempt_on_ranks(COUNT, program)
        self.errors = [each for each in self.outcomes if isinstance(each, BaseException)]


@pytest.mark.guarantee("G6")
@pytest.mark.parametrize("replace", [False, True], ids=["new", "replaced"])
@pytest.mark.parametrize("rank", kept(range(COUNT), 1))
@pytest.mark.parametrize(
    "what", ["changes", "done", pytest.param("questions", marks=pytest.mark.long)]
)
def test_an_operation_that_fails_on_one_rank_fails_on_all(
    what: str, rank: int, replace: bool, tmp_path: Path
) -> None:
    among = {"changes": CHANGES + OF_FILES, "done": DONE, "questions": QUESTIONS}[what]
    prepare(tmp_path / "prepared")
    if replace:
        on_ranks(COUNT, lambda comm: save(Store(tmp_path / "prepared"), comm, 2, 5))
    before = listed(tmp_path / "prepared")
    struck: list[str] = []
    outcomes: set[str] = set()
    for at in itertools.count(1):
        path = tmp_path / str(at)
        copy_store(tmp_path / "prepared", path)
        done = Faulted(path, rank, at, lambda _, name: fail(name), among, what == "done", replace)
        if done.struck is None:
            assert done.errors == []
            break
        where = f"operation {at}, {done.struck}"
        struck.append(done.struck)
        run = Store(path).run("heat")
        is_new = run.checkpoint().step == 2 and run.load(2)["rank1"]["seed"] == 2
        if done.errors:
            assert len(done.errors) == COUNT, where
            assert len({(type(each), str(each)) for each in done.errors}) == 1, where
            assert f"rank {rank} of {COUNT}: " in str(done.errors[0]), where
            assert f"injected in {done.struck}" in str(done.errors[0]), where
        else:
            assert is_new, where
        if is_new:
            assert same(run.load(2), union(2)), where
            outcomes.add("saved, and raised" if done.errors else "saved")
        else:
            assert listed(path) == before, where
            outcomes.add("as it was")
        if at % 5 == 0:
            on_ranks(COUNT, lambda comm: save(Store(path), comm, 3, 3))  # noqa: B023
            assert same(Store(path).run("heat").load(), union(3))
            assert leftovers(Store(path)) == []
    if what == "changes":
        assert {"new", "write", "finish", "place", "sync"} <= {*struck}
        assert ("link" in struck) != replace, "when it is replaced, the link is there"
        assert ("create" in struck or "replace" in struck) == (rank == 0)
    assert "as it was" in outcomes
    assert ("saved, and raised" in outcomes) == (what == "done" and rank == 0)


@pytest.mark.guarantee("G6")
@pytest.mark.parametrize("rank", range(1, COUNT))
def test_a_rank_that_is_lost_leaves_the_old_state_or_the_new_one(rank: int, tmp_path: Path) -> None:
    def kill(comm: ThreadRanks, _: str) -> None:
        comm.kill()
        raise Killed

    prepare(tmp_path / "prepared")
    for at in itertools.count(1, 2):
        path = tmp_path / str(at)
        copy_store(tmp_path / "prepared", path)
        done = Faulted(path, rank, at, kill, CHANGES + OF_FILES)
        if done.struck is None:
            assert done.errors == []
            break
        where = f"operation {at}, {done.struck}"
        kinds = [type(each) for each in done.outcomes]
        assert kinds.pop(rank) is Killed
        assert {*kinds} == {RankLost}, where
        run = Store(path).run("heat")
        assert run.checkpoint().step == 1, where
        assert leftovers(Store(path)) == [], f"{where}: rank 0 has not cleaned up"
        on_ranks(COUNT, lambda comm: save(Store(path), comm, 2, 3))  # noqa: B023
        assert same(Store(path).run("heat").load(), union(3)), where
        assert leftovers(Store(path)) == [], where
    assert at > 5


class Interrupted:
    """Ctrl-C on one rank, when it makes its n-th call."""

    def __init__(self, path: Path, rank: int, number: int) -> None:
        self.kind: str | None = None

        def program(comm: ThreadRanks) -> Any:
            def before(call: int, kind: str) -> None:
                if call == number:
                    self.kind = kind
                    comm._meeting.part(f"rank {rank} left it because of KeyboardInterrupt")
                    raise KeyboardInterrupt

            if comm.rank == rank:
                comm.before = before
            return save(Store(path), comm, 2, 2)

        self.outcomes = attempt_on_ranks(COUNT, program)


@pytest.mark.parametrize("rank", range(COUNT))
def test_a_rank_that_is_interrupted_in_a_call_lets_no_other_hang(rank: int, tmp_path: Path) -> None:
    prepare(tmp_path / "prepared")
    saved = []
    for number in itertools.count(1):
        path = tmp_path / str(number)
        copy_store(tmp_path / "prepared", path)
        done = Interrupted(path, rank, number)
        if done.kind is None:
            break
        run = Store(path).run("heat")
        saved.append(run.checkpoint().step == 2)
        others = [each for n, each in enumerate(done.outcomes) if n != rank]
        assert type(done.outcomes[rank]) is KeyboardInterrupt
        if not saved[-1]:
            assert {type(each) for each in others} == {RankLost}, f"call {number}, {done.kind}"
        elif rank != 0:  # those who did not hear of it have looked, and found it or not
            assert done.outcomes[0] == run.checkpoint()
        on_ranks(COUNT, lambda comm: save(Store(path), comm, 4, 4))  # noqa: B023
        assert same(Store(path).run("heat").load(), union(4))
        if saved[-1]:
            assert same(Store(path).run("heat").load(2), union(2))
    assert saved == sorted(saved)
    assert saved.count(True) == 2, "only in the last calls: the outcome, and what is deleted"


def test_ranks_that_did_not_hear_the_outcome_find_it(tmp_path: Path) -> None:
    """Rank 0 commits, and is gone before it can say so."""
    prepare(tmp_path)

    def program(comm: ThreadRanks) -> Any:
        calls = 0

        def before(_: int, kind: str) -> None:
            nonlocal calls
            calls += kind == "broadcast"
            if calls == 2:
                comm.kill()
                raise Killed

        if comm.rank == 0:
            comm.before = before
        return save(Store(tmp_path), comm, 2, 2)

    outcomes = attempt_on_ranks(COUNT, program)
    assert isinstance(outcomes[0], Killed)
    run = Store(tmp_path).run("heat")
    assert outcomes[1:] == [run.checkpoint(2)] * 2
    assert same(run.load(), union(2))


def test_an_old_record_of_the_step_is_not_taken_for_the_outcome(tmp_path: Path) -> None:
    prepare(tmp_path)
    on_ranks(COUNT, lambda comm: save(Store(tmp_path), comm, 2, 5))

    def program(comm: ThreadRanks) -> Any:
        def before(_: int, kind: str) -> None:
            if kind == "gather":
                comm.kill()
                raise Killed

        if comm.rank == 0:
            comm.before = before
        return save(Store(tmp_path), comm, 2, 5, replace=True)

    outcomes = attempt_on_ranks(COUNT, program)
    assert [type(each) for each in outcomes] == [Killed, RankLost, RankLost]
    assert same(Store(tmp_path).run("heat").load(), union(5))


def test_an_error_that_is_not_ours_is_told_as_it_is(tmp_path: Path) -> None:
    prepare(tmp_path)

    def strike(comm: ThreadRanks, name: str) -> None:
        raise ZeroDivisionError("a bug")

    done = Faulted(tmp_path, 1, 1, strike, ["finish"])
    assert [type(each) for each in done.errors] == [RankFailed] * COUNT
    assert "rank 1 of 3: ZeroDivisionError: a bug" in str(done.errors[0])
    assert Store(tmp_path).run("heat").checkpoint().step == 1


@pytest.mark.parametrize("rank", [0, 2])
@pytest.mark.parametrize("operation", ["write", "place", "sync"])
def test_ctrl_c_while_a_rank_writes_is_told_to_the_others(
    operation: str, rank: int, tmp_path: Path
) -> None:
    prepare(tmp_path)
    before = listed(tmp_path)

    def strike(comm: ThreadRanks, name: str) -> None:
        raise KeyboardInterrupt

    done = Faulted(tmp_path, rank, 1, strike, [operation])
    assert type(done.errors.pop(rank)) is KeyboardInterrupt
    assert [type(each) for each in done.errors] == [RankFailed] * 2
    assert "KeyboardInterrupt" in str(done.errors[0])
    assert listed(tmp_path) == before
