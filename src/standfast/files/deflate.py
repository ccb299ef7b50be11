"""Tensors that lie in a file compressed: inflated as a whole, or piece by piece."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any, Final, cast

import numpy as np
from isal import isal_zlib

from standfast.errors import BadArchive, DigestMismatch, SizeMismatch
from standfast.files.layout import Deflated
from standfast.tensors import TensorSpec
from standfast.tensors.sources import PIECE, Bytes

_Broken = cast(type[Exception], isal_zlib.error)
_KEPT: Final = 16
"""Bytes of the widest element."""
_RAW: Final = -15
"""zip entries have neither zlib's header nor its checksum."""
_TAIL: Final = 16


def pieces(data: Bytes, form: Deflated) -> Iterator[bytes]:
    """The inflated entry in pieces of up to 1 MiB.

    It must have just the size and the CRC-32 that the file says; never more memory is taken.
    """
    inflater = isal_zlib.decompressobj(_RAW)
    fed, size, crc = 0, 0, 0
    try:
        while not inflater.eof:
            waiting = inflater.unconsumed_tail
            if not waiting:
                # The last bytes go in one by one: of a few that follow the end, when they went in
                # together with it, the inflater would not tell.
                step = max(1, min(PIECE, data.size - fed - _TAIL))
                waiting = data[fed : fed + step].tobytes()
                fed += len(waiting)
            piece = inflater.decompress(waiting, PIECE)
            if not piece and not waiting:
                break
            size += len(piece)
            crc = isal_zlib.crc32(piece, crc)
            if size > form.size:
                break
            if piece:
                yield piece
    except _Broken as error:
        raise BadArchive(f"tensor {form.name!r:.200}: it cannot be inflated ({error})") from error
    if not inflater.eof or size != form.size or fed < data.size or inflater.unused_data:
        raise SizeMismatch(
            f"tensor {form.name!r:.200}: it inflates to other than the {form.size:,} bytes that "
            "it should"
        )
    if crc != form.crc:
        raise DigestMismatch(
            f"tensor {form.name!r:.200}: it inflates to bytes with the CRC-32 {crc:08x}, "
            f"not {form.crc:08x}: it is damaged",
            (form.name,),
        )


def inflate(data: Bytes, form: Deflated) -> Bytes:
    """The inflated tensor."""
    # Memory is touched as the bytes arrive: a lie about the size costs none.
    out = np.empty(form.size, np.uint8)
    at = 0
    for piece in pieces(data, form):
        out[at : at + len(piece)] = np.frombuffer(piece, np.uint8)
        at += len(piece)
    return out[form.skip :]


def inflated_start(data: bytes, length: int) -> bytes:
    """The first bytes of a compressed entry, up to `length`, from the first of those it takes."""
    try:
        return isal_zlib.decompressobj(_RAW).decompress(data, length)
    except _Broken as error:
        raise BadArchive(f"a compressed entry cannot be inflated ({error})") from error


class InflatingSource:
    """A compressed tensor as a source: each thread inflates it for itself, front to back."""

    sequential = True

    def __init__(self, data: Bytes, form: Deflated, spec: TensorSpec) -> None:
        self.spec = spec
        self._data = data
        self._form = form
        self._threads = threading.local()

    def contiguous(self) -> Bytes | None:
        """They lie nowhere."""
        return None

    def copy_to(self, out: Bytes, start: int) -> None:
        """Fill `out`; quick where `start` is where this thread's last copy ended."""
        cursor: _Cursor | None = getattr(self._threads, "cursor", None)
        if cursor is None or not cursor.at - len(cursor.last) <= start <= cursor.at:
            cursor = self._threads.cursor = _Cursor(pieces(self._data, self._form))
            cursor.copy_to(None, self._form.skip + start)
            cursor.at, cursor.last = start, b""
        # Who casts comes back for the element that the last piece had only a part of.
        again = min(cursor.at - start, out.size)
        if again:
            first = len(cursor.last) - (cursor.at - start)
            out.data[:again] = cursor.last[first : first + again]
        cursor.copy_to(out.data[again:], out.size - again)
        if cursor.at == self.spec.nbytes:
            cursor.finish()


class _Cursor:
    """A place in a row of pieces."""

    def __init__(self, pieces: Iterator[bytes]) -> None:
        self._pieces = pieces
        self._rest = memoryview(b"")
        self.at = 0
        self.last = b""
        """The last few bytes that were taken."""

    def copy_to(self, out: Any, length: int) -> None:
        """Take the next `length` bytes, into `out` if there is one."""
        filled = 0
        while filled < length:
            if not self._rest:
                self._rest = memoryview(next(self._pieces))
            part = self._rest[: length - filled]
            if out is not None:
                out[filled : filled + len(part)] = part
            self._rest = self._rest[len(part) :]
            filled += len(part)
        self.at += length
        if out is not None and length:
            self.last = (self.last + bytes(out[-_KEPT:]))[-_KEPT:]

    def finish(self) -> None:
        """Go to the end, where size and CRC are checked."""
        for _ in self._pieces:
            pass
