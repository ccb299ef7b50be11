"""Checkpoints that Orbax wrote, read by its own library.

tree = standfast.orbax.read("checkpoints/1000")
run.save(1000, tree)
"""

from __future__ import annotations

import errno
import importlib
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import numpy as np

from standfast.errors import (
    BadField,
    DamagedFile,
    LimitExceeded,
    MissingFile,
    StandfastError,
    UnknownFormat,
    UnknownFramework,
    UnsupportedFile,
)
from standfast.files.paths import check_local
from standfast.files.staging.free_memory import available

_TREE: Final = "_METADATA"
"""The file that says what a pytree is made of."""
_STEP: Final = "_CHECKPOINT_METADATA"
_JSON: Final = "metadata"
"""The one file of an item that was saved as JSON."""
_DEFAULT: Final = "default"
"""The item of a step for which no name was given."""
_MAX_JSON: Final = 64 << 20
_SHOWN: Final = 10


def read(folder: str | os.PathLike[str]) -> Any:
    """All of a checkpoint, as a tree of NumPy's arrays and plain values.

    The folder is what a StandardCheckpointer or PyTreeCheckpointer wrote, or that of one step of a
    CheckpointManager; if the step has several items with names, they are a dict. Tuples, named
    tuples and other nodes come as the lists and dicts that Orbax made of them, and random keys as
    their words. Raises UnknownFormat for a folder that is none of these.
    """
    check_local(folder)
    path = Path(folder)
    if not path.is_dir():
        raise MissingFile(errno.ENOENT, f"there is no folder {path}")
    if (path / _TREE).is_file():
        return _read_tree(path)
    items = [each for each in sorted(path.iterdir()) if each.is_dir()]
    if not (path / _STEP).is_file() and not any((each / _TREE).is_file() for each in items):
        raise UnknownFormat(f"{path}: no checkpoint of Orbax is here{_hint(items)}")
    found = {each.name: _read_item(each) for each in items}
    return found[_DEFAULT] if list(found) == [_DEFAULT] else found


def _hint(folders: list[Path]) -> str:
    steps = [each.name for each in folders if (each / _STEP).is_file()]
    if not steps:
        return ""
    return f", but those of the steps {', '.join(steps[:_SHOWN])}: give the folder of one"


def _read_item(path: Path) -> Any:
    if (path / _TREE).is_file():
        return _read_tree(path)
    if (path / _JSON).is_file():
        return _read_json(path / _JSON)
    raise UnsupportedFile(
        f"{path}: the item is neither a pytree nor JSON; read the others by themselves, such as "
        f"{path.parent / _DEFAULT}"
    )


def _read_json(path: Path) -> Any:
    if path.stat().st_size > _MAX_JSON:
        raise LimitExceeded(f"{path}: {path.stat().st_size:,} bytes of JSON, over {_MAX_JSON:,}")
    try:
        return json.loads(path.read_bytes())
    except (ValueError, RecursionError) as error:
        raise BadField(f"{path}: it is no JSON: {error}") from error


def _read_tree(path: Path) -> Any:
    try:
        library: Any = importlib.import_module("orbax.checkpoint")
    except ImportError as error:
        raise UnknownFramework(
            f"checkpoints of Orbax are read by its own library, which cannot be imported "
            f"({error}): pip install orbax-checkpoint"
        ) from error
    try:
        with library.Checkpointer(library.PyTreeCheckpointHandler()) as reader:
            where = path.resolve()  # Orbax takes no relative paths
            described = reader.metadata(where).item_metadata.tree
            _refuse_too_large(path, described)
            wanted = _mapped(described, library)
            return reader.restore(where, args=library.args.PyTreeRestore(restore_args=wanted))
    except StandfastError:
        raise
    except Exception as error:
        raise DamagedFile(f"{path}: Orbax cannot read it: {error}") from error


def _mapped(described: Any, library: Any) -> Any:
    """How each leaf shall be read: arrays as NumPy's, all else as what it was."""
    if isinstance(described, dict):
        return {key: _mapped(member, library) for key, member in described.items()}
    if isinstance(described, list | tuple):
        return [_mapped(member, library) for member in described]
    if described is None:
        return None
    if hasattr(described, "shape") and not isinstance(described, library.metadata.ScalarMetadata):
        return library.RestoreArgs(restore_type=np.ndarray)
    return library.RestoreArgs()


def _refuse_too_large(path: Path, described: Any) -> None:
    """A few bytes may claim to be an array that no memory holds."""
    needed, there = sum(_sizes(described)), available()
    if there is not None and needed > there:
        raise LimitExceeded(
            f"{path}: its arrays take {needed:,} bytes, and {there:,} of memory are available"
        )


def _sizes(described: Any) -> Iterator[int]:
    if isinstance(described, dict | list | tuple):
        members = described.values() if isinstance(described, dict) else described
        for member in members:
            yield from _sizes(member)
    elif getattr(described, "shape", None) is not None and described.dtype is not None:
        size = int(described.dtype.itemsize)
        for length in described.shape:
            size *= int(length)
        yield size
