"""What may change about a checkpoint after its commit: tags, notes, metrics that came late."""

from __future__ import annotations

from typing import Any, Final

import msgspec

from standfast.errors import BadField, BadLabel, DamagedFile, MissingFile
from standfast.store.backends.backend import Backend, Reads
from standfast.store.schema import names
from standfast.store.schema.seal import seal, unseal

FORMAT: Final = "standfast marks 1"
MAX_SIZE: Final = 64 << 20


class Note(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What somebody wrote about a checkpoint."""

    time: str
    text: str


class Marks(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What was added to a checkpoint."""

    run: str
    step: int
    tags: list[str] = []
    notes: list[Note] = []
    metrics: dict[str, Any] = {}
    """Those that came after its commit, in the form of the tree."""
    best: int | None = None
    """Set where these made it the best of its run: the highest sequence number of that time."""


def read_marks(backend: Reads, run: str, step: int) -> Marks:
    """The marks of a checkpoint, none if it has no file of them."""
    path = names.marks_file(run, step)
    try:
        text = backend.read(path, MAX_SIZE)
    except MissingFile:
        return Marks(run, step)
    try:
        try:
            marks = msgspec.convert(unseal(text.removesuffix(b"\n"), FORMAT), Marks)
        except msgspec.ValidationError as error:
            raise BadField(f"{error}") from error
        if (marks.run, marks.step) != (run, step):
            raise BadField(f"they are those of step {marks.step} of run {marks.run!r:.40}")
    except DamagedFile as error:
        error.args = (f"{path}: {error}", *error.args[1:])
        raise
    return marks


def write_marks(backend: Backend, marks: Marks) -> None:
    """Put the marks in the place of the old ones, durably."""
    fields = msgspec.structs.asdict(marks)
    if not marks.metrics and marks.best is None:  # older releases read what has neither
        del fields["metrics"], fields["best"]
    text = seal(FORMAT, fields) + b"\n"
    if len(text) > MAX_SIZE:
        raise BadLabel(f"the notes would take {len(text):,} bytes, over {MAX_SIZE:,}")
    backend.replace(names.marks_file(marks.run, marks.step), text)
