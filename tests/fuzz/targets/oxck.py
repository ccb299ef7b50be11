"""The oxck format as a target, beside a plain reader and beside `standfast.oxck`."""

import io
import math
import struct
from collections.abc import Callable
from random import Random
from typing import NamedTuple

import numpy as np

from standfast.errors import DigestMismatch, StandfastError
from standfast.files.layout import Index
from standfast.formats.reader import Options
from standfast.oxck import Checkpoint
from tests.formats.builders import with_digest
from tests.fuzz.mutations import WHOLE, text_part
from tests.fuzz.target import Outcome, Target, require

START = struct.Struct("<4sIQQI")
DIGEST = b'"standfast.digest":"'

STRICTER = (
    "BadField DuplicateKey IndexMismatch LimitExceeded SizeMismatch TooNew TrailingBytes"
).split()
"""How we may refuse what the plain reader reads to its end.

The plain reader does not look into the metadata, takes two tensors of one name, any rank and any
shape, and does not care what follows the last tensor.
"""


class Plain(NamedTuple):
    """A tensor as the plain reader finds it."""

    name: bytes
    shape: tuple[int, ...]
    header: tuple[int, int]
    data: tuple[int, int]


def plain_tensors(file: bytes) -> list[Plain] | None:
    """All tensors, field after field; None if the bytes end too early, or start otherwise."""
    tensors = []
    try:
        magic, version, _, count, length = START.unpack_from(file)
        at = START.size + length
        if magic != b"OXCK" or version != 1 or at > len(file):
            return None
        for _ in range(count):
            begin = at
            (length,) = struct.unpack_from("<I", file, at)
            name = file[at + 4 : at + 4 + length]
            (rank,) = struct.unpack_from("<I", file, at + 4 + length)
            at += 8 + length
            *shape, elements = struct.unpack_from(f"<{rank + 1}Q", file, at)
            at += 8 * (rank + 1)
            if at + 4 * elements > len(file):
                return None
            tensors.append(Plain(name, tuple(shape), (begin, at), (at, at + 4 * elements)))
            at += 4 * elements
    except (struct.error, MemoryError, OverflowError):
        return None
    return tensors


def with_metadata(file: bytes, text: bytes) -> bytes:
    """The file with other metadata."""
    length = int.from_bytes(file[24:28], "little")
    return file[:24] + len(text).to_bytes(4, "little") + text + file[28 + length :]


def _metadata(random: Random, file: bytes) -> tuple[bytes, Callable[[bytes], bytes]]:
    length = int.from_bytes(file[24:28], "little")
    return file[28 : 28 + length], lambda text: with_metadata(file[:28].ljust(28) + file[28:], text)


def reseal(file: bytes) -> bytes:
    """The file with a digest that matches its headers again, if it has one."""
    tensors = plain_tensors(file)
    at = file.find(DIGEST) + len(DIGEST)
    start = 28 + int.from_bytes(file[24:28], "little")
    if tensors is None or at < 28 + len(DIGEST) or at + 64 > start:
        return file
    headers = b"".join(file[begin:end] for begin, end in (tensor.header for tensor in tensors))
    return with_digest(file, at, file[:at], file[at + 64 : start] + headers)


def check(data: bytes, outcome: Outcome, options: Options) -> None:
    """The plain reader and the original's names for the same give the same tensors."""
    plain = plain_tensors(data)
    if isinstance(outcome, Index):
        require(plain is not None, "we open what the plain reader does not read to its end")
        assert plain is not None
        _check_same(outcome, plain)
    elif plain is not None and all(_is_text(tensor.name) for tensor in plain):
        require(
            type(outcome).__name__ in STRICTER, f"a plain file is a {type(outcome).__name__} to us"
        )
    _check_checkpoint(data, outcome, options)


def _is_text(name: bytes) -> bool:
    try:
        return bool(name.decode() or True)
    except UnicodeDecodeError:
        return False


def _check_same(index: Index, plain: list[Plain]) -> None:
    require([name.encode() for name in index.rows] == [t.name for t in plain], "other names")
    for row, tensor in enumerate(plain):
        start, size = int(index.starts[row]), int(index.sizes[row])
        require((start, start + size) == tensor.data, "a tensor lies elsewhere")
        empty = tensor.shape == () and not size
        require(index.shapes[row] == ((0,) if empty else tensor.shape), "another shape")
        require(math.prod(tensor.shape or (size // 4,)) * 4 == size, "a shape of another size")


def _check_checkpoint(data: bytes, outcome: Outcome, options: Options) -> None:
    """`Checkpoint` reads what we open, and writes the same bytes."""
    if not options.verify:
        return
    try:
        checkpoint = Checkpoint.read_from(io.BytesIO(data))
    except DigestMismatch:
        return
    except StandfastError as error:
        require(not isinstance(outcome, Index), f"Checkpoint refuses what we open: {error}")
        return
    if isinstance(outcome, Index):
        for tensor, row in zip(checkpoint.tensors, outcome.rows.values(), strict=True):
            start, size = int(outcome.starts[row]), int(outcome.sizes[row])
            same = tensor.data.astype("<f4").tobytes() == data[start : start + size]
            require(same and tensor.data.dtype == np.float32, "Checkpoint has other elements")
        stream = io.BytesIO()
        checkpoint.write_to(stream)
        again = Checkpoint.read_from(io.BytesIO(stream.getvalue()))
        require(again.metadata == checkpoint.metadata, "Checkpoint writes other metadata")
        names = [tensor.name for tensor in checkpoint.tensors]
        require([tensor.name for tensor in again.tensors] == names, "Checkpoint writes other names")


TARGET = Target(
    name="oxck",
    suffix=".oxck",
    parts=(WHOLE, WHOLE, text_part(_metadata)),
    reseal=reseal,
    check=check,
)
