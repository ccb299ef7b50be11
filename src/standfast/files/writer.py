"""The one writer: a layout and its sources become a durable file.

Two things run side by side: threads that hash the sources, and the caller, who copies them
block by block into a ring of aligned blocks that other threads write past the page cache. What
holds the digests goes in last: at the end, or at the start, into space that was reserved for it.
"""

from __future__ import annotations

import errno
import io
import os
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from itertools import chain
from pathlib import Path
from typing import BinaryIO, Final, Protocol, TypeVar, runtime_checkable

import numpy as np
from isal.isal_zlib import crc32

from standfast.errors import WriteFailed
from standfast.files.atomic import replacing
from standfast.files.digests import Digesting, worker_count
from standfast.files.disk import Disk
from standfast.files.layout import Layout
from standfast.files.ring import Ring
from standfast.files.threads import Threads
from standfast.tensors import Source
from standfast.tensors.sources import PIECE, Bytes

_AHEAD: Final = 256 << 20
"""How far ahead of its size the space of a growing file is reserved, and as much again as its size.

A reservation waits for all writes under way, so there are few of them.
"""
Growing = TypeVar("Growing", bound="GrowingFile")

Check = Callable[[Path, bytes], None]
"""Told where the new file lies, and the digests of all chunks, before it takes its name."""


class _Sums:
    """The digests, as far as they are asked for, and the CRCs, as they become known."""

    def __init__(self, sources: Sequence[Source], pool: Threads, digested: bool) -> None:
        self._digesting = Digesting(sources if digested else [], pool)
        self.crcs: dict[int, int] = {}

    def digests(self) -> bytes:
        return self._digesting.result()

    def crc(self, tensor: int) -> int:
        return self.crcs[tensor]


def write_file(
    path: str | os.PathLike[str],
    layout: Layout,
    sources: Sequence[Source],
    disk: Disk,
    check: Check | None = None,
) -> None:
    """Write a file; when this returns it is durable, and until then the old one stands."""
    with (
        replacing(path, disk) as (aside, fd),
        # One processor is left to the copying: a disk that waits for it costs more than a hash.
        Threads(worker_count(spare=1)) as hashers,
    ):
        sums = _Sums(sources, hashers, layout.digested or check is not None)
        try:
            disk.reserve(fd, layout.size)
            with Ring(partial(disk.write, fd)) as ring:
                _fill(ring, layout, sources, sums)
            disk.truncate(fd, layout.size)
            if check:
                disk.sync(fd)
                check(aside, sums.digests())
        except BaseException:
            hashers.shutdown(cancel=True)
            raise


def _fill(ring: Ring, layout: Layout, sources: Sequence[Source], sums: _Sums) -> None:
    if layout.head:
        ring.seek(layout.head.size)
    for piece in layout.body:
        if isinstance(piece, bytes):
            ring.put_bytes(piece)
        elif not isinstance(piece, int):
            ring.put_bytes(piece.make(sums))
        elif layout.crcs is None:
            ring.put(sources[piece])
        else:
            sums.crcs[piece] = ring.put_summed(sources[piece], layout.crcs[piece])
    if layout.head:
        ring.seek(0)
        ring.put_bytes(layout.head.make(sums))


class GrowingFile(Protocol):
    """A new file whose size is not known before its end."""

    def reserve(self, size: int) -> None:
        """Take this much space in all."""
        ...

    def write(self, data: Bytes, offset: int) -> None:
        """Write an aligned block; from any thread."""
        ...

    def finish(self, size: int) -> None:
        """Cut it to its size and make it durable."""
        ...

    def discard(self) -> None:
        """Forget it."""
        ...


def write_growing(
    begin: Callable[[], Growing],
    room: int,
    pieces: Iterable[tuple[Source, int, int]],
    head: Callable[[], bytes],
    most: int,
    in_order: bool = False,
) -> Growing | None:
    """Write pieces of sources one after the other, as they come, and then the head before them.

    `room` bytes are kept for the head, which is asked for when all pieces have been given; `most`
    is what the file takes at most. When this returns the content is durable, and the file has no
    name yet. Without any piece no file is begun. With `in_order` nothing is written before all
    pieces have been given: then the head goes first.
    """
    if in_order:
        return _write_in_order(begin, [*pieces], head)
    rest = iter(pieces)
    first = next(rest, None)
    if first is None:
        return None
    file = begin()
    try:
        size, reserved = room, 0
        with Ring(file.write) as ring:
            ring.seek(room)
            for source, start, stop in chain([first], rest):
                size += stop - start
                if size > reserved:
                    reserved = min(most, 2 * size + _AHEAD)
                    ring.settle()  # a file system may do it by writing to the file
                    _reserve(file, size, reserved)
                ring.put(source, start, stop)
            ring.seek(0)
            ring.put_bytes(head())
        file.finish(size)
    except BaseException:
        file.discard()
        raise
    return file


@runtime_checkable
class AppendedFile(Protocol):
    """A new file that takes bytes as they lie in memory."""

    def append(self, data: Bytes) -> None:
        """Write the next bytes, of any length; they stay as they are until the file is placed."""
        ...


def _bytes_of(source: Source, start: int, stop: int) -> Bytes:
    """The bytes of a source where they lie, or a copy of them."""
    data = source.contiguous()
    if data is not None:
        return data[start:stop]
    copied = np.empty(stop - start, np.uint8)
    source.copy_to(copied, start)
    return copied


def _write_in_order(
    begin: Callable[[], Growing],
    pieces: Sequence[tuple[Source, int, int]],
    head: Callable[[], bytes],
) -> Growing | None:
    if not pieces:
        return None
    file, first = begin(), head()
    append = file.append if isinstance(file, AppendedFile) else None
    try:
        size = len(first) + sum(stop - start for _, start, stop in pieces)
        file.reserve(size)
        if append is not None:
            append(np.frombuffer(first, np.uint8))
            for source, start, stop in pieces:
                append(_bytes_of(source, start, stop))
        else:
            with Ring(file.write) as ring:
                ring.put_bytes(first)
                for source, start, stop in pieces:
                    ring.put(source, start, stop)
        file.finish(size)
    except BaseException:
        file.discard()
        raise
    return file


def write_layout(
    file: GrowingFile, layout: Layout, sources: Sequence[Source], beside: Sequence[Source] = ()
) -> bytes:
    """Write all of a file that has no name yet; when this returns its content is durable.

    Returns the digests of all chunks of the sources, and then of those `beside`, which are hashed
    and not written.
    """
    with Threads(worker_count(spare=1)) as hashers:
        sums = _Sums([*sources, *beside], hashers, digested=True)
        try:
            file.reserve(layout.size)
            with Ring(file.write) as ring:
                _fill(ring, layout, sources, sums)
            digests = sums.digests()
            file.finish(layout.size)
        except BaseException:
            hashers.shutdown(cancel=True)
            file.discard()
            raise
    return digests


def _reserve(file: GrowingFile, needed: int, wanted: int) -> None:
    """Take the space that is wanted, or that which is needed, if there is no more."""
    try:
        file.reserve(wanted)
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT):
            raise
        file.reserve(needed)


def write_stream(stream: BinaryIO, layout: Layout, sources: Sequence[Source]) -> None:
    """Write a file's bytes to a stream; digests take a pass over the tensors of their own."""
    with Threads(worker_count()) as hashers:
        sums = _Sums(sources, hashers, layout.digested)
    scratch = np.empty(PIECE, np.uint8)
    if layout.head:
        _write_all(stream, memoryview(layout.head.make(sums)))
    for piece in layout.body:
        if isinstance(piece, bytes):
            _write_all(stream, memoryview(piece))
        elif not isinstance(piece, int):
            _write_all(stream, memoryview(piece.make(sums)))
        else:
            source = sources[piece]
            crc = layout.crcs[piece] if layout.crcs else 0
            for start in range(0, source.spec.nbytes, PIECE):
                part = scratch[: source.spec.nbytes - start]
                source.copy_to(part, start)
                crc = crc32(part.data, crc) if layout.crcs else 0
                _write_all(stream, part.data)
            sums.crcs[piece] = crc


def _write_all(stream: BinaryIO, data: memoryview) -> None:
    try:
        while data:
            written = stream.write(data)
            if written is None and not isinstance(stream, io.RawIOBase):
                written = len(data)  # some that are not from `io` return nothing
            if not written or not 0 < written <= len(data):  # a raw stream may take a part
                raise BlockingIOError(errno.EAGAIN, "it does not block, and takes no more")
            data = data[written:]
    except (OSError, ValueError, TypeError) as error:  # closed, or a stream of text
        number, reason = getattr(error, "errno", None), getattr(error, "strerror", None)
        raise WriteFailed(
            number or errno.EINVAL, f"cannot write to the stream: {reason or error}"
        ) from error
