"""Lightning's `.ckpt` files, wherever below a folder its logger put them."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Final

from standfast.errors import FileError, UnknownFormat, UnsupportedFile
from standfast.tensorfile.importers.contents import (
    Entries,
    Folder,
    Found,
    Ignored,
    as_count,
    as_metric,
    entries,
    value_of,
)
from standfast.tensorfile.importers.names import is_best, one_of
from standfast.tensorfile.importers.values import as_state, read_content, report
from standfast.tensorfile.open import TensorFile

_LEVELS: Final = 3
"""Folders below the one given: lightning_logs/version_0/checkpoints."""
_SCORE: Final = ".current_score"
_BEST_SCORE: Final = ".best_model_score"
_BEST_PATH: Final = ".best_model_path"


@dataclass(frozen=True)
class _Seen:
    """What a file says of itself, without its tensors."""

    path: Path
    step: int
    epoch: int | None
    metrics: dict[str, float]
    best: str | None
    """The name of the file that was the best so far."""


def read_lightning(here: Entries, tensors_only: bool) -> Folder:
    """The checkpoints of Lightning in a folder and up to three levels below it."""
    ignored: list[Ignored] = []
    by_step: dict[int, list[_Seen]] = {}
    for path in _files(here, ignored):
        seen = _look(path, tensors_only, ignored)
        if seen is not None:
            by_step.setdefault(seen.step, []).append(seen)
    found = []
    for step, several in sorted(by_step.items()):
        path, others = one_of(step, [seen.path for seen in several], tensors_only)
        ignored += others
        found.append(_found(path, several, tensors_only))
    return Folder("lightning", _judged(found, by_step), ignored)


def _files(here: Entries, ignored: list[Ignored]) -> Iterator[Path]:
    """All `.ckpt` files; those of a folder come before those below it."""
    level = [here]
    visited = {os.path.realpath(here.path)}  # a link beside a folder leads to the same files
    for depth in range(_LEVELS + 1):
        below: list[Entries] = []
        for folder in level:
            yield from (path for path in folder.files.values() if path.suffix == ".ckpt")
            for name, path in folder.folders.items():
                if path.suffix == ".ckpt":
                    reason = "a folder of shards, which only the program that wrote it reads"
                    ignored.append((path, reason))
                elif depth < _LEVELS and name[0] != "." and _is_new(path, visited):
                    below += _listed(path, ignored)
        level = below


def _is_new(path: Path, visited: set[str]) -> bool:
    before = len(visited)
    visited.add(os.path.realpath(path))
    return len(visited) > before


def _listed(path: Path, ignored: list[Ignored]) -> list[Entries]:
    """What lies in a folder further down, which need not be one of checkpoints at all."""
    try:
        return [entries(path)]
    except FileError as error:
        ignored.append((path, str(error)))
        return []


def _look(path: Path, tensors_only: bool, ignored: list[Ignored]) -> _Seen | None:
    try:
        file = TensorFile(path, tensors_only=tensors_only)
    except (UnknownFormat, UnsupportedFile) as error:
        ignored.append((path, str(error)))
        return None
    with file:
        plain = file.metadata
        step = as_count(value_of(file, plain, "global_step"))
        weights = any(name.startswith("state_dict.") for name in file)
        if step is None or not (weights or "pytorch-lightning_version" in plain):
            ignored.append((path, "it has no global_step and state_dict, as Lightning's files do"))
            return None
        epoch = as_count(value_of(file, plain, "epoch"))
        return _Seen(path, step, epoch, _metrics(file, plain), _best(plain))


def _metrics(file: TensorFile, plain: dict[str, Any]) -> dict[str, float]:
    """The scores that ModelCheckpoint callbacks remember, by what they monitor."""
    metrics: dict[str, float] = {}
    for name in [*plain, *file]:
        if not name.startswith("callbacks.") or "ModelCheckpoint" not in name:
            continue
        for ending, label in ((_SCORE, "{}"), (_BEST_SCORE, "best_{}")):
            monitor = plain.get(name.removesuffix(ending) + ".monitor")
            if not name.endswith(ending) or not isinstance(monitor, str):
                continue
            score = as_metric(value_of(file, plain, name))
            if score is not None:
                metrics[label.format(monitor)] = score
    return metrics


def _best(plain: dict[str, Any]) -> str | None:
    for name, value in plain.items():
        if name.startswith("callbacks.") and name.endswith(_BEST_PATH) and isinstance(value, str):
            return re.split(r"[\\/]", value)[-1] or None
    return None


def _found(path: Path, several: list[_Seen], tensors_only: bool) -> Found:
    taken = next(seen for seen in several if seen.path == path)
    left_out: dict[str, str] = {}
    return Found(
        step=taken.step,
        epoch=taken.epoch,
        metrics=taken.metrics,
        state=partial(_state, path, tensors_only, left_out),
        paths=(path,),
        left_out=left_out,
        best=any(is_best(seen.path.stem) for seen in several),
    )


def _judged(found: list[Found], by_step: dict[int, list[_Seen]]) -> list[Found]:
    """The checkpoints, with the best one by the word of the newest that has one."""
    words = [seen.best for step in sorted(by_step) for seen in by_step[step] if seen.best]
    if not words:
        return found
    return [
        replace(each, best=any(seen.path.name == words[-1] for seen in by_step[each.step]))
        for each in found
    ]


def _state(path: Path, tensors_only: bool, left_out: dict[str, str]) -> dict[str, Any]:
    state, missing = as_state(read_content(path, tensors_only))
    report(missing, left_out)
    return state
