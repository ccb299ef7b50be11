"""The curves of a run's metrics, out of its log and its records, in no more points than asked for.

A log may have millions of lines: it is read once, then only what was added, and of a metric no
more points are held than a picture needs, the lowest and highest of each stretch.
"""

from __future__ import annotations

import math
import os
import threading
from collections import OrderedDict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Final

import msgspec
import numpy as np

from standfast.files.lines import LONGEST
from standfast.store import Store
from standfast.store.query.listing import as_number, checkpoints, metrics_of

Numbers = np.ndarray[Any, np.dtype[np.float64]]
Places = np.ndarray[Any, np.dtype[np.int64]]

_BLOCK: Final = 4 << 20
_HELD: Final = 1 << 15
"""So many points of a metric are held; when there are twice as many, they are thinned out."""
_METRICS: Final = 512
"""So many metrics of a log are drawn; a line has no more than some hundreds."""
_LOGS: Final = 8
"""The logs that were asked for last stay in memory, so many of them."""
_TAIL: Final = 256
"""By so many bytes before its end it is known whether a log was only added to."""


class _Line(msgspec.Struct, gc=False):
    """What is drawn of a line; a text stands for a number that is not finite."""

    step: Annotated[int, msgspec.Meta(ge=0, lt=1 << 53)]
    metrics: dict[str, float | bool | str]


_decoder: Final = msgspec.json.Decoder(_Line)


class Series:
    """The points of one metric, thinned out where there are very many."""

    def __init__(self, steps: Sequence[int] = (), values: Sequence[float] = ()) -> None:
        self.steps: Places = np.asarray(steps, np.int64)
        self.values: Numbers = np.asarray(values, np.float64)
        self.means = self.values
        """The mean of those that each point stands for."""
        self.weights: Numbers = np.ones(len(self.values))
        """How many these are."""
        self.all = len(self.steps)
        """How many there were."""

    def __len__(self) -> int:
        return len(self.steps)

    def taken(self, places: Places) -> Series:
        """The points at these places; the others were none."""
        found = self._with(*(each[places] for each in self._arrays()))
        found.all = self.all - len(self) + len(found)
        return found

    def followed_by(self, other: Series) -> Series:
        """All points of both."""
        pairs = zip(self._arrays(), other._arrays(), strict=True)
        found = self._with(*(np.concatenate(pair) for pair in pairs))
        found.all = self.all + other.all
        return found

    def thinned(self, points: int) -> Series:
        """At most so many points: the first, the last, of each stretch the lowest and the highest.

        What is not finite stays only where a stretch has nothing else.
        """
        count = len(self)
        if count <= points:
            return self
        edges = np.linspace(0, count, max(1, points // 2 - 1) + 1).astype(np.int64)[:-1]
        is_number = np.isfinite(self.values)
        chosen = np.unique(
            np.concatenate(
                [
                    np.array([0, count - 1]),
                    _extreme(np.where(is_number, self.values, np.inf), edges),
                    _extreme(np.where(is_number, -self.values, np.inf), edges),
                ]
            )
        )
        stretch = np.searchsorted(edges, chosen, side="right") - 1
        is_mean = np.isfinite(self.means)
        sums = np.add.reduceat(np.where(is_mean, self.means * self.weights, 0.0), edges)
        weights = np.add.reduceat(np.where(is_mean, self.weights, 0.0), edges)
        with np.errstate(divide="ignore", invalid="ignore"):
            means = sums / weights
        shares = weights / np.bincount(stretch, minlength=len(edges))
        found = self._with(self.steps[chosen], self.values[chosen], means[stretch], shares[stretch])
        found.all = self.all
        return found

    def _arrays(self) -> tuple[Places, Numbers, Numbers, Numbers]:
        return self.steps, self.values, self.means, self.weights

    def _with(self, steps: Any, values: Any, means: Any, weights: Any) -> Series:
        found = Series()
        found.steps, found.values, found.means, found.weights = steps, values, means, weights
        return found


@dataclass
class _Log:
    """What was read of a log."""

    identity: tuple[int, int] = (0, 0)
    end: int = 0
    """Up to here; whole lines only."""
    tail: bytes = b""
    series: dict[str, Series] = field(default_factory=dict)
    damaged: int = 0
    """Lines that are none of a metrics log."""


class Curves:
    """The curves of runs, each log read once and then as it grows."""

    def __init__(self) -> None:
        self._guard = threading.Lock()
        self._logs: OrderedDict[Path, tuple[threading.Lock, _Log]] = OrderedDict()

    def of_run(self, store: Store, run: str, points: int) -> dict[str, Any]:
        """The curves by metric, and how many lines of the log cannot be read."""
        logged, damaged = self._logged(store, run, points)
        curves = {}
        for name, series in _recorded(store, run).items():
            curves[name] = _curve(_joined(logged.get(name), series), points)
        for name, series in logged.items():
            if name not in curves:
                curves[name] = _curve(series, points)
        order = [*logged, *(name for name in curves if name not in logged)]
        return {"metrics": {name: curves[name] for name in order}, "damaged_lines": damaged}

    def _logged(self, store: Store, run: str, points: int) -> tuple[dict[str, Series], int]:
        """A copy of what the log has, thinned out."""
        if store.logs is None:
            return {}, 0
        path = store.logs / f"{run}_metrics.jsonl"
        with self._guard:
            lock, log = self._logs.setdefault(path, (threading.Lock(), _Log()))
            self._logs.move_to_end(path)
            while len(self._logs) > _LOGS:
                self._logs.popitem(last=False)
        with lock:
            _read_on(path, log)
            found = {}
            for name, series in log.series.items():
                found[name] = _in_order(series).thinned(points)
            return found, log.damaged


def _read_on(path: Path, log: _Log) -> None:
    """Take in what was added to a log; one that was cut or replaced is read from its beginning."""
    try:
        file = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    except OSError:  # there is none, or none any more
        _forget(log)
        return
    with os.fdopen(file, "rb", buffering=0) as opened:
        status = os.fstat(opened.fileno())
        identity = (status.st_dev, status.st_ino)
        known = os.pread(file, len(log.tail), log.end - len(log.tail)) if log.end else b""
        if log.identity != identity or status.st_size < log.end or known != log.tail:
            _forget(log)
            log.identity = identity
        _take_in(file, status.st_size, log)


def _forget(log: _Log) -> None:
    log.identity, log.end, log.tail, log.series, log.damaged = (0, 0), 0, b"", {}, 0


def _take_in(file: int, size: int, log: _Log) -> None:
    rest, at, skipping = b"", log.end, False
    while at < size:
        block = os.pread(file, min(_BLOCK, size - at), at)
        if not block:  # it was cut this moment
            return
        at += len(block)
        *lines, rest = (rest + block).split(b"\n")
        if skipping and lines:
            del lines[0]  # its end
            skipping, log.end = False, at - len(rest)
        _take_lines(lines, log)
        if lines:
            log.end = at - len(rest)
            log.tail = (b"\n".join(lines[-1:]) + b"\n")[-_TAIL:]
        if len(rest) > LONGEST:  # no line is that long: what it is ends somewhere
            log.damaged += not skipping
            skipping, rest = True, b""


def _take_lines(lines: Sequence[bytes], log: _Log) -> None:
    points: dict[str, tuple[list[int], list[float]]] = {}
    for step, metrics in _decoded(lines, log):
        for name, value in metrics.items():
            if name not in points:
                points[name] = [], []
            steps, values = points[name]
            steps.append(step)
            values.append(math.nan if isinstance(value, str) else value)
    for name, (steps, values) in points.items():
        if name in log.series or len(log.series) < _METRICS:
            series = log.series.get(name, Series()).followed_by(Series(steps, values))
            log.series[name] = series.thinned(_HELD) if len(series) >= 2 * _HELD else series


def _decoded(
    lines: Sequence[bytes], log: _Log
) -> Iterator[tuple[int, dict[str, float | bool | str]]]:
    try:
        found = _decoder.decode_lines(b"\n".join(lines))
        if len(found) == len(lines):  # those that are empty are passed over
            yield from ((each.step, each.metrics) for each in found)
            return
    except (ValueError, RecursionError):  # msgspec's errors are ValueErrors
        pass
    for line in lines:
        try:
            one = _decoder.decode(line)
            yield one.step, one.metrics
        except (ValueError, RecursionError):
            log.damaged += 1


def _recorded(store: Store, run: str) -> dict[str, Series]:
    """The metrics of the checkpoints, which are told with the log or without one."""
    late = store.index.late_metrics(run)
    found: dict[str, tuple[list[int], list[float]]] = {}
    listed = sorted(store.index.newest(run), key=lambda each: each.step)
    for _, step, head in listed:
        for name, value in metrics_of(head, late.get(step)).items():
            number = as_number(value)
            if number is None and not isinstance(value, float):
                continue
            if name in found or len(found) < _METRICS:
                steps, values = found.setdefault(name, ([], []))
                steps.append(step)
                values.append(math.nan if number is None else float(number))
    return {name: Series(*points) for name, points in found.items()}


def _in_order(series: Series) -> Series:
    """By step, and of two values of one step the later line: a run may have gone back."""
    if len(series) < 2 or (np.diff(series.steps) > 0).all():
        return series
    order = np.argsort(series.steps, kind="stable")
    is_last = np.append(np.diff(series.steps[order]) > 0, True)
    return series.taken(order[is_last])


def _joined(logged: Series | None, recorded: Series) -> Series:
    """What the log has, and of the records what lies before its first step and after its last."""
    if logged is None or not len(logged):
        return recorded
    before = recorded.taken(np.flatnonzero(recorded.steps < logged.steps[0]))
    after = recorded.taken(np.flatnonzero(recorded.steps > logged.steps[-1]))
    return before.followed_by(logged).followed_by(after)


def _curve(series: Series, points: int) -> dict[str, Any]:
    """A curve; where points were left out, with the means of all that each stands for."""
    shown = series.thinned(points)
    told = {"steps": shown.steps.tolist(), "values": shown.values.tolist(), "all": shown.all}
    return told if shown.all == len(shown) else {**told, "means": shown.means.tolist()}


def _extreme(numbers: Numbers, edges: Places) -> Places:
    """Where in each stretch the lowest number is, the first of equals."""
    lowest = np.minimum.reduceat(numbers, edges)
    lengths = np.diff(np.append(edges, len(numbers)))
    is_lowest = np.flatnonzero(numbers == np.repeat(lowest, lengths))
    stretch = np.searchsorted(edges, is_lowest, side="right") - 1
    _, first = np.unique(stretch, return_index=True)
    return np.asarray(is_lowest[first], np.int64)


def marked(store: Store, run: str, why: Mapping[int, Sequence[str]]) -> list[dict[str, Any]]:
    """The checkpoints of a run for the axis of its curves, in the order of their steps."""
    entries = sorted(checkpoints(store.index, run), key=lambda entry: entry.step)
    return [
        {
            "step": entry.step,
            "marks": entry.labels,
            "why": why.get(entry.step, ()),
        }
        for entry in entries
    ]
