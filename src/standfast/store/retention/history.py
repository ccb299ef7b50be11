"""What was deleted from a run, when, by whom and why: a line each in `logs/{run}_retention.jsonl`.

It is told for people. Nothing depends on it, and where a store has no folder for logs it is not
kept.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import msgspec

from standfast.errors import BadField, MissingFile, StandfastError, printable, shortened
from standfast.files import disk
from standfast.files.lines import LONGEST, append_lines, read_lines

if TYPE_CHECKING:
    from standfast.store.store import Store


class Deletion(msgspec.Struct, frozen=True, omit_defaults=True):
    """A checkpoint that was deleted, or some parts of one."""

    time: str
    step: int
    sequence: int
    by: Literal["policy", "budget", "gc", "rm", "program"]
    why: str
    freed: int = 0
    """The bytes that came free with it."""
    parts: tuple[str, ...] = ()
    """If only these parts were deleted, their keys."""


def note_deletions(store: Store, run: str, deletions: Iterable[Deletion]) -> None:
    """Add to the history of a run; raises WriteFailed."""
    path, lines = _path(store, run), [msgspec.json.encode(each) for each in deletions]
    if path is not None and lines:
        append_lines(path, lines, disk.LOCAL)


def read_deletions(store: Store, run: str) -> list[Deletion]:
    """What was deleted from a run, the last first; raises BadField for a damaged line.

    A line is written before its deletion: what is still there, after a kill, is not among them.
    """
    path = _path(store, run)
    try:
        noted = [] if path is None else [*_read(path)][::-1]
    except MissingFile:
        return []
    store.index.refresh()
    there = {each.head.sequence: set(each.head.dropped) for each in store.index.newest(run)}
    once = {(each.sequence, each.parts): each for each in reversed(noted)}.values()
    return [
        each
        for each in reversed(once)
        if each.sequence not in there or (each.parts and set(each.parts) <= there[each.sequence])
    ]


def why_gone(store: Store, run: str, step: int) -> str:
    """What became of a step that is not there, for a message; nothing if nobody knows."""
    with suppress(StandfastError):  # it is a courtesy
        for each in read_deletions(store, run):
            if each.step == step and not each.parts:
                when = each.time[:19].replace("T", " ")
                trash = "; `standfast restore` lists the trash" if each.by in ("gc", "rm") else ""
                return f" (it was deleted by {each.by} on {when}: {each.why}{trash})"
    return ""


def _read(path: Path) -> Iterator[Deletion]:
    for number, line in enumerate(read_lines(path), 1):
        if len(line) > LONGEST:
            raise BadField(f"{path}: line {number} is longer than {LONGEST:,} bytes")
        try:
            yield msgspec.json.decode(line, type=Deletion)
        except (ValueError, RecursionError) as error:
            text = printable(shortened(str(error)))
            raise BadField(f"{path}: line {number}: {text}") from error


def _path(store: Store, run: str) -> Path | None:
    return store.logs / f"{run}_retention.jsonl" if store.logs else None
