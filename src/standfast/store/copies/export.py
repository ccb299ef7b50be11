"""A checkpoint as plain files that need no store: one file of any format, or a folder."""

from __future__ import annotations

import json
import os
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from standfast.errors import StandfastError, UnknownFormat
from standfast.files import disk
from standfast.files.folder_swap.swap import replacing_folder
from standfast.files.input.file import SourceFile
from standfast.files.lines import replace_bytes
from standfast.files.paths import check_local
from standfast.files.reader import Progress
from standfast.formats import format_for_writing
from standfast.store.query.view import CheckpointView, find_part, run_of
from standfast.store.tree import tree
from standfast.tensorfile.save import save

if TYPE_CHECKING:
    from standfast.store.checkpoint import Checkpoint

BESIDE: Final = "checkpoint.json"
"""The file in a folder that has all that is no tensor. It is written last."""

_LONGEST: Final = 1 << 30


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
    JSON. A target without a suffix, one that ends in `/`, and a folder that is there become a
    folder: one safetensors file a part, and `checkpoint.json` with all plain values. It appears
    whole, and of an older export there nothing stays. Any other suffix raises UnknownFormat.
    `cast` and `extras` are as in `standfast.save`.

    >>> export(store.resolve("gpt@best"), "model.safetensors", part="model")
    """
    check_local(target)
    path = Path(os.fsdecode(target))
    if is_one_file(target, format):
        view = CheckpointView(checkpoint, part)
        arrays = view.arrays(progress)
        save(path, arrays, view.metadata, format=format, cast=cast, extras=extras)
        return Exported((path,), len(arrays), _nbytes(view))
    return _export_folder(checkpoint, path, part, cast, progress)


def is_one_file(target: str | os.PathLike[str], format: str | None = None) -> bool:
    """Whether a target stands for one file rather than a folder; raises UnknownFormat."""
    text = os.fsdecode(target)
    if format is not None:
        return True
    try:
        format_for_writing(text)
    except UnknownFormat as error:
        if not Path(text).suffix or text.endswith("/") or os.path.isdir(text):
            return False
        raise UnknownFormat(f"{error}; for a folder of this name, write {text}/") from None
    return not text.endswith("/")


def _export_folder(
    checkpoint: Checkpoint, folder: Path, part: str | None, cast: bool, progress: Progress | None
) -> Exported:
    whole = CheckpointView(checkpoint, part)
    head, run = whole.head, run_of(checkpoint)
    parts = head.parts if part is None else [find_part(head, part)]
    names = {each.label: f"{each.label}.safetensors" for each in parts}
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
    written = (*names.values(), BESIDE)
    with replacing_folder(folder, disk.LOCAL, _own_files, lambda name: name in written) as aside:
        for each in parts:
            view = CheckpointView(checkpoint, each)
            metadata = {**view.metadata, "part": each.key}
            save(aside / names[each.label], view.arrays(progress), metadata, cast=cast)
        replace_bytes(aside / BESIDE, text.encode(), disk.LOCAL)
    return Exported(tuple(folder / name for name in written), len(whole), _nbytes(whole))


def _own_files(folder: Path) -> list[str]:
    """The files of an export in a folder; none where there is no sound description of one."""
    try:
        parts = json.loads(_text(folder / BESIDE))["parts"]
        return [*(f"{label}.safetensors" for label in parts if "/" not in label), BESIDE]
    except (StandfastError, ValueError, KeyError, TypeError):
        return []


def _text(path: Path) -> bytes:
    with closing(SourceFile(path)) as file:
        return bytes(file.read(0, min(file.size, _LONGEST)))


def _nbytes(view: CheckpointView) -> int:
    return sum(view.spec(name).nbytes for name in view)
