"""Programs on ranks that are threads: fast, for what need not be proved of MPI itself."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from standfast.errors import RankLost
from tests.kit.rank_threads import Killed, ThreadRanks, attempt_on_ranks


def on_threads(size: int, program: Callable[[Any], Any], timeout: float = 20.0) -> list[Any]:
    """What the program returns on each rank; the first error is raised, and no rank hangs."""

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
