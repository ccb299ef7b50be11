"""The safetensors format as a target, beside the reference library."""

import json
from collections.abc import Callable
from random import Random
from typing import Any

import safetensors

from standfast.errors import BadHeader, StandfastError
from standfast.files.layout import Index
from standfast.formats.reader import Options
from standfast.formats.safetensors.file import CODE_OF
from tests.formats.safetensors.builders import file_of, header_end, reseal
from tests.fuzz.mutations import WHOLE, text_part
from tests.fuzz.target import Broken, Outcome, Target, require

STRICTER = "BadField DuplicateKey IndexMismatch LimitExceeded TooNew".split()
"""How we may refuse what the reference library opens; any other class would be our mistake.

It skips unknown fields whatever is in them, keeps the last of two equal keys, takes an array for
an entry and null for no metadata, has no limits to rank, dimensions and names, and cannot know
our own keys. A BadHeader too, but only for space before the first brace, which it skips.
"""


def _header(random: Random, file: bytes) -> tuple[bytes, Callable[[bytes], bytes]]:
    """The text of the header."""
    end = header_end(file)
    return file[8:end], lambda text: file_of(text, file[end:])


def check(data: bytes, outcome: Outcome, options: Options) -> None:
    """No byte belongs to two tensors or to none; the library sees the same tensors."""
    theirs = _library(data)
    if isinstance(outcome, Index):
        _check_keys(data)
        _check_ranges(data, outcome)
        if isinstance(theirs, str):
            raise Broken(f"we open what the library refuses: {theirs}")
        _check_same(data, outcome, theirs)
    elif not isinstance(theirs, str):
        _check_stricter(data, type(outcome))


def _library(data: bytes) -> dict[str, Any] | str:
    """What the reference library finds in the file, or why it refuses it."""
    try:
        return dict(safetensors.deserialize(data))  # type: ignore[no-untyped-call]
    except safetensors.SafetensorError as error:
        return str(error)


def _check_stricter(data: bytes, kind: type[StandfastError]) -> None:
    """That we may refuse what the library opens."""
    holds = data[8:9].isspace() if kind is BadHeader else kind.__name__ in STRICTER
    require(holds, f"the library opens what is a {kind.__name__} to us")


def _check_keys(data: bytes) -> None:
    """No key stands twice, by a way that shares nothing with the reader's."""

    def unique(pairs: list[tuple[str, Any]]) -> None:
        keys = [key for key, _ in pairs]
        require(len(set(keys)) == len(keys), "a key stands twice")

    json.loads(data[8 : header_end(data)], object_pairs_hook=unique)


def _check_ranges(data: bytes, index: Index) -> None:
    end = header_end(data)
    for start, size in sorted(zip(index.starts.tolist(), index.sizes.tolist(), strict=True)):
        require(start == end, "ranges overlap or leave a hole")
        end += size
    require(end == len(data), "ranges do not end with the file")


def _check_same(data: bytes, index: Index, theirs: dict[str, Any]) -> None:
    require(theirs.keys() == index.rows.keys(), "the library sees other names")
    for name, row in index.rows.items():
        view = theirs[name]
        start, size = int(index.starts[row]), int(index.sizes[row])
        require(view["dtype"] == CODE_OF[index.dtypes[row]], "the library sees another dtype")
        require(tuple(view["shape"]) == index.shapes[row], "the library sees another shape")
        require(bytes(view["data"]) == data[start : start + size], "the library sees other bytes")


TARGET = Target(
    name="safetensors",
    suffix=".safetensors",
    parts=(WHOLE, text_part(_header), text_part(_header)),
    reseal=reseal,
    check=check,
)
