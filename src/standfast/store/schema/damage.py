"""Data files that were found damaged: one small file for each, in one folder of the store.

The name of a data file is unique in a store and never used again, and other runs link to it under
the same name. So what is found of one is known to all runs, processes and machines: no save
refers to a file that is listed here.
"""

from __future__ import annotations

import errno
import os
from contextlib import suppress
from pathlib import Path
from typing import Final

from standfast.errors import DamagedFile, FileError, StandfastError, UnreadableFile
from standfast.store.backends.backend import Backend
from standfast.store.schema import names
from standfast.store.schema.run_file import now
from standfast.store.schema.seal import Sealed, encode

FORMAT: Final = "standfast damage 1"
_SUFFIX: Final = ".json"


class _Damage(Sealed, frozen=True):
    file: str
    problem: str
    found: str


def is_damage(error: StandfastError) -> bool:
    """Whether the disk does not give what was written to it, rather than refuse to be asked.

    Too many open files, or no permission to read, say nothing about a file.
    """
    if isinstance(error, UnreadableFile):
        return error.errno in (errno.EIO, errno.EINVAL)
    return isinstance(error, DamagedFile)


def damaged_files(backend: Backend) -> set[str]:
    """The names of the data files that were found damaged; other files there are not ours."""
    found = {name.removesuffix(_SUFFIX) for name, _ in backend.list(names.DAMAGED, _SUFFIX)}
    return {name for name in found if names.parse(name, "")}  # of any run


def mark_damaged(backend: Backend, name: str, problem: str) -> None:
    """Record that a data file is damaged, if the store can be written.

    Raises nothing: the caller is about to report the damage, which matters more.
    """
    text = encode(FORMAT, _Damage(name, problem, now())) + b"\n"
    with suppress(StandfastError):
        backend.create(_path(name), text)


def trust(backend: Backend, run: str, name: str) -> None:
    """Forget the damage of a file, now that an intact copy of it is in the folder of a run.

    Not where another run has a copy of its own under that name, which may still be damaged.
    """
    mine = backend.path(f"{names.MODELS}/{run}/{name}")
    for other in backend.folders(names.MODELS):
        there = f"{names.MODELS}/{other}/{name}"
        if other != run and _may_exist(backend, there):
            path = backend.path(there)
            if mine is None or path is None or not _is_same(mine, path):
                return
    backend.delete([_path(name)])


def _is_same(one: Path, other: Path) -> bool:
    try:
        return os.path.samefile(one, other)
    except OSError:
        return False


def forget_deleted(backend: Backend) -> None:
    """Forget the damage of files that no run and no entry of the trash has any more."""
    if marked := damaged_files(backend):
        folders = [
            f"{above}/{folder}"
            for above in (names.MODELS, names.TRASH)
            for folder in backend.folders(above)
        ]
        for name in marked:
            if not any(_may_exist(backend, f"{folder}/{name}") for folder in folders):
                backend.delete([_path(name)])


def _may_exist(backend: Backend, path: str) -> bool:
    """Whether there is such a file, or a folder on the way that this user may not read."""
    try:
        return backend.size(path) is not None
    except FileError:
        return True


def _path(name: str) -> str:
    return f"{names.DAMAGED}/{name}{_SUFFIX}"
