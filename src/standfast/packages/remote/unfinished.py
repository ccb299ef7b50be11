"""The manifest of a package that is being saved to an object store, where nothing moves at once.

It stands in the place of the real one from before the first file is written to after the last,
so that no reader takes a part of a package, or of two, for one.
"""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import closing
from typing import Any, Final

from standfast.errors import DamagedFile, MissingData, MissingFile
from standfast.formats.metadata import from_json
from standfast.packages.documents import json_text
from standfast.packages.documents.names import MANIFEST
from standfast.packages.remote.folder import RemoteFolder
from standfast.packages.remote.places import Folder

UNFINISHED: Final = "standfast package, unfinished"
_LONGEST: Final = 1 << 20


def unfinished_text(names: Iterable[str], save: str) -> bytes:
    """What it says: which files are of the package, the old ones and the new, and of which save."""
    content = {"files": sorted(names), "format": UNFINISHED, "save": save}
    return json_text.encoded(content, MANIFEST) + b"\n"


def unfinished_files(folder: Folder) -> list[str] | None:
    """The files that such a manifest names; None if there is none, as in every folder."""
    given = _read(folder) if isinstance(folder, RemoteFolder) else {}
    if given.get("format") != UNFINISHED:
        return None
    names = given.get("files")
    return [name for name in names if isinstance(name, str)] if isinstance(names, list) else []


def check_finished(folder: Folder) -> None:
    """Raise MissingData for a package that is being saved, or was not saved to its end."""
    if unfinished_files(folder) is not None:
        raise MissingData(
            f"{folder} is being saved now, or was not saved to its end: wait, or save it again"
        )


def _read(folder: RemoteFolder) -> dict[str, Any]:
    """What the manifest says; nothing if it is none, which others will tell of."""
    try:
        with closing((folder / MANIFEST).open()) as source:
            if source.size > _LONGEST:
                return {}
            return from_json(source.read(0, source.size), MANIFEST)
    except (MissingFile, DamagedFile):
        return {}
