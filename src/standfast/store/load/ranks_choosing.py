"""One checkpoint for all ranks: rank 0 chooses, and all of them take it or none does."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Final, NoReturn, TypeVar

import msgspec

from standfast.errors import RankError, RefNotFound
from standfast.parallel.agreement import agree, on_root, together
from standfast.parallel.communicator import Communicator
from standfast.store.checkpoint import Checkpoint
from standfast.store.run import Run
from standfast.store.schema.record import Place

Result = TypeVar("Result")


def with_checkpoint_together(
    run: Run, comm: Communicator, ref: int | str, action: Callable[[Checkpoint], Result]
) -> Result:
    """Collective: do something with the checkpoint that is meant; see `Run.load` for what is.

    The action must not be collective. If the checkpoint is damaged for one rank, `latest` and
    `best` fall back on all of them. Whatever is raised is raised on all.
    """
    if comm.size == 1:
        return run.with_checkpoint(ref, action)
    agree(comm, "the run and the checkpoint", [run.hash, ref])
    if comm.rank == 0:
        return _lead(run, comm, ref, action)
    return _follow(run, comm, action)


_RAISED: Final = "raised"
"""What rank 0 says when it raises what all ranks have seen."""


def _lead(
    run: Run, comm: Communicator, ref: int | str, action: Callable[[Checkpoint], Result]
) -> Result:
    seen: BaseException | None = None

    def attempt(checkpoint: Checkpoint) -> Result:
        nonlocal seen
        place = checkpoint.head.place
        on_root(comm, lambda: list(msgspec.structs.astuple(place)))
        try:
            return together(comm, lambda: action(checkpoint))
        except BaseException as error:
            seen = error
            raise

    try:
        result = run.with_checkpoint(ref, attempt)
    except BaseException as error:
        # The others wait to hear what comes next. If they are lost, the error says so itself.
        with suppress(RankError):
            on_root(comm, (lambda: _RAISED) if error is seen else _raising(error))
        raise
    on_root(comm, _nothing)
    return result


def _follow(run: Run, comm: Communicator, action: Callable[[Checkpoint], Result]) -> Result:
    results: list[Result] = []
    seen: BaseException | None = None
    while (chosen := on_root(comm, _nothing)) is not None:
        if chosen == _RAISED and seen is not None:
            raise seen
        try:
            results = [together(comm, partial(_attempt, run, Place(*chosen), action))]
        except BaseException as error:  # Ctrl-C too: rank 0 must hear of it, and says what comes
            seen = error
    return results[0]


def _attempt(run: Run, place: Place, action: Callable[[Checkpoint], Result]) -> Result:
    checkpoint = run.store.checkpoint(place.run, place.step)
    if checkpoint.head.place != place:
        raise RefNotFound(f"{checkpoint.ref} was replaced meanwhile: resolve it again")
    return action(checkpoint)


def _nothing() -> None:
    """What the others do while rank 0 chooses, and rank 0 when it is done."""


def _raising(error: BaseException) -> Callable[[], NoReturn]:
    def action() -> NoReturn:
        raise error

    return action
