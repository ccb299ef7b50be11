"""A run that goes on where its local store is gone, or older: its mirror has the checkpoint."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from holdfast.errors import DamagedFile, HoldfastError, RefNotFound
from holdfast.store import Checkpoint, Store
from holdfast.store.copying import copy_checkpoint
from holdfast.store.index import Index
from holdfast.store.mirrors import is_same, open_mirror
from holdfast.store.opening import is_url
from holdfast.store.record import Head
from holdfast.store.whereabouts import look_at

_HURRY: Final = 10.0
"""So many seconds a mirror has to answer if the run can go on without it."""
_PATIENCE: Final = 120.0
"""So many it has if it cannot."""


def bring_back(store: Store, run: str, place: str, say: Callable[[str], None]) -> None:
    """Copy the latest checkpoint of a run out of its mirror, if the store has none as new.

    A mirror that cannot be reached is no reason to fail where there is a checkpoint to go on from;
    where there is none, raises RefNotFound: to begin anew could be to lose all that was done.
    """
    store.index.refresh()
    here = next((listed.head for listed in store.index.newest(run)), None)
    if here is None and is_url(place):
        say(f"looking for a checkpoint in the mirror {place}")
    seen = look_at([place], _PATIENCE if here is None else _HURRY)[place]
    if seen.is_missing:
        return
    if seen.problem is not None:
        if here is None:
            raise RefNotFound(
                f"{store.url} has no checkpoint of run {run}, and whether the mirror {place} has "
                f"one nobody can say: {seen.problem}; start it again when it can be reached, or "
                "without a mirror"
            )
        say(f"the mirror {place} cannot be reached ({seen.problem}); the run goes on without it")
        return
    mirror = open_mirror(place)
    for listed in seen.index.newest(run):
        if here is not None and not _is_later(listed.head, here):
            return
        if here is not None and (step := _parted(store, seen.index, run)) is not None:
            say(
                f"step {listed.step} of the mirror {place} is later, but of another history: step "
                f"{step} is another there than here; the run goes on from what is here"
            )
            return
        try:
            copy_checkpoint(Checkpoint(mirror, listed.head), store)
        except (DamagedFile, RefNotFound) as error:
            say(f"step {listed.step} of the mirror {place} cannot be used: {error}")
            continue
        except HoldfastError as error:
            if here is None:
                raise
            say(f"step {listed.step} stays in the mirror {place}: {error}")
            return
        say(f"step {listed.step} was brought back from the mirror {place}")
        return


def _is_later(one: Head, other: Head) -> bool:
    """By both its number and its time: numbers count the commits of one store."""
    return one.sequence > other.sequence and one.time > other.time


def _parted(store: Store, mirror: Index, run: str) -> int | None:
    """A step that is another checkpoint in the store than in the mirror, if there is one."""
    there = {listed.step: listed.head for listed in mirror.newest(run)}
    for listed in store.index.newest(run):
        if listed.step in there and not is_same(listed.head, there[listed.step]):
            return listed.step
    return None
