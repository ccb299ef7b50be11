"""Which store is meant, and whether an argument is a file or a checkpoint of it."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import TYPE_CHECKING, Final

from standfast.errors import NotAStore, RefNotFound
from standfast.files.paths import check_local, is_url
from standfast.formats import FORMATS
from standfast.packages.documents import names
from standfast.store.schema.names import VARIABLE

if TYPE_CHECKING:
    from standfast.store import Checkpoint, Store

_INSIDE: Final = Path("checkpoints", "models")


def is_file(argument: str) -> bool:
    """Whether an argument is a path: it has a `/`, or the suffix of a format."""
    return "/" in argument or _has_suffix(argument)


def _has_suffix(argument: str) -> bool:
    suffixes = tuple(suffix for format in FORMATS for suffix in format.SUFFIXES)
    return argument.lower().endswith(suffixes)


def is_package(argument: str) -> bool:
    """Whether an argument is the folder of a model package."""
    if is_url(argument):
        return not _has_suffix(argument)  # nothing else at a URL is shown or verified
    try:
        return names.is_package(os.listdir(argument))
    except (OSError, ValueError):  # no folder, or none of ours: somebody else will say so
        return False


def find_store(given: str | None, *, new: bool = False, reads: bool = False) -> Store:
    """The store of `--store`, of the environment, or around the current folder.

    With `new`, one that is named and is not there yet will be made. Unless the command only
    `reads`, raises NotAStore for a root of another program.
    """
    named = given or os.environ.get(VARIABLE)
    if named and is_url(named):
        return open_store(named, new=new)
    return _opened(_find_folder(given, new), reads)


def open_store(named: str, *, new: bool = False, reads: bool = False) -> Store:
    """The store in a folder or at a URL; `new` and `reads` are those of `find_store`."""
    from standfast.store import Store

    if not is_url(named):
        return _opened(_checked(named, "", new), reads)
    store = Store(named)
    if not new:
        store.check_exists()
    return store


def _opened(folder: Path, reads: bool) -> Store:
    from standfast.store import Store
    from standfast.store.v3.foreign import is_foreign, read_only

    if not reads and is_foreign(folder):
        raise NotAStore(errno.EINVAL, read_only(folder))
    return Store(folder)


def _find_folder(given: str | None, new: bool) -> Path:
    """The folder of `--store`, of the environment, or around the current one."""
    named = given or os.environ.get(VARIABLE)
    if named:
        return _checked(named, "--store: " if given else f"${VARIABLE}: ", new)
    here = Path.cwd()
    for folder in (here, *here.parents):
        if (folder / _INSIDE).is_dir():
            return folder
    beside = [path.parent.parent.name for path in sorted(here.glob(f"*/{_INSIDE}"))]
    hint = f", such as --store {beside[0]}" if beside else ""
    raise NotAStore(
        errno.ENOENT,
        f"neither {here} nor a folder above it is a store, with {_INSIDE} in it: name one by "
        f"--store or ${VARIABLE}{hint}",
    )


def _checked(named: str, where: str, new: bool) -> Path:
    """A folder that is a store, or with `new` may become one."""
    check_local(named)
    folder = Path(named)
    if not new and not (folder / _INSIDE).is_dir():
        raise NotAStore(errno.ENOENT, f"{where}{named} is no store: it has no folder {_INSIDE}")
    return folder


def resolve(ref: str, given: str | None, *, reads: bool = False) -> Checkpoint:
    """The checkpoint that an argument means; `reads` is that of `find_store`."""
    try:
        return find_store(given, reads=reads).resolve(ref)
    except (NotAStore, RefNotFound) as error:
        if os.path.lexists(ref):
            text = getattr(error, "strerror", None) or error
            raise RefNotFound(f"{text} (for the file of that name, write ./{ref})") from error
        raise
