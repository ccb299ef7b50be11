"""The folders `checkpoint-N` that the Trainer of Transformers writes, and the final model."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Final

from standfast.errors import BadField
from standfast.tensorfile.importers.contents import (
    Entries,
    Folder,
    Found,
    Ignored,
    as_count,
    as_metric,
    entries,
    shown,
)
from standfast.tensorfile.importers.json_files import read_json
from standfast.tensorfile.importers.names import ambiguous
from standfast.tensorfile.importers.values import LeftOut, as_part, read_content, report
from standfast.tensorfile.importers.weights import Weights, find_weights, other_weights

_FOLDER: Final = re.compile(r"checkpoint-([0-9]{1,19})")
_PARTS: Final = {"optimizer": "optimizer.pt", "scheduler": "scheduler.pt", "scaler": "scaler.pt"}
_TEXTS: Final = {"trainer_state": "trainer_state.json", "config": "config.json"}
_RANDOM: Final = "rng_state.pth"
_RANDOM_OF_RANK: Final = re.compile(r"rng_state_([0-9]{1,9})\.pth")
_MARKS: Final = {*_TEXTS.values(), "adapter_config.json", "training_args.bin"}
"""A file of weights beside one of these is of Transformers."""


@dataclass(frozen=True)
class _Checkpoint:
    """The files of one folder, by what they are for."""

    weights: Weights | None
    parts: dict[str, Path]
    random: Path | dict[int, Path] | None
    texts: dict[str, Path]

    @property
    def paths(self) -> tuple[Path, ...]:
        """All its files."""
        weights = self.weights.paths if self.weights else ()
        random = self.random.values() if isinstance(self.random, dict) else [self.random]
        known = [*self.parts.values(), *random, *self.texts.values()]
        return (*weights, *(path for path in known if path is not None))

    def state(self, tensors_only: bool, left_out: dict[str, str]) -> dict[str, Any]:
        """All parts that exist, read."""
        state: dict[str, Any] = {}
        missing: LeftOut = {}

        def add(name: str, path: Path) -> Any:
            part, gone = as_part(read_content(path, tensors_only), name)
            missing.update(gone)
            return part[name]

        if self.weights is not None:
            state["model"], gone = self.weights.read(tensors_only)
            missing.update({("model", *path): what for path, what in gone.items()})
        for name, path in self.parts.items():
            state[name] = add(name, path)
        if isinstance(self.random, dict):
            state["random"] = {
                rank: add(f"random.{rank}", path) for rank, path in self.random.items()
            }
        elif self.random is not None:
            state["random"] = add("random", self.random)
        report(missing, left_out)
        return state | {name: read_json(path) for name, path in self.texts.items()}


@dataclass(frozen=True)
class _Read:
    """A checkpoint, and which one its trainer held for the best by then."""

    found: Found
    best: Any


def read_transformers(here: Entries, tensors_only: bool) -> Folder:
    """The checkpoints in a folder of Transformers, or the one that the folder itself is."""
    ignored: list[Ignored] = []
    by_step: dict[int, _Read] = {}
    for name, path in here.folders.items():
        if _FOLDER.fullmatch(name):
            _add(_read(entries(path), tensors_only, ignored), by_step)
    if by_step:
        _add_final(here, tensors_only, by_step, ignored)
    elif _is_checkpoint(here):
        _add(_read(here, tensors_only, ignored), by_step)
    return Folder("transformers", _judged([by_step[step] for step in sorted(by_step)]), ignored)


def _is_checkpoint(here: Entries) -> bool:
    if _FOLDER.fullmatch(here.path.absolute().name):
        return True
    weights = find_weights(here)
    return _TEXTS["trainer_state"] in here.files or (
        weights is not None and (weights.index is not None or not _MARKS.isdisjoint(here.files))
    )


def _add(read: _Read | None, by_step: dict[int, _Read]) -> None:
    if read is None:
        return
    step = read.found.step
    other = by_step.setdefault(step, read)
    if other is not read:
        raise ambiguous(step, other.found.paths[0].parent, read.found.paths[0].parent)


def _add_final(
    here: Entries, tensors_only: bool, by_step: dict[int, _Read], ignored: list[Ignored]
) -> None:
    """The model that stands beside the checkpoints, if it is of a step that none of them is."""
    weights = find_weights(here)
    if weights is None:
        return
    if _TEXTS["trainer_state"] in here.files:
        final = _read(here, tensors_only, [])
        if final is not None and final.found.step not in by_step:
            by_step[final.found.step] = final
            return
        reason = "the model at the end, of a step whose checkpoint was taken"
    else:
        reason = "a model that nothing says the step of, beside checkpoints with steps"
    ignored += [(path, reason) for path in weights.paths]


def _read(folder: Entries, tensors_only: bool, ignored: list[Ignored]) -> _Read | None:
    """The checkpoint in one folder; None if nothing in it is a part of one."""
    files = folder.files
    checkpoint = _Checkpoint(
        weights=find_weights(folder),
        parts={name: files[file] for name, file in _PARTS.items() if file in files},
        random=_random(files),
        texts={name: files[file] for name, file in _TEXTS.items() if file in files},
    )
    if checkpoint.weights is None and not checkpoint.parts:
        ignored.append((folder.path, "no file in it is the model or the optimizer of Transformers"))
        return None
    ignored += _unused(folder, set(checkpoint.paths))
    # It grows with every step that is logged, so that it is not kept for each checkpoint.
    trainer_state = checkpoint.texts.get("trainer_state")
    trainer = read_json(trainer_state) if trainer_state else {}
    step = _step(folder, trainer)
    epoch = as_metric(trainer.get("epoch"))
    left_out: dict[str, str] = {}
    found = Found(
        step=step,
        epoch=None if epoch is None or epoch < 0 else int(epoch),
        metrics=_metrics(trainer, step),
        state=partial(checkpoint.state, tensors_only, left_out),
        paths=checkpoint.paths,
        left_out=left_out,
    )
    return _Read(found, trainer.get("best_model_checkpoint"))


def _random(files: dict[str, Path]) -> Path | dict[int, Path] | None:
    if _RANDOM in files:
        return files[_RANDOM]
    matches = ((_RANDOM_OF_RANK.fullmatch(name), path) for name, path in files.items())
    ranks = {int(match[1]): path for match, path in matches if match}
    return dict(sorted(ranks.items())) or None


def _unused(folder: Entries, used: set[Path]) -> Iterator[Ignored]:
    for name, path in folder.files.items():
        if path in used:
            continue
        if name == "training_args.bin":
            yield path, "an object of Transformers' own, which is no data and is not unpickled"
        elif other_weights(name):
            yield path, "weights that were taken from another file, or whose index is not there"
        else:
            yield path, "no part of the state that a training goes on from"
    for path in folder.folders.values():
        if not _FOLDER.fullmatch(path.name):
            yield path, "a folder in a checkpoint, of a layout that is not read here"
    for path in folder.others.values():
        yield path, "a link to nothing, or no regular file"


def _step(folder: Entries, trainer: dict[str, Any]) -> int:
    """The step that the trainer wrote down, else that of the folder's name, else 0."""
    if "global_step" in trainer:
        step = as_count(trainer["global_step"])
        if step is None:
            raise BadField(
                f"{shown(folder.files[_TEXTS['trainer_state']])}: global_step should be a count, "
                f"found {trainer['global_step']!r:.80}"
            )
        return step
    match = _FOLDER.fullmatch(folder.path.absolute().name)
    return (match and as_count(match[1])) or 0


def _metrics(trainer: dict[str, Any], step: int) -> dict[str, float]:
    """What was logged at this step; the loss, a mean over several steps, may be of the last log."""
    history = trainer.get("log_history")
    metrics: dict[str, float] = {}
    for entry in history if isinstance(history, list) else []:
        if not isinstance(entry, dict) or (logged := as_count(entry.get("step"))) is None:
            continue
        for name, value in entry.items():
            number = as_metric(value)
            current = logged == step or (name == "loss" and logged < step)
            if current and number is not None and name not in ("step", "epoch"):
                metrics[name] = number
    return metrics


def _judged(checkpoints: list[_Read]) -> list[Found]:
    """The checkpoints, with the best one by the word of the newest that has one."""
    words = [read.best for read in checkpoints if isinstance(read.best, str)]
    name = re.split(r"[\\/]", words[-1])[-1] if words else None
    return [
        replace(read.found, best=read.found.paths[0].parent.name == name) for read in checkpoints
    ]
