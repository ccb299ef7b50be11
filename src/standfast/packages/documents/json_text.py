"""The JSON files of a package: indented, keys sorted, read strictly, written durably."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping
from contextlib import closing
from typing import Any, Final, TypeVar

from standfast.errors import (
    DamagedFile,
    LimitExceeded,
    RefusedMetadata,
    UnsupportedFile,
    printable,
    shortened,
)
from standfast.files import disk
from standfast.files.lines import replace_lines
from standfast.formats.metadata import from_json
from standfast.packages.remote.places import opened, written_here

LARGEST: Final = 2_000_000_000
"""Bytes of the largest file that is read: whole data sets are written into one."""

Result = TypeVar("Result")


def text(value: Any) -> str:
    """A JSON value as the text of a file; raises RefusedMetadata for what JSON does not have."""
    return encoded(value).decode()


def encoded(value: Any, name: str = "") -> bytes:
    """The same in UTF-8; an error says of which file it is, if that has a name, and which field."""
    prefix = f"{name}: " if name else ""
    try:
        made = json.dumps(value, indent=2, sort_keys=True, ensure_ascii=False, allow_nan=False)
        return made.encode()
    except UnicodeEncodeError as error:
        half = error.object[error.start]
        raise RefusedMetadata(
            f"{prefix}{_place(value, half) or 'it'} has {half!r}, which is half of a character and "
            "no file holds: replace it"
        ) from error
    except (TypeError, ValueError, RecursionError) as error:
        raise RefusedMetadata(f"{prefix}it cannot be written as JSON: {error}") from error


def write(path: str | os.PathLike[str], value: Mapping[str, Any]) -> None:
    """Put a JSON object into a file, durably; until then the old file stands."""
    text = encoded(value, os.fsdecode(path))
    with written_here(path) as target:
        replace_lines(target, [text], disk.LOCAL)


def read_object(path: str | os.PathLike[str]) -> dict[str, Any]:
    """The object in a JSON file, read strictly: each key stands once, and NaN is no number."""
    with closing(opened(path)) as file:
        if file.size > LARGEST:
            raise LimitExceeded(
                f"{file.path}: {file.size:,} bytes of JSON, and up to {LARGEST:,} are read: "
                "keep what is larger in files of another kind"
            )
        text = file.read(0, file.size)
    return from_json(text, printable(os.fsdecode(path)))


def named(path: str | os.PathLike[str], action: Callable[[], Result]) -> Result:
    """Do it, and let an error about the content say of which file it is."""
    try:
        return action()
    except (DamagedFile, UnsupportedFile) as error:
        if os.fsdecode(path) not in str(error):
            error.args = (f"{os.fsdecode(path)}: {error}", *error.args[1:])
        raise


def _place(value: Any, character: str, path: str = "") -> str | None:
    """Which field has a character in it, as `samples[3].text`; None if none has."""
    if isinstance(value, str):
        return path if character in value else None
    if isinstance(value, list | tuple):
        members = [(f"{path}[{at}]", member) for at, member in enumerate(value)]
    elif isinstance(value, Mapping):
        if any(character in str(key) for key in value):
            return f"a key of {path}" if path else "a key"
        before = f"{path}." if path else ""
        members = [(f"{before}{printable(shortened(str(k)))}", value[k]) for k in value]
    else:
        return None
    found = (_place(member, character, below) for below, member in members)
    return next((place for place in found if place is not None), None)
