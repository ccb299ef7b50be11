"""One rank: a program that was started alone."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Self

from standfast.errors import BadOption, NotOpen
from standfast.parallel.calls import CLOSED, refusal
from standfast.parallel.communicator import TIMEOUT, Communicator, checked_timeout


class SingleRank:
    """The communicator of a process that is alone; see `Communicator`."""

    rank = 0
    size = 1

    def __init__(self, timeout: float = TIMEOUT) -> None:
        self.timeout = checked_timeout(timeout)
        self.closed = False

    def gather(self, data: bytes, root: int = 0) -> list[bytes]:
        """What this rank gave."""
        return self._checked(root, [data])

    def broadcast(self, data: bytes, root: int = 0) -> bytes:
        """What this rank gave."""
        return self._checked(root, [data])[0]

    def all_gather(self, data: bytes) -> list[bytes]:
        """What this rank gave."""
        return self._checked(0, [data])

    def exchange(self, messages: Sequence[bytes]) -> list[bytes]:
        """The message to itself."""
        return self._checked(0, messages)

    def duplicate(self, timeout: float | None = None) -> Communicator:
        """Another one."""
        self._checked(0, [b""])
        return SingleRank(self.timeout if timeout is None else timeout)

    def close(self) -> None:
        """It is not used any more."""
        self.closed = True

    def _checked(self, root: int, messages: Sequence[bytes]) -> list[bytes]:
        """The messages, if several ranks could send them too: a program may be moved to those."""
        if self.closed:
            raise NotOpen(CLOSED)
        problem = refusal(root, messages, 1)
        if problem is not None:
            raise BadOption(problem)
        return list(messages)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()
