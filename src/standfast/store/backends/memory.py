"""A store in memory: for tests, and as the shortest backend that passes the suite."""

from __future__ import annotations

import errno
import itertools
import threading
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, Self

from standfast.errors import AlreadyExists, MissingFile, WriteFailed
from standfast.files.input.memory import SourceMemory
from standfast.store.backends.backend import Entry, Version, checked
from standfast.tensors.sources import Bytes

_numbers = itertools.count(1)
"""Each has a name of its own: two that are called the same are one store."""


class _Object(NamedTuple):
    inode: int
    data: bytes


@dataclass
class _Folder:
    version: int
    files: dict[str, _Object] = field(default_factory=dict)
    folders: dict[str, _Folder] = field(default_factory=dict)


class MemoryBackend:
    """Objects in a tree of dicts, gone with the process."""

    cache = None
    in_order = False
    links = True
    width = 1

    def __init__(self) -> None:
        self.url = f"memory:{next(_numbers)}"
        self._root = _Folder(0)
        self._count = itertools.count(1)
        self._changing = threading.RLock()
        self._locks: dict[str, MemoryLock] = {}
        self._released = threading.Condition()

    def path(self, name: str) -> None:
        """It lies nowhere."""
        checked(name)

    def exists(self, name: str) -> bool:
        """Whether there is a file, or a folder with something in it, of this name."""
        with self._changing:
            folder = self._folder(name)
            if folder is not None:
                return any(map(_is_seen, (*folder.files, *folder.folders)))
            return self._get(name) is not None

    def size(self, name: str) -> int | None:
        """A file's size; None if there is no such file."""
        found = self._get(name)
        return None if found is None else len(found.data)

    def read(self, name: str, limit: int | None = None) -> bytes:
        """A file, or the first `limit` bytes of it."""
        return self._existing(name).data[:limit]

    def open(self, name: str) -> SourceMemory:
        """A file to be read in parts."""
        return SourceMemory(name, self._existing(name).data)

    def list(self, folder: str, suffix: str = "") -> list[Entry]:
        """The files in a folder whose names end so."""
        with self._changing:
            files = found.files if (found := self._folder(folder)) else {}
            return [
                Entry(name, file.inode)
                for name, file in files.items()
                if name.endswith(suffix) and _is_seen(name)
            ]

    def sizes(self, folder: str) -> dict[str, int]:
        """The sizes of the files in a folder, by name."""
        with self._changing:
            files = found.files if (found := self._folder(folder)) else {}
            return {name: len(file.data) for name, file in files.items() if _is_seen(name)}

    def folders(self, folder: str) -> dict[str, Version]:
        """The folders in a folder, each with its version."""
        with self._changing:
            folders = found.folders if (found := self._folder(folder)) else {}
            return {name: (each.version,) for name, each in folders.items() if _is_seen(name)}

    def version(self, folder: str) -> Version | None:
        """The number of the last change of a name in the folder."""
        found = self._folder(folder)
        return None if found is None else (found.version,)

    def new(self, name: str) -> MemoryFile:
        """Begin a file."""
        return MemoryFile(self, checked(name))

    def create(self, name: str, data: bytes) -> None:
        """Keep a file, if there is nothing of this name."""
        with self._changing:
            if self._get(name) is not None or self._folder(name) is not None:
                raise AlreadyExists(
                    errno.EEXIST, f"{name} exists already, and must not be replaced"
                )
            self._put(name, _Object(next(self._count), bytes(data)))

    def replace(self, name: str, data: bytes) -> None:
        """Keep a file in the place of the old one."""
        with self._changing:
            self._put(name, _Object(next(self._count), bytes(data)))

    def delete(self, names: Iterable[str]) -> None:
        """Forget files, and folders with the last file in them."""
        for each in names:
            with self._changing:
                self._remove(each)

    def delete_folder(self, folder: str) -> None:
        """Do nothing: there is no empty folder."""
        checked(folder)

    def sync(self, folder: str) -> None:
        """Do nothing: nothing here is more durable than it is."""
        self._folder(folder)

    def link(self, source: str, target: str, over: bool = False) -> bool:
        """Let a file go by a second name."""
        with self._changing:
            found = self._existing(source)
            if over or not self.exists(target):
                self._put(target, found)
            return self._get(target) is found

    def locked(self, prefix: str) -> Sequence[str]:
        """The names of the locks that somebody holds now, of those that begin so."""
        with self._released:
            return [name for name in self._locks if name.startswith(prefix)]

    def lock(self, name: str, wait: float = 0.0, *, passing: bool = False) -> MemoryLock | None:
        """Take the lock of this name; None if somebody has it for `wait` seconds more."""
        checked(name)
        deadline = time.monotonic() + wait
        with self._released:
            while name in self._locks:
                left = deadline - time.monotonic()
                if left <= 0:
                    return None
                self._released.wait(min(left, threading.TIMEOUT_MAX))
            self._locks[name] = MemoryLock(name, self._locks, self._released)
            return self._locks[name]

    def holder(self, name: str) -> str | None:
        """This process, if anybody."""
        return "this process" if checked(name) in self._locks else None

    def free(self) -> None:
        """Nobody knows."""

    def sweep(self, folder: str) -> int:
        """Delete nothing: what was not placed is gone with its object."""
        self._folder(folder)
        return 0

    def in_doubt(self, folder: str) -> bool:
        """Never: what failed is over."""
        return False

    def tidy(self) -> None:
        """Do nothing: there is nothing of its own."""

    def close(self) -> None:
        """Do nothing: all is done by the calls."""

    def _folder(self, path: str) -> _Folder | None:
        found: _Folder | None = self._root
        for part in checked(path).split("/") if path else ():
            found = found.folders.get(part) if found else None
        return found

    def _get(self, path: str) -> _Object | None:
        above, _, name = checked(path).rpartition("/")
        folder = self._folder(above)
        return None if folder is None else folder.files.get(name)

    def _existing(self, name: str) -> _Object:
        found = self._get(name)
        if found is None:
            raise MissingFile(errno.ENOENT, f"there is no file {name} in memory")
        return found

    def _put(self, path: str, file: _Object) -> None:
        folder = self._root
        *above, name = checked(path).split("/")
        for part in above:
            if part in folder.files:
                raise WriteFailed(errno.ENOTDIR, f"cannot write {path}: {part} is a file")
            if part not in folder.folders:
                folder.version = next(self._count)
                folder.folders[part] = _Folder(0)
            folder = folder.folders[part]
        if name in folder.folders:
            raise WriteFailed(errno.EISDIR, f"cannot write {path}: it is a folder")
        folder.files[name] = file
        folder.version = next(self._count)

    def _remove(self, path: str) -> None:
        *above, name = checked(path).split("/")
        chain = [self._root]
        for part in above:
            if part not in chain[-1].folders:
                return
            chain.append(chain[-1].folders[part])
        if chain[-1].files.pop(name, None) is None:
            return
        chain[-1].version = next(self._count)
        for part in reversed(above):
            folder = chain.pop()
            if folder.files or folder.folders:
                return
            del chain[-1].folders[part]
            chain[-1].version = next(self._count)


def _is_seen(name: str) -> bool:
    return not name.startswith(".")


class MemoryFile:
    """A file on its way into a MemoryBackend."""

    def __init__(self, backend: MemoryBackend, name: str) -> None:
        self._backend = backend
        self._name = name
        self._data = bytearray()
        self._writing = threading.Lock()

    def reserve(self, size: int) -> None:
        """Do nothing: memory is there or it is not."""

    def write(self, data: Bytes, offset: int) -> None:
        """Write a block; from any thread."""
        end = offset + data.size
        with self._writing:
            self._data.extend(bytes(max(0, end - len(self._data))))
            self._data[offset:end] = data.tobytes()

    def finish(self, size: int) -> None:
        """Cut the file to its size."""
        del self._data[size:]
        self._data.extend(bytes(size - len(self._data)))

    def place(self) -> None:
        """Give the file its name."""
        self._backend.create(self._name, bytes(self._data))
        self.discard()

    def discard(self) -> None:
        """Forget the bytes."""
        self._data = bytearray()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.discard()


class MemoryLock:
    """A lock of a MemoryBackend, held."""

    def __init__(
        self, name: str, held: dict[str, MemoryLock], released: threading.Condition
    ) -> None:
        self._name = name
        self._held = held
        self._released = released

    def is_held(self) -> bool:
        """Whether it was not released."""
        return self._held.get(self._name) is self

    def release(self) -> None:
        """Let others have it. May be called several times."""
        with self._released:
            if self.is_held():
                del self._held[self._name]
                self._released.notify_all()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.release()
