"""The folder that a new one takes the place of: whether it may, and what of it stays."""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Collection
from contextlib import closing, suppress
from pathlib import Path
from typing import Final

import numpy as np

from standfast.errors import AlreadyExists, WriteFailed, printable, shortened
from standfast.files.atomic import is_aside, replacing
from standfast.files.disk import Disk
from standfast.files.folder_swap.leftovers import Place
from standfast.files.folder_swap.open_folder import holding_folder
from standfast.files.input.file import SourceFile

_CANNOT_LINK: Final = (errno.EPERM, errno.EACCES, errno.EMLINK, errno.ENOSYS, errno.ENOTSUP)
_BLOCK: Final = 1 << 20


def check_movable(target: Path) -> None:
    """Raise WriteFailed if a folder cannot leave its place, or is not to."""
    if target == target.parent:
        raise WriteFailed(errno.EINVAL, f"cannot write {target}: there is nothing above it")
    if _current_folder().is_relative_to(target):
        raise WriteFailed(
            errno.EBUSY,
            f"cannot write {target}: this program is in it (it is the current folder, or above "
            "it) and would be left without one: go to another folder first",
        )
    if target.is_dir() and target.stat().st_dev != target.parent.stat().st_dev:
        raise unmovable(target, errno.EBUSY)


def unmovable(target: Path, code: int) -> WriteFailed:
    """What to raise for a folder that the system does not move."""
    return WriteFailed(
        code,
        f"cannot replace {target}: it is a mount, or a folder in a layer of a container image, "
        "which the system does not move: save to a new folder",
    )


def _current_folder() -> Path:
    try:
        return Path(os.path.realpath(os.getcwd()))
    except FileNotFoundError:  # it was removed
        return Path("/")


def mode_to_keep(place: Place) -> int | None:
    """The permissions of the folder that will be replaced; None if there is none.

    Raises WriteFailed or AlreadyExists if it may not be.
    """
    target = place.target
    try:
        status = target.stat()
    except FileNotFoundError:
        return None
    if not stat.S_ISDIR(status.st_mode):
        raise WriteFailed(errno.ENOTDIR, f"cannot write {target}: it exists and is not a folder")
    if not os.access(target, os.R_OK | os.W_OK | os.X_OK):
        raise WriteFailed(errno.EACCES, f"cannot write {target}: you may not change this folder")
    _others(place, frozenset())
    return stat.S_IMODE(status.st_mode)


def keep_what_stays(place: Place, new: Path, written: Collection[str]) -> None:
    """Let the files that are not ours be in the new folder too, and the others keep their modes.

    Raises AlreadyExists if one of them has a name that was written.
    """
    for name in _others(place, written):
        _keep(place.target / name, new / name, place.disk)
    for name in sorted(written):
        with suppress(FileNotFoundError):
            _keep_mode(place.target / name, new / name, place.disk)


def _others(place: Place, written: Collection[str]) -> list[str]:
    """The files in the old folder that are not ours; raises for what cannot stay."""
    try:
        found, own = _listed(place)
    except FileNotFoundError:
        return []
    for entry in found:
        if not entry.is_file(follow_symlinks=False):
            what = "a link" if entry.is_symlink() else "a folder" if entry.is_dir() else "no file"
            raise AlreadyExists(
                errno.EEXIST,
                f"cannot replace {place.target}: {shortened(printable(entry.name))} in it is "
                f"{what}, which Standfast did not write: move it away, or save to another folder",
            )
    others = [entry.name for entry in found if entry.name not in own and not is_aside(entry.name)]
    for name in others:
        if name in written or place.in_the_way(name):
            raise AlreadyExists(
                errno.EEXIST,
                f"cannot replace {place.target}: {shortened(printable(name))} in it was not "
                "written by Standfast, and would be lost, or taken for a part of what is saved: "
                "save to a new folder, or move it away",
            )
    return others


def _listed(place: Place) -> tuple[list[os.DirEntry[str]], Collection[str]]:
    """What is in the folder and what of it is ours, both of one folder."""
    while True:
        with holding_folder(place.target) as is_there:
            with os.scandir(place.target) as entries:
                found = sorted(entries, key=lambda entry: entry.name)
            own = frozenset(place.own_files(place.target))
            if is_there():
                return found, own


def _keep(file: Path, new: Path, disk: Disk) -> None:
    """Let a file of the old folder be in the new one too."""
    try:
        disk.link(file, new)
    except FileNotFoundError:
        return  # deleted by its owner this moment
    except OSError as error:
        if error.errno not in _CANNOT_LINK:
            raise
        _copy(file, new, disk)


def _copy(file: Path, new: Path, disk: Disk) -> None:
    with closing(SourceFile(file)) as source, replacing(new, disk) as (_, fd):
        disk.set_mode(fd, stat.S_IMODE(os.fstat(source.fd).st_mode))
        for start in range(0, source.size, _BLOCK):
            block = source.read(start, min(_BLOCK, source.size - start))
            disk.write(fd, np.frombuffer(block, np.uint8), start)
        source.check_unchanged()


def _keep_mode(file: Path, new: Path, disk: Disk) -> None:
    """Let the file that takes the place of another have its permissions."""
    mode = stat.S_IMODE(file.lstat().st_mode)
    if mode == stat.S_IMODE(new.lstat().st_mode):
        return
    fd = os.open(new, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
    try:
        disk.set_mode(fd, mode)
        disk.sync(fd)
    finally:
        disk.close(fd)
