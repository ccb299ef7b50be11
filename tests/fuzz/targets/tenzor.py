"""The tenzor format as a target, beside a plain reader of its structs."""

import struct
from random import Random
from typing import NamedTuple

from standfast.files.layout import Index
from standfast.formats.reader import Options
from standfast.formats.tenzor.file import CODES
from tests.formats.tenzor.builders import file_of, fnv, reseal
from tests.fuzz.mutations import WHOLE, Found, Part, fields, text_part
from tests.fuzz.target import Outcome, Target, require

HEADER = struct.Struct("<8s4I2QI20s")
ENTRY = struct.Struct("<QBB2x5IQQ")


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


def _index(random: Random, file: bytes) -> Found | None:
    """The header and the index, without the padding, in which most changes would be the same."""
    head = head_of(file)
    if head is None:
        return None
    end = head.index_at + 48 * head.tensors
    return file[:end], lambda data: data + file[end:]


def _metadata(random: Random, file: bytes) -> Found | None:
    """The metadata; what follows it moves to where it then belongs."""
    head = head_of(file)
    if head is None:
        return None
    magic, version, flags, _, padding, *_, reserved = HEADER.unpack_from(file)
    fixed = {"magic": magic, "version": version, "flags": flags, "padding": padding}
    entries = [file[head.index_at : head.index_at + 48 * head.tensors]]

    def put(text: bytes) -> bytes:
        return file_of(text, entries, file[head.data_at :], reserved=reserved, **fixed)

    return file[64 : 64 + head.metadata_size], put


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
        known = fnv(name.encode()) == found or name == f"{found:#018x}"
        require(known, "a name has not the hash it should")
        require(outcome.dtypes[row] == CODES[code], "another dtype than the entry's")
        require(outcome.shapes[row] == shape, "another shape than the entry's")
        require(int(outcome.starts[row]) == head.data_at + offset, "another place than the entry's")
        require(int(outcome.sizes[row]) == size, "another size than the entry's")


TARGET = Target(
    name="tenzor",
    suffix=".tenzor",
    parts=(Part(_index, fields, WHOLE.tokens), WHOLE, text_part(_metadata)),
    reseal=reseal,
    check=check,
)
