"""The JSON files of a package: indented, keys sorted, read strictly, written durably."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping
from contextlib import closing
from typing import Any, Final, TypeVar

from holdfast.errors import (
    DamagedFile,
    LimitExceeded,
    RefusedMetadata,
    UnsupportedFile,
    printable,
)
from holdfast.files import disk
from holdfast.files.lines import replace_lines
from holdfast.files.source_file import SourceFile
from holdfast.formats.metadata import from_json

LARGEST: Final = 2_000_000_000
"""Bytes of the largest file that is read: whole data sets are written into one."""

Result = TypeVar("Result")


def text(value: Any) -> str:
    """A JSON value as the text of a file; raises RefusedMetadata for what JSON does not have."""
    try:
        return json.dumps(value, indent=2, sort_keys=True, ensure_ascii=False, allow_nan=False)
    except (TypeError, ValueError) as error:
        raise RefusedMetadata(f"it cannot be written as JSON: {error}") from error


def write(path: str | os.PathLike[str], value: Mapping[str, Any]) -> None:
    """Put a JSON object into a file, durably; until then the old file stands."""
    replace_lines(path, [text(value).encode()], disk.LOCAL)


def read_object(path: str | os.PathLike[str]) -> dict[str, Any]:
    """The object in a JSON file, read strictly: each key stands once, and NaN is no number."""
    with closing(SourceFile(path)) as file:
        if file.size > LARGEST:
            raise LimitExceeded(
                f"{file.path}: {file.size:,} bytes of JSON, and up to {LARGEST:,} are read: "
                "keep what is larger in files of another kind"
            )
        text = file.read(0, file.size)
    return from_json(text, printable(os.fspath(path)))


def named(path: str | os.PathLike[str], action: Callable[[], Result]) -> Result:
    """Do it, and let an error about the content say of which file it is."""
    try:
        return action()
    except (DamagedFile, UnsupportedFile) as error:
        if os.fspath(path) not in str(error):
            error.args = (f"{os.fspath(path)}: {error}", *error.args[1:])
        raise
