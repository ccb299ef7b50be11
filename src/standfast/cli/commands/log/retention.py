"""`standfast log --retention`: why checkpoints are kept, and why others are not there any more."""

from __future__ import annotations

from typing import Any

import msgspec

from standfast.display.output import (
    age_text,
    hash_text,
    on_terminal,
    print_json,
    print_table,
    say,
    size_text,
    time_text,
)
from standfast.errors import printable
from standfast.policies import Retention
from standfast.store import Store
from standfast.store.query.filters import Filter, chosen_runs
from standfast.store.retention.history import Deletion, read_deletions
from standfast.store.retention.verdicts import Verdict, unknown, verdicts


def print_retention(store: Store, ref: str | None, *, as_json: bool) -> None:
    """Print what becomes of the checkpoints of a run, or of all runs, and what became of others."""
    store.index.refresh()
    runs = chosen_runs(store.index, Filter(ref))
    files = store.index.run_files()
    names = {each.run: each.name for each in store.index.runs()}
    found = []
    for run in names if runs is None else runs:
        retention = files[run].retention if run in files else None
        deletions = read_deletions(store, run)
        if runs is not None or run not in files or retention is not None or deletions:
            found.append((run, retention, verdicts(store, run), deletions))
    if as_json:
        print_json([{"name": names.get(each[0]), **_as_json(*each)} for each in found])
        return
    if not found:
        say("no run has a retention, and nothing was deleted: all checkpoints are kept")
    for at, (run, retention, kept, deletions) in enumerate(found):
        if at:
            say()
        say((printable(names.get(run) or "—"), "bold"), f"  {hash_text(run)}")
        keeps = f"keeps {retention or 'everything'}"
        if not store.index.has_run_file(run):
            keeps = unknown(store.index, run)
        say(printable(keeps))
        _print_table(kept, deletions, retention)


def _print_table(
    kept: list[Verdict], deletions: list[Deletion], retention: Retention | None
) -> None:
    rows = [(each.sequence, _row(each)) for each in kept]
    rows += [(each.sequence, _deleted_row(each)) for each in deletions]
    rows.sort(key=lambda row: row[0], reverse=True)
    titles = ("step", "what", "when", "freed", "why")
    columns = [0, 1, 2, 3, 4] if deletions else [0, 1, 4]
    known = f": {Retention(retention.keep)}" if retention else ""  # it stands above the table
    if rows:
        print_table(
            [titles[column] for column in columns],
            [[row[column].removesuffix(known) for column in columns] for _, row in rows],
            right="step when freed",
            styles=[_style(row[1]) for _, row in rows],
        )


_Row = tuple[str, str, str, str, str]


def _row(verdict: Verdict) -> _Row:
    return f"{verdict.step}", verdict_text(verdict), "", "", printable("; ".join(verdict.why))


def verdict_text(verdict: Verdict) -> str:
    """What becomes of a checkpoint."""
    if not verdict.keep:
        return "would be deleted"
    without = f", without {' and '.join(verdict.drop)}" if verdict.drop else ""
    return printable(f"kept{without}")


def _deleted_row(deletion: Deletion) -> _Row:
    what = "deleted" if not deletion.parts else f"{' and '.join(deletion.parts)} deleted"
    when = age_text(deletion.time) if on_terminal() else time_text(deletion.time)
    return (
        f"{deletion.step}",
        printable(f"{what} by {deletion.by}"),
        printable(when),
        size_text(deletion.freed) if deletion.freed else "",
        printable(deletion.why),
    )


def _style(what: str) -> str:
    if what.startswith("kept"):
        return ""
    return "yellow" if what == "would be deleted" else "dim"


def _as_json(
    run: str, retention: Retention | None, kept: list[Verdict], deletions: list[Deletion]
) -> dict[str, Any]:
    return {
        "run": run,
        "retention": None if retention is None else msgspec.to_builtins(retention),
        "checkpoints": [msgspec.to_builtins(each) for each in kept],
        "deleted": [msgspec.to_builtins(each) for each in deletions],
    }
