"""What holds for a whole store, in `store.json`: how many bytes it may take, how far it counted."""

from __future__ import annotations

from typing import Final

import msgspec

from standfast.errors import BadField, MissingFile
from standfast.store.backends.backend import Backend
from standfast.store.save.changing import change_of
from standfast.store.schema import names
from standfast.store.schema.seal import Sealed, encode, read

FORMAT: Final = "standfast store 1"
NAME: Final = "store.json"
_MAX_SIZE: Final = 1 << 20


class Settings(Sealed, frozen=True):
    """What was set for a store."""

    budget: int | None = None
    """The bytes that it may take, its trash included."""
    highest: int = 0
    """The highest sequence number of a checkpoint that was deleted: none is used twice."""


def read_settings(backend: Backend) -> Settings:
    """What was set; raises TooNew or a DamagedFile."""
    try:
        settings = read(backend, NAME, FORMAT, Settings, _MAX_SIZE)
    except MissingFile:
        return Settings()
    if not 0 <= settings.highest <= names.LAST_COPIED:
        raise BadField(f"{NAME}: field highest: {settings.highest:,} is out of range")
    return settings


def change_settings(backend: Backend, **fields: int | None) -> None:
    """Set some of them, durably."""
    with change_of(backend, NAME):
        settings = msgspec.structs.replace(read_settings(backend), **fields)
        backend.replace(NAME, encode(FORMAT, settings) + b"\n")


def remember_highest(backend: Backend, sequence: int) -> None:
    """Before the latest checkpoint of a store is deleted: no other shall get its number."""
    if sequence > read_settings(backend).highest:
        change_settings(backend, highest=sequence)
