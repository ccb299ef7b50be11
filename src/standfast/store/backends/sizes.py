"""The sizes of files in a folder, by as few requests as it takes."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Final

from standfast.store.backends.backend import Backend

_FEW: Final = 3
"""So many files are looked at one by one; of more, the folder is listed where that is faster."""


def sizes_of(backend: Backend, folder: str, files: Collection[str]) -> Mapping[str, int]:
    """The sizes of those of these files in a folder that are there."""
    if backend.width > 1 and len(files) > _FEW:
        return backend.sizes(folder)
    found = {file: backend.size(f"{folder}/{file}") for file in files}
    return {file: size for file, size in found.items() if size is not None}
