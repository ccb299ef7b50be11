"""Ranks that MPI started.

mpi4py is never imported here: whoever has one of its communicators has imported it.

Every call is the same trade: a header to each rank and one from each, then the messages that the
headers announce. So each rank sees that all have come, who is missing, and whether one of them is
in another call. All of it is polled, because a blocking call of MPI knows no deadline, and burns a
core while it waits.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, Self, TypeAlias, TypeGuard

from holdfast.errors import BadOption, NotOpen, RankFailed, RankLost, RanksDisagree
from holdfast.parallel.calls import CLOSED, HEADER, REFUSED, Call, Kind, named, read, refusal
from holdfast.parallel.communicator import TIMEOUT, Communicator, checked_timeout, timeout_refusal

if TYPE_CHECKING:
    from mpi4py import MPI

MPIComm: TypeAlias = "MPI.Comm"
"""For whoever names the type without importing mpi4py."""

PIECE = 1 << 30
"""How many bytes one message of MPI carries at most: many an MPI counts them in 31 bits."""

SHORTEST_PAUSE: Final = 10e-6
LONGEST_PAUSE: Final = 1e-3

HEADERS: Final = 1
MESSAGES: Final = 2
FAREWELLS: Final = 3
"""Tags."""

ADVICE: Final = "end the program, and start it again from its last checkpoint"

TAKEN: Final = (
    "a communicator is one of holdfast.parallel, an intracommunicator of mpi4py, or None for a "
    "program that is alone, and this is {}"
)

FAREWELL_BYTES: Final = 2000

PARTED: Final[list[Any]] = []
"""Communicators that no rank uses any more: MPI may still write into the memory of their calls."""


class MPIRanks:
    """The ranks of a communicator of mpi4py; see `Communicator`. Collective to make."""

    def __init__(self, comm: MPI.Intracomm, timeout: float = TIMEOUT) -> None:
        self.timeout = checked_timeout(timeout)
        self._mpi = taken(comm)
        self._closed = False
        self._broken: str | None = None
        self._calls = 0
        self._underway: list[tuple[int, MPI.Request]] = []
        self._comm = self._duplicated(comm)
        self._comm.Set_errhandler(self._mpi.ERRORS_RETURN)
        self.rank = self._comm.rank
        self.size = self._comm.size

    @property
    def closed(self) -> bool:
        """Whether it is not used any more; at the end of MPI none is. Not collective."""
        return self._closed or bool(self._mpi.Is_finalized())

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
        self._trade(Kind.DUPLICATE, 0, [b""] * self.size, timeout_refusal(wait))
        with self._parting_on_failure():
            return MPIRanks(self._comm, wait)

    def close(self) -> None:
        """Collective, unless a rank was lost; nothing, if it is closed."""
        if self.closed:
            return
        if self._broken is None:
            self._trade(Kind.CLOSE, 0, [b""] * self.size)
            with self._parting_on_failure():
                self._comm.Free()
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
            self._part(named(error))
            self._closed = True

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
            f"{_ranks(refusing)} of {self.size} cannot send what it was given in {call}, and says "
            f"why in an error of its own"
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
                self._part(what)
                raise RanksDisagree(
                    f"the ranks are out of step: {what}; all must make the same calls in the same "
                    f"order"
                )
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

    def _receive(self, rank: int, buffer: bytearray, tag: int) -> None:
        for piece in _pieces(buffer):
            self._underway.append((rank, self._comm.Irecv([piece, self._mpi.BYTE], rank, tag)))

    def _send(self, rank: int, data: bytes, tag: int) -> None:
        for piece in _pieces(data):
            self._underway.append((rank, self._comm.Isend([piece, self._mpi.BYTE], rank, tag)))

    def _complete(self, call: Call, deadline: float) -> None:
        """Wait until all that is under way has come, or the deadline has."""
        requests = [request for _, request in self._underway]
        for _ in _pauses(deadline):
            if self._mpi.Request.Testall(requests):
                self._underway.clear()
                return
            self._listen_for_farewells()
        missing = sorted({rank for rank, request in self._underway if not request.Test()})
        if missing:
            raise self._lost(
                f"{_ranks(missing)} of {self.size} did not come to {call}, within "
                f"{self.timeout:g} seconds"
            )
        self._underway.clear()

    def _duplicated(self, comm: MPI.Intracomm) -> MPI.Intracomm:
        """The same ranks in a communicator of our own, if all of them come to make it."""
        try:
            duplicate, request = comm.Idup()
            PARTED.append((duplicate, request))  # until it is made, MPI may write into it
            for _ in _pauses(time.monotonic() + self.timeout):
                if request.Test():
                    PARTED.pop()
                    return duplicate
        except self._mpi.Exception as error:
            raise RankLost(f"MPI cannot duplicate the communicator: {error}") from error
        raise RankLost(
            f"not all {comm.size} ranks came to duplicate their communicator, within "
            f"{self.timeout:g} seconds: the first use of it with Holdfast is a call of all of them"
        )

    def _require_whole(self) -> None:
        if self.closed:
            raise NotOpen(CLOSED)
        if self._broken is not None:
            raise RankLost(f"the ranks have parted before: {self._broken}; {ADVICE}")

    @contextmanager
    def _parting_on_failure(self) -> Iterator[None]:
        """Whatever goes wrong in the middle of a call, the ranks are not in step after it."""
        try:
            yield
        except self._mpi.Exception as error:
            raise self._lost(f"MPI failed on rank {self.rank}: {error}") from error
        except BaseException as error:
            if self._broken is None:
                self._part(named(error))
            raise

    def _lost(self, what: str) -> RankLost:
        self._part(what)
        return RankLost(f"{what}; {ADVICE}")

    def _part(self, what: str, *, tell: bool = True) -> None:
        """Make no further calls, and tell the others, who might be waiting for us."""
        self._broken = what
        PARTED.append(self)
        farewell = f"rank {self.rank} gave up: {what}".encode(errors="replace")[:FAREWELL_BYTES]
        for rank in self._others() if tell else ():
            with suppress(self._mpi.Exception):  # of a rank that is lost
                self._send(rank, farewell, FAREWELLS)

    def _listen_for_farewells(self) -> None:
        """Raise RankLost if another rank has given up."""
        status = self._mpi.Status()
        if not self._comm.Iprobe(self._mpi.ANY_SOURCE, FAREWELLS, status):
            return
        farewell = bytearray(status.Get_count(self._mpi.BYTE))
        self._comm.Recv([farewell, self._mpi.BYTE], status.source, FAREWELLS)
        what = farewell.decode(errors="replace")
        self._part(what, tell=False)  # whoever said it told all
        raise RankLost(f"{what}; {ADVICE}")

    def _others(self) -> Iterator[int]:
        """The other ranks, from the next one on, so that not all send to the first at once."""
        return ((self.rank + step) % self.size for step in range(1, self.size))


def is_of_mpi(comm: object) -> TypeGuard[MPI.Comm]:
    """Whether this is a communicator of mpi4py, of any kind."""
    mpi = sys.modules.get("mpi4py.MPI")
    return mpi is not None and isinstance(comm, mpi.Comm)


def taken(comm: object) -> Any:
    """The module mpi4py.MPI, if this is a communicator of it that ranks can be made of."""
    if not is_of_mpi(comm):
        raise BadOption(TAKEN.format(repr(comm)))
    mpi: Any = sys.modules["mpi4py.MPI"]
    if mpi.Is_finalized():
        raise BadOption("MPI has ended in this process: use communicators before it does")
    if comm == mpi.COMM_NULL:
        raise BadOption(TAKEN.format("MPI.COMM_NULL, or one that was freed"))
    if not isinstance(comm, mpi.Intracomm):
        raise BadOption(TAKEN.format("an intercommunicator: merge it"))
    return mpi


def _pauses(deadline: float) -> Iterator[None]:
    """Turns to look whether something has come, with growing pauses between, to the deadline."""
    pause = SHORTEST_PAUSE
    while True:
        yield
        if time.monotonic() >= deadline:
            return
        time.sleep(pause)
        pause = min(2 * pause, LONGEST_PAUSE)


def _pieces(message: bytes | bytearray) -> Iterator[memoryview]:
    view = memoryview(message)
    return (view[start : start + PIECE] for start in range(0, len(view), PIECE))


def _ranks(ranks: Sequence[int]) -> str:
    return f"rank{'s' if len(ranks) > 1 else ''} {', '.join(map(str, ranks))}"
