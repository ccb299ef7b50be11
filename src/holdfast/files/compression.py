"""Files that any zstd opens, written as durably as all others."""

from __future__ import annotations

import importlib
import io
import os
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any, BinaryIO, Final

from holdfast.errors import BadOption
from holdfast.files.atomic import replacing
from holdfast.files.disk import Disk
from holdfast.files.ring import Ring

SUFFIX: Final = ".zst"
_LEVEL: Final = 3


@contextmanager
def compressing(path: str | os.PathLike[str], disk: Disk) -> Iterator[BinaryIO]:
    """A stream into a new file at `path`, which is there, whole and durable, when this ends."""
    try:
        zstandard: Any = importlib.import_module("zstandard")
    except ImportError as error:
        raise BadOption(
            "compress='zstd' needs the package zstandard: pip install 'holdfast[zstd]'"
        ) from error
    with replacing(path, disk) as (_, fd):
        with Ring(partial(disk.write, fd)) as ring:
            raw = _Raw(ring)
            threads = min(8, os.cpu_count() or 1)
            compressor = zstandard.ZstdCompressor(
                level=_LEVEL, threads=threads, write_checksum=True
            )
            with compressor.stream_writer(raw, closefd=False) as stream:
                yield stream
        disk.truncate(fd, raw.size)


class _Raw(io.RawIOBase):
    """What the compressor writes to."""

    def __init__(self, ring: Ring) -> None:
        self._ring = ring
        self.size = 0

    def writable(self) -> bool:
        return True

    def write(self, data: Any) -> int:
        self._ring.put_bytes(bytes(data))
        self.size += len(data)
        return len(data)
