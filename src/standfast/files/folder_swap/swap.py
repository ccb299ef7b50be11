"""A folder of files appears whole and durable, or not at all.

    make aside → … the caller writes files into it … → link the other files of the old folder
    → sync → exchange both → sync the folder above → remove the old one

What the old folder must be for that is in `old_folder.py`, what a killed process leaves in
`leftovers.py`.

The folder that stood at the path stays as it was until the exchange.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from standfast.errors import AlreadyExists, StandfastError, WriteFailed
from standfast.files import libc
from standfast.files.atomic import as_write_failed, real_target
from standfast.files.disk import Disk, is_open_folder
from standfast.files.folder_swap.leftovers import (
    NEW,
    OLD,
    OwnFiles,
    Place,
    clean_up,
    is_spare,
    remove_all,
    remove_spare,
)
from standfast.files.folder_swap.old_folder import (
    check_movable,
    keep_what_stays,
    mode_to_keep,
    unmovable,
)

_TRIES: Final = 20
"""How often a save comes back for a place that others take at the same time."""
_TAKEN: Final = (errno.ENOTEMPTY, errno.EEXIST)
_PRIVATE: Final = 0o700


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
    path: str | os.PathLike[str],
    disk: Disk,
    own_files: OwnFiles,
    in_the_way: Callable[[str], bool] = lambda name: False,
) -> Iterator[Path]:
    """Give a new folder to write files into; on leaving, put it in place, durably.

    Of a folder that is there, the files that `own_files` names go and all others stay. If there is
    anything in it that is no file, or a file that is not ours and is `in_the_way` of the new ones,
    this raises AlreadyExists before a byte is written. If the body raises, what it wrote is removed
    and `path` is untouched.
    """
    with as_write_failed(path):
        place = Place(real_target(path), disk, own_files, in_the_way)
        check_movable(place.target)
        clean_up(place)
        mode = mode_to_keep(place)
        with _new_folder(place) as new:
            if mode is not None:
                disk.set_mode(new.fd, _PRIVATE)  # until its files have the modes of the old ones
            yield new.path
            _put(place, new, mode)


@contextmanager
def making_folder(path: str | os.PathLike[str], disk: Disk) -> Iterator[Path]:
    """Give a new folder to write files into; on leaving, put it where nothing was, durably.

    Raises AlreadyExists if there is something. If the body raises, all it wrote is removed.
    """
    with as_write_failed(path):
        place = Place(real_target(path), disk, lambda folder: (), lambda name: False)
        clean_up(place)
        if os.path.lexists(place.target):
            raise _taken(place)
        with _new_folder(place) as new:
            yield new.path
            disk.sync_folder(new.path)
            try:
                disk.rename(new.path, place.target)
            except OSError as error:
                if error.errno not in (*_TAKEN, errno.ENOTDIR):
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


def _put(place: Place, new: _New, mode: int | None) -> None:
    """Let the new folder take the place of the old one, if there is one."""
    disk, target = place.disk, place.target
    written = frozenset(os.listdir(new.path))
    try:
        keep_what_stays(place, new.path, written)
        if mode is not None:
            disk.set_mode(new.fd, mode)
        disk.sync_folder(new.path)
        olds = _take_place(place, new)
    except OSError as error:
        if error.errno not in libc.CANNOT_MOVE or isinstance(error, StandfastError):
            raise
        raise unmovable(target, error.errno) from error
    # Before that the old folder may still be the one that a power cut leaves.
    disk.sync_folder(target.parent)
    for old in olds:
        with suppress(OSError):  # the next save tries again
            _bring_over(place, old, written)
            remove_spare(place, old)


def _take_place(place: Place, new: _New) -> list[Path]:
    """Put the new folder where it belongs; returns where those are that it took the place of."""
    olds: list[Path] = []
    try:
        for _ in range(_TRIES):
            try:
                place.disk.rename(new.path, place.target)  # which an empty folder does not hinder
                return olds
            except OSError as error:
                if error.errno not in _TAKEN:
                    raise
            with suppress(FileNotFoundError):  # another save has moved it this moment
                if _exchange(place, new):
                    return [*olds, new.path]
                # For a moment, nothing is there, and another save may be faster.
                olds.append(_move_away(place))
        raise WriteFailed(
            errno.EBUSY,
            f"cannot write {place.target}: other programs save to it again and again, and each "
            "time one of them was faster: save to a folder of your own",
        )
    except BaseException:
        for old in reversed(olds):
            with suppress(OSError):  # the next save tries again
                place.disk.rename(old, place.target)
        raise


def _exchange(place: Place, new: _New) -> bool:
    """Let both folders change places, so that the old one is at `new.path` then.

    False where the file system has no such step.
    """
    whole = place.aside(OLD)
    place.disk.rename(new.path, whole)
    new.path = whole
    try:
        place.disk.exchange(whole, place.target)
    except OSError as error:
        if error.errno not in libc.MISSING:
            raise
        return False
    return True


def _move_away(place: Place) -> Path:
    old = place.aside(OLD)
    place.disk.rename(place.target, old)
    return old


def _bring_over(place: Place, old: Path, written: Collection[str]) -> None:
    """Move what came into the old folder, or was changed there, after all others were kept.

    What would be in the way stays where it is: it is not ours to remove.
    """
    own = place.own_files(old)
    for name in sorted(set(os.listdir(old)) - set(written)):
        if not is_spare(place, old / name, own) and not place.in_the_way(name):
            place.disk.rename(old / name, place.target / name)


def _say_target(error: BaseException, aside: Path, target: Path) -> None:
    """Let a message name the folder that the user knows."""
    if not isinstance(error, StandfastError):
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
