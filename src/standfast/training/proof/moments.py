"""When a program is to be killed: moments drawn at random over the whole of its run."""

from __future__ import annotations

import os
import random
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Final

from standfast.store.backends.new_file import is_aside
from standfast.store.schema import names

_AIMED: Final = 3
"""One kill of so many is aimed at a save."""
_END: Final = 0.5
"""The last kill comes so much of an interval before the last checkpoint, or earlier."""
_SAVED: Final = 0.7
"""How much of a save may go by before an aimed kill: the next one may be faster."""


@dataclass(frozen=True)
class Moment:
    """A moment to kill at."""

    checkpoints: int
    """After so many were committed …"""
    share: float
    """… and this share of the time until the next one, or of the save that it is aimed at."""
    aimed: bool
    """Whether it is to fall into a save."""


def draw_moments(kills: int, checkpoints: int, seed: int, aimed: int | None) -> list[Moment]:
    """Moments in the order in which they come, spread over a run with so many checkpoints.

    The run is cut into as many pieces as there are kills, and each gets one at random, so that a
    few kills reach far too. The first checkpoint is left to be committed: before it there is
    nothing to resume.
    """
    dice = random.Random(seed)
    if aimed is None:
        aimed = max(1, round(kills / _AIMED))
    at_saves = set(dice.sample(range(kills), min(aimed, kills)))
    length = checkpoints - 1 - _END
    moments = []
    for number in range(kills):
        position = 1 + (number + dice.random()) * length / kills
        moments.append(Moment(int(position), position % 1, number in at_saves))
    return moments


@dataclass(frozen=True)
class Seen:
    """What lies in the folders of a store's runs, by the names alone."""

    committed: frozenset[tuple[str, int]]
    """The run and step of each record."""
    unfinished: frozenset[str]
    """The files of saves that have no record."""

    @property
    def last(self) -> int:
        """The highest step that is committed; 0 if there is none."""
        return max((step for _, step in self.committed), default=0)


def look_at(store: Path) -> Seen:
    """See how far the saves of a store are; quickly, as this is done every millisecond."""
    committed, data, aside = set(), {}, set()
    for run in _listed(store / "checkpoints" / names.MODELS):
        if not names.is_run(run):
            continue
        found = _listed(store / "checkpoints" / names.MODELS / run)
        begun = f"{run}_run.json" in found
        for name in found:
            named = names.parse(name, run)
            if named is not None and named.kind == "record":
                committed.add((run, named.step))
            elif named is not None and named.kind == "data" and named.run == run:
                data[name] = (run, named.step)
            elif begun and is_aside(name):  # before, it is the run file that is on its way
                aside.add(name)
    left = {name for name, place in data.items() if place not in committed}
    return Seen(frozenset(committed), frozenset(left | aside))


def _listed(folder: Path) -> list[str]:
    with suppress(FileNotFoundError):
        return os.listdir(folder)
    return []


class Pace:
    """How fast a program saves, noted while it runs."""

    def __init__(self) -> None:
        self._commits: list[float] = []
        self._saves: list[float] = []
        self._saving_since: float | None = None

    def note(self, seen: Seen, seconds: float) -> None:
        """This was seen so many seconds after the start."""
        if seen.unfinished and self._saving_since is None:
            self._saving_since = seconds
        if len(seen.committed) > len(self._commits):
            self._commits += [seconds] * (len(seen.committed) - len(self._commits))
            if self._saving_since is not None:
                self._saves.append(seconds - self._saving_since)
        if not seen.unfinished:
            self._saving_since = None

    def wait_before(self, moment: Moment, since_start: bool) -> float:
        """How many seconds to wait, from a save, a commit or the start on, until a moment."""
        if moment.aimed:
            return _SAVED * moment.share * (median(self._saves) if self._saves else 0.0)
        return moment.share * (self._commits[0] if since_start else self._interval())

    def _interval(self) -> float:
        return (self._commits[-1] - self._commits[0]) / max(1, len(self._commits) - 1)
