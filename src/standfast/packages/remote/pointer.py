"""The manifest of a package at a URL: it says in which folder the files of the last save are.

An object store cannot exchange two folders. So each save writes into a folder of its own, a whole
package with its own manifest, and then one object, this one, takes the place of the one before.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from standfast.errors import BadField
from standfast.formats.metadata import from_json

SAVES: Final = ".standfast/saves"
"""Below the URL of a package, where each save has its folder."""
FORMAT: Final = "standfast package 1, in a folder"
_BEGINNING: Final = f'{{"format": "{FORMAT}"'.encode()
_FOLDER: Final = re.compile(r"[0-9a-f]{16}")


@dataclass(frozen=True)
class Pointer:
    """What such a manifest says."""

    folder: str
    """The folder of the save, below SAVES."""
    replaced: tuple[str, ...] = ()
    """Files beside it, of a package that was copied here before: they are to be deleted."""

    def text(self) -> bytes:
        """The content of the object."""
        said = {"format": FORMAT, "folder": self.folder, "replaced": list(self.replaced)}
        return json.dumps(said).encode() + b"\n"


def is_pointer(beginning: bytes) -> bool:
    """Whether a manifest that begins so is a pointer."""
    return beginning.startswith(_BEGINNING)


def read_pointer(text: bytes, where: str) -> Pointer:
    """What a pointer says; raises a DamagedFile for one that is not sound."""
    said = from_json(text, where)
    folder, replaced = said.get("folder"), said.get("replaced")
    if not isinstance(folder, str) or not _FOLDER.fullmatch(folder):
        raise BadField(f"{where}: folder is {folder!r:.80}: expected 16 hexadecimal digits")
    if not isinstance(replaced, Iterable):
        raise BadField(f"{where}: replaced should be a list of names")
    return Pointer(folder, tuple(name for name in replaced if isinstance(name, str)))
