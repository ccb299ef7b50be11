"""Streams as they come: some give few bytes at a time, and none can go back."""

from __future__ import annotations

import io
from typing import BinaryIO, cast


class Trickle:
    """A stream that gives at most `most` bytes at a time, and can do nothing but read."""

    def __init__(self, data: bytes, most: int) -> None:
        self._rest = io.BytesIO(data)
        self._most = most
        self.largest = 0
        """The most that was asked for at once."""

    def read(self, size: int = -1) -> bytes:
        assert size >= 0, "whoever asks for everything reads too far"
        self.largest = max(self.largest, size)
        return self._rest.read(min(size, self._most))


def trickle(data: bytes, most: int = 5) -> BinaryIO:
    """These bytes, few at a time."""
    return cast(BinaryIO, Trickle(data, most))
