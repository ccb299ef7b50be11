"""IDX files, in which MNIST comes: images and labels of one byte each, plain or compressed."""

from __future__ import annotations

import gzip
import os
import struct
import zlib
from pathlib import Path
from typing import Any, BinaryIO, Final

import numpy as np

from standfast.errors import (
    BadHeader,
    LimitExceeded,
    TrailingBytes,
    TruncatedFile,
    UnreadableFile,
    UnsupportedFile,
)

MAX_ITEMS: Final = 1_000_000
_BYTES: Final = 0x08
"""The type code of unsigned bytes, the only ones that MNIST has."""


def read_idx(path: Path, item: tuple[int, ...]) -> np.ndarray[Any, np.dtype[np.uint8]]:
    """The items of a file, each an array of the shape `item`; a `.gz` is decompressed.

    No more is read than the header says, nor more than a million items.
    """
    try:
        with gzip.open(path) if path.suffix == ".gz" else open(path, "rb") as file:
            return _read(file, path, item)
    except (OSError, EOFError, zlib.error) as error:
        reason = getattr(error, "strerror", None) or error
        if isinstance(error, EOFError | zlib.error | gzip.BadGzipFile):
            raise TruncatedFile(f"{path}: its compression is damaged: {reason}") from error
        raise UnreadableFile(getattr(error, "errno", None), f"{path}: {reason}") from error


def _read(
    file: BinaryIO | gzip.GzipFile, path: Path, item: tuple[int, ...]
) -> np.ndarray[Any, np.dtype[np.uint8]]:
    rank = 1 + len(item)
    header = struct.Struct(f">4B{rank}I")
    head = file.read(header.size)
    if len(head) < header.size:
        raise TruncatedFile(f"{path}: {header.size} bytes of header expected, {len(head)} found")
    zero, one, code, dimensions, count, *shape = header.unpack(head)
    if (zero, one) != (0, 0):
        raise BadHeader(f"{path}: no IDX file: it begins with {head[:4].hex(' ')}, not with 00 00")
    if code != _BYTES or dimensions != rank or tuple(shape) != item:
        raise UnsupportedFile(
            f"{path}: expected bytes of shape {[*item]} each, found type {code:#04x} with "
            f"{dimensions} dimensions of {[count, *shape]}"
        )
    if not 0 < count <= MAX_ITEMS:
        raise LimitExceeded(f"{path}: {count:,} items; expected 1 to {MAX_ITEMS:,}")
    size = count * int(np.prod(item, dtype=np.int64))
    if path.suffix != ".gz" and os.fstat(file.fileno()).st_size < header.size + size:
        raise TruncatedFile(f"{path}: it ends before its {count:,} items do")
    data = file.read(size)
    if len(data) < size:
        raise TruncatedFile(f"{path}: {size:,} bytes of items expected, {len(data):,} found")
    if file.read(1):
        raise TrailingBytes(f"{path}: it goes on after its {count:,} items")
    return np.frombuffer(data, np.uint8).reshape(count, *item)
