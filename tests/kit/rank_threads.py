"""Ranks that are threads of this process: the fast way to see what ranks do together.

Each should have a `Store` of its own on the same path. They have one memory, and the locks of one
process: whatever is about those needs processes.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Any, Self

from standfast.errors import RankLost, RanksDisagree
from standfast.parallel.communicator import Communicator

TIMEOUT = 20.0


class Killed(BaseException):
    """What a rank that was killed does: nothing any more."""


class _Meeting:
    """What the ranks have said, call by call."""

    def __init__(self, size: int) -> None:
        self.size = size
        self.changed = threading.Condition()
        self.calls: dict[int, dict[int, tuple[str, Sequence[bytes]]]] = {}
        self.broken: str | None = None
        self._others: dict[int, _Meeting] = {}

    def other(self, number: int) -> _Meeting:
        """Another meeting of the same ranks, the same one for each that asks by this number."""
        with self.changed:
            return self._others.setdefault(number, _Meeting(self.size))

    def part(self, reason: str) -> None:
        with self.changed:
            self.broken = self.broken or reason
            self.changed.notify_all()


class ThreadRanks:
    """One rank of several threads; see `Communicator`."""

    def __init__(self, meeting: _Meeting, rank: int, timeout: float) -> None:
        self.rank = rank
        self.size = meeting.size
        self.timeout = timeout
        self.is_killed = False
        self.before: Callable[[int, str], None] = lambda number, kind: None
        """Called with the number and the kind of each call, from 1, before it is made."""
        self._meeting = meeting
        self._number = 0
        self._duplicates = 0

    def gather(self, data: bytes, root: int = 0) -> list[bytes]:
        received = self._trade("gather", [data] * self.size)
        return received if self.rank == root else []

    def broadcast(self, data: bytes, root: int = 0) -> bytes:
        return self._trade("broadcast", [data] * self.size)[root]

    def all_gather(self, data: bytes) -> list[bytes]:
        return self._trade("all_gather", [data] * self.size)

    def exchange(self, messages: Sequence[bytes]) -> list[bytes]:
        return self._trade("exchange", messages)

    def duplicate(self, timeout: float | None = None) -> Communicator:
        self._duplicates += 1
        return ThreadRanks(self._meeting.other(self._duplicates), self.rank, self.timeout)

    def close(self) -> None:
        pass

    def kill(self) -> None:
        """From here on this rank is dead, and the others notice."""
        self.is_killed = True
        self._meeting.part(f"rank {self.rank} was killed")

    def _trade(self, kind: str, messages: Sequence[bytes]) -> list[bytes]:
        if self.is_killed:
            raise Killed
        self._number += 1
        self.before(self._number, kind)
        meeting = self._meeting
        with meeting.changed:
            if meeting.broken is not None:
                raise RankLost(meeting.broken)
            said = meeting.calls.setdefault(self._number, {})
            said[self.rank] = (kind, messages)
            meeting.changed.notify_all()
            meeting.changed.wait_for(
                lambda: len(said) == self.size or meeting.broken is not None, self.timeout
            )
            if len(said) < self.size:
                meeting.part(f"not all ranks came to call {self._number}, {kind}")
                raise RankLost(str(meeting.broken))
            kinds = [said[rank][0] for rank in range(self.size)]
            if len(set(kinds)) > 1:
                raise RanksDisagree(f"the ranks are out of step: {kinds}")
            return [said[rank][1][self.rank] for rank in range(self.size)]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, error: BaseException | None, at: object) -> None:
        if error is None:
            self._trade("close", [b""] * self.size)
        else:
            self._meeting.part(f"rank {self.rank} left: {error!r}")


def attempt_on_ranks(
    count: int, program: Callable[[ThreadRanks], Any], timeout: float = TIMEOUT
) -> list[Any]:
    """Run a program on some ranks: what it returned, or raised, on each."""
    meeting = _Meeting(count)
    outcomes: list[Any] = [None] * count

    def run(rank: int) -> None:
        try:
            outcomes[rank] = program(ThreadRanks(meeting, rank, timeout))
        except BaseException as error:
            outcomes[rank] = error

    threads = [threading.Thread(target=run, args=(rank,), daemon=True) for rank in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(3 * timeout)
        assert not thread.is_alive(), "a rank hangs"
    return outcomes


def on_ranks(count: int, program: Callable[[ThreadRanks], Any], timeout: float = TIMEOUT) -> Any:
    """Run a program on some ranks, on which it does not fail: what it returned on each."""
    outcomes = attempt_on_ranks(count, program, timeout)
    for outcome in outcomes:
        if isinstance(outcome, BaseException):
            raise outcome
    return outcomes


def on_threads(size: int, program: Callable[[Any], Any], timeout: float = TIMEOUT) -> list[Any]:
    """The same for a program that may fail on one rank: its error is raised, and no rank waits."""

    def start(comm: ThreadRanks) -> Any:
        try:
            return program(comm)
        except BaseException:
            comm.kill()  # nobody shall wait for it
            raise

    outcomes = attempt_on_ranks(size, start, timeout)
    errors = [each for each in outcomes if isinstance(each, BaseException)]
    for error in sorted(errors, key=lambda error: isinstance(error, RankLost | Killed)):
        raise error
    return outcomes
