"""A folder of files appears whole and durable, or not at all.

    make aside → … the caller writes files into it … → link the other files of the old folder
    → sync → exchange both → sync the folder above → remove the old one

The folder that stood at the path stays as it was until the exchange.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np

from holdfast.errors import AlreadyExists, HoldfastError, WriteFailed, printable, shortened
from holdfast.files.atomic import as_write_failed, real_target, replacing
from holdfast.files.disk import Disk, is_open_folder
from holdfast.files.exchange import CANNOT_EXCHANGE
from holdfast.files.leftovers import NEW, OLD, Place, clean_up, is_spare, remove_all, remove_spare
from holdfast.files.source_file import SourceFile

_CANNOT_LINK: Final = (errno.EPERM, errno.EACCES, errno.EMLINK, errno.ENOSYS, errno.ENOTSUP)
_BLOCK: Final = 1 << 20


def make_folders(folder: Path, disk: Disk) -> None:
    """Make a folder, and those above it that are not there yet, durably."""
    if folder.is_dir():
        return
    make_folders(folder.parent, disk)
    try:
        disk.make_folder(folder)
    except FileExistsError:
        if not folder.is_dir():  # else made by another process this moment
            raise
    except ValueError as error:  # no path at all
        raise OSError(errno.EINVAL, str(error)) from error
    disk.sync_folder(folder.parent)


@contextmanager
def replacing_folder(
    path: str | os.PathLike[str], disk: Disk, is_own: Callable[[str], bool]
) -> Iterator[Path]:
    """Give a new folder to write files into; on leaving, put it in place, durably.

    Of a folder that is there, the files that `is_own` names go and all others stay; if there is
    anything in it that is no file, this raises AlreadyExists before a byte is written. If the body
    raises, what it wrote is removed and `path` is untouched.
    """
    with as_write_failed(path):
        place = Place(real_target(path), disk, is_own)
        clean_up(place)
        mode = _mode_to_keep(place)
        with _new_folder(place) as new:
            if mode is not None:
                disk.set_mode(new.fd, mode)
            yield new.path
            _put(place, new)


@contextmanager
def making_folder(path: str | os.PathLike[str], disk: Disk) -> Iterator[Path]:
    """Give a new folder to write files into; on leaving, put it where nothing was, durably.

    Raises AlreadyExists if there is something. If the body raises, all it wrote is removed.
    """
    with as_write_failed(path):
        place = Place(real_target(path), disk, lambda name: False)
        clean_up(place)
        if os.path.lexists(place.target):
            raise _taken(place)
        with _new_folder(place) as new:
            yield new.path
            disk.sync_folder(new.path)
            try:
                disk.rename(new.path, place.target)
            except OSError as error:
                if error.errno not in (errno.ENOTEMPTY, errno.EEXIST, errno.ENOTDIR):
                    raise
                raise _taken(place) from error
            disk.sync_folder(place.target.parent)


@dataclass
class _New:
    """The folder that is being written: where it is at the moment, and its lock."""

    path: Path
    fd: int


@contextmanager
def _new_folder(place: Place) -> Iterator[_New]:
    new = _make(place)
    first = new.path
    try:
        yield new
    except BaseException as error:
        _say_target(error, first, place.target)
        # After the exchange it is the old folder that has this name: it is not to be touched.
        if is_open_folder(new.path, new.fd):
            with suppress(OSError):  # the error that brought us here is the one to report
                remove_all(new.path, place.disk)
        raise
    finally:
        place.disk.close(new.fd)


def _make(place: Place) -> _New:
    while True:
        path = place.aside(NEW)
        with suppress(FileExistsError):
            place.disk.make_folder(path)
            try:
                return _New(path, place.disk.lock_folder(path))
            except FileExistsError:
                raise
            except BaseException:
                with suppress(OSError):
                    place.disk.remove_folder(path)
                raise


def _mode_to_keep(place: Place) -> int | None:
    """The permissions of the folder that will be replaced; None if there is none."""
    target = place.target
    try:
        status = target.stat()
    except FileNotFoundError:
        return None
    if not stat.S_ISDIR(status.st_mode):
        raise WriteFailed(errno.ENOTDIR, f"cannot write {target}: it exists and is not a folder")
    if target == target.parent:
        raise WriteFailed(errno.EINVAL, f"cannot write {target}: there is nothing above it")
    if not os.access(target, os.R_OK | os.W_OK | os.X_OK):
        raise WriteFailed(errno.EACCES, f"cannot write {target}: you may not change this folder")
    _others(place)
    return stat.S_IMODE(status.st_mode)


def _others(place: Place) -> list[str]:
    """The files in the old folder that are not ours; raises for what is not a file."""
    try:
        with os.scandir(place.target) as entries:
            found = sorted(entries, key=lambda entry: entry.name)
    except FileNotFoundError:
        return []
    for entry in found:
        if not entry.is_file(follow_symlinks=False):
            what = "a link" if entry.is_symlink() else "a folder" if entry.is_dir() else "no file"
            raise AlreadyExists(
                errno.EEXIST,
                f"cannot replace {place.target}: {shortened(printable(entry.name))} in it is "
                f"{what}, which Holdfast did not write: move it away, or save to another folder",
            )
    return [entry.name for entry in found if not place.is_ours(entry.name)]


def _put(place: Place, new: _New) -> None:
    """Exchange the old folder, if there is one, for the new one."""
    disk, target = place.disk, place.target
    written = frozenset(os.listdir(new.path))
    for name in _others(place):
        if name not in written:
            _keep(target / name, new.path / name, disk)
    disk.sync_folder(new.path)
    old = None
    try:
        disk.rename(new.path, target)  # which an empty folder does not hinder
    except OSError as error:
        if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):
            raise
        old = _exchange(place, new)
    # Before that the old folder may still be the one that a power cut leaves.
    disk.sync_folder(target.parent)
    if old is not None:
        with suppress(OSError):  # the next save tries again
            _bring_over(place, old, written)
            remove_spare(place, old, written)


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


def _exchange(place: Place, new: _New) -> Path:
    """Put the new folder in the place of the old one; returns where the old one is then."""
    disk, target = place.disk, place.target
    whole = place.aside(OLD)
    disk.rename(new.path, whole)
    new.path = whole
    try:
        disk.exchange(whole, target)
    except OSError as error:
        if error.errno not in CANNOT_EXCHANGE:
            raise
        return _exchange_by_renames(place, new)
    return whole


def _exchange_by_renames(place: Place, new: _New) -> Path:
    """The same in two steps, where there is no such step: for a moment, nothing is there."""
    disk, target = place.disk, place.target
    old = place.aside(OLD)
    disk.rename(target, old)
    try:
        disk.rename(new.path, target)
    except BaseException:
        with suppress(OSError):  # the next save tries again
            disk.rename(old, target)
        raise
    return old


def _bring_over(place: Place, old: Path, written: frozenset[str]) -> None:
    """Move what came into the old folder, or was changed there, after all others were kept."""
    for name in sorted(os.listdir(old)):
        if not is_spare(place, old / name, written):
            place.disk.rename(old / name, place.target / name)


def _say_target(error: BaseException, aside: Path, target: Path) -> None:
    """Let a message name the folder that the user knows."""
    if not isinstance(error, HoldfastError):
        return
    if isinstance(error, OSError):
        error.strerror = str(error.strerror).replace(str(aside), str(target))
    error.args = tuple(
        each.replace(str(aside), str(target)) if isinstance(each, str) else each
        for each in error.args
    )


def _taken(place: Place) -> AlreadyExists:
    return AlreadyExists(
        errno.EEXIST, f"{place.target} is there already: remove it, or choose another folder"
    )
