"""What the tests of all formats build and read with, without a disk."""

import base64
import io
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from blake3 import blake3

import standfast
from standfast.errors import StandfastError
from standfast.files.layout import Index
from standfast.formats import format_named
from standfast.formats.reader import Options

Array = np.ndarray[Any, Any]

Files = Mapping[str, bytes | Callable[[], bytes]]
"""Malformed files by what is wrong with them; a function where the file is large."""


@dataclass(frozen=True)
class Refusal:
    """How a file has to be refused."""

    error: type[StandfastError] | None
    """The very class, not a parent of it; None if the file is odd, and has to open."""
    opens: bool = False
    """Whether it opens unverified, or for its tensors alone; if not, the class is the same then."""
    tensor: str = ""
    """The tensor that the message has to name."""


def unchecked(error: type[StandfastError]) -> Refusal:
    """What is refused, but opens unverified."""
    return Refusal(error, opens=True)


def texts(build: Callable[[str], bytes], what: str = "") -> Callable[[str], dict[str, bytes]]:
    """A file for each of several texts, which stand on lines, or two spaces apart."""
    return lambda several: {
        f"{what} {each}".strip(): build(each) for each in re.split(r"\s{2,}|\n", several.strip())
    }


def each(build: Callable[..., bytes], what: str = "", **fields: Sequence[Any]) -> dict[str, bytes]:
    """A file for each of several values of each field."""
    return {
        f"{what} {name} {value!r}".strip(): build(**{name: value})
        for name, values in fields.items()
        for value in values
    }


def cuts(data: bytes, *sizes: int) -> dict[str, bytes]:
    """A file cut at each of several places."""
    return {f"cut at {size}": data[:size] for size in sizes}


Table = Mapping[Any, Files]
"""By how they are refused: a Refusal, a class, or a class after the tensor that it has to name."""


@dataclass(frozen=True)
class Row:
    """A malformed file."""

    name: str
    data: bytes | Callable[[], bytes]
    refusal: Refusal

    @property
    def content(self) -> bytes:
        return self.data() if callable(self.data) else self.data


def rows(*tables: Table) -> tuple[Row, ...]:
    return tuple(
        Row(name, data, _refusal(key))
        for table in tables
        for key, files in table.items()
        for name, data in files.items()
    )


def _refusal(key: Any) -> Refusal:
    if isinstance(key, tuple):
        return Refusal(key[1], tensor=key[0])
    return key if isinstance(key, Refusal) else Refusal(key)


def chunks(*tensors: bytes) -> str:
    """What `standfast.chunks` holds for these tensors, each of one chunk."""
    digests = b"".join(blake3(tensor).digest() for tensor in tensors)
    return "blake3:16777216:" + base64.b64encode(digests).decode()


def saved(format: str, tensors: Any, metadata: Any = None, **options: Any) -> bytes:
    """The bytes that `standfast.save` writes."""
    stream = io.BytesIO()
    standfast.save(stream, tensors, metadata, format=format, **options)
    return stream.getvalue()


def flipped(data: bytes, at: int) -> bytes:
    """The bytes with the lowest bit flipped at one place."""
    return data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :]


def with_digest(file: bytes, at: int, before: bytes, after: bytes = b"") -> bytes:
    """The file with the right 64 digits at `at`, over `before` and `after` them."""
    if not 0 <= at <= at + 64 <= len(file):
        return file
    digits = blake3(before + b"0" * 64 + after).hexdigest().encode()
    return file[:at] + digits + file[at + 64 :]


def opened(data: bytes, **options: Any) -> standfast.TensorFile:
    """The file, opened as a stream."""
    return standfast.open(io.BytesIO(data), **options)


def index_of(
    format: str, data: bytes, verify: bool = True, names: Sequence[str] | None = None
) -> Index:
    """What the reader makes of a file."""
    return format_named(format).read_index(reader_of(data), len(data), Options(verify, names))


def reader_of(data: bytes) -> Callable[[int, int], bytes]:
    """A `read` that fails a test which reads outside of the file."""

    def read(start: int, length: int) -> bytes:
        assert 0 <= start <= start + length <= len(data)
        return data[start : start + length]

    return read
