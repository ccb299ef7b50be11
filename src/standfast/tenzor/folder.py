"""The folder of a training's checkpoints: `epoch_<n>.tenzor` and `best.tenzor`."""

from __future__ import annotations

import errno
import os
import re
from contextlib import suppress
from pathlib import Path
from typing import Final

from standfast.errors import AlreadyExists, FileError, WriteFailed
from standfast.files import disk
from standfast.files.paths import check_local

BEST: Final = "best.tenzor"
_NAME: Final = re.compile(r"epoch_([0-9]{1,18})\.tenzor", re.ASCII)


def epoch_file(folder: Path, epoch: int) -> Path:
    """Where the checkpoint of an epoch lies."""
    return folder / f"epoch_{epoch}.tenzor"


def checkpoints_in(folder: Path) -> list[Path]:
    """The checkpoints in a folder: the epochs in their order, then the best."""
    check_local(folder)
    try:
        names = os.listdir(folder)
    except FileNotFoundError:
        return []
    except OSError as error:
        raise FileError(error.errno, f"cannot list {folder}: {error.strerror}") from error
    epochs = sorted((int(found[1]), name) for name in names if (found := _NAME.fullmatch(name)))
    best = [BEST] if BEST in names else []
    return [folder / name for name in [*(name for _, name in epochs), *best]]


def refuse_used(folder: Path) -> None:
    """Raise AlreadyExists if the folder holds checkpoints, which a new training would replace."""
    found = checkpoints_in(folder)
    if found:
        newest = found[-2] if found[-1].name == BEST and len(found) > 1 else found[-1]
        raise AlreadyExists(
            errno.EEXIST,
            f"{folder} holds checkpoints already ({newest.name} and {len(found) - 1} more): "
            f"resume from {newest}, or name another folder",
        )


def make_writable(folder: Path) -> None:
    """Make the folder if need be, and find out now whether files can be written to it."""
    try:
        _make_all(folder)
        if not os.access(folder, os.W_OK | os.X_OK):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
    except OSError as error:
        raise WriteFailed(
            error.errno, f"cannot write checkpoints to {folder}: {error.strerror}"
        ) from error


def _make_all(folder: Path) -> None:
    if folder.is_dir():
        return
    if folder.parent != folder:
        _make_all(folder.parent)
    with suppress(FileExistsError):
        disk.LOCAL.make_folder(folder)
        disk.LOCAL.sync_folder(folder.parent)
    if not folder.is_dir():
        raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR))
