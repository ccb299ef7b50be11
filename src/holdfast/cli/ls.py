"""`holdfast ls`: the checkpoints of a store, the newest first."""

from __future__ import annotations

import shutil
from contextlib import suppress
from typing import Any, Final

import msgspec

from holdfast.cli.output import (
    age_text,
    on_terminal,
    plain,
    print_json,
    print_table,
    say,
    size_text,
    time_text,
)
from holdfast.errors import DamagedFile, printable
from holdfast.store import Checkpoint, Store
from holdfast.store.listing import Entry, checkpoints, written
from holdfast.store.record import Head

_AT: Final = 4
"""The column of the metrics."""
_WIDEST: Final = 48
"""The characters that metrics get in a table at most."""


def list_checkpoints(store: Store, run: str | None, *, number: int | None, as_json: bool) -> None:
    """Print checkpoints of all runs or of one, so many of them at most."""
    store.index.refresh()
    only = None if run is None else store.find_run(run).hash
    entries = checkpoints(store.index, only, number)
    if as_json:
        print_json([_as_json(store, entry) for entry in entries])
        return
    if not entries:
        say("no checkpoints yet")
        return
    when = "age" if on_terminal() else "saved"
    columns = ["run", "hash", "step", "epoch", "size", "written", when, "marks"]
    rows = [_row(entry) for entry in entries]
    room = _room_for_metrics(columns, rows)
    if room >= len("metrics"):
        columns.insert(_AT, "metrics")
        for entry, row in zip(entries, rows, strict=True):
            metrics = _metrics(store, entry.head) if entry.head else {}
            row.insert(_AT, _metrics_text(metrics, room))
    print_table(
        columns,
        rows,
        right=f"step epoch size written {when}",
        styles=["red" if entry.head is None else "" for entry in entries],
    )
    left = store.index.count(only) - len(entries)
    if left > 0 and on_terminal():
        say((f"… and {left:,} older; --all lists them", "dim"))


def _row(entry: Entry) -> list[str]:
    """A line of the table, without metrics."""
    name, marks = printable(entry.name or "—"), printable(", ".join(entry.marks))
    if entry.head is None:
        damage = ", ".join(filter(None, ("damaged", marks)))
        return [name, entry.short, str(entry.step), "", "", "", "", damage]
    head = entry.head
    return [
        name,
        entry.short,
        str(head.step),
        "" if head.epoch is None else str(head.epoch),
        size_text(head.nbytes),
        size_text(written(head)),
        age_text(head.time) if on_terminal() else printable(time_text(head.time)),
        marks,
    ]


def _room_for_metrics(columns: list[str], rows: list[list[str]]) -> int:
    """The characters that a terminal has left for them; a pipe has room."""
    if not on_terminal():
        return _WIDEST
    others = sum(2 + max(map(len, cells)) for cells in zip(columns, *rows, strict=True))
    return min(_WIDEST, shutil.get_terminal_size().columns - others - 2)


def _metrics(store: Store, head: Head) -> dict[str, Any]:
    """The metrics of a checkpoint; none, if somebody sealed what are no metrics."""
    with suppress(DamagedFile):
        return Checkpoint(store, head).metrics
    return {}


def _metrics_text(metrics: dict[str, Any], room: int) -> str:
    """As many metrics as there is room for."""
    text = ""
    for at, (name, value) in enumerate(metrics.items()):
        shown = f"{value:.4g}" if isinstance(value, float) else f"{plain(value)!s:.20}"
        longer = f"{text}  {name} {shown}" if text else f"{name} {shown}"
        more = " …" if at < len(metrics) - 1 else ""
        if len(longer) + len(more) > room:
            return printable(f"{text} …") if text else "…"
        text = longer
    return printable(text)


def _as_json(store: Store, entry: Entry) -> dict[str, Any]:
    found: dict[str, Any] = {
        "ref": f"{entry.run}@{entry.step}",
        "run": entry.run,
        "name": entry.name,
        "step": entry.step,
        "marks": entry.marks,
    }
    if entry.head is None:
        return {**found, "damaged": entry.problem}
    head = entry.head
    return {
        **found,
        "epoch": head.epoch,
        "sequence": head.sequence,
        "time": head.time,
        "metrics": _metrics(store, head),
        "best": head.best,
        "parent": msgspec.to_builtins(head.parent),
        "tensors": head.tensors,
        "nbytes": head.nbytes,
        "written": written(head),
    }
