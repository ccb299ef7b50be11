"""Ranks that send each other messages, whoever carries them: MPI, or gloo for torch.distributed.

Every call is the same trade: a header to each rank and one from each, then the messages that the
headers announce. So each rank sees that all have come, who is missing, and whether one of them is
in another call. A carrier only sends and receives bytes between two ranks, with a deadline.
"""

from __future__ import annotations

import os
import time
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from types import TracebackType
from typing import Final, NoReturn, Self

from standfast.errors import BadOption, NotOpen, RankFailed, RankLost, RanksDisagree
from standfast.parallel.calls import CLOSED, HEADER, REFUSED, Call, Kind, named, read, refusal
from standfast.parallel.communicator import Communicator, checked_timeout, timeout_refusal
from standfast.parallel.last_message import Farewell

SHORTEST_PAUSE: Final = 10e-6

HEADERS: Final = 1
MESSAGES: Final = 2
FAREWELLS: Final = 3
"""Tags."""

ADVICE: Final = "end the program, and start it again from its last checkpoint"

TAKEN: Final = (
    "a communicator is one of standfast.parallel, a process group of torch.distributed, an "
    "intracommunicator of mpi4py, or None for a program that is alone, and this is {}"
)


class TradingRanks(ABC):
    """A `Communicator`, but for the way that a message takes from one rank to another."""

    rank: int
    size: int

    carrier: str
    """What the messages go by, for errors."""

    carrier_errors: tuple[type[Exception], ...] = ()
    """What it raises when it fails."""

    def __init__(self, timeout: float) -> None:
        self.timeout = checked_timeout(timeout)
        self._process = os.getpid()
        self._closed = False
        self._broken: str | None = None
        self._calls = 0

    @property
    def closed(self) -> bool:
        """Whether it is not used any more. Not collective."""
        return self._closed

    def gather(self, data: bytes, root: int = 0) -> list[bytes]:
        """Collective: what every rank gave, on the root; nothing on the others."""
        to = [data if rank == root else b"" for rank in range(self.size)]
        received = self._trade(Kind.GATHER, root, to)
        return received if self.rank == root else []

    def broadcast(self, data: bytes, root: int = 0) -> bytes:
        """Collective: what the root gave, on all ranks."""
        to = [data if self.rank == root else b""] * self.size
        return self._trade(Kind.BROADCAST, root, to)[root]

    def all_gather(self, data: bytes) -> list[bytes]:
        """Collective: what every rank gave, on all of them."""
        return self._trade(Kind.ALL_GATHER, 0, [data] * self.size)

    def exchange(self, messages: Sequence[bytes]) -> list[bytes]:
        """Collective: one message to each rank; returns the one of each to us."""
        return self._trade(Kind.EXCHANGE, 0, messages)

    def duplicate(self, timeout: float | None = None) -> Communicator:
        """Collective: the same ranks, whose messages do not meet those of this one."""
        wait = self.timeout if timeout is None else timeout
        self._trade(Kind.DUPLICATE, 0, [b""] * self.size, self._no_duplicate(wait))
        with self._parting_on_failure():
            return self._another(wait)

    def close(self) -> None:
        """Collective, unless a rank was lost; nothing, if it is closed."""
        if self.closed:
            return
        if self._broken is None:
            self._trade(Kind.CLOSE, 0, [b""] * self.size)
            with self._parting_on_failure():
                self._release()
        self._closed = True

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        at: TracebackType | None,
    ) -> None:
        if error is None:
            self.close()
        elif not self.closed:
            if self._broken is None:
                self._part(named(error))
            self._closed = True

    def _no_duplicate(self, timeout: float) -> str | None:
        """Why this rank cannot make another one, or None if it can."""
        return timeout_refusal(timeout)

    @abstractmethod
    def _another(self, timeout: float) -> Communicator:
        """Make another one of the same ranks; all of them do."""

    @abstractmethod
    def _release(self) -> None:
        """Give back what it holds; all ranks do, and none of them uses it any more."""

    @abstractmethod
    def _receive(self, rank: int, buffer: bytearray, tag: int) -> None:
        """Begin to fill the buffer by what a rank sends."""

    @abstractmethod
    def _send(self, rank: int, data: bytes, tag: int) -> None:
        """Begin to send."""

    @abstractmethod
    def _complete(self, call: Call, deadline: float) -> None:
        """Wait until all that was begun is done; raises what `_missing` or `_heard` give."""

    @abstractmethod
    def _bid_farewell(self, farewell: bytes) -> None:
        """Tell the others, as far as they can be told; must not raise, nor wait for long."""

    def _trade(
        self, kind: Kind, root: int, messages: Sequence[bytes], problem: str | None = None
    ) -> list[bytes]:
        """Send each rank its message, and return those of all to this one."""
        self._require_whole()
        problem = problem or refusal(root, messages, self.size)
        self._calls += 1
        call = Call(kind, root if problem is None else -1, self._calls)
        lengths = [REFUSED] * self.size if problem else [len(message) for message in messages]
        deadline = time.monotonic() + self.timeout
        with self._parting_on_failure():
            coming = self._trade_headers(call, lengths, deadline, strict=problem is None)
            if REFUSED not in coming:
                return self._trade_messages(call, messages, coming, deadline)
        if problem is not None:
            raise BadOption(problem)
        refusing = [rank for rank in range(self.size) if coming[rank] == REFUSED]
        raise RankFailed(
            f"{ranks_named(refusing)} of {self.size} cannot send what it was given in {call}, and "
            f"says why in an error of its own"
        )

    def _trade_headers(
        self, call: Call, lengths: Sequence[int], deadline: float, strict: bool
    ) -> list[int]:
        """How long the message of each rank to this one is, once all are in the same call."""
        headers = {rank: bytearray(HEADER.size) for rank in self._others()}
        for rank, header in headers.items():
            self._receive(rank, header, HEADERS)
            self._send(rank, call.header(lengths[rank]), HEADERS)
        self._complete(call, deadline)
        coming = [lengths[self.rank]] * self.size
        for rank, header in headers.items():
            theirs, coming[rank] = read(header)
            if theirs != call and strict and coming[rank] != REFUSED:
                what = f"rank {self.rank} is in {call}, and rank {rank} is in {theirs}"
                self._part(what, disagreeing=True)
                raise RanksDisagree(_out_of_step(what))
        return coming

    def _trade_messages(
        self, call: Call, messages: Sequence[bytes], coming: Sequence[int], deadline: float
    ) -> list[bytes]:
        received = {rank: bytearray(coming[rank]) for rank in self._others()}
        for rank, buffer in received.items():
            self._receive(rank, buffer, MESSAGES)
        for rank in received:
            self._send(rank, messages[rank], MESSAGES)
        self._complete(call, deadline)
        return [
            bytes(received.pop(rank)) if rank in received else messages[rank]
            for rank in range(self.size)
        ]

    def _require_whole(self) -> None:
        if self.closed:
            raise NotOpen(CLOSED)
        if os.getpid() != self._process:
            raise NotOpen(
                "this process was forked from a rank, and is none itself: use a communicator in "
                "the process that made it, and SingleRank() here"
            )
        if self._broken is not None:
            raise RankLost(f"the ranks have parted before: {self._broken}; {ADVICE}")

    @contextmanager
    def _parting_on_failure(self) -> Iterator[None]:
        """Whatever goes wrong in the middle of a call, the ranks are not in step after it."""
        try:
            yield
        except self.carrier_errors as error:
            raise self._lost(f"{self.carrier} failed on rank {self.rank}: {error}") from error
        except BaseException as error:
            if self._broken is None:
                self._part(named(error))
            raise

    def _missing(self, ranks: Sequence[int], call: Call) -> RankLost:
        """The error for ranks that have not come when the time is up."""
        return self._lost(
            f"{ranks_named(ranks)} of {self.size} did not come to {call}, within "
            f"{self.timeout:g} seconds"
        )

    def _lost(self, what: str) -> RankLost:
        self._part(what)
        return RankLost(f"{what}; {ADVICE}")

    def _part(self, what: str, *, disagreeing: bool = False) -> None:
        """Make no further calls, and tell the others, who might be waiting for us."""
        self._broken = what
        self._bid_farewell(Farewell(f"rank {self.rank} gave up: {what}", disagreeing).encoded())

    def _raise_heard(self, farewell: Farewell) -> NoReturn:
        """Raise what another rank said when it gave up."""
        self._broken = farewell.text
        if farewell.disagreeing:
            raise RanksDisagree(_out_of_step(farewell.text))
        raise RankLost(f"{farewell.text}; {ADVICE}")

    def _others(self) -> Iterator[int]:
        """The other ranks, from the next one on, so that not all send to the first at once."""
        return ((self.rank + step) % self.size for step in range(1, self.size))


def pauses(deadline: float, longest: float) -> Iterator[None]:
    """Turns to look whether something has come, with growing pauses between, to the deadline."""
    pause = SHORTEST_PAUSE
    while True:
        yield
        if time.monotonic() >= deadline:
            return
        time.sleep(pause)
        pause = min(2 * pause, longest)


def ranks_named(ranks: Sequence[int]) -> str:
    """Such as "ranks 1, 2"."""
    return f"rank{'s' if len(ranks) > 1 else ''} {', '.join(map(str, ranks))}"


def _out_of_step(what: str) -> str:
    return f"the ranks are out of step: {what}; all must make the same calls in the same order"
