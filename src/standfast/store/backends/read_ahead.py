"""Small files of a backend, read before they are asked for where many are best read at a time."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TypeVar

from standfast.errors import FileError
from standfast.files.threads import Threads
from standfast.store.backends.backend import Backend, Entry

Key = TypeVar("Key")
Found = TypeVar("Found")


class ReadingAhead:
    """Lists and first bytes that were read of a backend; what was not is read when it is."""

    def __init__(self, backend: Backend) -> None:
        self._backend = backend
        self._lists: dict[tuple[str, str], Sequence[Entry] | FileError] = {}
        self._files: dict[str, tuple[int, bytes] | FileError] = {}

    def read(self, name: str, limit: int | None = None) -> bytes:
        """A small file, or the first `limit` bytes of it."""
        found = self._files.pop(name, None)
        if isinstance(found, FileError):
            raise found
        if found is None:
            return self._backend.read(name, limit)
        length, data = found
        if len(data) == length and (limit is None or limit > length):
            return self._backend.read(name, limit)  # there may be more of it
        return data if limit is None else data[:limit]

    def list(self, folder: str, suffix: str = "") -> Sequence[Entry]:
        """The files in a folder whose names end so."""
        found = self._lists.pop((folder, suffix), None)
        if isinstance(found, FileError):
            raise found
        return self._backend.list(folder, suffix) if found is None else found

    def list_all(self, folders: Iterable[str], suffix: str) -> None:
        """List these folders, if that is best done at a time."""
        found = self._all(folders, lambda folder: self._backend.list(folder, suffix))
        self._lists |= {(folder, suffix): each for folder, each in found.items()}

    def read_all(self, names: Iterable[str], length: int) -> None:
        """Read so many bytes of these files, if that is best done at a time."""
        self._files |= self._all(names, lambda name: (length, self._backend.read(name, length)))

    def _all(
        self, keys: Iterable[Key], get: Callable[[Key], Found]
    ) -> dict[Key, Found | FileError]:
        def tried(key: Key) -> Found | FileError:
            try:
                return get(key)
            except FileError as error:
                return error

        keys = list(keys)
        if self._backend.width == 1 or len(keys) < 2:
            return {}
        with Threads(self._backend.width) as pool:
            return dict(zip(keys, pool.map(tried, keys), strict=True))
