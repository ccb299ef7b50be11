"""The runs of a store as a list, from the index alone: filtered, sorted, a page of them."""

from __future__ import annotations

import json
import math
import operator
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import msgspec

from standfast.errors import BadOption
from standfast.store import Store
from standfast.store.index.index import Index, Listed, ListedRun, Span
from standfast.store.query.lineage import monitored
from standfast.store.query.listing import as_number, metrics_of
from standfast.store.schema.run_file import RunFile
from standfast.web.changes import live

PARTS: Final = ("hp", "model", "data")
_COMPARED: Final = re.compile(r"([^<>=]*)(<=|>=|<|>|=)([^<>=]*)")
_HASH: Final = re.compile(r"[0-9a-z]{8}(_[0-9a-z]{0,8}){1,2}")
_BY: Final[dict[str, Callable[[float, float], bool]]] = {
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
    "=": operator.eq,
}
_METRIC: Final = "metric:"
"""Stands before a metric that is called as another order is."""
_EMPTY: Final = Span(0, 0, 0, 0)


@dataclass(frozen=True)
class Wanted:
    """Which runs are asked for, and in which order; what is empty does not matter."""

    text: str = ""
    """In the name, the hash or the hyperparameters."""
    parts: tuple[str, str, str] = ("", "", "")
    """The beginnings of the groups of the hash."""
    metric: str = ""
    sort: str = ""


class Runs:
    """What the index knows of all runs, asked for once."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._index: Index = store.index
        self._listed = {each.run: each for each in self._index.runs()}
        self._spans = self._index.spans()
        self._files = self._index.run_files()
        self._tops: dict[str, Listed] | None = None

    def chosen(self, wanted: Wanted) -> list[str]:
        """The hashes of those that fit, in the order that is asked for; raises BadOption."""
        found = [run for run in self._listed if self._fits(run, wanted)]
        if wanted.metric:
            name, compare, limit = _comparison(wanted.metric)
            found = [
                run
                for run in found
                if (value := self._metric(run, name)) is not None and compare(value, limit)
            ]
        return self._sorted(found, wanted.sort)

    def described(self, runs: Sequence[str]) -> list[dict[str, Any]]:
        """Some of them, as the API tells of a run."""
        busy = live(self._store.backend, runs)
        return [self._described(run, run in busy) for run in runs]

    def metrics(self, told: Sequence[Mapping[str, Any]]) -> list[str]:
        """The names of the metrics of some runs; those that decide on a best come first."""
        known: dict[str, None] = {}
        for run in told:
            known |= dict.fromkeys(monitored(self._files.get(run["run"])))
        there: dict[str, None] = {}
        for run in told:
            for which in ("best", "latest"):
                there |= dict.fromkeys(run[which]["metrics"] if run[which] else ())
        return [name for name in {**known, **there} if name in there]

    def _fits(self, run: str, wanted: Wanted) -> bool:
        for part, start, beginning in zip(PARTS, (0, 8, 16), wanted.parts, strict=True):
            if beginning and not (
                run[start : start + 8].startswith(beginning) and self._is_given(run, part)
            ):
                return False
        return not wanted.text or self._has(run, wanted.text.casefold())

    def _has(self, run: str, text: str) -> bool:
        name, file = self._listed[run].name, self._files.get(run)
        if text in (name or "").casefold() or text in run:
            return True
        if _HASH.fullmatch(text) and run.startswith(text.replace("_", "")):
            return True
        settings = file.hyperparameters if file else None
        return settings is not None and text in _searched(settings)

    def _is_given(self, run: str, part: str) -> bool:
        """Whether a run was told of this part of what it is; if nobody knows, it may."""
        file = self._files.get(run)
        return file is None or file.identity.get(part) is not None

    def _metric(self, run: str, name: str) -> float | None:
        if self._tops is None:
            self._tops = self._index.tops()
        top = self._tops.get(run)
        if top is None:
            return None
        late = self._index.late_metrics(run).get(top.step) if name not in top.head.metrics else None
        return as_number(metrics_of(top.head, late).get(name))

    def _sorted(self, runs: list[str], sort: str) -> list[str]:
        """In an order; those that have nothing to be sorted by come last either way."""
        by, reverse = sort.removeprefix("-"), sort.startswith("-")
        metric = by.removeprefix(_METRIC)
        if by in ("", "time"):
            return runs[::-1] if reverse else runs
        key: Callable[[str], Any]
        if by == "name":
            key = self._name
        elif by == "checkpoints":
            key = self._fewness
        else:
            key = lambda run: self._metric(run, metric)  # noqa: E731
        keyed = [(key(run), run) for run in runs]
        having = [pair for pair in keyed if pair[0] is not None]
        having.sort(key=operator.itemgetter(0), reverse=reverse)
        return [run for _, run in having] + [run for value, run in keyed if value is None]

    def _name(self, run: str) -> str | None:
        name = self._listed[run].name
        return name.casefold() if name else None

    def _fewness(self, run: str) -> int:
        return -self._spans.get(run, _EMPTY).records

    def _described(self, run: str, is_live: bool) -> dict[str, Any]:
        listed, file = self._listed[run], self._files.get(run)
        span = self._spans.get(run, _EMPTY)
        latest, best = next(self._index.newest(run), None), self._index.best(run)
        late = self._index.late_metrics(run)
        return {
            "run": run,
            **self._groups(run),
            "name": listed.name,
            "parent": msgspec.to_builtins(file.parent) if file else None,
            "created": listed.created,
            "time": latest.head.time if latest else None,
            "checkpoints": span.records,
            "first_step": span.first if span.records else None,
            "last_step": span.last if span.records else None,
            "latest": _brief(latest, late),
            "best": _brief(best, late),
            "damaged": span.damaged,
            "problem": listed.problem,
            "live": is_live,
        }

    def _groups(self, run: str) -> dict[str, str | None]:
        groups = zip(PARTS, (run[:8], run[8:16], run[16:]), strict=True)
        return {part: group if self._is_given(run, part) else None for part, group in groups}

    def find(self, run: str) -> tuple[ListedRun, RunFile | None] | None:
        """What is known of one; None if there is none of this hash."""
        listed = self._listed.get(run)
        return (listed, self._files.get(run)) if listed else None

    def children(self, run: str) -> list[str]:
        """The runs that branch from it, the latest first."""
        return [
            each
            for each in self._listed
            if (file := self._files.get(each)) and file.parent and file.parent.run == run
        ]


def _brief(listed: Listed | None, late: Mapping[int, Mapping[str, Any]]) -> dict[str, Any] | None:
    if listed is None:
        return None
    return {"step": listed.step, "metrics": metrics_of(listed.head, late.get(listed.step))}


def _searched(settings: Any) -> str:
    """Hyperparameters as the text that is looked through: `"lr": 0.1`, and `lr=0.1`."""
    text = json.dumps(settings, ensure_ascii=False, default=str).casefold()
    spelled = text.replace('"', "").replace(": ", "=")
    return f"{text} {spelled}"


def _comparison(text: str) -> tuple[str, Callable[[float, float], bool], float]:
    """A metric, how it is compared, and with what; raises BadOption."""
    match = _COMPARED.fullmatch(text)
    try:
        if match and (name := match[1].strip()):
            limit = float(match[3])
            if not math.isnan(limit):
                return name, _BY[match[2]], limit
    except ValueError:
        pass
    raise BadOption(f"metric={text[:100]}: give a metric, one of < <= > >= =, and a number")
