"""The tenzor format as a target, beside a plain reader of its structs."""

from __future__ import annotations

import struct
from collections.abc import Callable
from random import Random
from typing import NamedTuple

from standfast.files.layout import Index
from standfast.formats.reader import Options
from standfast.formats.tenzor.file import CODES
from tests.fuzz.mutations import WHOLE, Found, Part, fields, text_part, with_digest
from tests.fuzz.target import Outcome, Target, require

HEADER = struct.Struct("<8s4I2QI20s")
ENTRY = struct.Struct("<QBB2x5IQQ")
START = b'{"standfast.digest":"'


class Head(NamedTuple):
    """Where everything lies, by the header alone."""

    tensors: int
    index_at: int
    data_at: int
    metadata_size: int


def head_of(file: bytes) -> Head | None:
    """What the header says, if that is in the file."""
    if len(file) < HEADER.size:
        return None
    _, _, _, count, _, index_at, data_at, metadata_size, _ = HEADER.unpack_from(file)
    fits = 64 + metadata_size <= index_at and index_at + 48 * count <= data_at <= len(file)
    return Head(count, index_at, data_at, metadata_size) if fits else None


def reseal(file: bytes) -> bytes:
    """The file with a digest that matches its head again, if it has one where it belongs."""
    head = head_of(file)
    if head is None or not file.startswith(START, 64) or head.metadata_size < 84:
        return file
    at = 64 + len(START)
    return with_digest(file, at, file[:at], file[at + 64 : head.data_at])


# Mutations


def with_metadata(file: bytes, text: bytes) -> bytes:
    """The file with other metadata, and what follows moved to where it then belongs."""
    head = head_of(file)
    assert head is not None
    index_at = 64 + -(-len(text) // 8) * 8
    entries = file[head.index_at : head.index_at + 48 * head.tensors]
    data_at = -(-(index_at + len(entries)) // 4096) * 4096
    fields = list(HEADER.unpack_from(file))
    fields[5:8] = index_at, data_at, len(text)
    front = (HEADER.pack(*fields) + text).ljust(index_at, b"\0") + entries
    return front.ljust(data_at, b"\0") + file[head.data_at :]


def _index(random: Random, file: bytes) -> Found | None:
    """The header and the index, without the padding, in which most changes would be the same."""
    head = head_of(file)
    if head is None:
        return None
    end = head.index_at + 48 * head.tensors
    return file[:end], lambda data: data + file[end:]


def _metadata(random: Random, file: bytes) -> tuple[bytes, Callable[[bytes], bytes]] | None:
    head = head_of(file)
    if head is None:
        return None
    return file[64 : 64 + head.metadata_size], lambda text: with_metadata(file, text)


# The second reader


def check(data: bytes, outcome: Outcome, options: Options) -> None:
    """Each tensor is where its entry says, under a name that has its hash."""
    if not isinstance(outcome, Index):
        return
    head = head_of(data)
    require(
        head is not None and head.tensors == len(outcome.rows), "not as many as the header says"
    )
    assert head is not None
    for row, name in enumerate(outcome.rows):
        found, code, rank, *numbers = ENTRY.unpack_from(data, head.index_at + 48 * row)
        shape, (offset, size) = tuple(numbers[:rank]), numbers[5:]
        require(fnv(name) == found or name == f"{found:#018x}", "a name has not the hash it should")
        require(outcome.dtypes[row] == CODES[code], "another dtype than the entry's")
        require(outcome.shapes[row] == shape, "another shape than the entry's")
        require(int(outcome.starts[row]) == head.data_at + offset, "another place than the entry's")
        require(int(outcome.sizes[row]) == size, "another size than the entry's")


def fnv(name: str) -> int:
    """FNV-1a of 64 bits."""
    value = 0xCBF29CE484222325
    for byte in name.encode():
        value = (value ^ byte) * 0x100000001B3 % (1 << 64)
    return value


TARGET = Target(
    name="tenzor",
    suffix=".tenzor",
    parts=(Part(_index, fields, WHOLE.tokens), WHOLE, text_part(_metadata)),
    reseal=reseal,
    check=check,
)
