"""What holds for a whole store: how many bytes it may take. It is in `store.json`, once set."""

from __future__ import annotations

from typing import Final

import msgspec

from holdfast.errors import BadField, DamagedFile, MissingFile
from holdfast.store.backend import Backend
from holdfast.store.sealed import seal, unseal

FORMAT: Final = "holdfast store 1"
NAME: Final = "store.json"
_MAX_SIZE: Final = 1 << 20


class Settings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What was set for a store."""

    budget: int | None = None
    """The bytes that it may take, its trash included."""


def read_settings(backend: Backend) -> Settings:
    """What was set; raises a DamagedFile that says what is wrong."""
    try:
        text = backend.read(NAME, _MAX_SIZE)
    except MissingFile:
        return Settings()
    try:
        try:
            return msgspec.convert(unseal(text.removesuffix(b"\n"), FORMAT), Settings)
        except msgspec.ValidationError as error:
            raise BadField(f"{error}") from error
    except DamagedFile as error:
        error.args = (f"{NAME}: {error}", *error.args[1:])
        raise


def write_settings(backend: Backend, settings: Settings) -> None:
    """Put them in the place of the old ones, durably."""
    backend.replace(NAME, seal(FORMAT, msgspec.structs.asdict(settings)) + b"\n")
