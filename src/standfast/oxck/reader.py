"""Reading a checkpoint from a file or from a stream that can only go forwards."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, BinaryIO, Final, NamedTuple

import numpy as np

from standfast.errors import (
    BadField,
    BadHeader,
    DigestMismatch,
    FileError,
    TrailingBytes,
    shortened,
)
from standfast.files.digests import DIGEST, chunk_counts, digest_all
from standfast.files.input.file import SourceFile
from standfast.files.input.stream import read_some
from standfast.formats.oxck import file as oxck
from standfast.formats.oxck.metadata import from_text
from standfast.formats.reader import MAX_SIZE, Start
from standfast.formats.seal import CHUNKS_KEY, KEY, check_seal, parse_chunks
from standfast.oxck.errors import InvalidMagic, Io, MetadataParse, TruncatedData, UnsupportedVersion
from standfast.tensors import ArraySource, TensorSpec

Floats = np.ndarray[Any, np.dtype[np.float32]]

_PIECE: Final = 16 << 20
"""Memory grows by what has arrived, never by what a header claims will."""


class Tensor(NamedTuple):
    """A tensor as it stands in the file."""

    name: str
    shape: tuple[int, ...]
    data: Floats


@dataclass(frozen=True, slots=True)
class Content:
    """All that a file holds."""

    text: bytes
    """The metadata as it stands there."""
    strings: dict[str, str]
    tensors: list[Tensor]
    digests: bool
    """Whether there were digests of ours, which then were right."""


def read_file(path: str | os.PathLike[str]) -> Content:
    """The content of a file, which must end where its content does."""
    with _io_errors():
        file = SourceFile(path)
    try:
        with _io_errors():
            content, end = _read(_FileStart(file))
        if end < file.size:
            raise TrailingBytes(f"{file.path}: {file.size - end:,} bytes follow the last tensor")
        return content
    finally:
        file.close()


def read_stream(reader: BinaryIO) -> Content:
    """The content of a stream, which is left behind the last tensor."""
    with _io_errors():
        return _read(_StreamStart(reader))[0]


def _read(start: _FileStart | _StreamStart) -> tuple[Content, int]:
    head, count = _read_head(start)
    try:
        strings = from_text(head[oxck.START_SIZE :])
    except BadField as error:
        raise MetadataParse(str(error)) from error
    headers, tensors = [], []
    end = len(head)
    for entry in _entries(start, end, count):
        headers.append(entry.header)
        tensors.append(Tensor(entry.name, entry.shape, start.floats(entry.start, entry.elements)))
        end = entry.start + 4 * entry.elements
    ours = {key: strings.pop(key) for key in (KEY, CHUNKS_KEY) if key in strings}
    if ours:
        check_seal(ours.get(KEY), head, oxck.digest_at(head), after=[b"".join(headers)])
        _verify(tensors, ours.get(CHUNKS_KEY))
    return Content(head[oxck.START_SIZE :], strings, tensors, bool(ours)), end


def _read_head(start: Start) -> tuple[bytes, int]:
    # Field by field: a stream of something else is known by its first four bytes.
    magic = start.take(0, 4, "the magic")
    if magic != oxck.MAGIC:
        raise InvalidMagic(magic)
    version = start.take(4, 4, "the version")
    if version != b"\1\0\0\0":
        raise UnsupportedVersion(int.from_bytes(version, "little"))
    return oxck.read_start(start, magic + version)


def _entries(start: Start, at: int, count: int) -> Iterator[oxck.Entry]:
    try:
        yield from oxck.read_entries(start, at, count)
    except BadHeader as error:  # a name that is not UTF-8
        raise MetadataParse(str(error)) from error


def _verify(tensors: list[Tensor], chunks: Any) -> None:
    sources = [ArraySource(t.data, TensorSpec("float32", t.data.shape)) for t in tensors]
    sizes = np.fromiter((source.spec.nbytes for source in sources), np.int64)
    stored, found = parse_chunks(chunks, sizes), digest_all(sources)
    if stored == found:
        return
    ends = (np.cumsum(chunk_counts(sizes)) * DIGEST).tolist()
    damaged = [
        tensor.name
        for tensor, a, b in zip(tensors, [0, *ends], ends, strict=False)
        if stored[a:b] != found[a:b]
    ]
    more = f" and {len(damaged) - 1} more" if len(damaged) > 1 else ""
    raise DigestMismatch(
        f"tensor {shortened(damaged[0])!r}{more} is damaged: its bytes do not match the digest "
        "that was saved with them",
        tuple(damaged),
    )


@contextmanager
def _io_errors() -> Iterator[None]:
    """What the file system says, by the original's name for it."""
    try:
        yield
    except FileError as error:
        if isinstance(error, Io):
            raise
        raise Io(error.errno, error.strerror) from error


class _FileStart(Start):
    """A file whose size is known."""

    def __init__(self, file: SourceFile) -> None:
        super().__init__(file.read, file.size)
        self._file = file

    def check(self, start: int, length: int, what: str) -> None:
        if start + length > self._file.size:
            raise TruncatedData(length, max(0, self._file.size - start))

    def floats(self, start: int, count: int) -> Floats:
        out = np.empty(4 * count, np.uint8)
        self._file.read_into(out, start)
        return out.view("<f4")


class _StreamStart(Start):
    """A stream, of which one stretch after the other is asked for: what was read is gone."""

    def __init__(self, reader: BinaryIO) -> None:
        super().__init__(lambda start, length: bytes(self._next(length)), None)
        self._reader = reader

    def check(self, start: int, length: int, what: str) -> None:
        if start + length > MAX_SIZE:
            raise TruncatedData(length, 0)

    def floats(self, start: int, count: int) -> Floats:
        return np.frombuffer(self._next(4 * count), "<f4")

    def _next(self, length: int) -> bytearray:
        data = bytearray()
        while len(data) < length:
            piece = read_some(self._reader, min(_PIECE, length - len(data)))
            if not piece:
                raise TruncatedData(length, len(data))
            data += piece
        return data
