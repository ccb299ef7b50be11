"""What must hold for any input, whether it is opened or refused."""

from __future__ import annotations

import json
import math
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from random import Random
from typing import Any

import safetensors
from blake3 import blake3

import holdfast
from holdfast.errors import (
    BadField,
    BadHeader,
    DigestMismatch,
    DuplicateKey,
    HoldfastError,
    IndexMismatch,
    LimitExceeded,
    NothingToVerify,
    NotVerified,
    UnknownFormat,
)
from holdfast.files.layout import Index
from holdfast.formats.metadata import from_strings, to_strings
from holdfast.formats.safetensors import CODE_OF
from tests.formats.builders import header_end, index_of
from tests.formats.legal import DTYPE_BITS

LONGEST_MESSAGE = 4000

STRICTER = (BadField, DuplicateKey, IndexMismatch, LimitExceeded)
"""How we may refuse what the reference library opens; any other class would be our mistake.

It skips unknown fields whatever is in them, keeps the last of two equal keys, takes an array for
an entry and null for no metadata, has no limits to rank, dimensions and names, and cannot know
our own keys. A BadHeader too, but only for space before the first brace, which it skips.
"""

Outcome = Index | HoldfastError


class Broken(Exception):
    """A property does not hold."""


def require(holds: bool, what: str) -> None:
    if not holds:
        raise Broken(what)


def read(data: bytes, verify: bool) -> Outcome:
    """What the reader makes of these bytes; any other exception is the fuzzer's catch."""
    try:
        return index_of(data, verify)
    except HoldfastError as error:
        return error


def check_in_memory(data: bytes, verify: bool) -> Outcome:
    """Read the index of a file, check it if there is one, and compare with the library."""
    outcome = read(data, verify)
    theirs = _library(data)
    if isinstance(outcome, Index):
        _check_index(data, outcome)
        if isinstance(theirs, str):
            raise Broken(f"we open what the library refuses: {theirs}")
        _check_same(data, outcome, theirs)
    else:
        _check_message(str(outcome))
        if not isinstance(theirs, str):
            _check_stricter(data, type(outcome))
    return outcome


def _check_stricter(data: bytes, kind: type[HoldfastError]) -> None:
    """That we may refuse what the library opens."""
    holds = data[8:9].isspace() if kind is BadHeader else kind in STRICTER
    require(holds, f"the library opens what is a {kind.__name__} to us")


def _check_message(message: str) -> None:
    require(len(message) < LONGEST_MESSAGE, "the message is too long")
    require(message.isprintable(), "the message holds characters that are not for terminals")


def _library(data: bytes) -> dict[str, Any] | str:
    """What the reference library finds in the file, or why it refuses it."""
    try:
        return dict(safetensors.deserialize(data))
    except safetensors.SafetensorError as error:
        return str(error)


def _check_index(data: bytes, index: Index) -> None:
    count = len(index.rows)
    columns = (index.dtypes, index.shapes, index.starts, index.sizes)
    require(all(len(column) == count for column in columns), "columns differ in length")
    require(list(index.rows.values()) == list(range(count)), "rows are not in order")
    _check_keys(data)
    for name, row in index.rows.items():
        name.encode()
        bits = DTYPE_BITS[CODE_OF[index.dtypes[row]]]
        require(
            math.prod(index.shapes[row]) * bits == 8 * int(index.sizes[row]),
            "a size is not shape × dtype",
        )
    end = header_end(data)
    for start, size in sorted(zip(index.starts.tolist(), index.sizes.tolist(), strict=True)):
        require(size >= 0, "a size is negative")
        require(start == end, "ranges overlap or leave a hole")
        end += size
    require(end == len(data), "ranges do not end with the file")
    _check_metadata(index.metadata)


def _check_keys(data: bytes) -> None:
    """No key stands twice, by a way that shares nothing with the reader's."""

    def unique(pairs: list[tuple[str, Any]]) -> None:
        keys = [key for key, _ in pairs]
        require(len(set(keys)) == len(keys), "a key stands twice")

    json.loads(data[8 : header_end(data)], object_pairs_hook=unique)


def _check_metadata(metadata: Any) -> None:
    """What was read can be saved, and comes back the same."""
    try:
        strings = to_strings(metadata)
    except HoldfastError as error:
        raise Broken(f"metadata was read that cannot be saved: {error}") from error
    json.dumps(strings, ensure_ascii=False).encode()
    require(from_strings(strings) == metadata, "metadata does not come back the same")


def _check_same(data: bytes, index: Index, theirs: dict[str, Any]) -> None:
    require(theirs.keys() == index.rows.keys(), "the library sees other names")
    for name, row in index.rows.items():
        view = theirs[name]
        start = int(index.starts[row])
        require(view["dtype"] == CODE_OF[index.dtypes[row]], "the library sees another dtype")
        require(tuple(view["shape"]) == index.shapes[row], "the library sees another shape")
        require(
            bytes(view["data"]) == data[start : start + int(index.sizes[row])],
            "the library sees other bytes",
        )


# On disk


def check_on_disk(data: bytes, path: Path, verify: bool, random: Random) -> str:
    """Open, load and verify a real file; returns the name of how it was refused, or nothing."""
    path.write_bytes(data)
    expected = read(data, verify)
    try:
        with holdfast.open(path, verify=verify) as file:
            require(isinstance(expected, Index), "open takes what read_index refuses")
            assert isinstance(expected, Index)
            require(list(file) == list(expected.rows), "open sees other names")
    except UnknownFormat:
        foreign = path.suffix != ".safetensors"
        require(foreign and (len(data) < 10 or data[8:9] != b"{"), "the format is not seen")
        return UnknownFormat.__name__
    except HoldfastError as error:
        require(type(error) is type(expected), "open and read_index refuse it by two errors")
        require(str(error).startswith(f"{path}: "), "the message does not name the file")
        return type(error).__name__
    assert isinstance(expected, Index)
    checked = read(data, verify=True)
    damaged = _damaged(data, expected)
    _check_verify(path, _damaged(data, checked) if isinstance(checked, Index) else (), checked)
    for mapped in (True, False):
        _check_load(data, path, expected, damaged, verify, mapped)
        _check_slices(path, expected, damaged, verify, mapped, random)
    return DigestMismatch.__name__ if damaged else ""


def _damaged(data: bytes, index: Index) -> tuple[str, ...]:
    """The tensors whose bytes do not match their digests, in the order of the file."""
    if index.digests is None:
        return ()
    names = list(index.rows)
    rows = sorted(range(len(names)), key=lambda row: (index.starts[row], index.sizes[row]))
    return tuple(
        names[row]
        for row in rows
        if blake3(data[index.starts[row] :][: index.sizes[row]]).digest()
        != index.digests[32 * row : 32 * row + 32]
    )


@contextmanager
def _expecting(damaged: tuple[str, ...]) -> Iterator[None]:
    """The block must raise a DigestMismatch of these tensors, or nothing if there are none."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", NotVerified)
            yield
    except DigestMismatch as error:
        require(error.tensors == damaged, f"not these are the damaged tensors: {error.tensors}")
    else:
        require(not damaged, "damage was not found")


def _check_verify(path: Path, damaged: tuple[str, ...], outcome: Outcome) -> None:
    try:
        with _expecting(damaged):
            holdfast.verify(path)
    except NothingToVerify:
        require(isinstance(outcome, Index) and outcome.digests is None, "there were digests")
    except HoldfastError as error:
        require(type(error) is type(outcome), "verify and read_index refuse it by two errors")


def _check_load(
    data: bytes, path: Path, index: Index, damaged: tuple[str, ...], verify: bool, mapped: bool
) -> None:
    with _expecting(damaged):
        arrays = holdfast.load(path, verify=verify, mapped=mapped)
        require(list(arrays) == list(index.rows), "load sees other names")
        for name, row in index.rows.items():
            start, size = int(index.starts[row]), int(index.sizes[row])
            array = arrays[name]
            require(array.tobytes() == data[start : start + size], "load gives other bytes")
            require(array.flags.aligned and array.flags.writeable, "an array is of no use")
            require(array.shape == index.spec(row).array_shape, "load gives another shape")


def _check_slices(
    path: Path,
    index: Index,
    damaged: tuple[str, ...],
    verify: bool,
    mapped: bool,
    random: Random,
) -> None:
    with holdfast.open(path, verify=verify, mapped=mapped) as file:
        for name in index.rows:
            expected = (name,) if name in damaged else ()
            with _expecting(expected):
                array = file[name]
                slices = (_random_slice(random) for _ in range(min(array.ndim, 3)))
                # The ellipsis keeps a scalar an array, whose bytes NumPy does not touch.
                picked: Any = (*slices, ...)
                part, whole = file.slice(name)[picked], array[picked]
                require(part.shape == whole.shape, "a slice has another shape")
                require(part.tobytes() == whole.tobytes(), "a slice has other bytes")
                require(part.flags.aligned, "a slice is not aligned")


def _random_slice(random: Random) -> slice:
    ends = (None, None, 0, 1, 2, -1, 5)
    return slice(random.choice(ends), random.choice(ends), random.choice((None, 1, 2, -1)))
