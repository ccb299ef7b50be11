"""What the tests of all formats build and read with, without a disk."""

from __future__ import annotations

import base64
import io
from collections.abc import Callable, Sequence
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


@dataclass(frozen=True)
class Row:
    """A malformed file, and how it has to be refused."""

    name: str
    """What is wrong with it."""
    data: bytes | Callable[[], bytes]
    """A function where the file is large."""
    error: type[StandfastError] | None
    """The very class, not a parent of it; None if the file is odd, and has to open."""
    opens: bool = False
    """Whether it opens unverified, or for its tensors alone; if not, the class is the same then."""
    tensor: str = ""
    """The tensor that the message has to name."""

    @property
    def content(self) -> bytes:
        return self.data() if callable(self.data) else self.data


def chunks(*tensors: bytes) -> str:
    """What `standfast.chunks` holds for these tensors, each of one chunk."""
    digests = b"".join(blake3(tensor).digest() for tensor in tensors)
    return "blake3:16777216:" + base64.b64encode(digests).decode()


def saved(format: str, tensors: Any, metadata: Any = None, **options: Any) -> bytes:
    """The bytes that `standfast.save` writes."""
    stream = io.BytesIO()
    standfast.save(stream, tensors, metadata, format=format, **options)
    return stream.getvalue()


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
