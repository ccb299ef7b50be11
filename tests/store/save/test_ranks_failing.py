"""Whatever fails on whichever rank: all raise, and the store is as it was; or all is saved."""

import gc
import itertools
from collections.abc import Callable, Collection
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from standfast.errors import RankFailed, RankLost
from standfast.store import Store
from standfast.store.save.ranks import save_together
from standfast.store.schema import names
from tests.kit.cases import kept
from tests.kit.fault_states import UnsyncedDisk, copy_store, leftovers, make_small
from tests.kit.rank_threads import Killed, ThreadRanks, attempt_on_ranks, on_ranks
from tests.kit.seams import Seams
from tests.kit.stores import random_bytes, same
from tests.store.save.rank_faults import CHANGES, DONE, OF_FILES, QUESTIONS, FaultyBackend, fail

COUNT = 3
BIG = 70_000


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch, seams: Seams) -> None:
    make_small(monkeypatch)
    seams.disk(UnsyncedDisk())
    seams.no_manifest()


def part(rank: int, seed: int) -> dict[str, Any]:
    """What a rank has: some of it as before, some from another run, some new."""
    seeds = {"same": rank, "other": 900 + rank, "new": 100 * seed + rank}
    tensors = {name: random_bytes(BIG, each) for name, each in seeds.items()}
    return {f"rank{rank}": {**tensors, "seed": seed}}


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
def test_an_operation_that_fails_on_one_rank_fails_on_all(what, rank, replace, tmp_path):
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
            del done, run
            gc.collect()  # nothing holds the run any more: the next save claims it, and cleans up
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
@pytest.mark.parametrize("rank", kept(range(1, COUNT), 1))
def test_a_rank_that_is_lost_leaves_the_old_state_or_the_new_one(rank, tmp_path):
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


def with_calls(
    path: Path,
    rank: int,
    before: Callable[[ThreadRanks, int, str], None],
    seed: int = 2,
    **options: Any,
) -> list[Any]:
    """What comes of a save in which something happens before the calls of one rank."""

    def program(comm: ThreadRanks) -> Any:
        if comm.rank == rank:
            comm.before = partial(before, comm)
        return save(Store(path), comm, 2, seed, **options)

    return attempt_on_ranks(COUNT, program)


def kill(comm: ThreadRanks, *_: object) -> None:
    comm.kill()
    raise Killed


def test_ranks_that_did_not_hear_the_outcome_find_it(tmp_path):
    prepare(tmp_path)
    said: list[str] = []

    def before(comm: ThreadRanks, _: int, kind: str) -> None:
        said.append(kind)
        if said.count("broadcast") == 2:  # rank 0 commits, and is gone before it can say so
            kill(comm)

    outcomes = with_calls(tmp_path, 0, before)
    assert isinstance(outcomes[0], Killed)
    run = Store(tmp_path).run("heat")
    assert outcomes[1:] == [run.checkpoint(2)] * 2
    assert same(run.load(), union(2))


def test_an_old_record_of_the_step_is_not_taken_for_the_outcome(tmp_path):
    prepare(tmp_path)
    on_ranks(COUNT, lambda comm: save(Store(tmp_path), comm, 2, 5))

    def before(comm: ThreadRanks, _: int, kind: str) -> None:
        if kind == "gather":
            kill(comm)

    outcomes = with_calls(tmp_path, 0, before, 5, replace=True)
    assert [type(each) for each in outcomes] == [Killed, RankLost, RankLost]
    assert same(Store(tmp_path).run("heat").load(), union(5))


@pytest.mark.parametrize(
    ("error", "rank", "operation"),
    [
        (ZeroDivisionError, 1, "finish"),
        (KeyboardInterrupt, 0, "sync"),
        (KeyboardInterrupt, 2, "write"),
        (KeyboardInterrupt, 2, "place"),
    ],
)
def test_an_error_that_is_not_ours_is_told_to_the_others(error, rank, operation, tmp_path):
    prepare(tmp_path)
    before = listed(tmp_path)

    def strike(comm: ThreadRanks, name: str) -> None:
        raise error

    done = Faulted(tmp_path, rank, 1, strike, [operation])
    if error is KeyboardInterrupt:
        assert type(done.errors.pop(rank)) is KeyboardInterrupt
    assert {type(each) for each in done.errors} == {RankFailed}
    assert f"rank {rank} of {COUNT}: {error.__name__}" in str(done.errors[0])
    assert listed(tmp_path) == before
