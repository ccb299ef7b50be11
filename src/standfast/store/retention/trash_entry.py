"""An entry of the trash: what was deleted at once from one run, when, by what and why."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, Final, Literal

import msgspec

from standfast.errors import BadField, StandfastError, TooNew
from standfast.store.backends.backend import Backend
from standfast.store.schema import names
from standfast.store.schema.seal import Sealed, read
from standfast.store.schema.seal import encode as encode_sealed

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


class _Said(Sealed, frozen=True):
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
    too_new: bool = False
    """Whether that is because a newer version wrote it: then it stays."""
    others: dict[str, Any] = field(default_factory=dict)
    """Members of its file that this version does not know."""

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
    return encode_sealed(FORMAT, _Said(**fields)) + b"\n"


def read_entry(backend: Backend, folder: str) -> Entry:
    """The entry in a folder of the trash; one that is damaged says so itself."""
    run = str(run_of(folder))
    try:
        said = read(backend, file_of(folder), FORMAT, _Said, _MAX_SIZE)
        if said.run != run:
            raise BadField(f"{file_of(folder)}: it is that of the run {said.run!r:.40}")
    except StandfastError as error:
        return Entry(folder, run, problem=str(error), too_new=isinstance(error, TooNew))
    return Entry(
        folder,
        run,
        said.name,
        tuple(said.checkpoints),
        said.whole,
        said.time,
        said.by,
        said.why,
        others=said.others,
    )
