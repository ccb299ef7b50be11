"""A cache on this machine of what was read from an object store, up to a limit.

It may be shared by threads and by processes, and be deleted at any time. Nothing that goes wrong
with it is an error: what cannot be read is fetched again, what cannot be written is not kept.
"""

from __future__ import annotations

import os
import threading
from contextlib import suppress
from pathlib import Path
from typing import Final

import numpy as np
from blake3 import blake3

from standfast.errors import BadOption
from standfast.files.input import cache
from standfast.tensors.sources import Bytes

_STEP: Final = 8
"""A process that has put this fraction of the limit looks what the others have put."""
_FULL: Final = 0.9
"""How full a cache is after the oldest files were deleted, so that this is not done every time."""


class Cache:
    """Ranges of objects in a folder, of which the ones used least recently go first.

    The limit is on all that lies in the folder, whoever put it there. Processes that write at the
    same time may exceed it by an eighth each, until one of them looks.
    """

    def __init__(self, folder: Path, limit: int) -> None:
        if limit < 0:
            raise BadOption(f"a cache cannot have {limit:,} bytes")
        self._folder = folder
        self._limit = limit
        self._room = 0
        """How many bytes may be put before the next scan; none before the first one."""
        self._process = os.getpid()
        self._guard = threading.Lock()

    def get(self, key: str) -> Bytes | None:
        """What was put under this key, as it was put, read-only; None if it is not there.

        A key names all that the bytes depend on: the store, the object and its version, the range.
        """
        name = _name(key)
        path = self._path(name)
        try:
            data = cache.read(path, name)
        except OSError:
            return None
        if data is None:
            cache.remove(path)
        return data

    def put(self, key: str, data: bytes | bytearray | memoryview | Bytes) -> None:
        """Keep some bytes, if there is a place for them."""
        content = np.frombuffer(data, np.uint8)
        size = content.size + cache.OVERHEAD
        if size > self._limit:
            return
        name = _name(key)
        path = self._path(name)
        with suppress(OSError):
            # A file that is there was put by another process just now.
            if not path.exists() and self._make_room(size):
                cache.write(path, name, content)

    def _path(self, name: bytes) -> Path:
        return self._folder / name.hex()[:2] / name.hex()

    def _make_room(self, size: int) -> bool:
        """Whether so many bytes may be put now."""
        if self._process != os.getpid():  # a forked child: nobody would release the lock
            self._process, self._guard, self._room = os.getpid(), threading.Lock(), 0
        with self._guard:
            if size > self._room:
                left = self._limit - self._shrink(size)
                if left < size:
                    return False
                self._room = max(size, min(left, self._limit // _STEP))
            self._room -= size
        return True

    def _shrink(self, size: int) -> int:
        """Delete the oldest files if `size` bytes more are too many; returns how many are left."""
        files = list(cache.scan(self._folder))
        total = sum(file.size for file in files)
        if total + size > self._limit:
            goal = min(int(self._limit * _FULL), self._limit - size)
            for file in sorted(files, key=lambda file: file.used):
                if total <= goal:
                    break
                if cache.remove(file.path):
                    total -= file.size
        return total


def _name(key: str) -> bytes:
    return blake3(key.encode("utf-8", "surrogatepass")).digest()
