"""Builds safetensors files byte by byte, right ones and wrong ones, for the tests of the reader."""

import json
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np

from tests.formats import builders
from tests.formats.builders import with_digest

DIGEST_START = b'{"__metadata__":{"standfast.digest":"'
"""How the header of a file that Standfast wrote starts, up to the header's own digest."""
DIGEST_LENGTH = 64


def file_of(header: str | bytes, data: bytes = b"", length: int | None = None) -> bytes:
    """A file with this header and this data; `length` is what it claims of its header."""
    text = header if isinstance(header, bytes) else header.encode("utf-8", "surrogatepass")
    claimed = len(text) if length is None else length
    return claimed.to_bytes(8, "little") + text + data


def entry(dtype: str = '"U8"', shape: str = "[1]", offsets: str = "[0,1]") -> str:
    """The header entry of one tensor, each field as JSON text; by default of one byte."""
    return f'{{"dtype":{dtype},"shape":{shape},"data_offsets":{offsets}}}'


def member(name: str, value: str) -> str:
    """A member of a JSON object: a name without its quotes, and a value as JSON text."""
    return f'"{name}":{value}'


def tensor(name: str = "a", *fields: str, **changes: str) -> str:
    """The member of a tensor; fields that are given replace those of one byte."""
    return member(name, entry(*fields, **changes))


def objects(*members: str) -> str:
    """A JSON object of these members."""
    return "{" + ",".join(members) + "}"


def holding(*members: str, data: bytes = b"x") -> bytes:
    """A file whose header has these members."""
    return file_of(objects(*members), data)


def one_tensor(**fields: str) -> bytes:
    """A file of the tensor `a`, one byte long; fields that are given replace its own."""
    return holding(tensor(**fields))


def with_metadata(text: str) -> bytes:
    """A file of the tensor `a`, one byte long, and metadata of this text."""
    return holding(member("__metadata__", text), tensor())


def strings_file(strings: Mapping[str, str]) -> bytes:
    """A file of the tensor `a`, one byte long, and this metadata."""
    return with_metadata(json.dumps(strings))


def typed_file(value: str, listed: str = '["key"]') -> bytes:
    """A file whose metadata says that the string under `key` is JSON."""
    return strings_file({"key": value, "standfast.json": listed})


def sealed_file(*strings: str, entries: Sequence[str] = (tensor(),), data: bytes = b"x") -> bytes:
    """A file with a digest that matches its header, whatever else stands in it.

    `strings` are the members of its metadata after the digest, `entries` those of its tensors.
    """
    digest = member("standfast.digest", '"' + "0" * DIGEST_LENGTH + '"')
    metadata = member("__metadata__", objects(digest, *strings))
    return reseal(file_of(objects(metadata, *entries), data))


def reseal(file: bytes) -> bytes:
    """The file with a digest that matches its header again, if it has one where it belongs."""
    end = 8 + int.from_bytes(file[:8], "little")
    digest_at = 8 + len(DIGEST_START)
    if not file.startswith(DIGEST_START, 8) or not digest_at + DIGEST_LENGTH <= end <= len(file):
        return file
    return with_digest(file, digest_at, file[:digest_at], file[digest_at + 64 : end])


saved_file = partial(builders.saved, "safetensors")


def small_tensors() -> dict[str, np.ndarray[Any, Any]]:
    """A few tensors of several widths, one of them empty."""
    return {
        "weight": np.arange(6, dtype=np.float32).reshape(2, 3),
        "bias": np.arange(3, dtype=np.float16),
        "empty": np.zeros((0, 4), np.float64),
        "mask": np.array([True, False, True]),
    }


def header_end(file: bytes) -> int:
    """Where the data of a file begins."""
    return 8 + int.from_bytes(file[:8], "little")


index_of = partial(builders.index_of, "safetensors")
