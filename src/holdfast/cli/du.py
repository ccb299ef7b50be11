"""`holdfast du`: what the runs of a store take on the disk."""

from __future__ import annotations

from typing import Any

from holdfast.cli.output import count_text, print_json, print_table, say, size_text
from holdfast.errors import printable
from holdfast.store import Store
from holdfast.store.listing import short_hashes
from holdfast.store.trash import Trash
from holdfast.store.usage import StoreUsage, Usage, measure


def print_usage(store: Store, *, as_json: bool) -> None:
    """Print what each run takes, and all of them together."""
    store.index.refresh()
    usage = measure(store.backend, store.index)
    trash = Trash(store.backend).nbytes()
    labels = {listed.run: listed.name for listed in store.index.runs()}
    if as_json:
        print_json({**_as_json(usage, labels), "trash": trash})
        return
    short = short_hashes(usage.runs)
    rows = [
        (printable(labels.get(run) or "—"), short[run], *_figures(own))
        for run, own in usage.runs.items()
    ]
    rows.append(("total", "", *_figures(usage.total)))
    print_table(
        ("run", "hash", "checkpoints", "logical", "disk", "saved"),
        rows,
        right="checkpoints logical disk saved",
        styles=[*[""] * len(usage.runs), "bold"],
    )
    if usage.orphans:
        say(
            (
                f"{count_text(len(usage.orphans), 'file')} without a record, "
                f"{size_text(sum(usage.orphans.values()))}: `holdfast doctor` lists them",
                "yellow",
            )
        )
    if trash:
        say(
            f"the trash holds {size_text(trash)} more: `holdfast restore` lists it, "
            "`holdfast gc --empty --yes` frees it"
        )


def _figures(usage: Usage) -> tuple[str, str, str, str]:
    return (
        f"{usage.checkpoints:,}",
        size_text(usage.logical),
        size_text(usage.on_disk),
        size_text(usage.saved),
    )


def _as_json(usage: StoreUsage, labels: dict[str, str | None]) -> dict[str, Any]:
    return {
        "runs": [
            {"run": run, "name": labels.get(run), **_numbers(own)}
            for run, own in usage.runs.items()
        ],
        "total": _numbers(usage.total),
        "orphans": usage.orphans,
    }


def _numbers(usage: Usage) -> dict[str, int]:
    return {
        "checkpoints": usage.checkpoints,
        "logical": usage.logical,
        "on_disk": usage.on_disk,
        "saved": usage.saved,
    }
