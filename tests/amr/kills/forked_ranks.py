"""Ranks that are forked from this process, and can be killed: they start in milliseconds.

They are processes of their own, with locks of their own. A rank that dies closes its connections,
and so the others hear of it at once; that others wait for one that is silent is what MPI shows.
"""

import os
import signal
import traceback
from collections.abc import Callable, Sequence
from itertools import combinations
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from typing import Any, Self

from standfast.errors import RankLost
from standfast.parallel import Communicator

SAVED = 0
LOST = 10
"""What a rank ends with that raised RankLost."""
KILLED = -signal.SIGKILL
LONGEST = 300
"""A rank that hangs is ended after so many seconds, by another signal."""


class ForkedRanks:
    """One rank of several processes; see `Communicator`."""

    def __init__(self, rank: int, size: int, connections: dict[int, Connection]) -> None:
        self.rank = rank
        self.size = size
        self.timeout = 20.0
        self._connections = connections

    def gather(self, data: bytes, root: int = 0) -> list[bytes]:
        received = self.exchange([data] * self.size)
        return received if self.rank == root else []

    def broadcast(self, data: bytes, root: int = 0) -> bytes:
        return self.exchange([data] * self.size)[root]

    def all_gather(self, data: bytes) -> list[bytes]:
        return self.exchange([data] * self.size)

    def exchange(self, messages: Sequence[bytes]) -> list[bytes]:
        """The pairs of ranks take their turns in one order, so that no two wait for each other."""
        received = list(messages)
        try:
            for pair in combinations(range(self.size), 2):
                if self.rank in pair:
                    other = pair[self.rank == pair[0]]
                    received[other] = self._trade(other, messages[other])
        except (EOFError, OSError) as error:
            self.close()  # the others must not wait for this one either
            raise RankLost(f"a rank is gone: {error!r}") from error
        return received

    def _trade(self, other: int, message: bytes) -> bytes:
        connection = self._connections[other]
        if self.rank < other:
            connection.send_bytes(message)
        if not connection.poll(self.timeout):
            raise TimeoutError(f"rank {other} did not come")
        received = connection.recv_bytes()
        if self.rank > other:
            connection.send_bytes(message)
        return received

    def duplicate(self, timeout: float | None = None) -> Communicator:
        raise NotImplementedError

    def close(self) -> None:
        for connection in self._connections.values():
            connection.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def on_forked_ranks(count: int, program: Callable[[ForkedRanks], Any]) -> list[int]:
    """Run a program on some ranks: how each of them ended. They are one process group."""
    ends: list[dict[int, Connection]] = [{} for _ in range(count)]
    for one, other in combinations(range(count), 2):
        ends[one][other], ends[other][one] = Pipe()
    waiting, start = os.pipe()
    children: list[int] = []
    for rank in range(count):
        child = os.fork()
        if child == 0:
            os.close(start)
            os._exit(_ended_with(rank, ends, waiting, program))
        children.append(child)
        os.setpgid(child, children[0])
    os.close(waiting)
    _close_all(ends)
    os.close(start)  # all are there: they begin
    return [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children]


def _ended_with(
    rank: int,
    ends: Sequence[dict[int, Connection]],
    waiting: int,
    program: Callable[[ForkedRanks], Any],
) -> int:
    try:
        signal.alarm(LONGEST)
        _close_all([each for number, each in enumerate(ends) if number != rank])
        os.read(waiting, 1)
        with ForkedRanks(rank, len(ends), ends[rank]) as comm:
            program(comm)
        return SAVED
    except RankLost:
        return LOST
    except BaseException:
        traceback.print_exc()
        return 1


def _close_all(ends: Sequence[dict[int, Connection]]) -> None:
    for each in ends:
        for connection in each.values():
            connection.close()
