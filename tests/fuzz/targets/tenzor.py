"""The tenzor format as a target, beside a plain reader of its structs."""

from __future__ import annotations

import math
import struct
from collections.abc import Callable, Sequence
from random import Random
from typing import NamedTuple

from standfast.files.layout import Index
from standfast.formats.reader import Options
from standfast.formats.tenzor.file import CODES, DTYPES
from standfast.tensors import DTYPES as ALL_DTYPES
from tests.formats.tenzor import malformed as malformed_tenzor
from tests.fuzz.mutations.bytes import ANYWHERE, flip_bit, set_numbers
from tests.fuzz.mutations.json_text import json_mutations
from tests.fuzz.seeds import (
    golden,
    random_metadata,
    random_saved,
    random_tensors,
    saved,
    small,
    with_digest,
)
from tests.fuzz.target import Mutation, Outcome, Target, require

HEADER = struct.Struct("<8s4I2QI20s")
ENTRY = struct.Struct("<QBB2x5IQQ")
START = b'{"standfast.digest":"'
ORIGINAL = (
    b'{"epoch":5,"global_step":4685,"best_val_loss":inf,"best_val_acc":nan,"best_epoch":3,'
    b'"learning_rate":0.00870000,"model_name":"le"net","timestamp":1700000000}'
)


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


# Seeds


def seeds() -> list[bytes]:
    """Files with and without extras, with metadata as the first implementation writes it."""
    random = Random(7)
    states = [random_tensors(random, DTYPES) for _ in range(4)]
    files = [saved("tenzor", state, random_metadata(random)) for state in states]
    files += [saved("tenzor", state, random_metadata(random), extras=False) for state in states]
    malformed = small([case.data for case in malformed_tenzor.CASES])
    return [*golden(".tenzor"), *files, with_metadata(files[-1], ORIGINAL), *malformed]


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


def _metadata(random: Random, file: bytes) -> tuple[bytes, Callable[[bytes], bytes]] | None:
    head = head_of(file)
    if head is None:
        return None
    return file[64 : 64 + head.metadata_size], lambda text: with_metadata(file, text)


def _numbers(file: bytes) -> list[tuple[int, int]]:
    places = [(8, 4), (12, 4), (16, 4), (20, 4), (24, 8), (32, 8), (40, 4), (44, 4)]
    if (head := head_of(file)) is None:
        return places
    fields = ((0, 8), (8, 1), (9, 1), (10, 2), *((12 + 4 * i, 4) for i in range(5)))
    for at in range(head.index_at, head.index_at + 48 * head.tensors, 48):
        places += [(at + offset, width) for offset, width in (*fields, (32, 8), (40, 8))]
    return places


def rewrite_entries(random: Random, file: bytes, others: Sequence[bytes]) -> bytes:
    """All entries of other shapes, small or huge, whose sizes and offsets fit each other."""
    head = head_of(file)
    if head is None or not head.tensors:
        return flip_bit(random, file, others)
    choices = random.choice(((0, 1, 2, 3), (1, 2, 1 << 29, 1 << 30), (0, 1, (1 << 32) - 1)))
    parts, end = [], 0
    for at in range(head.index_at, head.index_at + 48 * head.tensors, 48):
        code, rank = random.randrange(len(CODES)), random.randrange(6)
        shape = [random.choice(choices) for _ in range(rank)]
        size = math.prod(shape) * ALL_DTYPES[CODES[code]].numpy.itemsize % (1 << 64)
        name = int.from_bytes(file[at : at + 8], "little")
        parts.append(ENTRY.pack(name, code, rank, *shape, *[0] * (5 - rank), end, size))
        end = (end + size) % (1 << 64)
    index_end = head.index_at + 48 * head.tensors
    data = random.randbytes(end) if end < 4096 else file[head.data_at :]
    return file[: head.index_at] + b"".join(parts) + file[index_end : head.data_at] + data


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


MUTATIONS: tuple[Mutation, ...] = (
    *ANYWHERE,
    *(set_numbers(_numbers), set_numbers(_numbers), set_numbers(_numbers), rewrite_entries),
    *json_mutations(_metadata),
)

TARGET = Target(
    name="tenzor",
    suffix=".tenzor",
    seeds=seeds,
    random_file=random_saved("tenzor", DTYPES, rank=6),
    mutations=MUTATIONS,
    reseal=reseal,
    check=check,
)
