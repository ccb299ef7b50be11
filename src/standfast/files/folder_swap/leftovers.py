"""What a killed process leaves beside a folder that it was replacing, and what becomes of it.

- `.….new.standfast` was being written: all that is in it was put there by us;
- `.….old.standfast` is whole, the old folder or the new one. If nothing is at the path, it goes
  there. Once another one of ours is there, what is ours is removed from it, and of other files
  those that are at the path too.
"""

from __future__ import annotations

import filecmp
import os
import stat
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from standfast.files.atomic import NEW_FOLDER, SUFFIX, aside_prefix, is_aside
from standfast.files.disk import Disk

NEW: Final = NEW_FOLDER
OLD: Final = f".old{SUFFIX}"


OwnFiles = Callable[[Path], Sequence[str]]
"""The names of the files in a folder that are ours; last the one that tells which these are."""


@dataclass(frozen=True)
class Place:
    """Where a folder goes, on which disk, which files in it are ours, and which may not stay."""

    target: Path
    disk: Disk
    own_files: OwnFiles
    in_the_way: Callable[[str], bool]
    """Whether a file of this name, if it is not ours, would be taken for a part of what is new."""

    def aside(self, suffix: str) -> Path:
        """A path beside the target that nobody else has."""
        prefix = aside_prefix(self.target)
        return self.target.parent / f"{prefix}{os.urandom(4).hex()}{suffix}"

    def abandoned(self, suffix: str, unsupported: bool = False) -> Iterator[Path]:
        """What was left beside the target; see `Disk.abandoned_folders`."""
        prefix = aside_prefix(self.target)
        return self.disk.abandoned_folders(self.target.parent, prefix, suffix, unsupported)


def clean_up(place: Place) -> None:
    """Put back or remove what processes that were killed left behind."""
    _put_back(place)
    for new in place.abandoned(NEW):
        with suppress(OSError):  # what is not ours to remove can stay
            remove_all(new, place.disk)
    for old in place.abandoned(OLD):
        with suppress(OSError):
            # Only a folder that is there, seen after the old one, has taken the place of that.
            if place.own_files(place.target):
                remove_spare(place, old)


def _put_back(place: Place) -> None:
    """If nothing is at the path, put the folder there that was to be exchanged."""
    if not _is_free(place.target):
        return
    whole = sorted(place.abandoned(OLD, unsupported=True), key=lambda old: old.stat().st_mtime_ns)
    if whole:
        try:
            place.disk.rename(whole[-1], place.target)
        except OSError:
            if _is_free(place.target):  # else another process was faster
                raise
        place.disk.sync_folder(place.target.parent)


def _is_free(target: Path) -> bool:
    """Whether a folder can take this place: there is nothing, or an empty folder."""
    try:
        return not os.listdir(target)
    except OSError:
        return not os.path.lexists(target)


def remove_all(new: Path, disk: Disk) -> None:
    """Remove a folder that we made, and the files in it, which we wrote or linked."""
    for name in sorted(os.listdir(new)):
        disk.remove(new / name)
    disk.remove_folder(new)


def remove_spare(place: Place, old: Path) -> None:
    """Remove a folder that another took the place of, unless there is more in it than there."""
    names = set(os.listdir(old))
    own = [name for name in place.own_files(old) if name in names]
    for name in (*sorted(names.difference(own)), *own):
        if own and name == own[-1]:
            # Without it, what is left would be nobody's: the others are to be gone for good.
            place.disk.sync_folder(old)
        if is_spare(place, old / name, own):
            place.disk.remove(old / name)
    place.disk.remove_folder(old)


def is_spare(place: Place, file: Path, own: Collection[str]) -> bool:
    """Whether a file of the old folder was ours, or lives on in the new one."""
    kept = place.target / file.name
    if file.name in own or is_aside(file.name):
        return not file.is_dir()
    try:
        return os.path.samestat(file.lstat(), kept.lstat()) or _is_copy(file, kept)
    except FileNotFoundError:
        return False


def _is_copy(file: Path, kept: Path) -> bool:
    are_files = stat.S_ISREG(file.lstat().st_mode) and stat.S_ISREG(kept.lstat().st_mode)
    return are_files and filecmp.cmp(file, kept, shallow=False)
