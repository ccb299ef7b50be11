"""A small file that stands where a checkpoint of Lightning would: it says where in a store that is.

{"standfast": 1, "store": "experiments", "run": "0123…", "step": 100, "sequence": 7}
"""

from __future__ import annotations

import os
import re
from contextlib import suppress
from pathlib import Path
from typing import Annotated, Final

import msgspec

from standfast.errors import (
    BadField,
    DamagedFile,
    MissingFile,
    NotAStore,
    RefNotFound,
    TooNew,
    UnreadableFile,
)
from standfast.files import disk
from standfast.files.lines import replace_bytes
from standfast.files.paths import check_local
from standfast.lightning.references import folder_of
from standfast.store import Checkpoint, Store

_LONGEST: Final = 1 << 16
_BEGINNING: Final = re.compile(rb'\s*\{\s*"standfast"')

_Count = Annotated[int, msgspec.Meta(ge=0, lt=1 << 53)]
_Hash = Annotated[str, msgspec.Meta(pattern="^[0-9a-z]{24}$")]


class _Version(msgspec.Struct, frozen=True):
    standfast: Annotated[int, msgspec.Meta(ge=1)] = 1
    """It comes first, and tells the file from others."""


class Pointer(_Version, frozen=True, kw_only=True):
    """What the file says; fields that this version does not know are ignored."""

    store: str
    """Where the store was when it was written, for people."""
    run: _Hash
    step: _Count
    sequence: _Count
    """Of the commit: the step may have been saved again since."""

    def checkpoint(self, store: Store) -> Checkpoint:
        """The checkpoint in this store; raises RefNotFound."""
        try:
            found = store.find(self.run, self.step)
        except NotAStore:
            found = None
        if found is None:
            raise RefNotFound(
                f"{store.url} has no checkpoint {self.run}@{self.step}; the file says that it is "
                f"in {self.store}: pass StandfastIO that store, or it was deleted"
            )
        if found.sequence != self.sequence:
            raise RefNotFound(f"{found.ref} was saved again since, and is another one now")
        return found


def pointer_to(checkpoint: Checkpoint, store: Store) -> Pointer:
    """The pointer to a checkpoint."""
    return Pointer(
        store=folder_of(store),
        run=checkpoint.head.run,
        step=checkpoint.step,
        sequence=checkpoint.sequence,
    )


def write_pointer(path: str | os.PathLike[str], pointer: Pointer) -> None:
    """Put it in the place of what was at the path, durably."""
    check_local(path)
    Path(path).parent.mkdir(parents=True, exist_ok=True)
    text = msgspec.json.encode(pointer) + b"\n"
    replace_bytes(path, text, disk.LOCAL)


def read_pointer(path: str | os.PathLike[str]) -> Pointer | None:
    """What a file says; None if it is no pointer, but a checkpoint itself, or a folder.

    Raises MissingFile, TooNew, or BadField for a damaged one, and BadOption for a URL.
    """
    check_local(path)
    try:
        if os.path.isdir(path):
            return None
        with open(path, "rb") as file:
            text = file.read(_LONGEST + 1)
    except FileNotFoundError as error:
        raise MissingFile(error.errno, f"there is no checkpoint at {os.fspath(path)}") from error
    except OSError as error:
        raise UnreadableFile(error.errno, f"cannot read {os.fspath(path)}: {error}") from error
    if not _BEGINNING.match(text):
        return None
    try:
        version = msgspec.json.decode(text[:_LONGEST], type=_Version).standfast
        if version > _Version().standfast:
            raise TooNew(
                f"{os.fspath(path)} is a pointer of version {version} into a store, and this "
                f"version reads {_Version().standfast}: install a newer Standfast"
            )
        return msgspec.json.decode(text[:_LONGEST], type=Pointer)
    except (msgspec.DecodeError, msgspec.ValidationError) as error:
        raise BadField(f"{os.fspath(path)} is a damaged pointer into a store: {error}") from error


def pointer_before(path: str | os.PathLike[str]) -> Pointer | None:
    """The pointer at a path to be replaced, if there is a sound one; raises TooNew."""
    with suppress(MissingFile, UnreadableFile, DamagedFile):
        return read_pointer(path)
    return None
