"""Checkpointers of ranks that do not all do the same: nobody hangs, and all stay in step."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import standfast
from standfast.errors import RankError, RanksDisagree, StandfastError
from tests.kit.rank_threads import ThreadRanks, attempt_on_ranks, on_ranks

SIZE = 1 << 18
SECONDS = 60.0


@pytest.fixture(autouse=True)
def _no_helpers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Threads write: there is nothing about helper processes here, and they take time to start."""
    monkeypatch.setattr("standfast.training.background.helpers.is_shared", lambda backend: False)


class Program:
    """One rank of a program: weights that are the same on all, and a walk of its own."""

    def __init__(self, path: Path, comm: ThreadRanks, **options: Any) -> None:
        self.weights = np.zeros(SIZE)
        self.generator = np.random.default_rng(comm.rank)
        self.walk = {"at": 0.0}
        self.rank = comm.rank
        parts = {"weights": {"w": self.weights}, "walk": standfast.per_rank(self.walk)}
        if options.pop("own_generator", False):
            parts["generator"] = standfast.per_rank(self.generator)
        elif options.pop("generator", False):
            parts["generator"] = self.generator  # type: ignore[assignment]
        if options.pop("no_walk", False):
            del parts["walk"]
        self.ckpt = standfast.Checkpointer(
            path,
            standfast.TrainingState(**parts),
            name="run",
            comm=comm,
            quiet=True,
            **{"every": 2, **options},
        )

    def run(self, steps: int) -> None:
        for step in self.ckpt.steps(steps):
            self.weights += 1
            self.walk["at"] += float(self.generator.random())
            self.ckpt.step(step, loss=float(step + self.rank))


@contextmanager
def within(seconds: float) -> Iterator[None]:
    begun = time.monotonic()
    yield
    assert time.monotonic() - begun < seconds


def saved_steps(path: Path) -> list[int]:
    run = standfast.Store(path).runs()[0]
    for checkpoint in run.checkpoints():
        checkpoint.verify()
        assert checkpoint.state()["weights"]["w"][0] == checkpoint.step
    return [each.step for each in run.checkpoints()]


@pytest.mark.parametrize("asynchronous", [True, False])
def test_ranks_that_do_the_same_save_the_same(tmp_path: Path, asynchronous: bool) -> None:
    def program(comm: ThreadRanks) -> float:
        one = Program(tmp_path, comm, asynchronous=asynchronous)
        with one.ckpt:
            one.run(5)
        return one.walk["at"]

    ends = on_ranks(3, program)
    assert saved_steps(tmp_path) == [2, 4, 5]
    checkpoint = standfast.Store(tmp_path).resolve("run@latest")
    assert [each["at"] for each in checkpoint.state()["walk"]] == ends
    assert len(set(ends)) == 3
    assert checkpoint.metrics["loss"] == 5.0, "rank 0's"


def test_one_rank_that_may_not_copy_its_part_writes_it_at_once(tmp_path: Path) -> None:
    def program(comm: ThreadRanks) -> None:
        one = Program(tmp_path, comm, staging="1MB" if comm.rank == 0 else None)
        with one.ckpt:
            one.run(6)

    with pytest.warns(standfast.errors.SlowSaves), within(SECONDS):
        on_ranks(2, program)
    assert saved_steps(tmp_path) == [2, 4, 6]


def test_a_rank_that_leaves_the_loop_early_lets_no_other_hang(tmp_path: Path) -> None:
    def program(comm: ThreadRanks) -> None:
        one = Program(tmp_path, comm, every="10min")
        with one.ckpt:
            for step in one.ckpt.steps(10_000):
                one.weights += 1
                one.ckpt.step(step)
                if comm.rank == 1 and step == 5:
                    break

    with within(SECONDS):
        outcomes = attempt_on_ranks(2, program, timeout=5)
    assert isinstance(outcomes[0], RankError)


@pytest.mark.parametrize("rank", [0, 1])
def test_an_error_in_the_loop_of_one_rank_lets_no_other_hang(tmp_path: Path, rank: int) -> None:
    def program(comm: ThreadRanks) -> None:
        one = Program(tmp_path, comm)
        with one.ckpt:
            for step in one.ckpt.steps(10_000):
                one.weights += 1
                one.ckpt.step(step)
                if comm.rank == rank and step == 5:
                    raise ZeroDivisionError

    with within(SECONDS):
        outcomes = attempt_on_ranks(2, program, timeout=5)
    assert isinstance(outcomes[rank], ZeroDivisionError)
    assert isinstance(outcomes[1 - rank], RankError)
    assert saved_steps(tmp_path)[:2] == [2, 4]


@pytest.mark.parametrize("rank", [0, 1])
def test_a_failure_on_one_rank_is_one_of_all_and_the_next_save_works(
    tmp_path: Path, rank: int
) -> None:
    def program(comm: ThreadRanks) -> dict[int, str]:
        one = Program(tmp_path, comm)
        failed = {}
        with one.ckpt as ckpt:
            complete = ckpt._open()._complete

            def failing(wanted: Any) -> Any:
                if wanted.step == 4:
                    raise standfast.errors.SaveFailed("a fault")
                return complete(wanted)

            if comm.rank == rank:
                ckpt._open()._complete = failing  # type: ignore[method-assign]
            for step in range(1, 9):
                one.weights += 1
                try:
                    ckpt.step(step)
                    ckpt.wait()
                except StandfastError as error:
                    failed[step] = str(error)
        return failed

    assert on_ranks(2, program) == [{4: f"rank {rank} of 2: SaveFailed: a fault"}] * 2
    assert saved_steps(tmp_path) == [2, 6, 8]


def test_what_one_rank_reports_later_is_rank_0s(tmp_path: Path) -> None:
    def program(comm: ThreadRanks) -> None:
        one = Program(tmp_path, comm, monitor="accuracy", mode="max")
        with one.ckpt as ckpt:
            for step in range(1, 5):
                one.weights += 1
                ckpt.step(step)
                if step % 2 == 0:
                    ckpt.wait()
                    ckpt.report(accuracy=float(step + 100 * comm.rank))

    on_ranks(2, program)
    best = standfast.Store(tmp_path).resolve("run@best")
    assert (best.step, best.metrics["accuracy"]) == (4, 4.0)


@pytest.mark.parametrize("kind", ["generator", "own_generator"])
def test_generators_of_ranks_come_back_to_each(tmp_path: Path, kind: str) -> None:
    def program(comm: ThreadRanks, steps: int) -> float:
        one = Program(tmp_path, comm, **{kind: True})
        with one.ckpt:
            one.run(steps)
        return one.walk["at"]

    on_ranks(2, lambda comm: program(comm, 4))
    again = on_ranks(2, lambda comm: program(comm, 6))
    for rank, found in enumerate(again):
        draws, expected = np.random.default_rng(rank), 0.0
        for _ in range(6):
            expected += float(draws.random())
        assert found == expected


def test_more_ranks_go_on_with_generators_of_their_own(tmp_path: Path) -> None:
    def program(comm: ThreadRanks, steps: int) -> Any:
        one = Program(tmp_path, comm, generator=True, no_walk=True)
        with one.ckpt as ckpt:
            one.run(steps)
            return ckpt.resume_report.step, [*ckpt.resume_report.inexact]

    on_ranks(2, lambda comm: program(comm, 4))
    for step, inexact in on_ranks(3, lambda comm: program(comm, 6)):
        assert step == 4
        assert inexact == ["2 ranks saved it, 3 go on: random numbers are not those of before"]
    assert saved_steps(tmp_path) == [2, 4, 6]


def test_ranks_that_would_save_in_other_ways_are_refused(tmp_path: Path) -> None:
    def program(comm: ThreadRanks) -> None:
        with Program(tmp_path, comm, every=2 + comm.rank).ckpt:
            raise AssertionError("nobody gets here")

    for outcome in attempt_on_ranks(2, program):
        assert isinstance(outcome, RanksDisagree)
        assert "every" in str(outcome)
    assert [*tmp_path.iterdir()] == []
