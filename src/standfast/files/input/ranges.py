"""A file elsewhere of which stretches can be fetched, standing where an open file stands."""

from __future__ import annotations

import errno
import threading
from collections.abc import Callable, Sequence
from typing import Final

import numpy as np

from standfast.errors import ChangedFile, UnreadableFile
from standfast.tensors.sources import Bytes

Fetch = Callable[[int, int], memoryview | bytes]
"""The bytes from a start, so many of them; fewer where the file ends."""
_MOST: Final = 16 << 20
"""More is fetched piece by piece."""
_WINDOW: Final = 64 << 10
"""Small reads are served from one of this size: headers are read field by field."""


class SourceRanges:
    """A file that is read by ranges and never mapped; `fetch` raises if it is another by now."""

    fd = -1
    memory = None
    """The content, where it lies in memory already."""

    def __init__(self, path: str, size: int, fetch: Fetch) -> None:
        self.path = path
        self.size = size
        self._fetch = fetch
        self._window = threading.local()

    def read(self, start: int, length: int) -> bytes:
        """Exactly these bytes."""
        at, window = getattr(self._window, "held", (0, b""))
        if at <= start and start + length <= at + len(window):
            return bytes(window[start - at : start - at + length])
        wanted = min(max(length, _WINDOW), max(length, self.size - start))
        data = self._fetched(start, wanted, length)
        if length < _WINDOW:
            self._window.held = start, bytes(data)
        return bytes(data[:length])

    def read_into(self, out: Bytes, start: int) -> None:
        """Fill `out` with the bytes that begin at `start`."""
        self.read_together([(start, out)])

    def read_together(self, wanted: Sequence[tuple[int, Bytes]]) -> None:
        """Fill buffers with what begins at these places, one after the other and close together.

        What lies between them is fetched too.
        """
        last, final = wanted[-1]
        end = last + final.size
        for at in range(wanted[0][0], end, _MOST):
            length = min(_MOST, end - at)
            data = np.frombuffer(self._fetched(at, length, length), np.uint8)
            for start, out in wanted:
                first, stop = max(start, at), min(start + out.size, at + length)
                if first < stop:
                    np.copyto(out[first - start : stop - start], data[first - at : stop - at])

    def _fetched(self, start: int, length: int, least: int) -> memoryview:
        data = memoryview(self._fetch(start, length)).cast("B")
        if not least <= len(data) <= length:
            raise ChangedFile(
                f"{self.path}: it had {self.size:,} bytes when it was opened and now ends at "
                f"{start + len(data):,}"
            )
        return data

    def check_unchanged(self) -> None:
        """Whoever fetches from another file than was opened is told so then."""

    def unreadable(self) -> UnreadableFile:
        """Why a part of it could not be brought into memory."""
        return UnreadableFile(errno.EIO, f"{self.path}: a part of it cannot be read")

    def close(self) -> None:
        """Let go of nothing but the last window."""
        self._window = threading.local()
