"""What ranks say to each other: the one seam between Standfast and whatever started the ranks.

The suite in `tests/parallel/suite.py` is what every communicator must pass.
"""

from __future__ import annotations

from collections.abc import Sequence
from numbers import Real
from types import TracebackType
from typing import Final, Protocol, Self, runtime_checkable

from standfast.errors import BadOption

TIMEOUT: Final = 1800.0
"""How many seconds a rank waits for the others, unless it was told: a save may be long."""


@runtime_checkable
class Communicator(Protocol):
    """Some processes, its ranks, which call the same methods in the same order.

    Every method but the properties is collective: it returns when the others have called it too,
    and raises RankLost if one of them did not within `timeout` seconds, and RanksDisagree if it
    can see that one of them called another. After that the ranks no longer agree on what comes
    next, and every further call raises RankLost at once. One thread calls at a time.

    An argument that cannot be sent raises BadOption here, and RankFailed on the others; the ranks
    are in step after it.
    """

    @property
    def rank(self) -> int:
        """The number of this process, from 0. Not collective."""
        ...

    @property
    def size(self) -> int:
        """How many ranks there are. Not collective."""
        ...

    @property
    def timeout(self) -> float:
        """How many seconds it waits for the others. Not collective."""
        ...

    def gather(self, data: bytes, root: int = 0) -> list[bytes]:
        """Collective: what every rank gave, in their order, on the root; nothing on the others."""
        ...

    def broadcast(self, data: bytes, root: int = 0) -> bytes:
        """Collective: what the root gave, on all ranks."""
        ...

    def all_gather(self, data: bytes) -> list[bytes]:
        """Collective: what every rank gave, in their order, on all of them."""
        ...

    def exchange(self, messages: Sequence[bytes]) -> list[bytes]:
        """Collective: one message to each rank, this one too; returns the one of each to us."""
        ...

    def duplicate(self, timeout: float | None = None) -> Communicator:
        """Collective: the same ranks, whose messages do not meet those of this one."""
        ...

    def close(self) -> None:
        """Collective: it is not used any more, and a further call raises NotOpen.

        May be called several times. Where a rank was lost it waits for nobody.
        """
        ...

    def __enter__(self) -> Self: ...

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        at: TracebackType | None,
    ) -> None:
        """Close it; on an error nobody is waited for, and the others are told, if they can be."""
        ...


def checked_timeout(timeout: float) -> float:
    """The seconds to wait for other ranks, if they are a time to wait."""
    problem = timeout_refusal(timeout)
    if problem is not None:
        raise BadOption(problem)
    return float(timeout)


def timeout_refusal(timeout: float) -> str | None:
    """Why nobody can wait for so many seconds, or None if one can."""
    if isinstance(timeout, Real) and timeout > 0:
        return None
    return f"a timeout is a number of seconds above zero, and not {timeout!r}"
