"""Bytes in memory, standing where a file open for reading stands."""

from __future__ import annotations

import errno

import numpy as np

from standfast.errors import ChangedFile, UnreadableFile
from standfast.tensors.sources import Bytes


class SourceMemory:
    """A file that lies in memory and never changes."""

    fd = -1

    def __init__(self, path: str, data: bytes) -> None:
        self.path = path
        self.size = len(data)
        self.memory: Bytes = np.frombuffer(data, np.uint8)

    def read(self, start: int, length: int) -> bytes:
        """Exactly these bytes."""
        if start + length > self.size:
            raise ChangedFile(f"{self.path}: it has {self.size:,} bytes, no more")
        return self.memory[start : start + length].tobytes()

    def read_into(self, out: Bytes, start: int) -> None:
        """Fill `out` with the bytes that begin at `start`."""
        np.copyto(out, self.memory[start : start + out.size])

    def check_unchanged(self) -> None:
        """It cannot change."""

    def unreadable(self) -> UnreadableFile:
        """Memory can always be read."""
        return UnreadableFile(errno.EIO, f"{self.path}: a part of it cannot be read")

    def close(self) -> None:
        """Let go of nothing: it lives as long as it is used."""
