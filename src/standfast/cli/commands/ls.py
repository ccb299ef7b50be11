"""`standfast ls`: the checkpoints of a store, the newest first."""

from __future__ import annotations

import itertools
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import msgspec

from standfast.display.output import (
    age_text,
    count_text,
    hash_text,
    message_of,
    metric_text,
    on_terminal,
    print_json,
    print_table,
    say,
    size_text,
    time_text,
    width,
)
from standfast.errors import StandfastError, printable
from standfast.store import Store
from standfast.store.query.filters import Filter, chosen_runs
from standfast.store.query.lineage import monitored
from standfast.store.query.listing import Entry, Order, checkpoints, joined, written
from standfast.store.query.mirrors import read_mirrors
from standfast.store.schema.record import Head
from standfast.store.v3.foreign import is_foreign_store, read_only
from standfast.tensorfile.importers import read_root

_MOST: Final = 12
"""A pipe gets columns for this many metrics."""
_LONGEST: Final = 24
"""The characters of a run's name that a terminal shows."""


def list_checkpoints(
    store: Store,
    chosen: Filter,
    *,
    number: int | None,
    as_json: bool,
    order: Order | None = None,
) -> None:
    """Print checkpoints of all runs or of some, so many of them at most."""
    store.index.refresh()
    runs = chosen_runs(store.index, chosen)
    entries = checkpoints(store.index, runs, number, order)
    elsewhere = 0
    if not as_json:
        _print_foreign(store)
    if mirrors := _mirrors(store, runs):
        entries, elsewhere = _with_mirrors(store, mirrors, entries, number, order)
    if as_json:
        print_json([entry_json(entry) for entry in entries])
    elif not entries:
        say("no checkpoint fits" if chosen or order else "no checkpoints yet")
    else:
        one_run = on_terminal() and len({entry.run for entry in entries}) == 1
        if one_run:
            say((printable(entries[0].name or "—"), "bold"), f"  {hash_text(entries[0].run)}")
        first = [order.metric] if order and order.metric is not None else []
        print_checkpoints(entries, [*first, *_monitored(store, entries)], one_run=one_run)
        if on_terminal() and number is not None and len(entries) >= number:
            left = _count(store, runs, order) + elsewhere - len(entries)
            if left > 0:
                say((f"… and {left:,} {'more' if order else 'older'}; --all lists them", "dim"))


def _print_foreign(store: Store) -> None:
    """What there is to say of a root that weightslab wrote."""
    if not is_foreign_store(store.backend):
        return
    root = read_root(Path(store.url).parent)
    for file, why in root.problems:
        say(("problem     ", "yellow"), printable(f"{file}: {why}"))
    say((printable(read_only(root.path)), "dim"))


def _mirrors(store: Store, runs: list[str] | None) -> dict[str, str]:
    """The places of the mirrors that these runs have, by run; a run may be there alone."""
    try:
        mirrors = read_mirrors(store.backend)
    except StandfastError as error:
        _warn(message_of(error))
        return {}
    return {run: place for run, place in mirrors.items() if runs is None or run in runs}


def _with_mirrors(
    store: Store,
    mirrors: dict[str, str],
    entries: list[Entry],
    number: int | None,
    order: Order | None,
) -> tuple[list[Entry], int]:
    """The same list with what mirrors have, and how many only they have."""
    from standfast.store.query.locations import located, look_at, only_in_mirrors

    seen = look_at(set(mirrors.values()))
    for mirror in seen.values():
        if mirror.problem is not None:
            _warn(str(mirror))
    more = only_in_mirrors(store.index, mirrors, seen)
    if order is not None and order.rated:
        more = [entry for entry in more if order.metric in entry.metrics]
    return joined(located(entries, mirrors, seen), more, number, order), len(more)


def _warn(text: str) -> None:
    print(printable(text), file=sys.stderr)


def _count(store: Store, runs: list[str] | None, order: Order | None) -> int:
    """How many checkpoints are meant."""
    if order is not None and order.rated:
        return len(checkpoints(store.index, runs, None, order))
    return sum(store.index.count(run) for run in ([None] if runs is None else runs))


def _monitored(store: Store, entries: Sequence[Entry]) -> list[str]:
    """The metrics that decide on the best of the runs, the one of most checkpoints first."""
    counts: Counter[str] = Counter()
    for run, count in Counter(entry.run for entry in entries).items():
        counts.update(dict.fromkeys(monitored(store.index.run_file(run)), count))
    return [name for name, _ in counts.most_common()]


@dataclass(frozen=True)
class _Column:
    title: str
    cells: Sequence[str]
    is_number: bool = False

    @property
    def width(self) -> int:
        """The characters that it takes with the space beside it."""
        return 2 + max(map(len, (self.title, *self.cells)))


def print_checkpoints(
    entries: Sequence[Entry], first: Sequence[str] = (), *, one_run: bool = False
) -> None:
    """Print a table of checkpoints, with a column for each metric, the given ones first.

    With `one_run` they are all of a run that was named already.
    """
    columns, metrics = _columns(entries), _metrics(entries, first)
    fitting = metrics[:_MOST]
    if one_run:  # which need not be said in every line
        columns = [column for column in columns if column.title not in ("run", "hash")]
    if on_terminal():
        columns = [column for column in columns if any(column.cells)]
        if _room(columns) < sum(column.width for column in metrics):  # `show` tells it too
            columns = [column for column in columns if column.title != "written"]
        fitting = _fitting(metrics, _room(columns))
    at = next((at for at, column in enumerate(columns) if column.title == "size"), len(columns))
    columns[at:at] = fitting
    print_table(
        [column.title for column in columns],
        list(zip(*(column.cells for column in columns), strict=True)),
        right=[column.title for column in columns if column.is_number],
        styles=["red" if entry.labels[:1] == ("damaged",) else "" for entry in entries],
    )
    if len(fitting) < len(metrics) and on_terminal():
        more = count_text(len(metrics) - len(fitting), "more metric")
        say((f"… {more}; --json has all of them", "dim"))


def _room(columns: Sequence[_Column]) -> int:
    """The characters that a line of the terminal has left."""
    return width() - sum(column.width for column in columns)


def _fitting(columns: Sequence[_Column], room: int) -> list[_Column]:
    """As many as there is room for."""
    ends = itertools.accumulate(column.width for column in columns)
    return [column for column, end in zip(columns, ends, strict=True) if end <= room]


def _columns(entries: Sequence[Entry]) -> list[_Column]:
    """All but the metrics."""

    def column(title: str, cell: Callable[[Entry], str], is_number: bool = False) -> _Column:
        return _Column(title, list(map(cell, entries)), is_number)

    def of_head(title: str, cell: Callable[[Head], str]) -> _Column:
        # Empty where the record cannot be read.
        return column(title, lambda entry: cell(entry.head) if entry.head else "", True)

    return [
        column("run", _name),
        column("hash", lambda entry: entry.short),
        column("step", lambda entry: str(entry.step), is_number=True),
        of_head("epoch", lambda head: "" if head.epoch is None else str(head.epoch)),
        of_head("size", lambda head: size_text(head.nbytes)),
        of_head("written", lambda head: size_text(written(head))),
        of_head("age", lambda head: age_text(head.time))
        if on_terminal()
        else of_head("saved", lambda head: printable(time_text(head.time))),
        column("marks", _marks),
        *([column("where", _where)] if any(entry.where for entry in entries) else ()),
    ]


def _metrics(entries: Sequence[Entry], first: Iterable[str]) -> list[_Column]:
    """A column for each metric that there is: the given ones, then those that most have."""
    counts = Counter(name for entry in entries for name in entry.metrics)
    given = [name for name in first if name in counts]
    return [
        _Column(printable(name), [_metric(entry, name) for entry in entries], is_number=True)
        for name in dict.fromkeys((*given, *(name for name, _ in counts.most_common())))
    ]


def _metric(entry: Entry, name: str) -> str:
    return printable(metric_text(entry.metrics[name])) if name in entry.metrics else ""


def _name(entry: Entry) -> str:
    name = printable(entry.name or "—")
    return name if len(name) <= _LONGEST or not on_terminal() else f"{name[: _LONGEST - 1]}…"


def _marks(entry: Entry) -> str:
    return printable(", ".join(entry.labels))


def _where(entry: Entry) -> str:
    return " + ".join(place if place == "local" else "mirror" for place in entry.where)


def entry_json(entry: Entry) -> dict[str, Any]:
    """A checkpoint of a list, for scripts."""
    found: dict[str, Any] = {
        "ref": f"{entry.run}@{entry.step}",
        "run": entry.run,
        "name": entry.name,
        "step": entry.step,
        "marks": entry.marks,
        **({"where": entry.where} if entry.where else {}),
        **({"too_new": entry.newer} if entry.newer else {}),
    }
    if entry.head is None:
        return found if entry.newer else {**found, "damaged": entry.problem}
    head = entry.head
    return {
        **found,
        "epoch": head.epoch,
        "sequence": head.sequence,
        "time": head.time,
        "metrics": entry.metrics,
        "best": head.best,
        "parent": msgspec.to_builtins(head.parent),
        "dropped": head.dropped,
        "tensors": head.tensors,
        "nbytes": head.nbytes,
        "written": written(head),
    }
