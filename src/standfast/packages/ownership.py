"""Which files in a folder are of the package that was saved there, and which are the user's."""

from __future__ import annotations

from typing import Final

from standfast.errors import StandfastError
from standfast.packages.documents.manifest import Manifest
from standfast.packages.documents.names import MANIFEST, OWN_FILES, is_shard
from standfast.packages.remote.folder import RemoteFolder
from standfast.packages.remote.places import Folder

_OTHERS: Final = frozenset({"adapter_config.json", "merges.txt", "vocab.json"})
"""What Transformers would read with the new model, beside the files that we write as well."""


def own_files(folder: Folder) -> list[str]:
    """The files of the package in a folder: those that its manifest names, and last that itself.

    Where there is no sound manifest, none is ours, whatever the names are.
    """
    try:
        if isinstance(folder, RemoteFolder) and (pointer := folder.pointer()) is not None:
            return [*sorted(pointer.replaced), MANIFEST]
        manifest = Manifest.read(folder)
    except StandfastError:
        manifest = None
    return [] if manifest is None else [*sorted(manifest.files), MANIFEST]


def is_part(name: str) -> bool:
    """Whether a file of this name would be taken for a part of any package that it lies in."""
    return name in OWN_FILES or name in _OTHERS or is_shard(name)
