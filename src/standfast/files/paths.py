"""Paths on this machine, as users give them: a URL is never one.

A URL that is taken for a path becomes a folder called `s3:`. Stores and model packages can be at
a URL, all else cannot. A folder that really has such a name is reached by its whole path.
"""

from __future__ import annotations

import os
import re
from typing import Final

from standfast.errors import BadOption

_URL: Final = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+://")
_FLATTENED: Final = re.compile(
    r"(s3a?|gs|gcs|az|azure|abfss?|adl|hdfs|hf|https?|file):/", re.IGNORECASE
)
"""What a Path makes of a URL. Of unknown schemes it may be a folder with a colon in its name."""
_SECRET: Final = re.compile("[@?#]")
"""What separates a user, a password or a token from the rest of a URL."""


def is_url(place: object) -> bool:
    """Whether a place is a URL, and no path."""
    return isinstance(place, str) and "://" in place


def shown(url: str) -> str:
    """A URL for a message, or what a Path has made of one: its scheme, if more may be secret."""
    return f"{url.partition(':')[0]}:/…" if _SECRET.search(url) else url


def check_local(path: str | bytes | os.PathLike[str]) -> None:
    """Raise BadOption for a URL, also for what `pathlib.Path` makes of one."""
    text = os.fsdecode(path)
    if not _URL.match(text) and not _FLATTENED.match(text):
        return
    if text.startswith("file:"):
        raise BadOption(f"{shown(text)} is a URL: give the path itself, without file://")
    raise BadOption(
        f"{shown(text)} is a URL, and a path on this machine is needed: only stores, such as "
        "Store('s3://bucket/prefix'), and model packages can be at a URL, which is then given as "
        "a str; copy other files to this machine first, or keep what is in them in a store"
    )
