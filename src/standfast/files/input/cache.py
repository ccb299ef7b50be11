"""The files of a cache: each proves itself when it is read, and none is ever needed.

A file is the data and its digest, keyed with what the data should be, so that a file under
another's name is as good as a damaged one. It appears whole, by a rename; it is not synced, as
after a power cut the digest tells. What is kept may be private: only its owner may look.
"""

from __future__ import annotations

import mmap
import os
import stat
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Final, NamedTuple

import numpy as np
from blake3 import blake3

from standfast.files.digests import DIGEST
from standfast.files.disk import LOCAL
from standfast.files.mapping import as_bytes, on_network, populate
from standfast.tensors.sources import Bytes

OVERHEAD: Final = DIGEST
"""How many bytes a file has beside its data."""
_SMALL: Final = 1 << 20
"""Below this a file is read: a process may have some 65,000 mappings, and no more."""
_ASIDE: Final = ".new"
_LEFT: Final = 3600.0
"""A file that is still aside after so many seconds was left by a process that is gone."""
_FLAGS: Final = os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK


class CachedFile(NamedTuple):
    """A file of a cache, as a scan finds it."""

    path: Path
    size: int
    used: int
    """When it was last written or read, in nanoseconds."""


def read(path: Path, key: bytes) -> Bytes | None:
    """The data, read-only; None if it is damaged. Raises OSError if there is no such file."""
    fd = os.open(path, _FLAGS)
    try:
        status = os.fstat(fd)
        if not stat.S_ISREG(status.st_mode) or status.st_size < DIGEST:
            return None
        content = _content(fd, status.st_size)
        with suppress(OSError):  # a cache that may be read and not written
            now = time.time_ns()
            os.utime(fd, ns=(now, now))
    finally:
        os.close(fd)
    data = content[:-DIGEST]
    return data if _digest(data, key) == content[-DIGEST:].tobytes() else None


def write(path: Path, key: bytes, data: Bytes) -> None:
    """Put a file in place, at once; raises OSError if that cannot be, and leaves nothing then."""
    _make_folder(path.parent)
    aside = path.with_name(f".{path.name}.{os.urandom(4).hex()}{_ASIDE}")
    fd = LOCAL.create(aside, direct=False)
    try:
        LOCAL.set_mode(fd, 0o600)
        LOCAL.reserve(fd, data.size + DIGEST)
        LOCAL.write(fd, data, 0)
        LOCAL.write(fd, np.frombuffer(_digest(data, key), np.uint8), data.size)
        LOCAL.rename(aside, path)
    except BaseException:
        with suppress(OSError):
            LOCAL.remove(aside)
        raise
    finally:
        LOCAL.close(fd)


def remove(path: Path) -> bool:
    """Delete a file; whether it is gone."""
    try:
        LOCAL.remove(path)
    except OSError:
        return False
    return True


def scan(folder: Path) -> Iterator[CachedFile]:
    """The files of a cache, those that are being written among them.

    What was left aside is deleted. Files that are none of the cache's are let be.
    """
    for below in _entries(folder):
        if len(below.name) == 2 and below.is_dir(follow_symlinks=False):
            for entry in _entries(below.path):
                aside = entry.name.startswith(f".{below.name}") and entry.name.endswith(_ASIDE)
                if not aside and not entry.name.startswith(below.name):
                    continue
                with suppress(FileNotFoundError):  # another process was faster
                    status = entry.stat(follow_symlinks=False)
                    if aside and abs(time.time() - status.st_mtime) > _LEFT:
                        remove(Path(entry.path))
                    elif stat.S_ISREG(status.st_mode):
                        yield CachedFile(Path(entry.path), status.st_size, status.st_mtime_ns)


def _content(fd: int, size: int) -> Bytes:
    """All of a file, mapped where that is safe."""
    if size >= _SMALL and not on_network(fd):
        with suppress(OSError, ValueError):  # too many mappings; the file was cut this moment
            mapped = as_bytes(mmap.mmap(fd, size, access=mmap.ACCESS_READ))
            if populate(mapped) == 0:  # else to touch it might end the process
                return mapped
    content = np.empty(size, np.uint8)
    at = 0
    while at < size:
        count = os.preadv(fd, [content[at:].data], at)
        if not count:
            break
        at += count
    content = content[:at]
    content.flags.writeable = False
    return content


def _digest(data: Bytes, key: bytes) -> bytes:
    return blake3(data.data, key=key).digest()


def _make_folder(folder: Path) -> None:
    if not folder.is_dir():
        _make_folder(folder.parent)
        with suppress(FileExistsError):
            os.mkdir(folder, 0o700)


def _entries(folder: str | Path) -> Iterator[os.DirEntry[str]]:
    try:
        with os.scandir(folder) as entries:
            yield from entries
    except (FileNotFoundError, NotADirectoryError):
        return
