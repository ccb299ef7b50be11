"""Ranks that are threads of one process: fast, for what need not be proved of MPI itself."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from holdfast.errors import RankLost


class _Board:
    """Where the ranks of one communicator leave their messages."""

    def __init__(self, size: int, timeout: float) -> None:
        self.barrier = threading.Barrier(size, timeout=timeout)
        self.messages: list[list[bytes]] = [[] for _ in range(size)]


class ThreadRanks:
    def __init__(self, board: _Board, rank: int, size: int, timeout: float) -> None:
        self.board, self.rank, self.size, self.timeout = board, rank, size, timeout

    def exchange(self, messages: Sequence[bytes]) -> list[bytes]:
        assert len(messages) == self.size
        assert all(type(message) is bytes for message in messages)
        try:
            self.board.messages[self.rank] = list(messages)
            self.board.barrier.wait()
            received = [sent[self.rank] for sent in self.board.messages]
            self.board.barrier.wait()
        except threading.BrokenBarrierError:
            raise RankLost("a rank did not come") from None
        return received

    def all_gather(self, data: bytes) -> list[bytes]:
        return self.exchange([data] * self.size)

    def broadcast(self, data: bytes, root: int = 0) -> bytes:
        return self.all_gather(data)[root]

    def gather(self, data: bytes, root: int = 0) -> list[bytes]:
        received = self.all_gather(data)
        return received if self.rank == root else []

    def duplicate(self, timeout: float | None = None) -> ThreadRanks:
        return self

    def close(self) -> None:
        pass

    def __enter__(self) -> ThreadRanks:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def on_threads(size: int, program: Callable[[Any], Any], timeout: float = 20.0) -> list[Any]:
    """What the program returns on each rank; the first error is raised, and no rank hangs."""
    board = _Board(size, timeout)

    def start(rank: int) -> Any:
        try:
            return program(ThreadRanks(board, rank, size, timeout))
        except BaseException:
            board.barrier.abort()
            raise

    with ThreadPoolExecutor(size) as pool:
        futures = [pool.submit(start, rank) for rank in range(size)]
    errors = [future.exception() for future in futures]
    for error in sorted(filter(None, errors), key=lambda error: isinstance(error, RankLost)):
        raise error
    return [future.result() for future in futures]
