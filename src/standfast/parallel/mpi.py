"""Ranks that MPI started.

mpi4py is never imported here: whoever has one of its communicators has imported it.

All transfers are polled, because a blocking call of MPI knows no deadline, and burns a core while
it waits.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final, TypeAlias, TypeGuard

from standfast.errors import BadOption, RankLost
from standfast.parallel.calls import Call
from standfast.parallel.communicator import TIMEOUT, Communicator
from standfast.parallel.last_message import FAREWELL_BYTES, Farewell
from standfast.parallel.wire import FAREWELLS, TAKEN, TradingRanks, pauses

if TYPE_CHECKING:
    from mpi4py import MPI

MPIComm: TypeAlias = "MPI.Comm"
"""For whoever names the type without importing mpi4py."""

PIECE = 1 << 30
"""How many bytes one message of MPI carries at most: many an MPI counts them in 31 bits."""

LONGEST_PAUSE: Final = 1e-3

PARTED: Final[list[Any]] = []
"""Communicators that no rank uses any more: MPI may still write into the memory of their calls."""


class MPIRanks(TradingRanks):
    """The ranks of a communicator of mpi4py; see `Communicator`. Collective to make."""

    carrier = "MPI"

    def __init__(self, comm: MPI.Intracomm, timeout: float = TIMEOUT) -> None:
        super().__init__(timeout)
        self._mpi = taken(comm)
        self.carrier_errors = (self._mpi.Exception,)
        self._underway: list[tuple[int, MPI.Request]] = []
        self._comm = self._duplicated(comm)
        self._comm.Set_errhandler(self._mpi.ERRORS_RETURN)
        self.rank = self._comm.rank
        self.size = self._comm.size

    @property
    def closed(self) -> bool:
        """Whether it is not used any more; at the end of MPI none is. Not collective."""
        return self._closed or bool(self._mpi.Is_finalized())

    @property
    def is_thread_safe(self) -> bool:
        """Whether MPI was started so that several threads may call it at once. Not collective."""
        return bool(self._mpi.Query_thread() == self._mpi.THREAD_MULTIPLE)

    def _another(self, timeout: float) -> Communicator:
        return MPIRanks(self._comm, timeout)

    def _release(self) -> None:
        self._comm.Free()

    def _receive(self, rank: int, buffer: bytearray, tag: int) -> None:
        for piece in _pieces(buffer):
            self._underway.append((rank, self._comm.Irecv([piece, self._mpi.BYTE], rank, tag)))

    def _send(self, rank: int, data: bytes, tag: int) -> None:
        for piece in _pieces(data):
            self._underway.append((rank, self._comm.Isend([piece, self._mpi.BYTE], rank, tag)))

    def _complete(self, call: Call, deadline: float) -> None:
        requests = [request for _, request in self._underway]
        for _ in pauses(deadline, LONGEST_PAUSE):
            if self._mpi.Request.Testall(requests):
                self._underway.clear()
                return
            self._listen_for_farewells()
        missing = sorted({rank for rank, request in self._underway if not request.Test()})
        if missing:
            raise self._missing(missing, call)
        self._underway.clear()

    def _duplicated(self, comm: MPI.Intracomm) -> MPI.Intracomm:
        """The same ranks in a communicator of our own, if all of them come to make it."""
        try:
            duplicate, request = comm.Idup()
            PARTED.append((duplicate, request))  # until it is made, MPI may write into it
            for _ in pauses(time.monotonic() + self.timeout, LONGEST_PAUSE):
                if request.Test():
                    PARTED.pop()
                    return duplicate
        except self._mpi.Exception as error:
            raise RankLost(f"MPI cannot duplicate the communicator: {error}") from error
        raise RankLost(
            f"not all {comm.size} ranks came to duplicate their communicator, within "
            f"{self.timeout:g} seconds: the first use of it with Standfast is a call of all of them"
        )

    def _bid_farewell(self, farewell: bytes) -> None:
        PARTED.append(self)
        for rank in self._others():
            with suppress(self._mpi.Exception):  # of a rank that is lost
                self._send(rank, farewell, FAREWELLS)

    def _listen_for_farewells(self) -> None:
        """Raise what another rank said if it has given up; it told all."""
        status = self._mpi.Status()
        if not self._comm.Iprobe(self._mpi.ANY_SOURCE, FAREWELLS, status):
            return
        message = bytearray(FAREWELL_BYTES)
        self._comm.Recv([message, self._mpi.BYTE], status.source, FAREWELLS)
        PARTED.append(self)
        self._raise_heard(Farewell.read(message))


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


def _pieces(message: bytes | bytearray) -> Iterator[memoryview]:
    view = memoryview(message)
    return (view[start : start + PIECE] for start in range(0, len(view), PIECE))
