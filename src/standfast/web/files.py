"""The files below one folder, and nothing else: what is in a folder, a file, a package.

A path is taken apart before the disk is asked, followed to where it really leads, and walked
again from the root without following any link: whatever others put in its place meanwhile, what
is opened lies below the root.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from itertools import islice
from pathlib import Path
from typing import Any, Final

from standfast.cli.commands.show.file import file_json
from standfast.cli.commands.show.package import package_json
from standfast.display.output import message_of, plain
from standfast.display.trees import is_tree
from standfast.errors import (
    BadOption,
    DamagedFile,
    MissingFile,
    RefusedPickle,
    StandfastError,
    UnknownFormat,
    UnreadableFile,
    UnsupportedFile,
    printable,
    shortened,
)
from standfast.files.input.file import SourceFile
from standfast.formats import format_of_file
from standfast.packages.documents.names import is_package
from standfast.tensorfile.open import TensorFile

_LONGEST: Final = 4096
_MOST: Final = 200
"""Entries on a page."""
_NAMES: Final = 4096
"""So many names in a folder tell whether it is a package."""
_PATH: Final = getattr(os, "O_PATH", os.O_RDONLY | os.O_NONBLOCK)
"""Opens what is there without reading it, or waiting for a pipe."""
_TOLD: Final = (DamagedFile, RefusedPickle, UnknownFormat, UnsupportedFile, UnreadableFile)
"""What is wrong with a file, as something to be shown."""


class OutsideRoot(StandfastError):
    """A path that leads out of the folder that is shown, or to what is not shown of it."""


def resolve(root: Path, path: str) -> Path:
    """Where a path below the root really leads.

    Raises OutsideRoot for a path that no listing gives, MissingFile if nothing is there.
    """
    with _walked(root, path) as (real, _):
        return real


@contextmanager
def opened(root: Path, path: str) -> Iterator[TensorFile]:
    """A file below the root, open; of a torch file only the tensors, and no code is run."""
    with _walked(root, path) as (real, fd), _open_file(real, fd) as file:
        yield file


def look(root: Path, path: str, page: int = 1, per_page: int = 50) -> dict[str, Any]:
    """What is in a folder, a page of it, or in a file or package: as `standfast show --json`.

    A damaged file is no error here: it is told of with its `error`.
    """
    if page < 1 or not 1 <= per_page <= _MOST:
        raise BadOption(f"page={page}, per_page={per_page}: from 1, and 1 to {_MOST} of each")
    with _walked(root, path) as (real, fd):
        if stat.S_ISREG(os.fstat(fd).st_mode):
            return _look_at_file(path, real, fd)
        home = os.path.realpath(root)
        if path and _kind(fd) == "package":
            return _look_at_package(home, path, real, fd)
        return {"path": path, **_look_at_folder(home, real, fd, page, per_page)}


# Paths


def _parts(path: str) -> list[str]:
    """The names in a path, which is relative and normal, and hides nothing."""
    if not path:
        return []
    parts = path.split("/")
    try:
        length = len(os.fsencode(path))
    except UnicodeEncodeError:
        raise OutsideRoot("no file has such a name") from None
    if length > _LONGEST or "\0" in path:
        raise OutsideRoot(f"{_text(path)}: no file has such a name")
    if any(not part or part.startswith(".") for part in parts):
        raise OutsideRoot(
            f"{_text(path)}: a path begins at the folder that is shown, has no . or .. in it, and "
            "leads to nothing hidden"
        )
    return parts


@contextmanager
def _walked(root: Path, path: str) -> Iterator[tuple[Path, int]]:
    """The real path of a file or folder, and what is open of it without being read."""
    parts = _parts(path)
    home = os.path.realpath(root)
    try:
        real = os.path.realpath(os.path.join(home, *parts), strict=True)
        fd = _walk(home, _below(home, real, path))
    except OSError as error:
        if error.errno in (errno.ENOENT, errno.ENOTDIR, errno.ENAMETOOLONG):
            raise MissingFile(error.errno, f"there is no file {_text(path)}") from error
        if error.errno in (errno.ELOOP, errno.EINVAL):  # EINVAL: a link this moment, and no more
            raise OutsideRoot(f"{_text(path)}: a link in a circle, or one that changes") from error
        raise UnreadableFile(error.errno, f"cannot open {_text(path)}: {error.strerror}") from error
    try:
        mode = os.fstat(fd).st_mode
        if stat.S_ISLNK(mode):  # put there this moment
            raise OutsideRoot(f"{_text(path)}: it became a link while it was looked at")
        if not stat.S_ISREG(mode) and not stat.S_ISDIR(mode):
            raise OutsideRoot(f"{_text(path)} is neither a file nor a folder")
        yield Path(real), fd
    finally:
        os.close(fd)


def _below(home: str, real: str, path: str) -> list[str]:
    """The names that lead from the root to a real path; raises OutsideRoot if none do."""
    if real == home:
        return []
    inside = real.removeprefix(home.rstrip("/") + "/")
    parts = inside.split("/")
    if inside == real or any(part.startswith(".") for part in parts):
        raise OutsideRoot(f"{_text(path)}: a link that leads out of the folder that is shown")
    return parts


def _walk(home: str, parts: list[str]) -> int:
    """Open what is at the end of a real path, step by step; a link on the way is refused."""
    fd = os.open(home, _PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    for number, part in enumerate(parts):
        last = number == len(parts) - 1
        try:
            flags = _PATH | os.O_NOFOLLOW | os.O_CLOEXEC | (0 if last else os.O_DIRECTORY)
            following = os.open(part, flags, dir_fd=fd)
        finally:
            os.close(fd)
        fd = following
    return fd


@contextmanager
def _open_file(real: Path, fd: int) -> Iterator[TensorFile]:
    """The file that was walked to, opened by its path; raises OutsideRoot if that is another."""
    with TensorFile(real, tensors_only=True) as file:
        found = file._file
        assert isinstance(found, SourceFile)
        if not os.path.samestat(os.fstat(found.fd), os.fstat(fd)):
            raise OutsideRoot("another file took its place while it was opened: try again")
        yield file


# Folders


def _look_at_folder(home: str, real: Path, fd: int, page: int, per_page: int) -> dict[str, Any]:
    """A page of what is in a folder: its folders, then its files, by name."""
    listed = os.open(".", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC, dir_fd=fd)
    left_out = 0
    found: list[tuple[bool, str]] = []
    try:
        with os.scandir(listed) as entries:
            for entry in entries:
                is_folder = _is_folder(home, real, entry)
                if is_folder is None:
                    left_out += 1
                else:
                    found.append((not is_folder, entry.name))
        found.sort()
        shown = found[(page - 1) * per_page : page * per_page]
        folders = [_folder(home, real, name) for is_file, name in shown if not is_file]
        files = [_file(home, real, name) for is_file, name in shown if is_file]
    finally:
        os.close(listed)
    return {
        "folders": folders,
        "files": files,
        "left_out": left_out,
        "total": len(found),
        "page": page,
        "pages": max(1, -(-len(found) // per_page)),
        "per_page": per_page,
    }


def _is_folder(home: str, real: Path, entry: os.DirEntry[str]) -> bool | None:
    """Whether it is a folder rather than a file; None for what is not shown.

    These are hidden ones, links that lead out, pipes and devices, and names that are no text.
    """
    name = entry.name
    try:
        name.encode()
        if name.startswith("."):
            return None
        if entry.is_symlink():
            target = os.path.realpath(real / name, strict=True)
            _below(home, target, name)
            mode = os.stat(target, follow_symlinks=False).st_mode
            return stat.S_ISDIR(mode) if stat.S_ISDIR(mode) or stat.S_ISREG(mode) else None
        if entry.is_dir(follow_symlinks=False):
            return True
        return False if entry.is_file(follow_symlinks=False) else None
    except (OSError, UnicodeEncodeError, OutsideRoot):
        return None


@contextmanager
def _entry(home: str, real: Path, name: str) -> Iterator[int]:
    """What a name in a folder leads to, open without being read."""
    target = os.path.realpath(real / name, strict=True)
    fd = _walk(home, _below(home, target, name))
    try:
        yield fd
    finally:
        os.close(fd)


def _folder(home: str, real: Path, name: str) -> dict[str, Any]:
    try:
        with _entry(home, real, name) as fd:
            return {"name": name, "kind": _kind(fd)}
    except (OSError, OutsideRoot):  # deleted or exchanged this moment
        return {"name": name, "kind": "folder"}


def _kind(fd: int) -> str:
    """What a folder is, by the names of what is in it."""
    try:
        listed = os.open(".", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC, dir_fd=fd)
    except OSError:
        return "folder"
    try:
        with os.scandir(listed) as entries:
            names = [entry.name for entry in islice(entries, _NAMES)]
        if is_package(names):
            return "package"
        models = os.stat("checkpoints/models", dir_fd=listed) if "checkpoints" in names else None
        return "store" if models and stat.S_ISDIR(models.st_mode) else "folder"
    except OSError:
        return "folder"
    finally:
        os.close(listed)


def _file(home: str, real: Path, name: str) -> dict[str, Any]:
    try:
        with _entry(home, real, name) as fd:
            return {"name": name, **_facts(name, fd)}
    except (OSError, OutsideRoot):  # deleted or exchanged this moment
        return {"name": name, "bytes": None, "time": None, "format": None}


def _facts(name: str, fd: int) -> dict[str, Any]:
    """The size, the time and the format of a file, of which only the head is read."""
    status = os.fstat(fd)
    return {
        "bytes": status.st_size,
        "time": _time(status.st_mtime),
        "format": _format(name, fd, status.st_size),
    }


def _format(name: str, fd: int, size: int) -> str | None:
    head = b""
    try:
        # The file that was walked to, whatever its name leads to by now.
        reading = os.open(f"/proc/self/fd/{fd}", os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        try:
            head = os.pread(reading, 1024, 0)
        finally:
            os.close(reading)
    except OSError:
        pass  # by its suffix then
    try:
        return format_of_file(name, head, size).NAME
    except UnknownFormat:
        return None


def _time(seconds: float) -> str | None:
    try:
        return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="seconds")
    except (ValueError, OverflowError, OSError):  # a time that no calendar has
        return None


# What is in a file or a package


def _look_at_file(path: str, real: Path, fd: int) -> dict[str, Any]:
    try:
        with _open_file(real, fd) as file:
            status = os.fstat(fd)
            found = {**file_json(real, file), "path": path, "bytes": status.st_size}
            found["time"] = _time(status.st_mtime)
            if is_tree(file):
                found["tree"] = _tree(file)
    except FileNotFoundError as error:
        raise MissingFile(errno.ENOENT, f"{_text(path)} was deleted this moment") from error
    except _TOLD as error:
        return {"path": path, **_facts(real.name, fd), "error": _error(error, real, path)}
    return _as_json(found)


def _tree(file: TensorFile) -> dict[str, Any]:
    from standfast.web.mesh import tree_json

    try:
        return tree_json(file)
    except (DamagedFile, BadOption) as error:
        return {"problems": [message_of(error)]}


def _look_at_package(home: str, path: str, real: Path, fd: int) -> dict[str, Any]:
    try:
        _check_links(home, fd, real)
        found = package_json(real)
        _check_links(home, fd, real)
    except (*_TOLD, MissingFile) as error:
        return {
            "path": path,
            "name": real.name,
            "kind": "package",
            "error": _error(error, real, path),
        }
    found["problem"] = found["problem"] and found["problem"].replace(str(real), path)
    return _as_json({**found, "kind": "package", "path": path})


def _check_links(home: str, fd: int, real: Path) -> None:
    """Raise OutsideRoot if a package is no longer where it was, or anything in it leads out."""
    if not os.path.samestat(os.fstat(fd), os.stat(real, follow_symlinks=False)):
        raise OutsideRoot("another folder took its place while it was looked at: try again")
    listed = os.open(".", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC, dir_fd=fd)
    try:
        with os.scandir(listed) as entries:
            links = [entry.name for entry in entries if entry.is_symlink()]
    finally:
        os.close(listed)
    for name in links:
        _below(home, os.path.realpath(real / name), name)


def _as_json(found: dict[str, Any]) -> dict[str, Any]:
    shown: dict[str, Any] = plain(found)
    return shown


def _error(error: StandfastError, real: Path, path: str) -> dict[str, str]:
    """An error as data, without where the root lies."""
    message = message_of(error).replace(str(real), path)
    return {"kind": type(error).__name__, "message": message}


def _text(path: str) -> str:
    return printable(shortened(path))
