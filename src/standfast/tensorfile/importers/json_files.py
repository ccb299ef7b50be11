"""The JSON files beside tensors, read strictly."""

from __future__ import annotations

import json
import re
from contextlib import closing
from pathlib import Path
from typing import Any, Final

from standfast.errors import BadField, DuplicateKey, LimitExceeded, printable
from standfast.files.input.file import SourceFile
from standfast.files.input.ranges import SourceRanges
from standfast.formats.metadata import (
    MAX_DEPTH,
    bounded_integer,
    is_nested_deeply,
    unique_pairs,
)
from standfast.tensorfile.importers.contents import shown

MAX_JSON: Final = 64 << 20
"""Bytes; the log of a very long training takes a few million."""


def read_json(path: Path) -> dict[str, Any]:
    """The object in a JSON file; each key stands once, and NaN is the number that it is in Python.

    A loss that is none is what Transformers writes into its logs so.
    """
    with closing(SourceFile(path)) as file:
        return json_in(file)


def json_in(file: SourceFile | SourceRanges) -> dict[str, Any]:
    """The same of a file that is open."""
    path = file.path
    if file.size > MAX_JSON:
        raise LimitExceeded(
            f"{shown(path)}: {file.size:,} bytes of JSON, over {MAX_JSON:,}, which is more "
            "than any training logs"
        )
    text = file.read(0, file.size)
    if is_nested_deeply(text):
        raise BadField(f"{shown(path)}: it nests deeper than {MAX_DEPTH} levels")
    try:
        value = json.loads(text.decode(), object_pairs_hook=unique_pairs, parse_int=bounded_integer)
        if re.search(rb"\\u[dD][89a-fA-F]", text):
            # Half of a pair has no bytes, so that it could not be saved.
            json.dumps(value, ensure_ascii=False).encode()
    except DuplicateKey as error:
        raise DuplicateKey(f"{shown(path)}: {error}") from None
    except ValueError as error:
        raise BadField(
            f"{shown(path)}: not the JSON it should be ({printable(str(error))})"
        ) from error
    if not isinstance(value, dict):
        raise BadField(f"{shown(path)}: expected a JSON object, found {type(value).__name__}")
    return value
