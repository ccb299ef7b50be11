"""What may change about a checkpoint after its commit: tags, notes, late metrics, when verified.

Marks belong to one record: they have its sequence and its token. Those of a record that was
replaced or deleted are ignored, and deleted by the next process that writes to the run.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import msgspec
from msgspec import field

from standfast.errors import BadField, BadLabel, MissingFile, RefNotFound
from standfast.store.backends.backend import Backend, Reads
from standfast.store.schema import names
from standfast.store.schema.decoder import check_place, read_head
from standfast.store.schema.record import Place
from standfast.store.schema.seal import Sealed, encode, read

FORMAT: Final = "standfast marks 1"
MAX_SIZE: Final = 64 << 20


class Note(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A text that someone wrote about a checkpoint."""

    time: str
    text: str


class Marks(Sealed, frozen=True):
    """What was added to a checkpoint."""

    run: str
    step: int
    sequence: int
    token: str
    tags: list[str] = field(default_factory=list)
    notes: list[Note] = field(default_factory=list)
    metrics: dict[str, Any] = field(default_factory=dict)
    """Those that came after its commit, in the form of the tree."""
    best: int | None = None
    """Set where these made it the best of its run: the highest sequence number of that time."""
    verified: str | None = None
    """When every byte of the checkpoint was last read and found intact."""

    @property
    def place(self) -> Place:
        """The checkpoint that they belong to."""
        return Place(self.run, self.step, self.sequence, self.token)


def marks_at(backend: Reads, run: str, step: int) -> Marks:
    """The marks in the file of a step, whichever record of that step they belong to.

    Raises MissingFile, TooNew or a DamagedFile.
    """
    path = names.marks_file(run, step)
    marks = read(backend, path, FORMAT, Marks, MAX_SIZE)
    if (marks.run, marks.step) != (run, step):
        raise BadField(f"{path}: they are those of step {marks.step} of run {marks.run!r:.40}")
    check_place(marks.place, path)
    if not 0 <= (marks.best or 0) < names.MAX_SEQUENCE:
        raise BadField(f"{path}: field best: {marks.best:,} is out of range")
    return marks


def read_marks(backend: Reads, place: Place) -> Marks:
    """The marks of a checkpoint; without any if it has none of its own."""
    none = Marks(place.run, place.step, place.sequence, place.token)
    try:
        marks = marks_at(backend, place.run, place.step)
    except MissingFile:
        return none
    return marks if marks.place == place else none


def change_marks(backend: Backend, place: Place, change: Callable[[Marks], Marks]) -> None:
    """Change the marks of a checkpoint, durably; the caller holds the lock of the run's changes.

    Raises RefNotFound if it was deleted or replaced.
    """
    try:
        head = read_head(backend, place.run, place.step)
    except MissingFile as error:
        raise RefNotFound(f"{place.run}@{place.step} was deleted by another process") from error
    if head.place != place:
        raise RefNotFound(
            f"{place.run}@{place.step} was saved again by another process: resolve it again"
        )
    before = read_marks(backend, place)
    marks = change(before)
    if marks != before:
        _write(backend, marks)


def _write(backend: Backend, marks: Marks) -> None:
    text = encode(FORMAT, marks) + b"\n"
    if len(text) > MAX_SIZE:
        raise BadLabel(f"the notes would take {len(text):,} bytes, over {MAX_SIZE:,}")
    backend.replace(names.marks_file(marks.run, marks.step), text)
