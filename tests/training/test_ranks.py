"""Checkpointers of ranks that do not all do the same: nobody hangs, and all stay in step."""

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import standfast
from standfast.errors import RankError, RanksDisagree, StandfastError, WriteFailed
from standfast.store.backends.memory import MemoryBackend
from tests.kit.rank_threads import ThreadRanks, attempt_on_ranks, on_ranks
from tests.kit.seams import Seams

SIZE = 1 << 18


@pytest.fixture
def place() -> MemoryBackend:
    """Threads write here: this is not about helper processes, which take time to start."""
    return MemoryBackend()


class Program:
    """One rank of a program: weights that are the same on all, and a walk of its own."""

    def __init__(self, place: Any, comm: ThreadRanks, **options: Any) -> None:
        self.weights = np.zeros(SIZE)
        self.generator = np.random.default_rng(comm.rank)
        self.walk = {"at": 0.0}
        self.rank = comm.rank
        parts: dict[str, Any] = {"weights": {"w": self.weights}}
        if not options.pop("no_walk", False):
            parts["walk"] = standfast.per_rank(self.walk)
        if generator := options.pop("generator", None):
            parts["generator"] = generator(self.generator)
        options = {"name": "run", "quiet": True, "every": 2, **options}
        state = standfast.TrainingState(**parts)
        self.ckpt = standfast.Checkpointer(standfast.Store(place), state, comm=comm, **options)

    def run(self, steps: int, after: Callable[[int], Any] = lambda step: False) -> None:
        for step in self.ckpt.steps(steps):
            self.weights += 1
            self.walk["at"] += float(self.generator.random())
            self.ckpt.step(step, loss=float(step + self.rank))
            if after(step):
                break


def saved_steps(place: Any) -> list[int]:
    run = standfast.Store(place).runs()[0]
    for checkpoint in run.checkpoints():
        checkpoint.verify()
        assert checkpoint.state()["weights"]["w"][0] == checkpoint.step
    return [each.step for each in run.checkpoints()]


@pytest.mark.parametrize("options", [{}, {"asynchronous": False}, {"staging": "1MB"}], ids=str)
def test_ranks_that_do_the_same_save_the_same(place, options):

    def program(comm: ThreadRanks) -> float:
        mine = options if comm.rank == 0 or "staging" not in options else {}
        one = Program(place, comm, **mine)
        with one.ckpt:
            one.run(5)
        return one.walk["at"]

    if "staging" in options:
        with pytest.warns(standfast.errors.SlowSaves):
            ends = on_ranks(3, program)
    else:
        ends = on_ranks(3, program)
    assert saved_steps(place) == [2, 4, 5]
    checkpoint = standfast.Store(place).resolve("run@latest")
    assert [each["at"] for each in checkpoint.state()["walk"]] == ends
    assert len(set(ends)) == 3
    assert checkpoint.metrics["loss"] == 5.0, "rank 0's"


@pytest.mark.parametrize(("rank", "every"), [(0, 2), (1, 2), (1, "10min")])
def test_a_rank_that_leaves_or_fails_lets_no_other_hang(place, rank, every):
    def program(comm: ThreadRanks) -> None:
        def after(step: int) -> bool:
            if comm.rank == rank and step == 5 and every == 2:
                raise ZeroDivisionError
            return comm.rank == rank and step == 5

        one = Program(place, comm, every=every)
        with one.ckpt:
            one.run(10_000, after)

    outcomes = attempt_on_ranks(2, program, timeout=5)
    assert isinstance(outcomes[1 - rank], RankError)
    if every == 2:
        assert isinstance(outcomes[rank], ZeroDivisionError)
        assert saved_steps(place)[:2] == [2, 4]


@pytest.mark.parametrize("rank", [0, 1])
def test_a_failure_on_one_rank_is_one_of_all_and_the_next_save_works(tmp_path, rank):
    def program(comm: ThreadRanks) -> dict[int, str]:
        failed = {}
        one = Program(tmp_path, comm, asynchronous=False)
        with one.ckpt as ckpt:
            for step in range(1, 9):
                one.weights += 1
                try:
                    ckpt.step(step)
                    ckpt.wait()
                except StandfastError as error:
                    failed[step] = str(error)
        return failed

    def refuse(link: Any, source: Path, target: Path, *given: Any) -> Any:
        if re.search(rf"_step_000004\..*-rank{rank}\.", str(target)):
            raise WriteFailed(28, "a fault")
        return link(source, target, *given)

    with Seams.until_end() as seams:
        seams.disk(link=refuse)
        first, second = on_ranks(2, program)
    assert [*first] == [*second] == [4]
    assert first[4] == second[4]
    assert f"rank {rank} of 2" in first[4]
    assert saved_steps(tmp_path) == [2, 6, 8]


def test_what_one_rank_reports_later_is_rank_0s(place):
    def program(comm: ThreadRanks) -> None:
        one = Program(place, comm, monitor="accuracy", mode="max")

        def after(step: int) -> None:
            if step % 2 == 0:
                one.ckpt.wait()
                one.ckpt.report(accuracy=float(step + 100 * comm.rank))

        with one.ckpt:
            one.run(4, after)

    on_ranks(2, program)
    best = standfast.Store(place).resolve("run@best")
    assert (best.step, best.metrics["accuracy"]) == (4, 4.0)


@pytest.mark.parametrize("generator", [lambda own: own, standfast.per_rank], ids=["shared", "own"])
def test_generators_of_ranks_come_back_to_each(place, generator):
    def program(comm: ThreadRanks, steps: int) -> float:
        one = Program(place, comm, generator=generator)
        with one.ckpt:
            one.run(steps)
        return one.walk["at"]

    on_ranks(2, lambda comm: program(comm, 4))
    for rank, found in enumerate(on_ranks(2, lambda comm: program(comm, 6))):
        assert found == sum(map(float, np.random.default_rng(rank).random(6)))


def test_more_ranks_go_on_with_generators_of_their_own(place):
    def program(comm: ThreadRanks, steps: int) -> Any:
        one = Program(place, comm, generator=lambda own: own, no_walk=True)
        with one.ckpt as ckpt:
            one.run(steps)
            return ckpt.resume_report.step, [*ckpt.resume_report.inexact]

    on_ranks(2, lambda comm: program(comm, 4))
    for step, (inexact,) in on_ranks(3, lambda comm: program(comm, 6)):
        assert step == 4
        assert "2 ranks saved it, 3 go on" in inexact
    assert saved_steps(place) == [2, 4, 6]


def test_ranks_that_would_save_in_other_ways_are_refused(tmp_path):
    def program(comm: ThreadRanks) -> None:
        with Program(tmp_path, comm, every=2 + comm.rank).ckpt:
            raise AssertionError("nobody gets here")

    for outcome in attempt_on_ranks(2, program):
        assert isinstance(outcome, RanksDisagree)
        assert "every" in str(outcome)
    assert [*tmp_path.iterdir()] == []
