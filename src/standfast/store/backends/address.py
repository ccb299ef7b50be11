"""Where a store is, and the backend for it."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final
from urllib.parse import unquote, urlsplit

from standfast.errors import BadOption
from standfast.files.paths import check_local, is_url, shown
from standfast.store.backends.backend import Backend
from standfast.store.backends.local import LocalBackend, user_cache
from standfast.store.v3.foreign import is_foreign_layout

INSIDE: Final = "checkpoints"
"""What a store keeps lies in the folder of this name, beside its logs."""


def opened(place: str | os.PathLike[str] | Backend, cache: int | None = None) -> Backend:
    """The backend of a store at a path, a URL, or the one given; raises BadOption."""
    if not isinstance(place, str | os.PathLike):
        return place
    if not is_url(place):
        check_local(place)
        return in_folder(Path(place) / INSIDE)
    url = str(place)
    if urlsplit(url).scheme == "file":
        return in_folder(_path_in(url) / INSIDE)
    from standfast.store.remote.connection import checked_url

    return _remote(f"{checked_url(url)}/{INSIDE}", cache)


def reopened(url: str) -> Backend:
    """The backend of this URL, in another process."""
    return _remote(url) if is_url(url) else in_folder(Path(url))


def in_folder(path: Path) -> Backend:
    """The backend of a folder: one that can only be read if weightslab wrote it."""
    if not is_foreign_layout(path):
        return LocalBackend(path)
    from standfast.store.backends.weightslab import ForeignBackend

    return ForeignBackend(path)


def is_shared(backend: Backend) -> bool:
    """Whether another process can open it too."""
    return type(backend) is LocalBackend or is_url(backend.url)


def place_of(backend: Backend) -> str | None:
    """What `Store` takes for a store on a backend, in another process too; None if nothing is."""
    url, slash, inside = backend.url.rpartition("/")
    return url or slash if is_shared(backend) and inside == INSIDE else None


def _remote(url: str, cache: int | None = None) -> Backend:
    from standfast.store.remote.backend import RemoteBackend
    from standfast.store.remote.cache import Cache

    if not cache:
        return RemoteBackend(url)
    folder = user_cache("data")
    if folder is None:
        raise BadOption("a cache needs a folder: set XDG_CACHE_HOME to one that can be written")
    return RemoteBackend(url, cache=Cache(folder, cache))


def _path_in(url: str) -> Path:
    parts = urlsplit(url)
    if parts.netloc not in ("", "localhost") or not parts.path.startswith("/") or parts.query:
        raise BadOption(f"{shown(url)} is no file on this machine: it would be file:///folder")
    return Path(unquote(parts.path))
