"""Roots that weightslab wrote: the same layout, and nothing in them is ours to change."""

from __future__ import annotations

import os
import re
import shlex
import stat
from contextlib import suppress
from pathlib import Path
from typing import Final

from standfast.store.backends.backend import Backend
from standfast.store.schema import names

OURS: Final = "# Written by Standfast"
"""How a manifest of ours begins."""
_OWN: Final = ".standfast"
_FOLDER: Final = re.compile("[0-9a-z]{8}([0-9a-z]{16})?")
"""Some releases call folders by the 8 characters of the model alone."""
_CHECKPOINT: Final = re.compile("[0-9a-z]{24}_step_[0-9]+\\.pt")


def read_only(root: Path) -> str:
    """Why nothing is written to a root of weightslab, and what to do instead."""
    return (
        f"{root} was written by weightslab and is read-only: `standfast import "
        f"{shlex.quote(str(root))} --store STORE` imports it"
    )


def is_foreign(root: Path) -> bool:
    """Whether a folder has checkpoints in layout V3 that Standfast did not write.

    It has `checkpoints/models`, and a manifest or torch files of V3's names, and nothing of ours.
    """
    return is_foreign_layout(root / "checkpoints")


def is_foreign_store(backend: Backend) -> bool:
    """The same of where a store is."""
    models = backend.path(names.MODELS)
    return models is not None and is_foreign_layout(models.parent)


def is_foreign_layout(checkpoints: Path) -> bool:
    """The same of the folder that has `models` in it.

    Of a store of ours one look tells, unless it was only ever read.
    """
    if os.path.lexists(checkpoints / _OWN) or not (checkpoints / names.MODELS).is_dir():
        return False
    manifest = _beginning(checkpoints / names.MANIFEST)
    if manifest is not None and manifest.startswith(OURS.encode()):
        return False
    found = manifest is not None
    for folder in _listed(checkpoints / names.MODELS):
        if _FOLDER.fullmatch(folder.name) and folder.is_dir():
            files = [entry.name for entry in _listed(Path(folder.path))]
            if any(_is_ours(name, folder.name) for name in files):
                return False
            found |= any(map(_CHECKPOINT.fullmatch, files))
    return found


def _is_ours(name: str, folder: str) -> bool:
    named = names.parse(name, folder)
    return named is not None and named.kind in ("run", "record", "data")


def _listed(folder: Path) -> list[os.DirEntry[str]]:
    with suppress(OSError), os.scandir(folder) as entries:
        return sorted(entries, key=lambda entry: entry.name)
    return []


def _beginning(path: Path) -> bytes | None:
    """The first bytes of a file; None if there is none."""
    try:
        if not stat.S_ISREG(os.stat(path).st_mode):  # to open a pipe would wait for its writer
            return None
        with path.open("rb") as file:
            return file.read(len(OURS))
    except OSError:
        return None
