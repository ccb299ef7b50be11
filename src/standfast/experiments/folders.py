"""The folders of a root in layout V3."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from standfast.errors import WriteFailed
from standfast.store.schema import names

_FOLDERS: Final = (
    "data",
    "logs",
    *(f"checkpoints/{name}" for name in (names.MODELS, names.SETTINGS, names.SAMPLES)),
)


def make_folders(root: Path) -> None:
    """Make those that are not there; raises WriteFailed, unless it is a store that is only read."""
    was_there = (root / "checkpoints" / names.MODELS).is_dir()
    try:
        for folder in _FOLDERS:
            (root / folder).mkdir(parents=True, exist_ok=True)
    except OSError as error:
        if not was_there:
            raise WriteFailed(
                error.errno, f"cannot make the folder {error.filename}: {error.strerror}"
            ) from error
