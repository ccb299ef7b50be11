"""What a folder of checkpoints comes down to, and what lies in a folder."""

from __future__ import annotations

import errno
import math
import os
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import numpy as np

from standfast.errors import MissingFile, UnreadableFile, printable, shortened
from standfast.files.paths import check_local
from standfast.tensorfile.open import TensorFile

Ignored = tuple[Path, str]
"""A file that was not taken, and why."""
MAX_STEP: Final = (1 << 63) - 1
_KINDS: Final = ("file", "folder", "other")


@dataclass(frozen=True)
class Found:
    """One checkpoint of a folder, which is not read yet."""

    step: int
    epoch: int | None
    metrics: dict[str, float]
    state: Callable[[], Any]
    """Reads the checkpoint: a tree of dicts, lists, tuples, plain values and tensors."""
    paths: tuple[Path, ...]
    """The files that it consists of."""
    left_out: dict[str, str] = field(default_factory=dict)
    """What `state` could not take along, once it was called: the class's name by its path."""
    best: bool = False
    """Whether the program that wrote it held it for the best."""


@dataclass(frozen=True)
class Folder:
    """The checkpoints of one folder."""

    kind: str
    """Who wrote them: transformers, lightning or torch."""
    found: list[Found]
    """By their steps, each of which stands once."""
    ignored: list[Ignored]
    """Files that are none of these, or not understood."""


@dataclass(frozen=True)
class Entries:
    """What lies directly in a folder, by its name; links are what they point to."""

    path: Path
    files: dict[str, Path]
    folders: dict[str, Path]
    others: dict[str, Path]
    """Links to nothing, pipes and the like."""


def entries(path: str | os.PathLike[str]) -> Entries:
    """What lies in a folder; raises MissingFile or UnreadableFile, and BadOption for a URL."""
    if isinstance(path, str | bytes | os.PathLike):
        check_local(path)
    try:
        folder = Path(os.fsdecode(path))
        with os.scandir(folder) as listed:
            kinds = sorted((entry.name, _kind(entry)) for entry in listed)
    except FileNotFoundError as error:
        raise MissingFile(error.errno, f"there is no folder {shown(path)}") from error
    except (OSError, ValueError, TypeError) as error:
        reason = getattr(error, "strerror", None) or error
        raise UnreadableFile(
            errno.EIO, f"cannot list {shown(path)}: {reason}; expected a folder of checkpoints"
        ) from error
    named = {kind: {name: folder / name for name, each in kinds if each == kind} for kind in _KINDS}
    return Entries(folder, *named.values())


def _kind(entry: os.DirEntry[str]) -> str:
    # The listing knows all but what links point to; a data set beside may have a million files.
    if entry.is_symlink():
        file, folder = os.path.isfile(entry.path), os.path.isdir(entry.path)
    else:
        file, folder = entry.is_file(), entry.is_dir()
    return "file" if file else "folder" if folder else "other"


def shown(path: object) -> str:
    """A path for a message."""
    return shortened(printable(str(path)))


def as_count(value: Any) -> int | None:
    """A step or an epoch out of a file, if that is what the value is."""
    if isinstance(value, str) and value.isascii() and value.isdecimal() and len(value) < 20:
        value = int(value)
    if isinstance(value, float | np.floating) and float(value).is_integer():
        value = int(value)
    if isinstance(value, bool) or not isinstance(value, int | np.integer):
        return None
    return int(value) if 0 <= value <= MAX_STEP else None


def as_metric(value: Any) -> float | None:
    """A number out of a file, if the value is one and is finite."""
    if isinstance(value, bool) or not isinstance(value, int | float | np.integer | np.floating):
        return None
    try:
        return float(value) if math.isfinite(value) else None
    except OverflowError:
        return None


def value_of(file: TensorFile, plain: dict[str, Any], name: str) -> Any:
    """A plain value of an open file; a tensor of one element is its number."""
    if name in plain or name not in file:
        return plain.get(name)
    spec = file.spec(name)
    if spec.size != 1 or spec.kind.packed or spec.kind.numpy.kind in "bc":
        return None
    element = file[name].reshape(-1)[0]
    return int(element) if spec.kind.numpy.kind in "iu" else float(element)
