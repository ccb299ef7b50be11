"""Files of any format, as people write them in training loops of their own."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final

from standfast.errors import UnknownFormat, UnsupportedFile
from standfast.tensorfile.importers.contents import (
    Entries,
    Folder,
    Found,
    Ignored,
    as_count,
    as_metric,
    shown,
    value_of,
)
from standfast.tensorfile.importers.names import is_best, is_pointer, number_in, one_of, part_in
from standfast.tensorfile.importers.values import as_part, as_state, read_content, report
from standfast.tensorfile.open import TensorFile

_SUFFIXES: Final = {".pt", ".pth", ".ckpt", ".safetensors", ".npz", ".tenzor", ".oxck"}
_STEPS: Final = ("step", "global_step", "iteration", "iter", "iter_num")
"""The keys that hold a step; the first is taken."""
_KNOWN_PARTS: Final = {
    *("model", "optimizer", "optim", "scheduler", "lr_scheduler", "scaler", "ema", "rng", "random"),
    *("sampler", "dataloader", "generator", "discriminator", "encoder", "decoder", "trainer"),
}
"""Files of these names belong together without a number, too."""
_METRIC: Final = re.compile("loss|acc|score|metric|error|perplexity|reward", re.IGNORECASE)


@dataclass(frozen=True)
class _Seen:
    """What a file and its name say, without its tensors."""

    path: Path
    step: int | None
    """By the content."""
    epoch: int | None
    metrics: dict[str, float]

    @property
    def number(self) -> int | None:
        """The number in the name."""
        return number_in(self.path.stem)


def read_torch(here: Entries, tensors_only: bool) -> Folder:
    """The files of known suffixes in a folder, those of one step together."""
    ignored: list[Ignored] = [
        (path, "a link to nothing, or no regular file")
        for path in here.others.values()
        if path.suffix.lower() in _SUFFIXES
    ]
    files = [path for path in here.files.values() if path.suffix.lower() in _SUFFIXES]
    looked = (_look(path, tensors_only, ignored) for path in files)
    by_step = _by_step([seen for seen in looked if seen is not None])
    without = by_step.pop(None, [])
    if by_step:
        reason = "neither its content nor its name says its step, beside files with steps"
        ignored += [(seen.path, reason) for seen in without]
    steps = sorted(step for step in by_step if step is not None)
    found = [_found(step, by_step[step], tensors_only, ignored) for step in steps]
    if without and not found:
        found = [_found(None, without, tensors_only, ignored)]
    return Folder("torch", found, ignored)


def _look(path: Path, tensors_only: bool, ignored: list[Ignored]) -> _Seen | None:
    try:
        file = TensorFile(path, tensors_only=tensors_only)
    except (UnknownFormat, UnsupportedFile) as error:
        ignored.append((path, str(error)))
        return None
    with file:
        plain = file.metadata
        if not len(file) and not plain:
            what = ", ".join(sorted(set(file.left_out.values()))) or "nothing"
            ignored.append((path, f"it holds no data ({what}): save a state_dict() instead"))
            return None
        steps = (as_count(value_of(file, plain, key)) for key in _STEPS)
        numbers = {
            key: as_metric(value_of(file, plain, key))
            for key in [*plain, *file]
            if "." not in key and _METRIC.search(key)
        }
        return _Seen(
            path,
            step=next((step for step in steps if step is not None), None),
            epoch=as_count(value_of(file, plain, "epoch")),
            metrics={key: number for key, number in numbers.items() if number is not None},
        )


def _by_step(files: list[_Seen]) -> dict[int | None, list[_Seen]]:
    """The files by their steps: by the content, else by the name, else by the epoch."""
    said: dict[int | None, set[int]] = {}
    for seen in files:
        if seen.step is not None:
            said.setdefault(seen.number, set()).add(seen.step)
    by_step: dict[int | None, list[_Seen]] = {}
    for seen in files:
        step = seen.step
        if step is None and seen.number is not None:
            # optimizer_3.pt is of the step that model_3.pt says it is of.
            others = said.get(seen.number, set())
            step = next(iter(others)) if len(others) == 1 else seen.number
        by_step.setdefault(seen.epoch if step is None else step, []).append(seen)
    return by_step


def _found(
    step: int | None, files: list[_Seen], tensors_only: bool, ignored: list[Ignored]
) -> Found:
    """The checkpoint that these files of one step are."""
    taken, others = _choose(step, files, tensors_only)
    ignored += others
    metrics: dict[str, float] = {}
    for seen in taken:
        metrics |= seen.metrics
    left_out: dict[str, str] = {}
    paths = tuple(seen.path for seen in taken)
    return Found(
        step=0 if step is None else step,
        epoch=next((seen.epoch for seen in taken if seen.epoch is not None), None),
        metrics=metrics,
        state=partial(_state, paths, tensors_only, left_out),
        paths=paths,
        left_out=left_out,
        best=any(is_best(seen.path.stem) for seen in files),
    )


def _choose(
    step: int | None, files: list[_Seen], tensors_only: bool
) -> tuple[list[_Seen], list[Ignored]]:
    """Those of the files that are the checkpoint, and why the others are not needed."""
    if step is None:
        if len(files) > 1 and not _are_parts(files):
            names = " and ".join(shown(seen.path) for seen in files[:2])
            raise UnsupportedFile(
                f"neither the content nor the names of {names} say their steps: expected a key "
                "'step' in each, or a number in its name; read them from folders of their own"
            )
        return files, []
    named = [seen for seen in files if not is_pointer(seen.path.stem)]
    if len(named) > 1 and _are_parts(named):
        reason = f"it is of step {step}, as {shown(named[0].path.name)} is, which was taken"
        return named, [(seen.path, reason) for seen in files if seen not in named]
    path, others = one_of(step, [seen.path for seen in files], tensors_only)
    return [seen for seen in files if seen.path == path], others


def _are_parts(files: list[_Seen]) -> bool:
    """Whether files belong to one checkpoint: model_100.pt and optimizer_100.pt do."""
    names = [part_in(seen.path.stem) for seen in files]
    numbers = {seen.number for seen in files}
    together = len(numbers) == 1 and (None not in numbers or _KNOWN_PARTS.issuperset(names))
    return together and len(set(names)) == len(names)


def _state(paths: tuple[Path, ...], tensors_only: bool, left_out: dict[str, str]) -> dict[str, Any]:
    if len(paths) == 1:
        state, missing = as_state(read_content(paths[0], tensors_only))
        report(missing, left_out)
        return state
    state, missing = {}, {}
    for path in paths:
        part, gone = as_part(read_content(path, tensors_only), part_in(path.stem))
        state |= part
        missing |= gone
    report(missing, left_out)
    return state
