"""Which runs of a store have a mirror, and where: `mirrors.json`.

It is a file of its own, so that a run file stays the same wherever it is copied to, and older
releases read it. A run that was deleted here may still be in its mirror, and stays listed.
"""

from __future__ import annotations

import os
import warnings
from typing import TYPE_CHECKING, Final

import msgspec

from standfast.errors import BadOption, DamagedFile, MissingFile, RunCollision, TooNew
from standfast.files.paths import check_local, is_url
from standfast.store.backends.backend import Backend
from standfast.store.save.changing import change_of
from standfast.store.schema.record import Head
from standfast.store.schema.run_file import RunFile
from standfast.store.schema.seal import Sealed, encode, read

if TYPE_CHECKING:
    from standfast.store.store import Store

FORMAT: Final = "standfast mirrors 1"
NAME: Final = "mirrors.json"
_MAX_SIZE: Final = 64 << 20


class _Mirrors(Sealed, frozen=True):
    mirrors: dict[str, str]
    """By run, the place of its mirror."""


def read_mirrors(backend: Backend) -> dict[str, str]:
    """By run, the place of its mirror; raises TooNew or a DamagedFile."""
    return _read(backend).mirrors


def _read(backend: Backend) -> _Mirrors:
    try:
        return read(backend, NAME, FORMAT, _Mirrors, _MAX_SIZE)
    except MissingFile:
        return _Mirrors({})


def remember_mirror(backend: Backend, run: str, place: str) -> None:
    """Record durably where the mirror of a run is.

    A list that is damaged or too new is left as it is, with a warning: no run depends on it.
    """
    try:
        if _read(backend).mirrors.get(run) == place:
            return
        with change_of(backend, NAME):
            known = _read(backend)
            new = msgspec.structs.replace(known, mirrors={**known.mirrors, run: place})
            backend.replace(NAME, encode(FORMAT, new) + b"\n")
    except (DamagedFile, TooNew) as error:
        warnings.warn(f"the mirror {place} is not listed: {error}", stacklevel=2)


def mirror_place(place: str | os.PathLike[str] | Store) -> str:
    """The place of a mirror, as it is remembered: a URL without secrets, or a whole path."""
    if not isinstance(place, str | os.PathLike):
        found: str | None = getattr(place, "place", None)
        if found is None:
            raise BadOption(
                f"a mirror is a URL, a folder, or a Store that another process can open, not "
                f"{place!r}"
            )
        return found
    text = os.fspath(place)
    if not is_url(text):
        check_local(text)
        return os.path.abspath(text)
    from standfast.store.remote.connection import checked_url  # which a list need not wait for

    return checked_url(text)


def open_mirror(place: str) -> Store:
    """The store at a place."""
    from standfast.store.store import Store

    return Store(place)


def is_same(one: Head, other: Head) -> bool:
    """Whether two stores have the same checkpoint."""
    return one.place == other.place


def is_another_run(here: RunFile, there: RunFile) -> bool:
    """Whether two stores have two runs of one hash, which were begun apart from each other.

    A run file goes wherever its run goes on, so that both say when the run was made.
    """
    return here.created != there.created


def another_run(place: str, there: RunFile) -> RunCollision:
    """What is said of such a run."""
    host = f" on {there.environment['host']}" if "host" in there.environment else ""
    made = there.created[:19].replace("T", " ")
    return RunCollision(
        f"{place} has another run that goes by {there.run}, made on {made}{host}: it stays as it "
        "is, and nothing of this one is copied there; choose another place, or delete the one "
        "there by `standfast rm`"
    )
