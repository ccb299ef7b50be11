"""A file appears whole and durable, or not at all.

    create aside → … the caller writes … → sync → rename → sync the folder

The file that stood at the path stays as it was until the rename, and a reader that has it open
or mapped keeps it after that. In a folder that is itself temporary (see `files/folder_swap`),
which no one reads yet and whose creator syncs it, a file has its final name from the beginning.
"""

from __future__ import annotations

import errno
import os
import re
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

from blake3 import blake3

from standfast.errors import FileError, MissingFile, WriteFailed
from standfast.files.disk import Disk
from standfast.files.paths import check_local

SUFFIX: Final = ".standfast"
NEW_FOLDER: Final = f".new{SUFFIX}"
"""How the name of a folder ends that is aside, and being written."""
_PREFIX: Final = r"\.[0-9a-f]{16}\.[0-9a-f]{8}"
_ASIDE: Final = re.compile(_PREFIX + re.escape(SUFFIX))
_ASIDE_FOLDER: Final = re.compile(_PREFIX + re.escape(NEW_FOLDER))


@contextmanager
def replacing(path: str | os.PathLike[str], disk: Disk) -> Iterator[tuple[Path, int]]:
    """Give a new file to write to, by its path and open; on leaving, put it in place, durably.

    If the body raises, the new file is removed and `path` is untouched.
    """
    with as_write_failed(path):
        target = real_target(path)
        mode = _mode_to_keep(target)
        # Looking for leftovers for each of a thousand files would take a million looks.
        is_new = mode is None and _ASIDE_FOLDER.fullmatch(target.parent.name)
        with _creating(target, disk) if is_new else _replacing(target, mode, disk) as new:
            yield new


@contextmanager
def as_write_failed(path: str | os.PathLike[str]) -> Iterator[None]:
    """Let an error of the system be one of ours, that says what could not be written."""
    try:
        yield
    except OSError as error:
        if isinstance(error, FileError):
            raise
        hint = "; free some space and save again" if error.errno == errno.ENOSPC else ""
        raise WriteFailed(
            error.errno, f"cannot write {os.fspath(path)}: {error.strerror or error}{hint}"
        ) from error


def real_target(path: str | os.PathLike[str]) -> Path:
    """Where a new file or folder goes, all links followed, in a folder that is there."""
    check_local(path)
    try:
        target = Path(os.path.realpath(path))
        if target.parent.is_dir():
            return target
    except ValueError as error:
        raise WriteFailed(errno.EINVAL, f"{path!r} cannot be a path: {error}") from error
    raise MissingFile(
        errno.ENOENT, f"cannot write {target}: the folder {target.parent} does not exist"
    )


def aside_prefix(target: Path) -> str:
    """How the names begin of what is written beside a target, to take its place.

    They are short whatever the target's is, and say whose leftover it would be.
    """
    return f".{blake3(os.fsencode(target.name)).hexdigest(8)}."


@contextmanager
def _replacing(target: Path, mode: int | None, disk: Disk) -> Iterator[tuple[Path, int]]:
    prefix = aside_prefix(target)
    with suppress(PermissionError):  # another user's leftover is not ours to clean up
        for leftover in disk.abandoned(target.parent, prefix, SUFFIX):
            disk.remove(leftover)
    aside, fd = _create_aside(target.parent, prefix, disk)
    try:
        try:
            yield aside, fd
            if mode is not None:
                disk.set_mode(fd, mode)
            disk.sync(fd)
            disk.rename(aside, target)
        except BaseException:
            with suppress(OSError):  # the error that brought us here is the one to report
                disk.remove(aside)
            raise
    finally:
        disk.close(fd)
    disk.sync_folder(target.parent)


@contextmanager
def _creating(target: Path, disk: Disk) -> Iterator[tuple[Path, int]]:
    """Give a new file where none is; its name is durable when its folder is synced."""
    fd = disk.create(target)
    try:
        try:
            yield target, fd
            disk.sync(fd)
        except BaseException:
            with suppress(OSError):  # the error that brought us here is the one to report
                disk.remove(target)
            raise
    finally:
        disk.close(fd)


def is_aside(name: str) -> bool:
    """Whether a file of this name is one that was being written when its writer was killed."""
    return _ASIDE.fullmatch(name) is not None


def _mode_to_keep(target: Path) -> int | None:
    """The permissions of the file that will be replaced; None if there is none."""
    try:
        status = target.stat()
    except FileNotFoundError:
        return None
    if not stat.S_ISREG(status.st_mode):
        raise WriteFailed(errno.EINVAL, f"cannot write {target}: it exists and is not a file")
    return stat.S_IMODE(status.st_mode)


def _create_aside(folder: Path, prefix: str, disk: Disk) -> tuple[Path, int]:
    while True:
        aside = folder / f"{prefix}{os.urandom(4).hex()}{SUFFIX}"
        with suppress(FileExistsError):
            return aside, disk.create(aside)
