"""The checkpoints of a store as a list, from the heads of their records alone."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Final

from holdfast.store import names
from holdfast.store.index import Index, Listed
from holdfast.store.record import Head

_HASH: Final = 24
"""The characters of a whole hash."""


@dataclass(frozen=True)
class Entry:
    """A checkpoint in a list, or a record that cannot be read."""

    run: str
    short: str
    """The beginning of the run's hash that tells it from all others."""
    name: str | None
    step: int
    head: Head | None
    marks: tuple[str, ...] = ()
    """`latest`, `best`, its tags, and whether a file of it was found damaged."""
    problem: str | None = None
    """Why the record cannot be read."""


def checkpoints(index: Index, run: str | None = None, limit: int | None = None) -> list[Entry]:
    """The newest checkpoints of a run or of the store, the newest first.

    After them come all records that cannot be read.
    """
    runs = index.runs()
    short = short_hashes(each.run for each in runs)
    labels = {each.run: each.name for each in runs}
    tags: dict[str, dict[int, list[str]]] = {}
    distrusted: dict[str, set[str]] = {}

    def entry(run: str, step: int, head: Head | None, *first: str, problem: str | None) -> Entry:
        if run not in tags:
            tags[run] = index.tags(run)
            distrusted[run] = index.distrusted(run)
        marks = (*first, *tags[run].get(step, ()))
        if head is not None and distrusted[run] & {file.name for file in head.files}:
            marks = (*marks, "under suspicion")
        return Entry(run, short.get(run, run), labels.get(run), step, head, marks, problem)

    entries = [
        entry(head.run, head.step, head, *marks, problem=None)
        for head, marks in itertools.islice(_marked(index, run), limit)
    ]
    entries += [
        entry(run, step, None, problem=problem) for run, step, problem in index.unreadable(run)
    ]
    return entries


def _marked(index: Index, run: str | None) -> Iterator[tuple[Head, list[str]]]:
    """The records from the newest on."""
    latest = ["latest"]
    best: dict[str, Listed | None] = {}
    for listed in index.newest(run):
        marks, latest = latest, []
        if listed.run not in best:
            best[listed.run] = index.best(listed.run)
        found = best[listed.run]
        if found is not None and found.step == listed.step:
            marks.append("best")
        yield listed.head, marks


def written(head: Head) -> int:
    """The bytes of the data files that were written for a checkpoint, rather than referred to."""
    own = names.record_file(head.run, head.step).rpartition("/")[2].removesuffix("json")
    return sum(file.size for file in head.files if file.name.startswith(own))


def short_hashes(runs: Iterable[str], least: int = 8) -> dict[str, str]:
    """The beginning of each run's hash that tells it from all others, of at least 8 characters."""
    short: dict[str, str] = {}
    waiting = list(runs)
    for length in range(least, _HASH + 1):
        counts = Counter(run[:length] for run in waiting)
        short |= {run: run[:length] for run in waiting if counts[run[:length]] == 1}
        waiting = [run for run in waiting if run not in short]
    return short
