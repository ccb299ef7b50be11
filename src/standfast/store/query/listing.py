"""The checkpoints of a store as a list, from the heads of their records alone."""

from __future__ import annotations

import heapq
import itertools
import math
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

import msgspec

from standfast.errors import BadOption, DamagedFile
from standfast.store.index.index import Index, Listed
from standfast.store.query.filters import among
from standfast.store.schema import names
from standfast.store.schema.record import Head
from standfast.store.tree import tree

ORDERS: Final = ("step", "time", "size")
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
    metrics: Mapping[str, Any] = field(default_factory=dict)
    """Those that came late too."""
    problem: str | None = None
    """Why the record cannot be read."""
    where: tuple[str, ...] = ()
    """Where it is, if that was asked for: `local`, the place of its mirror, or both."""
    newer: str | None = None
    """What this version does not know of it, if a newer one wrote it."""

    @property
    def labels(self) -> tuple[str, ...]:
        """Its marks, and before them whether it is too new or damaged."""
        fault = "too new" if self.newer else "" if self.head else "damaged"
        return (fault, *self.marks) if fault else self.marks


@dataclass(frozen=True)
class Order:
    """What checkpoints are sorted by."""

    by: str
    """`step`, `time` or `size`, each with the highest first, or the name of a metric."""
    reverse: bool = False
    rated: bool = False
    """Whether those without the metric are left out, whatever it is called."""

    @property
    def metric(self) -> str | None:
        """The metric, if it is one."""
        return self.by if self.rated or self.by not in ORDERS else None


def checkpoints(
    index: Index,
    runs: str | Collection[str] | None = None,
    limit: int | None = None,
    order: Order | None = None,
) -> list[Entry]:
    """The checkpoints of some runs or of the store, the newest first, or in another order.

    After them come all records that cannot be read. Raises BadOption for an order by a metric
    that no checkpoint of the store has.
    """
    runs = [runs] if isinstance(runs, str) else runs
    known = _Known(index)
    if order is None or order == Order("time"):
        chosen = itertools.islice(_marked(index, runs), limit)
        entries = [known.entry(head, marks) for head, marks in chosen]
    else:
        entries = [known.entry(head, marks) for head, marks in _marked(index, runs)]
        if order.metric is not None:
            _check_known(index, order, entries)
        entries = _sorted(entries, order)[:limit]
    if order is None or not order.rated:
        entries += [
            known.unreadable(run, step, problem)
            for each in ([None] if runs is None else runs)
            for run, step, problem in index.unreadable(each)
        ]
    return entries


def joined(
    entries: Sequence[Entry], more: Iterable[Entry], limit: int | None, order: Order | None
) -> list[Entry]:
    """Checkpoints of two lists, in the order of the first."""
    damaged = [entry for entry in entries if entry.head is None]
    found = [entry for entry in (*entries, *more) if entry.head is not None]
    found.sort(key=_newness, reverse=True)
    if order is not None:
        found = _sorted(found, order)
    return [*found[:limit], *damaged]


def _newness(entry: Entry) -> tuple[int, str, int]:
    assert entry.head is not None
    return entry.head.sequence, entry.run, entry.step


def _check_known(index: Index, order: Order, entries: Sequence[Entry]) -> None:
    if any(order.metric in entry.metrics for entry in entries):
        return
    metrics = _all_metrics(index)
    if order.metric not in metrics and index.count():
        known = metrics if order.rated else {**dict.fromkeys(ORDERS), **metrics}
        raise BadOption(f"no checkpoint has the metric {among(str(order.metric), known)}")


def _all_metrics(index: Index) -> dict[str, None]:
    """The names of all metrics in the store, those of the newest checkpoints first."""
    late: dict[str, Mapping[int, Mapping[str, Any]]] = {}
    found: dict[str, None] = {}
    for run, step, head in index.newest():
        if run not in late:
            late[run] = index.late_metrics(run)
        found |= dict.fromkeys(metrics_of(head, late[run].get(step)))
    return found


class _Known:
    """What the index knows of the runs whose checkpoints are listed, asked for once a run."""

    def __init__(self, index: Index) -> None:
        runs = index.runs()
        self._index = index
        self._short = short_hashes(each.run for each in runs)
        self._labels = {each.run: each.name for each in runs}
        self._damaged = index.damaged_files(ask=False)
        self._newer = {(run, step): newer for run, step, newer in index.too_new()}
        self._of: dict[str, _OfRun] = {}

    def entry(self, head: Head, first: Sequence[str]) -> Entry:
        of_run = self._of_run(head.run)
        marks = (*first, *of_run.tags.get(head.step, ()))
        if self._damaged & {file.name for file in head.files}:
            marks = (*marks, "under suspicion")
        short, label = self._named(head.run)
        metrics = metrics_of(head, of_run.late.get(head.step))
        newer = self._newer.get((head.run, head.step))
        return Entry(head.run, short, label, head.step, head, marks, metrics, newer=newer)

    def unreadable(self, run: str, step: int, problem: str) -> Entry:
        short, label = self._named(run)
        marks = tuple(self._of_run(run).tags.get(step, ()))
        newer = self._newer.get((run, step))
        return Entry(run, short, label, step, None, marks, {}, problem, newer=newer)

    def _named(self, run: str) -> tuple[str, str | None]:
        return self._short.get(run, run), self._labels.get(run)

    def _of_run(self, run: str) -> _OfRun:
        if run not in self._of:
            index = self._index
            self._of[run] = _OfRun(index.tags(run), index.late_metrics(run))
        return self._of[run]


class _OfRun(NamedTuple):
    tags: Mapping[int, Sequence[str]]
    late: Mapping[int, Mapping[str, Any]]


def _marked(index: Index, runs: Collection[str] | None) -> Iterator[tuple[Head, list[str]]]:
    """The records from the newest on. None is `latest` if one that is too new may be."""
    latest = [] if any(runs is None or run in runs for run, *_ in index.too_new()) else ["latest"]
    best: dict[str, Listed | None] = {}
    for listed in _newest(index, runs):
        marks, latest = latest, []
        if listed.run not in best:
            best[listed.run] = index.best(listed.run)
        found = best[listed.run]
        if found is not None and found.step == listed.step:
            marks.append("best")
        yield listed.head, marks


def _newest(index: Index, runs: Collection[str] | None) -> Iterator[Listed]:
    if runs is None:
        return index.newest()
    return heapq.merge(*map(index.newest, runs), key=_place, reverse=True)


def _place(listed: Listed) -> tuple[int, str, int]:
    return listed.head.sequence, listed.run, listed.step


def _sorted(entries: list[Entry], order: Order) -> list[Entry]:
    """In another order; those that have no number to be sorted by come last."""
    numbers = [_number(entry, order) for entry in entries]
    rated = [at for at, number in enumerate(numbers) if number is not None]
    # The newest come first, and stay so among equals.
    rated.sort(key=lambda at: numbers[at] or 0, reverse=order.reverse)
    others = [] if order.rated else [at for at, number in enumerate(numbers) if number is None]
    return [entries[at] for at in (*rated, *others)]


def _number(entry: Entry, order: Order) -> float | None:
    """What an entry is sorted by, the least first."""
    assert entry.head is not None
    if order.metric is not None:
        return as_number(entry.metrics.get(order.metric))
    fields = {"step": entry.step, "time": entry.head.sequence, "size": entry.head.nbytes}
    return -fields[order.by]


def metrics_of(head: Head, late: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """The metrics of a checkpoint, with those that came late; none, if somebody sealed others."""
    node = {**head.metrics, **(late or {})}
    if all(type(value) in (int, float) for value in node.values()):
        return node
    with suppress(DamagedFile):
        metrics: dict[str, Any] = tree.decode(msgspec.json.encode(node), 0)
        return metrics
    return {}


def as_number(value: Any) -> float | None:
    """A metric that can be compared with others; None for one that is no number."""
    is_number = isinstance(value, int) or (isinstance(value, float) and not math.isnan(value))
    return value if is_number else None


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
