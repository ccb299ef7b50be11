"""Where the checkpoints of a store are: in it, in the mirrors of its runs, or in both."""

from __future__ import annotations

import time
from collections.abc import Collection, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Final

from standfast.errors import NotAStore, StandfastError
from standfast.files.threads import Thread
from standfast.store.index.database import NAME
from standfast.store.index.index import Index
from standfast.store.query.listing import Entry, checkpoints
from standfast.store.query.mirrors import is_same, open_mirror
from standfast.store.retention.retaining import said
from standfast.store.store import Store

LOCAL: Final = "local"
PATIENCE: Final = 3.0
"""So many seconds a mirror has to answer."""


@dataclass(frozen=True)
class Seen:
    """What is known of a mirror."""

    place: str
    index: Index
    problem: str | None = None
    """Why it could not be asked; the index is then what was known before."""
    known: str | None = None
    """When that was, if it ever was."""
    is_missing: bool = False
    """Whether there is nothing at its place, which answered."""

    def __str__(self) -> str:
        before = (
            f"this is what it had on {self.known}"
            if self.known
            else "nobody here knows what it has"
        )
        return f"the mirror {self.place} cannot be reached: {self.problem}; {before}"


def look_at(places: Collection[str], patience: float | None = None) -> dict[str, Seen]:
    """What the mirrors at some places have, all asked at the same time."""
    looks = {place: _Look(place) for place in places}
    end = time.monotonic() + (PATIENCE if patience is None else patience)
    return {place: look.result(end - time.monotonic()) for place, look in looks.items()}


class _Look:
    """A look at one mirror, by a thread of its own, which may never come back."""

    def __init__(self, place: str) -> None:
        self._place = place
        self._store: Store | None = None
        self._problem = "no answer in time"
        self._is_missing = False
        self._thread = Thread(self._refresh)

    def _refresh(self) -> None:
        try:
            store = open_mirror(self._place)
            store.check_exists()  # an index of nothing would forget what was there
            store.index.refresh()
            self._store = store
        except StandfastError as error:
            self._problem = said(error)
            self._is_missing = isinstance(error, NotAStore)
        except Exception as error:
            self._problem = f"{type(error).__name__}: {error}"

    def result(self, patience: float) -> Seen:
        self._thread.join(patience)
        if self._store is not None:
            return Seen(self._place, self._store.index)
        store = open_mirror(self._place)  # another one: the first may be locked
        known = _last_change(store)
        return Seen(self._place, store.index, self._problem, known, self._is_missing)


def _last_change(store: Store) -> str | None:
    """When the index of a store was last written."""
    cache = store.backend.cache
    times = []
    for suffix in ("", "-wal"):
        with suppress(OSError):
            if cache is not None:
                times.append((cache / f"{NAME}{suffix}").stat().st_mtime)
    return f"{datetime.fromtimestamp(max(times), UTC):%Y-%m-%d %H:%M}" if times else None


def located(
    entries: Iterable[Entry], mirrors: Mapping[str, str], seen: Mapping[str, Seen]
) -> list[Entry]:
    """Checkpoints of a store, each with where it is; `mirrors` has the place for each run."""
    return [
        replace(entry, where=_where(entry, seen.get(mirrors.get(entry.run, ""))))
        for entry in entries
    ]


def _where(entry: Entry, mirror: Seen | None) -> tuple[str, ...]:
    if mirror is not None and entry.head is not None:
        there = mirror.index.record(entry.run, entry.step)
        if there is not None and is_same(entry.head, there.head):
            return LOCAL, mirror.place
    return (LOCAL,)


def only_in_mirrors(
    index: Index, mirrors: Mapping[str, str], seen: Mapping[str, Seen]
) -> list[Entry]:
    """The checkpoints that mirrors have and the store has not, of these runs."""
    found = []
    for run, place in mirrors.items():
        if place in seen:
            here = set(index.steps(run))
            found += [
                # What refers to a checkpoint refers to one of the store.
                replace(entry, where=(place,), marks=())
                for entry in checkpoints(seen[place].index, run)
                if entry.head is not None and entry.step not in here
            ]
    return found
