"""Files that any gzip or zstd opens, written as durably as all others, and read piece by piece."""

from __future__ import annotations

import importlib
import io
import os
from collections.abc import Generator, Iterator
from contextlib import AbstractContextManager, closing, contextmanager
from functools import partial
from typing import Any, BinaryIO, Final, Protocol, cast

from isal import igzip, isal_zlib

from standfast.errors import BadArchive, BadOption, TrailingBytes, TruncatedFile, UnsupportedFile
from standfast.files.atomic import replacing
from standfast.files.disk import Disk
from standfast.files.input.file import SourceFile
from standfast.files.reader import Progress
from standfast.files.ring import Ring

SUFFIX: Final = ".zst"
GZIP_SUFFIXES: Final = (".gz", ".tgz")
_LEVEL: Final = 3
_GZIP_LEVEL: Final = 1
_GZIP: Final = b"\x1f\x8b"
_ZSTD: Final = b"\x28\xb5\x2f\xfd"
_OTHERS: Final = {
    b"BZh": "bzip2",
    b"\xfd7zXZ": "xz",
    b"PK\x03\x04": "zip",
    b"\x04\x22\x4d\x18": "lz4",
}
_PIECE: Final = 1 << 20
_FED: Final = 2048
"""So little is handed to zstd at once, because it may become 64 MiB and cannot be interrupted."""
_TAIL: Final = 16
_LARGEST_WINDOW: Final = 128 << 20
_ENDED: Final = "it ends in the middle"


@contextmanager
def writing(path: str | os.PathLike[str], disk: Disk) -> Iterator[BinaryIO]:
    """A stream into a new file at `path`, which is there, whole and durable, when this ends."""
    with replacing(path, disk) as (_, fd):
        with Ring(partial(disk.write, fd)) as ring:
            raw = _Raw(ring)
            yield cast(BinaryIO, raw)
        disk.truncate(fd, raw.size)


@contextmanager
def compressing(path: str | os.PathLike[str], disk: Disk) -> Iterator[BinaryIO]:
    """The same, compressed: by gzip if the name ends as such names do, else by zstd."""
    compress = _gzip if os.fspath(path).endswith(GZIP_SUFFIXES) else _zstd_writer()
    with writing(path, disk) as raw, compress(raw) as stream:
        yield stream


def _gzip(raw: BinaryIO) -> AbstractContextManager[BinaryIO]:
    # No time and no name, so that equal content gives equal files.
    make: Any = igzip.GzipFile
    return cast(AbstractContextManager[BinaryIO], make("", "wb", _GZIP_LEVEL, raw, mtime=0))


def _zstd_writer() -> Any:
    threads = min(8, os.cpu_count() or 1)
    compressor = _zstandard().ZstdCompressor(level=_LEVEL, threads=threads, write_checksum=True)
    return partial(compressor.stream_writer, closefd=False)


def _zstandard() -> Any:
    try:
        return importlib.import_module("zstandard")
    except ImportError as error:
        raise BadOption(
            "compression by zstd needs the package zstandard: pip install zstandard"
        ) from error


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


class _Inflater(Protocol):
    """What gives the content back: as much as is asked for, if it can."""

    @property
    def eof(self) -> bool: ...

    @property
    def unconsumed_tail(self) -> bytes: ...

    @property
    def unused_data(self) -> bytes: ...

    def decompress(self, data: bytes, max_length: int) -> bytes: ...


def decompressed(
    path: str | os.PathLike[str], progress: Progress | None = None
) -> Generator[bytes, None, None]:
    """The content of a file that gzip or zstd compressed, in pieces; no more memory is taken.

    Raises UnsupportedFile, BadArchive, TruncatedFile or TrailingBytes; when the last piece has
    come, the checksum was right.
    """
    with closing(SourceFile(path)) as file:
        inflater, broken, most = _inflater(file)
        at, waiting = 0, b""
        while not inflater.eof:
            try:
                piece = inflater.decompress(waiting, _PIECE)
            except broken as error:
                raise BadArchive(f"it cannot be decompressed ({error})") from error
            waiting = inflater.unconsumed_tail
            if piece:
                yield piece
            elif not waiting and not inflater.eof:
                if at == file.size:
                    raise TruncatedFile(f"{_ENDED} of what was compressed, at {at:,} bytes")
                # Of a few bytes after the end, when they went in with it, isal would not tell.
                waiting = file.read(at, max(1, min(most, file.size - at - _TAIL)))
                at += len(waiting)
                if progress is not None:
                    progress(len(waiting))
        file.check_unchanged()
        if at < file.size or waiting or inflater.unused_data:
            raise TrailingBytes("it goes on after the end of what was compressed")


def _inflater(file: SourceFile) -> tuple[_Inflater, type[Exception], int]:
    """What decompresses the file, the error that it raises, and how much it may be fed at once."""
    head = file.read(0, min(300, file.size))
    if head.startswith(_GZIP):
        inflater = cast(_Inflater, isal_zlib.decompressobj(31))
        return inflater, cast(type[Exception], isal_zlib.error), _PIECE
    if head.startswith(_ZSTD):
        zstandard = _zstandard()
        return _Zstd(zstandard), zstandard.ZstdError, _FED
    if len(head) < len(_ZSTD):
        raise TruncatedFile(f"{_ENDED}, after {len(head)} bytes")
    kind = next((name for magic, name in _OTHERS.items() if head.startswith(magic)), None)
    if kind or head[257:262] == b"ustar":
        raise UnsupportedFile(
            f"it is {f'compressed by {kind}' if kind else 'not compressed'}: compress it by gzip "
            "or zstd"
        )
    raise BadArchive("it begins as no file of gzip or zstd does")


class _Zstd:
    """One frame of zstd."""

    unconsumed_tail = b""

    def __init__(self, zstandard: Any) -> None:
        decompressor = zstandard.ZstdDecompressor(max_window_size=_LARGEST_WINDOW)
        self._frame = decompressor.decompressobj()

    @property
    def eof(self) -> bool:
        return bool(self._frame.eof)

    @property
    def unused_data(self) -> bytes:
        return bytes(self._frame.unused_data)

    def decompress(self, data: bytes, max_length: int) -> bytes:
        return bytes(self._frame.decompress(data)) if data else b""
