"""A store in an object store: the layout that a folder has, below the path of a URL.

There are no folders: one is there when an object is below it. There are no links. What is written
is durable when the server has said so.
"""

from __future__ import annotations

import errno
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Final

from blake3 import blake3

from standfast.errors import AlreadyExists, FileError, MissingFile, WriteFailed
from standfast.files.input.ranges import SourceRanges
from standfast.store.backends.backend import UNTRUSTED, Entry, Version, checked
from standfast.store.backends.local import user_cache
from standfast.store.remote.cache import Cache
from standfast.store.remote.client import Client, Meta
from standfast.store.remote.locks import LEASE, Lease, Locks
from standfast.store.remote.new_file import RemoteFile
from standfast.store.remote.versions import versions_of

_LATE: Final = 600.0
"""So many seconds after a request failed, no server carries it out any more."""


class RemoteBackend:
    """The objects of a store below a URL; nothing is asked of its server yet."""

    in_order = True
    links = False
    width = 16

    def __init__(self, url: str, *, cache: Cache | None = None, lease: float = LEASE) -> None:
        """With `cache`, what is read of data files is kept on this machine."""
        self._client = Client(url)
        self._cache = cache
        self._locks = Locks(self._client, lease)
        self._versions = versions_of(self._client)
        self._doubts: dict[str, float] = {}
        """When a write into a folder failed last, of which nobody knows whether it did."""
        self._files: set[str] = set()
        """Folders above which there is no file, which only others could have put there since."""

    @property
    def url(self) -> str:
        """The URL, in which nothing is secret."""
        return self._client.url

    @property
    def cache(self) -> Path | None:
        """The user's own folder for what is known of this store."""
        return user_cache(self.url)

    def path(self, name: str) -> None:
        """It lies nowhere on this machine."""
        checked(name)

    def exists(self, name: str) -> bool:
        """Whether there is a file, or a folder with something in it, of this name."""
        if name and self._client.head(checked(name)) is not None:
            return True
        return self._has_folder(name)

    def _has_folder(self, folder: str) -> bool:
        objects, folders = self._client.list(_folder(folder), deep=False)
        return any(_is_seen(key) for key in (*(key for key, _ in objects), *folders))

    def size(self, name: str) -> int | None:
        """A file's size; None if there is no such file."""
        found = self._client.head(checked(name))
        return None if found is None else found.size

    def read(self, name: str, limit: int | None = None) -> bytes:
        """A small file, or the first `limit` bytes of it."""
        if limit == 0 and self._client.head(checked(name)) is None:
            raise MissingFile(errno.ENOENT, f"there is no file {self.url}/{name}")
        return bytes(self._client.get(checked(name), 0, limit))

    def open(self, name: str) -> SourceRanges:
        """A file to be read in parts, as long as it is there and the same."""
        meta = self._client.head(checked(name))
        if meta is None:
            raise MissingFile(errno.ENOENT, f"there is no file {self.url}/{name}")
        tag, cache = meta.tag, self._cache

        def fetch(start: int, length: int) -> memoryview:
            return self._client.get(name, start, length, tag)

        def fetch_once(start: int, length: int) -> memoryview:
            assert cache is not None
            key = f"{self.url}/{name} {tag} {start} {length}"
            kept = cache.get(key)
            if kept is not None:
                return memoryview(kept.data)
            data = fetch(start, length)
            cache.put(key, data)
            return data

        path = f"{self.url}/{name}"
        return SourceRanges(path, meta.size, fetch if cache is None else fetch_once)

    def list(self, folder: str, suffix: str = "") -> list[Entry]:
        """The files in a folder whose names end so."""
        objects, _ = self._client.list(_folder(folder), deep=False)
        return [
            Entry(_last(key), _stamp(key, meta))
            for key, meta in objects
            if key.endswith(suffix) and _is_seen(key)
        ]

    def sizes(self, folder: str) -> dict[str, int]:
        """The sizes of the files in a folder, by name."""
        objects, _ = self._client.list(_folder(folder), deep=False)
        return {_last(key): meta.size for key, meta in objects if _is_seen(key)}

    def folders(self, folder: str) -> dict[str, Version]:
        """The folders in a folder, each with its version."""
        place = _folder(folder)
        versions = self._versions.below(place)
        _, folders = self._client.list(place, deep=False)
        names = [_last(key) for key in folders if _is_seen(key)]
        # What nobody has announced was copied here by another program, or emptied: some servers
        # list that for a while.
        return {name: versions.get(name, (UNTRUSTED, 0)) for name in names}

    def version(self, folder: str) -> Version | None:
        """What those who changed the folder have announced."""
        found = self._versions.of(_folder(folder))
        objects, folders = self._client.list(folder, deep=False)
        return found if objects or folders else None

    def new(self, name: str) -> RemoteFile:
        """Begin a file, which is uploaded while it is written."""
        folder = checked(name).rpartition("/")[0]
        self._client.check_conditions()
        return RemoteFile(
            self._client,
            name,
            lambda: self._check_above(folder),
            lambda: self._versions.change(folder),
        )

    def create(self, name: str, data: bytes) -> None:
        """Write a small file, by a put that the server refuses if there is one."""
        with self._changing([name]):
            if self._is_folder(name):
                raise AlreadyExists(
                    errno.EEXIST, f"{self.url}/{name} exists already, and must not be replaced"
                )
            try:
                self._client.put(name, data, create=True)
            except AlreadyExists:
                raise
            except BaseException:
                self._doubts[name.rpartition("/")[0]] = time.monotonic()
                raise

    def replace(self, name: str, data: bytes) -> None:
        """Write a small file in the place of the old one, if there is one, at once."""
        with self._changing([name]):
            if self._is_folder(name):
                raise WriteFailed(errno.EISDIR, f"cannot write {self.url}/{name}: it is a folder")
            self._client.put(name, data)

    def delete(self, names: Iterable[str]) -> None:
        """Delete files; those that are gone already are no error."""
        names = [checked(name) for name in names]
        if names:
            self._client.check_conditions()
            with ExitStack() as stack:
                for folder in sorted({name.rpartition("/")[0] for name in names}):
                    stack.enter_context(self._versions.change(folder, new=False))
                self._client.delete(names)

    def delete_folder(self, folder: str) -> None:
        """Forget a folder if nothing is in it; one that is not empty stays."""
        objects, folders = self._client.list(checked(folder), deep=False)
        if not objects and not folders:
            self._client.check_conditions()
            self._versions.drop(folder)

    def sync(self, folder: str) -> None:
        """Do nothing: what the server has taken is durable."""
        _folder(folder)

    def link(self, source: str, target: str, over: bool = False) -> bool:
        """Say no: there are no links."""
        checked(target)
        if self._client.head(checked(source)) is None:
            raise MissingFile(
                errno.ENOENT,
                f"cannot link {source} to {target}: there is no file {self.url}/{source}",
            )
        return False

    def lock(self, name: str, wait: float = 0.0, *, passing: bool = False) -> Lease | None:
        """Take the lock of this name; None if somebody has it for `wait` seconds more."""
        if not passing:  # that is how a reader marks what it reads: it excludes no other process
            self._client.check_conditions()
        return self._locks.take(checked(name), wait, passing=passing)

    def locked(self, prefix: str) -> Sequence[str]:
        """The names of the locks that somebody holds now, of those that begin so."""
        return self._locks.locked(prefix)

    def holder(self, name: str) -> str | None:
        """The process and the machine that took the lock last and did not release it."""
        return self._locks.holder(checked(name))

    def free(self) -> None:
        """Nobody knows."""

    def sweep(self, folder: str) -> int:
        """Delete nothing: what was not placed has no name."""
        _folder(folder)
        return 0

    def in_doubt(self, folder: str) -> bool:
        """Whether a file may appear there that could not be created a moment ago."""
        since = self._doubts.get(_folder(folder))
        return since is not None and time.monotonic() - since < _LATE

    def tidy(self) -> None:
        """Delete old announcements, locks and probes."""
        with suppress(FileError):  # it is none of the user's concern
            self._versions.tidy(self._locks.now())
            self._locks.tidy()

    def close(self) -> None:
        """Tell others at once of what was changed, which is done in a moment anyway."""
        self._versions.flush()

    @contextmanager
    def _changing(self, names: Sequence[str]) -> Iterator[None]:
        folder = checked(names[0]).rpartition("/")[0]
        self._client.check_conditions()
        self._check_above(folder)
        with self._versions.change(folder):
            yield

    def _check_above(self, folder: str) -> None:
        """Raise WriteFailed if one of the folders of a name is a file."""
        parts = folder.split("/") if folder else []
        for count in range(1, len(parts) + 1):
            above = "/".join(parts[:count])
            if above not in self._files:
                if self._client.head(above) is not None:
                    raise WriteFailed(
                        errno.ENOTDIR, f"cannot write {self.url}/{folder}/…: {above} is a file"
                    )
                self._files.add(above)

    def _is_folder(self, name: str) -> bool:
        """Whether a folder has this name: no folder of a store has one with a suffix."""
        return "." not in _last(name) and self._has_folder(name)


def _folder(folder: str) -> str:
    return checked(folder) if folder else ""


def _last(key: str) -> str:
    return key.rpartition("/")[2]


def _is_seen(key: str) -> bool:
    return not _last(key).startswith(".")


def _stamp(key: str, meta: Meta) -> int:
    text = f"{key} {meta.tag} {meta.time}"
    return int.from_bytes(blake3(text.encode()).digest(7))
