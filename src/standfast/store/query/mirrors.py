"""Which runs of a store have a mirror, and where: `mirrors.json`.

It is a file of its own, so that a run file stays the same wherever it is copied to, and older
releases read it. A run that was deleted here may still be in its mirror, and stays listed.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Final

import msgspec

from standfast.errors import BadField, BadOption, DamagedFile, MissingFile, RunCollision
from standfast.store.backends.address import checked_path, is_url
from standfast.store.backends.backend import Backend
from standfast.store.save.changing import change_of
from standfast.store.schema.record import Head
from standfast.store.schema.run_file import RunFile
from standfast.store.schema.seal import seal, unseal

if TYPE_CHECKING:
    from standfast.store.index.index import Index
    from standfast.store.store import Store

FORMAT: Final = "standfast mirrors 1"
NAME: Final = "mirrors.json"
_MAX_SIZE: Final = 64 << 20


class _Mirrors(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    mirrors: dict[str, str]
    """By run, the place of its mirror."""


def read_mirrors(backend: Backend) -> dict[str, str]:
    """By run, the place of its mirror; raises a DamagedFile that says what is wrong."""
    try:
        text = backend.read(NAME, _MAX_SIZE)
    except MissingFile:
        return {}
    try:
        try:
            return msgspec.convert(unseal(text.removesuffix(b"\n"), FORMAT), _Mirrors).mirrors
        except msgspec.ValidationError as error:
            raise BadField(f"{error}") from error
    except DamagedFile as error:
        error.args = (f"{NAME}: {error}", *error.args[1:])
        raise


def remember_mirror(backend: Backend, run: str, place: str) -> None:
    """Let a run have its mirror there, durably."""
    if _known(backend).get(run) == place:
        return
    with change_of(backend, NAME):
        mirrors = {**_known(backend), run: place}
        backend.replace(NAME, seal(FORMAT, {"mirrors": mirrors}) + b"\n")


def _known(backend: Backend) -> dict[str, str]:
    """What can be read; a file that is damaged is written anew, no run shall fail for it."""
    try:
        return read_mirrors(backend)
    except DamagedFile:
        return {}


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
        return os.path.abspath(checked_path(text))
    from standfast.store.remote.connection import checked_url  # which a list need not wait for

    return checked_url(text)


def open_mirror(place: str) -> Store:
    """The store at a place."""
    from standfast.store.store import Store

    return Store(place)


def is_same(one: Head, other: Head) -> bool:
    """Whether two stores have the same checkpoint.

    The time too: a run that was begun anew counts from 1 again.
    """
    return one.place == other.place and one.time == other.time


def is_another_run(here: RunFile, there: RunFile, index: Index, their_index: Index) -> bool:
    """Whether two stores have two runs of one hash, which were begun apart from each other.

    A run file goes wherever its run goes on, so that both say when the run was made. One that was
    lost and made again out of a record does not know that: then the other one does, and no
    checkpoint is older than its run.
    """
    if here.created == there.created:
        return False
    if _is_made_again(here):
        return not _is_made_again(there) and _first_time(index, here.run) < there.created
    if _is_made_again(there):
        return _first_time(their_index, there.run) < here.created
    return True


def another_run(place: str, there: RunFile) -> RunCollision:
    """What is said of such a run."""
    host = f" on {there.environment['host']}" if "host" in there.environment else ""
    made = there.created[:19].replace("T", " ")
    return RunCollision(
        f"{place} has another run that goes by {there.run}, made on {made}{host}: it stays as it "
        "is, and nothing of this one is copied there; choose another place, or delete the one "
        "there by `standfast rm`"
    )


def _is_made_again(file: RunFile) -> bool:
    """Whether a run file was made of a record, which does not say on which machine it was."""
    return "host" not in file.environment


def _first_time(index: Index, run: str) -> str:
    """When the first checkpoint of a run was saved that is there; behind all times if none is."""
    return min((listed.head.time for listed in index.newest(run)), default="~")
