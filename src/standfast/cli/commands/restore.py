"""`standfast restore`: what is in the trash, and how it comes back."""

from __future__ import annotations

import math
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, Final

from standfast.display.output import (
    age_text,
    count_text,
    print_json,
    print_table,
    say,
    size_text,
    time_text,
)
from standfast.errors import AmbiguousRef, RefNotFound, printable
from standfast.store import Store
from standfast.store.query.listing import short_hashes
from standfast.store.retention.restoring import Restored
from standfast.store.retention.space import Space
from standfast.store.retention.trash import KEPT, Trash
from standfast.store.retention.trash_entry import Entry
from standfast.store.schema.names import SHORTEST

_DAYS: Final = 2 * 86400.0
"""Beyond so many seconds, days are counted."""


def list_trash(store: Store, *, as_json: bool) -> None:
    """Print what is in the trash, the newest first."""
    entries = Trash(store.backend).entries()[::-1]
    nbytes = Trash(store.backend).nbytes()
    space = Space(store.backend, store.index, {entry.run for entry in entries})
    if as_json:
        listed = [_as_json(entry, space.trashed(entry.folder)) for entry in entries]
        print_json({"entries": listed, "bytes": nbytes})
        return
    if not entries:
        say("the trash is empty")
        return
    short = short_hashes({entry.run for entry in entries})
    rows = [
        (
            printable(entry.name or "—"),
            short[entry.run],
            _steps(entry),
            size_text(space.trashed(entry.folder)),
            age_text(entry.time) if not entry.problem else "?",
            entry.by,
            _expiry(entry),
            printable(entry.problem or entry.why),
        )
        for entry in entries
    ]
    columns = ("run", "hash", "steps", "holds", "age", "by", "goes in", "why")
    styles = ["bold red" if entry.problem else "" for entry in entries]
    print_table(columns, rows, right="holds age", styles=styles)
    say(
        f"{size_text(nbytes)} in all: `standfast restore RUN@STEP` brings it back, "
        "`standfast gc --empty --yes` frees it"
    )


def bring_back(store: Store, refs: Sequence[str], *, as_json: bool) -> int:
    """Bring checkpoints back, and whole runs; returns the exit code."""
    done: list[Restored] = []
    try:
        for ref in refs:
            run, step = _target(store, ref)
            done.append(store.restore(run, *([] if step is None else [step])))
    finally:  # if one is refused, those before it are back
        if done:
            store.index.refresh()
            store.write_manifest()
        if as_json:
            print_json([{"run": e.run, "steps": e.steps, "left": e.left} for e in done])
        else:
            _print(done)
    return 1 if any(each.left for each in done) else 0


def _target(store: Store, ref: str) -> tuple[str, int | None]:
    """The run in the trash that is meant, and the step where one is given."""
    name, at, step = ref.partition("@")
    if at and not (step.isascii() and step.isdecimal() and len(step) <= 16):
        raise RefNotFound(f"{ref}: which step? restore wants it as a number")
    entries = Trash(store.backend).entries()
    store.index.refresh()
    labels = {listed.run: listed.name for listed in store.index.runs()}
    found = {each.run for each in entries if name in (each.name, labels.get(each.run))}
    prefix = name.replace("_", "")
    if not found and len(prefix) >= SHORTEST:
        found = {each.run for each in entries if each.run.startswith(prefix)}
    if not found:
        raise RefNotFound(f"the trash has no run {name!r}; `standfast restore` lists what it has")
    if len(found) > 1:
        raise AmbiguousRef(
            f"{len(found)} runs in the trash go by {name!r}: {', '.join(sorted(found)[:5])}; use "
            "the beginning of a hash"
        )
    return found.pop(), int(step) if at else None


def _print(done: Sequence[Restored]) -> None:
    for each in done:
        if not each.steps and not each.left:
            say(("restored    ", "green"), f"run {each.run}, without checkpoints")
        for step in each.steps:
            say(("restored    ", "green"), f"{each.run}@{step}")
        for step, why in each.left.items():
            say(("in the trash", "bold red"), printable(f" {each.run}@{step}: {why}"))


def _steps(entry: Entry) -> str:
    if entry.problem:
        return "too new" if entry.too_new else "damaged"
    if entry.whole:
        return f"the run, {count_text(len(entry.steps), 'checkpoint')}"
    first = ", ".join(map(str, entry.steps[:3]))
    more = len(entry.steps) - 3
    return first if more <= 0 else f"{first} and {more:,} more"


def _expiry(entry: Entry) -> str:
    """How long it stays, for people."""
    if entry.problem:
        return "?"
    left = KEPT - entry.age()
    if left <= 0:
        return "the next gc"
    if left > _DAYS:  # an age is rounded down; what is left is not less than it is
        return f"{math.ceil(left / 86400)} d"
    return age_text((datetime.now(UTC) - timedelta(seconds=left)).isoformat())


def _as_json(entry: Entry, nbytes: int) -> dict[str, Any]:
    return {
        "run": entry.run,
        "name": entry.name,
        "steps": entry.steps,
        "whole_run": entry.whole,
        "time": time_text(entry.time),
        "by": entry.by,
        "why": entry.why,
        "bytes": nbytes,
        "seconds_left": max(0, int(KEPT - entry.age())),
        "problem": entry.problem,
        "folder": entry.folder,
    }
