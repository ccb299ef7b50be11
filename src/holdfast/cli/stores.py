"""Which store is meant, and whether an argument is a file or a checkpoint of it."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import TYPE_CHECKING, Final

from holdfast.errors import NotAStore, RefNotFound
from holdfast.formats import FORMATS
from holdfast.store.names import VARIABLE

if TYPE_CHECKING:
    from holdfast.store import Checkpoint, Store

_INSIDE: Final = Path("checkpoints", "models")


def is_file(argument: str) -> bool:
    """Whether an argument is a path: it has a `/`, or the suffix of a format."""
    suffixes = tuple(suffix for format in FORMATS for suffix in format.SUFFIXES)
    return "/" in argument or argument.lower().endswith(suffixes)


def find_store(given: Path | None, *, new: bool = False) -> Store:
    """The store of `--store`, of the environment, or around the current folder.

    With `new`, one that is named and is not there yet will be made.
    """
    from holdfast.store import Store

    named = given if given is not None else os.environ.get(VARIABLE)
    if named:
        where = "--store" if given is not None else f"${VARIABLE}"
        if not new and not (Path(named) / _INSIDE).is_dir():
            raise NotAStore(
                errno.ENOENT, f"{where}: {named} is no store: it has no folder {_INSIDE}"
            )
        return Store(named)
    here = Path.cwd()
    for folder in (here, *here.parents):
        if (folder / _INSIDE).is_dir():
            return Store(folder)
    beside = [path.parent.parent.name for path in sorted(here.glob(f"*/{_INSIDE}"))]
    hint = f", such as --store {beside[0]}" if beside else ""
    raise NotAStore(
        errno.ENOENT,
        f"neither {here} nor a folder above it is a store, with {_INSIDE} in it: name one by "
        f"--store or ${VARIABLE}{hint}",
    )


def resolve(ref: str, given: Path | None) -> Checkpoint:
    """The checkpoint that an argument means."""
    try:
        return find_store(given).resolve(ref)
    except (NotAStore, RefNotFound) as error:
        if os.path.lexists(ref):
            text = getattr(error, "strerror", None) or error
            raise RefNotFound(f"{text} (for the file of that name, write ./{ref})") from error
        raise
