"""`standfast du`: what the runs of a store take on the disk."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from standfast.display.output import count_text, print_json, print_table, say, size_text
from standfast.errors import DamagedFile, printable
from standfast.store import Store
from standfast.store.query.listing import short_hashes
from standfast.store.retention.trash import Trash
from standfast.store.retention.usage import StoreUsage, Usage, measure


@dataclass(frozen=True)
class _Budgets:
    """The bytes that may be taken, where somebody has set them."""

    runs: Mapping[str, int]
    store: int | None
    problem: str | None
    """Why nobody knows that of the store."""

    def __bool__(self) -> bool:
        return bool(self.runs) or self.store is not None


def print_usage(store: Store, *, as_json: bool) -> int:
    """Print what each run takes, and all of them together; returns the exit code."""
    store.index.refresh()
    if as_json:
        found = usage_json(store)
        print_json(found)
        return 1 if found["problem"] else 0
    usage, budgets = measure(store.backend, store.index), _budgets(store)
    _print_table(usage, _labels(store), budgets)
    _print_rest(usage, budgets, Trash(store.backend).nbytes())
    return 1 if budgets.problem else 0


def usage_json(store: Store) -> dict[str, Any]:
    """What each run takes, and all of them together, for scripts."""
    usage, budgets = measure(store.backend, store.index), _budgets(store)
    trash = Trash(store.backend).nbytes()
    return {**_as_json(usage, _labels(store), budgets), "trash": trash}


def _labels(store: Store) -> dict[str, str | None]:
    return {listed.run: listed.name for listed in store.index.runs()}


def _budgets(store: Store) -> _Budgets:
    of_store, problem = None, None
    try:
        of_store = store.budget
    except DamagedFile as error:
        problem = str(error)
    runs = {
        run: file.retention.budget
        for run, file in store.index.run_files().items()
        if file.retention is not None and file.retention.budget is not None
    }
    return _Budgets(runs, of_store, problem)


def _print_table(usage: StoreUsage, labels: Mapping[str, str | None], budgets: _Budgets) -> None:
    short = short_hashes(usage.runs)
    rows = [
        (
            printable(labels.get(run) or "—"),
            short[run],
            *_figures(own),
            _budget(budgets.runs.get(run)),
        )
        for run, own in usage.runs.items()
    ]
    rows.append(("total", "", *_figures(usage.total), _budget(budgets.store)))
    columns = ("run", "hash", "checkpoints", "logical", "disk", "saved", "budget")
    shown = len(columns) if budgets else -1
    print_table(
        columns[:shown],
        [row[:shown] for row in rows],
        right="checkpoints logical disk saved budget",
        styles=[*[""] * len(usage.runs), "bold"],
    )


def _print_rest(usage: StoreUsage, budgets: _Budgets, trash: int) -> None:
    if budgets.problem:
        say(("damaged     ", "bold red"), printable(f"the budget of the store: {budgets.problem}"))
    if usage.orphans:
        say(
            (
                f"{count_text(len(usage.orphans), 'file')} without a record, "
                f"{size_text(sum(usage.orphans.values()))}: `standfast doctor` lists them",
                "yellow",
            )
        )
    if trash:
        say(
            f"the trash holds {size_text(trash)} more: `standfast restore` lists it, "
            "`standfast gc --empty --yes` frees it"
        )


def _budget(nbytes: int | None) -> str:
    return "" if nbytes is None else size_text(nbytes)


def _figures(usage: Usage) -> tuple[str, str, str, str]:
    return (
        f"{usage.checkpoints:,}",
        size_text(usage.logical),
        size_text(usage.on_disk),
        size_text(usage.saved),
    )


def _as_json(
    usage: StoreUsage, labels: Mapping[str, str | None], budgets: _Budgets
) -> dict[str, Any]:
    return {
        "runs": [
            {
                "run": run,
                "name": labels.get(run),
                **usage_numbers(own),
                "budget": budgets.runs.get(run),
            }
            for run, own in usage.runs.items()
        ],
        "total": {**usage_numbers(usage.total), "budget": budgets.store},
        "problem": budgets.problem,
        "orphans": usage.orphans,
    }


def usage_numbers(usage: Usage) -> dict[str, int]:
    """What a run or a store takes, for scripts."""
    return {
        "checkpoints": usage.checkpoints,
        "logical": usage.logical,
        "on_disk": usage.on_disk,
        "saved": usage.saved,
    }
