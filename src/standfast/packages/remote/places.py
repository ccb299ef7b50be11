"""Where packages and their files lie: on this machine, or in an object store."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final, Protocol, TypeAlias, TypeVar
from urllib.parse import unquote, urlsplit

from standfast.errors import (
    BadOption,
    ChangedFile,
    FileError,
    MissingFile,
    StandfastError,
    UnreadableFile,
)
from standfast.files.atomic import as_write_failed
from standfast.files.folder_swap.open_folder import holding_folder
from standfast.files.input.file import SourceFile
from standfast.files.input.ranges import SourceRanges
from standfast.files.paths import check_local
from standfast.packages.remote.folder import RemoteFile, RemoteFolder, RemotePath, remote_entries

Folder: TypeAlias = Path | RemoteFolder
File: TypeAlias = Path | RemoteFile


class _Status(Protocol):
    @property
    def st_size(self) -> int: ...

    @property
    def st_mtime(self) -> float: ...


class Entry(Protocol):
    """What lies in a folder: the part of an `os.DirEntry` that packages need."""

    @property
    def name(self) -> str:
        """How it is called."""
        ...

    @property
    def path(self) -> str | os.PathLike[str]:
        """Where it lies."""
        ...

    def is_dir(self) -> bool:
        """Whether it is a folder, or a link to one."""
        ...

    def is_file(self) -> bool:
        """Whether it is a file, or a link to one."""
        ...

    def is_symlink(self) -> bool:
        """Whether it is a link."""
        ...

    def stat(self) -> _Status:
        """Its size, and when it was written."""
        ...


Entries: TypeAlias = Mapping[str, Entry]
"""What lies in a folder, by its name."""


def is_url(given: str | os.PathLike[str]) -> bool:
    """Whether it is the URL of something in an object store."""
    text = _text(given)
    return "://" in text and not is_local_url(text)


def is_local_url(given: str | os.PathLike[str]) -> bool:
    """Whether it is the URL of something on this machine."""
    return _text(given).startswith("file://")


def folder_at(given: str | os.PathLike[str]) -> Folder:
    """The folder that a caller means by a path or a URL; nothing is looked at yet."""
    text = _text(given)
    if not is_url(text):
        return _path(text)
    from standfast.store.remote.client import Client

    return RemoteFolder(Client(text.rstrip("/")))


def file_at(given: str | os.PathLike[str]) -> File:
    """The file that a caller means by a path or a URL; nothing is looked at yet."""
    if isinstance(given, RemoteFile):
        return given
    text = _text(given)
    if not is_url(text):
        return _path(text)
    above, _, name = _checked(text).rpartition("/")
    if not name or above.endswith("/"):
        raise BadOption(f"{text} is the URL of no file: give one such as s3://bucket/models/name")
    from standfast.store.remote.client import Client

    return RemoteFolder(Client(above)) / name


def either_at(given: str | os.PathLike[str]) -> tuple[Folder | None, File]:
    """The folder of this name, None if there is none, and the file that is meant then."""
    folder = folder_at(given)
    is_there = folder.is_dir() if isinstance(folder, Path) else bool(folder.files)
    return (folder if is_there else None), file_at(given)


def file_in(given: str | os.PathLike[str], name: str) -> File:
    """The file of this name, if a package is given, and else the file that is given.

    At a URL, what ends in `.json` is a file.
    """
    if is_url(given):
        text = _text(given).rstrip("/")
        return file_at(text if text.endswith(".json") else f"{text}/{name}")
    path = _path(_text(given))
    return path / name if path.is_dir() else path


def opened(path: str | os.PathLike[str]) -> SourceFile | SourceRanges:
    """A file of either kind, open for reading."""
    source = as_tensors(path)
    return source if isinstance(source, SourceRanges) else SourceFile(source)


def as_tensors(path: str | os.PathLike[str]) -> str | os.PathLike[str] | SourceRanges:
    """A file of either kind, as a TensorFile takes it."""
    if not isinstance(path, str | os.PathLike):
        return path  # whoever opens it refuses it
    file = file_at(path)
    if isinstance(file, RemoteFile):
        return file.open()
    return file if is_local_url(path) else path


def exists(path: File) -> bool:
    """Whether there is a file of this name, or a link to one."""
    return os.path.exists(path) if isinstance(path, Path) else path.exists()


def entries_of(folder: Folder) -> dict[str, Entry]:
    """What lies in a folder, by its name; raises MissingFile or UnreadableFile."""
    if isinstance(folder, RemoteFolder):
        return dict(remote_entries(folder))
    try:
        with os.scandir(folder) as listed:
            return {entry.name: entry for entry in listed}
    except FileNotFoundError as error:
        raise MissingFile(error.errno, f"there is no folder {folder}") from error
    except (OSError, ValueError) as error:
        number = getattr(error, "errno", None) or errno.EINVAL
        reason = getattr(error, "strerror", None) or error
        raise UnreadableFile(number, f"cannot list {folder}: {reason}") from error


def check_are_here(*given: str | os.PathLike[str] | None) -> None:
    """Raise BadOption for a URL, where only a path of this machine will do."""
    for each in given:
        if each is not None and is_url(each):
            raise BadOption(
                f"{_checked(_text(each))}: archives are packed and unpacked on this machine: copy "
                "what is there to a folder, or the result to it"
            )
        if each is not None:
            check_local(each)


@contextmanager
def written_here(path: str | os.PathLike[str]) -> Iterator[Path]:
    """Give the path of a file to write; one at a URL is written aside, and uploaded at the end."""
    file = file_at(path)
    if isinstance(file, Path):
        yield file
        return
    with folder_aside() as aside:
        yield aside / file.name
        file.folder.upload(file.name, aside / file.name)


@contextmanager
def folder_aside() -> Iterator[Path]:
    """A folder on this machine for what is on its way to an object store; it goes at the end."""
    with as_write_failed("what is to be uploaded"):
        aside = TemporaryDirectory(prefix="standfast-", ignore_cleanup_errors=True)
    with aside as path:
        yield Path(path)


def shown_path(place: Folder) -> Path | RemotePath:
    """A folder as it is handed out: without what is remembered of it."""
    return place if isinstance(place, Path) else RemotePath(str(place))


def _text(given: str | os.PathLike[str]) -> str:
    """A path or a URL as text; raises BadOption for a URL that became a Path and is none now."""
    text = os.fsdecode(given)
    if "://" not in text:
        check_local(text)
    return text


def _checked(url: str) -> str:
    """A URL as it is, for a message too; raises BadOption for one that may have a secret in it."""
    from standfast.store.remote.connection import checked_url

    checked_url(url)
    return url


def _path(text: str) -> Path:
    return Path(unquote(urlsplit(text).path) if is_local_url(text) else text)


_TRIES: Final = 5

Result = TypeVar("Result")


def while_unchanged(home: Folder, action: Callable[[], Result]) -> Result:
    """Do it, and do it again if the folder was exchanged for another one meanwhile.

    Raises ChangedFile if that goes on and on. What the action raises counts only if the folder is
    still the one that it looked at.
    """
    if isinstance(home, RemoteFolder):
        return _while_as_listed(home, action)
    for _ in range(_TRIES):
        with ExitStack() as stack:
            try:
                is_there = stack.enter_context(holding_folder(home))
            except FileError:  # no folder, or none that can be read
                return action()
            try:
                result = action()
            except StandfastError:
                if is_there():
                    raise
                continue
            if is_there():
                return result
    raise _restless(home)


def _while_as_listed(home: RemoteFolder, action: Callable[[], Result]) -> Result:
    """The same at a URL: what is read there is read as it was listed, or not at all."""
    for _ in range(_TRIES):
        try:
            home.look_again()
        except FileError:  # which the action will tell of
            return action()
        try:
            result = action()
        except StandfastError:
            if not home.met_a_change and home.is_as_listed():
                raise
            continue
        if not home.met_a_change:
            return result
    raise _restless(home)


def _restless(home: Folder) -> ChangedFile:
    return ChangedFile(f"{home} is replaced all the time while it is read: try again later")
