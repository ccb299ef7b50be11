"""A stream read once, forwards, into memory: no further than it is asked for."""

from __future__ import annotations

import errno
from typing import BinaryIO, Final

import numpy as np

from standfast.errors import ClosedFile, TruncatedFile, UnreadableFile
from standfast.tensors.sources import Bytes

_PIECE: Final = 16 << 20
"""Memory grows by what has arrived, never by what a header claims will."""


class SourceStream:
    """What has been read of a stream; it stands where a SourceFile stands."""

    path = "the stream"
    fd = -1

    def __init__(self, stream: BinaryIO) -> None:
        self._stream = stream
        self._data = bytearray()
        self._closed = False

    @property
    def size(self) -> int:
        """How many bytes have been read."""
        return len(self._data)

    @property
    def memory(self) -> Bytes:
        """All that has been read."""
        return np.frombuffer(self._data, np.uint8)

    def read(self, start: int, length: int) -> bytes:
        """Exactly these bytes, after reading as far as they reach."""
        self.read_up_to(start + length)
        return bytes(memoryview(self._data)[start : start + length])

    def read_up_to(self, end: int) -> None:
        """Read until there are `end` bytes; raises TruncatedFile if there are not so many."""
        while len(self._data) < end:
            if not (piece := read_some(self._stream, min(_PIECE, end - len(self._data)))):
                hint = "" if self._data else "; was it rewound, by seek(0), after it was written?"
                raise TruncatedFile(
                    f"it ended after {len(self._data):,} bytes, {end:,} were expected{hint}"
                )
            self._data += piece

    def read_to_its_end(self) -> None:
        """Read all there is."""
        while piece := read_some(self._stream, _PIECE):
            self._data += piece

    def read_into(self, out: Bytes, start: int) -> None:
        """Fill `out` with the bytes that begin at `start`."""
        np.copyto(out, self.memory[start : start + out.size])

    def check_unchanged(self) -> None:
        """Raise ClosedFile if it was closed; nothing else can change it."""
        if self._closed:
            raise ClosedFile("the stream was closed")

    def unreadable(self) -> UnreadableFile:
        """Memory can always be read."""
        return UnreadableFile(errno.EIO, f"{self.path}: a part of it cannot be read")

    def close(self) -> None:
        """Forget the stream, which stays open."""
        self._closed = True


def read_some(stream: BinaryIO, most: int) -> bytes:
    """What a stream gives now, up to `most` bytes; none at its end."""
    try:
        piece = stream.read(most)
    except (OSError, ValueError) as error:
        number = getattr(error, "errno", None) or errno.EIO
        raise UnreadableFile(number, f"cannot read from the stream: {error}") from error
    if piece is None:
        raise UnreadableFile(errno.EAGAIN, "the stream does not block, and has nothing now")
    if not isinstance(piece, bytes | bytearray | memoryview):
        raise UnreadableFile(errno.EINVAL, "the stream gives text: open it in binary mode")
    return bytes(piece)
