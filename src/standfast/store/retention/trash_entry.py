"""An entry of the trash: what was deleted at once from one run, when, by what and why."""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final, Literal

import msgspec

from standfast.errors import BadField, StandfastError
from standfast.store.backends.backend import Backend
from standfast.store.schema import names
from standfast.store.schema.seal import seal, unseal

FORMAT: Final = "standfast trash 1"
FILE: Final = "entry.json"
_FOLDER: Final = re.compile(r"([0-9a-z]{24})\.[0-9a-f]{8}")
_MAX_SIZE: Final = 64 << 20

By = Literal["rm", "gc"]


class Kept(msgspec.Struct, frozen=True, array_like=True):
    """A checkpoint in the trash."""

    step: int
    sequence: int
    """That of its commit; 0 if its record cannot be read."""


class _Said(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What the file of an entry says."""

    run: str
    name: str | None
    checkpoints: list[Kept]
    whole: bool
    time: str
    by: By
    why: str


@dataclass(frozen=True)
class Entry:
    """What was deleted at once from one run."""

    folder: str
    """Its folder within the trash, which it goes by."""
    run: str
    name: str | None = None
    """The label that the run had."""
    checkpoints: tuple[Kept, ...] = ()
    whole: bool = False
    """Whether it was the whole run."""
    time: str = ""
    by: str = ""
    why: str = ""
    problem: str | None = None
    """Why it cannot be read; all else is unknown then."""

    @property
    def steps(self) -> list[int]:
        """The steps of its checkpoints."""
        return [each.step for each in self.checkpoints]

    @property
    def path(self) -> str:
        """Its folder within the store."""
        return f"{names.TRASH}/{self.folder}"

    def age(self, now: datetime | None = None) -> float:
        """How many seconds it has been there; of one that cannot be read nobody knows, and 0."""
        try:
            then = datetime.fromisoformat(self.time)
            return ((now or datetime.now(UTC)) - then).total_seconds()
        except (ValueError, TypeError):
            return 0.0


def file_of(folder: str) -> str:
    """The file that makes a folder of the trash an entry."""
    return f"{names.TRASH}/{folder}/{FILE}"


def run_of(folder: str) -> str | None:
    """The run that a folder of the trash is of; None if it is none of ours."""
    match = _FOLDER.fullmatch(folder)
    return match[1] if match else None


def encode(entry: Entry) -> bytes:
    """The file of an entry."""
    fields = {field: getattr(entry, field) for field in _Said.__struct_fields__}
    return seal(FORMAT, fields) + b"\n"


def read_entry(backend: Backend, folder: str) -> Entry:
    """The entry in a folder of the trash; one that is damaged says so itself."""
    run = str(run_of(folder))
    try:
        text = backend.read(file_of(folder), _MAX_SIZE).removesuffix(b"\n")
        try:
            said = msgspec.convert(unseal(text, FORMAT), _Said)
        except msgspec.ValidationError as error:
            raise BadField(f"{error}") from error
        if said.run != run:
            raise BadField(f"it is that of the run {said.run!r:.40}")
    except StandfastError as error:
        return Entry(folder, run, problem=f"{file_of(folder)}: {error}")
    kept = tuple(said.checkpoints)
    return Entry(folder, run, said.name, kept, said.whole, said.time, said.by, said.why)
