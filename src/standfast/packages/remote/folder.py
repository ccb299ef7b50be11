"""Folders and files in an object store, which stand where a Path stands.

A folder is read as it was listed: each of its objects by the tag that it had then, so that what
has replaced it since is noticed and not mixed with the rest. Of a package that was saved here, the
files are those of its last save, which a pointer in the place of the manifest names."""

from __future__ import annotations

import errno
import json
import os
import re
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, NamedTuple

from standfast.errors import BadField, ChangedFile, FileError, MissingFile
from standfast.files.input.file import SourceFile
from standfast.files.input.ranges import SourceRanges
from standfast.formats.metadata import from_json
from standfast.packages.documents.names import MANIFEST

if TYPE_CHECKING:
    from pathlib import Path

    from standfast.store.remote.client import Client, Meta

SAVES: Final = ".standfast/saves"
"""Below the URL of a package, where each save has its folder."""
FORMAT: Final = "standfast package 1, in a folder"
_BEGINNING: Final = f'{{"format": "{FORMAT}"'.encode()
_FOLDER: Final = re.compile(r"[0-9a-f]{16}")


@dataclass(frozen=True)
class Pointer:
    """The manifest of a package at a URL: it names the folder with the files of the last save.

    An object store cannot exchange two folders. So each save writes into a folder of its own, a
    whole package with its own manifest, and then this one object replaces the one before.
    """

    folder: str
    """The folder of the save, below SAVES."""
    replaced: tuple[str, ...] = ()
    """Files beside it, of a package that was copied here before: they are to be deleted."""

    def text(self) -> bytes:
        """The content of the object."""
        said = {"format": FORMAT, "folder": self.folder, "replaced": list(self.replaced)}
        return json.dumps(said).encode() + b"\n"


def is_pointer(beginning: bytes) -> bool:
    """Whether a manifest that begins so is a pointer."""
    return beginning.startswith(_BEGINNING)


def read_pointer(text: bytes, where: str) -> Pointer:
    """What a pointer says; raises a DamagedFile for one that is not sound."""
    said = from_json(text, where)
    folder, replaced = said.get("folder"), said.get("replaced")
    if not isinstance(folder, str) or not _FOLDER.fullmatch(folder):
        raise BadField(f"{where}: folder is {folder!r:.80}: expected 16 hexadecimal digits")
    if not isinstance(replaced, Iterable):
        raise BadField(f"{where}: replaced should be a list of names")
    return Pointer(folder, tuple(name for name in replaced if isinstance(name, str)))


_HEAD: Final = 64 << 10
"""So many bytes of each object, in which most headers end, are fetched at once, and once."""
_PART: Final = 16 << 20
"""Bytes of the parts in which larger ones are uploaded."""


class RemotePath(os.PathLike[str]):
    """A place in an object store, by its URL."""

    def __init__(self, url: str) -> None:
        self._url = url.rstrip("/")

    @property
    def name(self) -> str:
        """The last part of it."""
        return self._url.rpartition("/")[2]

    def __truediv__(self, name: str) -> RemotePath:
        return RemotePath(f"{self._url}/{name}")

    def __fspath__(self) -> str:
        return self._url

    def __str__(self) -> str:
        return self._url

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._url!r})"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, RemotePath) and str(other) == self._url

    def __hash__(self) -> int:
        return hash(self._url)


class RemoteFolder(RemotePath):
    """What lies directly below a URL, as it was when it was listed."""

    def __init__(self, client: Client, key: str = "", follows: bool = True) -> None:
        """With `follows`, of a package the files of its last save, wherever they are."""
        super().__init__(f"{client.url.rstrip('/')}/{key}")
        self._client = client
        self._key = key
        self._follows = follows
        self._place: str | None = None
        """Where the files are that are read; None until the manifest was read."""
        self._listed: tuple[dict[str, Meta], list[str]] | None = None
        self._heads: dict[str, memoryview] = {}
        self.met_a_change = False
        """Whether an object was another one, or none, when it was read."""

    def __truediv__(self, name: str) -> RemoteFile:
        return RemoteFile(self, name)

    def folder(self, name: str) -> RemoteFolder:
        """One of the folders in it."""
        return RemoteFolder(self._client, self._key_of(name))

    def as_it_lies(self) -> RemoteFolder:
        """The same folder, with its own files alone."""
        return RemoteFolder(self._client, self._key, follows=False)

    def below(self, folder: str) -> list[str]:
        """The names of all objects in one of the folders in it, as they are now."""
        above = self._key_of("")
        return [key.removeprefix(above) for key, _ in self._client.list(self._key_of(folder))[0]]

    def look_again(self) -> None:
        """List it anew, and forget what was read of it."""
        self._listed = None
        self._heads = {}
        self.met_a_change = False
        self._listed = self._list()

    def is_as_listed(self) -> bool:
        """Whether the same objects are there still."""
        return self._listed is not None and self._listed[0] == self._list()[0]

    @property
    def files(self) -> dict[str, Meta]:
        """The objects in it, by their names."""
        return self._both()[0]

    @property
    def folders(self) -> list[str]:
        """The names of the folders in it."""
        return self._both()[1]

    def found(self, name: str) -> Meta | None:
        """An object as it was listed, or, if nobody asked for a list, as it is now."""
        if self._listed is not None:
            return self._listed[0].get(name)
        if self._place is None:
            with suppress(MissingFile):
                self._follow(None)
        return self._client.head(self._place_of(name))

    def source(self, name: str) -> SourceRanges:
        """An object, to be read as far as is asked for."""
        meta = self.found(name)
        path = str(self / name)
        if meta is None:
            raise MissingFile(errno.ENOENT, f"there is no file {path}")

        def fetch(start: int, length: int) -> memoryview:
            if start + length > _HEAD:
                return self._get(name, start, length, meta.tag)
            if name not in self._heads:
                self._heads[name] = self._get(name, 0, min(_HEAD, meta.size), meta.tag)
            return self._heads[name][start : start + length]

        return SourceRanges(path, meta.size, fetch)

    def check_conditions(self) -> None:
        """Raise UnsupportedStore if the server does not honour the conditions of `put`."""
        self._client.check_conditions()

    def put(self, name: str, data: bytes, *, create: bool = False, match: str | None = None) -> str:
        """Write a small object, and return its tag; raises AlreadyExists as the client does."""
        return self._client.put(self._key_of(name), data, create=create, match=match)

    def upload(self, name: str, path: Path) -> None:
        """Write a file of this machine as an object, which is there whole or not at all."""
        file = SourceFile(path)
        try:
            if file.size <= _PART:
                self.put(name, file.read(0, file.size))
                return
            starts = range(0, file.size, _PART)
            blocks = (file.read(at, min(_PART, file.size - at)) for at in starts)
            self._client.upload(self._key_of(name), blocks, _PART)
        finally:
            file.close()

    def delete(self, names: Iterable[str]) -> None:
        """Delete objects; those that are gone already are no error."""
        self._client.delete([self._key_of(name) for name in names])

    def tag(self, name: str) -> str | None:
        """The tag of an object as it is now; None if there is none."""
        meta = self._client.head(self._key_of(name))
        return meta and meta.tag

    def _key_of(self, name: str) -> str:
        return f"{self._key}/{name}" if self._key else name

    def _place_of(self, name: str) -> str:
        return f"{self._place}/{name}" if self._place else self._key_of(name)

    def pointer(self, tag: str | None = None) -> Pointer | None:
        """What its manifest says, of this tag if one is given; None if it is a package's own.

        Raises MissingFile, ChangedFile, or a DamagedFile for one that is not sound.
        """
        key = self._key_of(MANIFEST)
        text = self._client.get(key, 0, _HEAD, tag)
        if not is_pointer(bytes(text)):
            if tag is not None:
                self._heads[MANIFEST] = text
            return None
        if len(text) == _HEAD:
            text = self._client.get(key, tag=tag)
        return read_pointer(bytes(text), str(self / MANIFEST))

    def _follow(self, tag: str | None) -> None:
        """Find out where the files are, by its manifest."""
        self._place = self._key
        if self._follows and (pointer := self.pointer(tag)) is not None:
            self._place = self._key_of(f"{SAVES}/{pointer.folder}")

    def _both(self) -> tuple[dict[str, Meta], list[str]]:
        if self._listed is None:
            self._listed = self._list()
        return self._listed

    def _list(self) -> tuple[dict[str, Meta], list[str]]:
        objects, folders = self._client.list(self._key, deep=False)
        found = {key.rpartition("/")[2]: meta for key, meta in objects}
        self._place = self._key
        if MANIFEST in found:
            try:
                self._follow(found[MANIFEST].tag)
            except (ChangedFile, MissingFile):
                self.met_a_change = True
                raise
            if self._place != self._key:
                objects, _ = self._client.list(self._place, deep=False)
        files = {key.rpartition("/")[2]: meta for key, meta in objects}
        below = [folder.rstrip("/").rpartition("/")[2] for folder in folders]
        # No key of these could be told from a step out of the folder.
        odd = ("", ".", "..", ".standfast")  # the last has what tests the server
        return (
            {name: meta for name, meta in files.items() if name not in odd},
            [name for name in below if name not in odd],
        )

    def _get(self, name: str, start: int, length: int, tag: str) -> memoryview:
        try:
            return self._client.get(self._place_of(name), start, length, tag)
        except (ChangedFile, MissingFile):
            self.met_a_change = True
            raise


class RemoteFile(RemotePath):
    """An object in a folder."""

    def __init__(self, folder: RemoteFolder, name: str) -> None:
        super().__init__(f"{folder}/{name}")
        self.folder: Final = folder

    def with_name(self, name: str) -> RemoteFile:
        """The file of another name beside it."""
        return RemoteFile(self.folder, name)

    def with_suffix(self, suffix: str) -> RemoteFile:
        """The file beside it that differs in the suffix."""
        stem, dot, _ = self.name.rpartition(".")
        return self.with_name((stem if dot else self.name) + suffix)

    def exists(self) -> bool:
        """Whether there is such an object."""
        return self.folder.found(self.name) is not None

    def open(self) -> SourceRanges:
        """The object, to be read as far as is asked for."""
        return self.folder.source(self.name)


class Status(NamedTuple):
    """What a list says of an object, as `os.stat` would."""

    st_size: int
    st_mtime: float


class RemoteEntry:
    """What lies in a folder of an object store; it stands where an `os.DirEntry` stands."""

    def __init__(self, path: RemotePath, meta: Meta | None) -> None:
        self.name = path.name
        self.path = path
        self._meta = meta

    def is_dir(self) -> bool:
        """Whether it is a folder."""
        return self._meta is None

    def is_file(self) -> bool:
        """Whether it is an object."""
        return self._meta is not None

    def is_symlink(self) -> bool:
        """There are no links."""
        return False

    def stat(self) -> Status:
        """Its size, and when it was written."""
        return Status(self._meta.size, self._meta.time) if self._meta else Status(0, 0.0)


def remote_entries(folder: RemoteFolder) -> dict[str, RemoteEntry]:
    """What lies in a folder, by its name; raises MissingFile if nothing does."""
    found = {name: RemoteEntry(RemotePath(f"{folder}/{name}"), None) for name in folder.folders}
    found |= {name: RemoteEntry(folder / name, meta) for name, meta in folder.files.items()}
    if not found:
        raise MissingFile(errno.ENOENT, f"there is no folder {folder}")
    return found


def forget(folder: RemoteFolder, names: Iterable[str]) -> None:
    """Delete what was uploaded in vain, as far as that can be."""
    with suppress(FileError):
        folder.delete(names)
