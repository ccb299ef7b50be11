"""A checkpoint as plain files that need no store: one file of any format, or a folder."""

from __future__ import annotations

import errno
import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from standfast.errors import UnknownFormat, WriteFailed
from standfast.files import disk
from standfast.files.reader import Progress
from standfast.formats import format_for_writing
from standfast.store.backends.local import LocalBackend
from standfast.store.query.view import CheckpointView, find_part, run_of
from standfast.store.tree import tree
from standfast.tensorfile.save import save

if TYPE_CHECKING:
    from standfast.store.checkpoint import Checkpoint

BESIDE: Final = "checkpoint.json"
"""The file in a folder that has all that is no tensor. It is written last."""


@dataclass(frozen=True, slots=True)
class Exported:
    """What was written."""

    files: tuple[Path, ...]
    tensors: int
    nbytes: int
    """The bytes of the tensors, each of which was verified when it was read."""


def export(
    checkpoint: Checkpoint,
    target: str | os.PathLike[str],
    part: str | None = None,
    format: str | None = None,
    cast: bool = False,
    *,
    extras: bool = True,
    progress: Progress | None = None,
) -> Exported:
    """Write a checkpoint, or one part of it, as files of its own.

    A target with the suffix of a format, or any target if `format` is given, becomes one file
    with all tensors; its metadata has run, step, epoch, metrics and those plain values that are
    JSON. Any other target becomes a folder: one safetensors file a part, and `checkpoint.json`
    with all plain values. `cast` and `extras` are as in `standfast.save`.

    >>> export(store.resolve("gpt@best"), "model.safetensors", part="model")
    """
    path = Path(os.fsdecode(target))
    if is_one_file(path, format):
        view = CheckpointView(checkpoint, part)
        arrays = view.arrays(progress)
        save(path, arrays, view.metadata, format=format, cast=cast, extras=extras)
        return Exported((path,), len(arrays), _nbytes(view))
    return _export_folder(checkpoint, path, part, cast, progress)


def is_one_file(target: str | os.PathLike[str], format: str | None = None) -> bool:
    """Whether a target stands for one file rather than a folder."""
    try:
        format_for_writing(target)
    except UnknownFormat:
        return format is not None
    return True


def _export_folder(
    checkpoint: Checkpoint, folder: Path, part: str | None, cast: bool, progress: Progress | None
) -> Exported:
    whole = CheckpointView(checkpoint, part)
    head, run = whole.head, run_of(checkpoint)
    parts = head.parts if part is None else [find_part(head, part)]
    _make(folder)
    files = {}
    for each in parts:
        view = CheckpointView(checkpoint, each)
        files[each.label] = folder / f"{each.label}.safetensors"
        metadata = {**view.metadata, "part": each.key}
        save(files[each.label], view.arrays(progress), metadata, cast=cast)
    beside = {
        "run": head.run,
        "name": run.name if run else None,
        "step": head.step,
        "epoch": head.epoch,
        "time": head.time,
        "metrics": head.metrics,
        "parts": {each.label: each.key for each in parts},
        "values": {name: tree.flatten(value)[0] for name, value in whole.values.items()},
    }
    text = json.dumps(beside, indent=2, ensure_ascii=False, allow_nan=False) + "\n"
    LocalBackend(folder).replace(BESIDE, text.encode())
    return Exported((*files.values(), folder / BESIDE), len(whole), _nbytes(whole))


def _nbytes(view: CheckpointView) -> int:
    return sum(view.spec(name).nbytes for name in view)


def _make(folder: Path) -> None:
    """Make a folder in one that is there, unless there is one."""
    try:
        disk.LOCAL.make_folder(folder)
        disk.LOCAL.sync_folder(folder.parent)
    except FileExistsError as error:
        if not folder.is_dir():
            raise _refusal(folder, error) from error
    except (OSError, ValueError) as error:
        raise _refusal(folder, error) from error


def _refusal(folder: Path, error: Exception) -> WriteFailed:
    code: Any = getattr(error, "errno", None) or errno.EINVAL
    reason = getattr(error, "strerror", None) or error
    return WriteFailed(code, f"cannot make the folder {folder}: {reason}")
