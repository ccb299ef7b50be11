"""A folder of checkpoints that another program wrote becomes a run."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from holdfast.errors import BadLabel
from holdfast.store import names
from holdfast.store.checkpoint import Checkpoint
from holdfast.store.run import Run
from holdfast.store.store import Store
from holdfast.verbs.folders import Found, read_folder


@dataclass(frozen=True)
class Taken:
    """A checkpoint that was imported."""

    checkpoint: Checkpoint
    paths: tuple[Path, ...]
    """The files that it was read from."""
    left_out: dict[str, str]
    """What could not be taken along: the class's name by its path."""


@dataclass(frozen=True)
class Imported:
    """What became of a folder."""

    run: Run
    kind: str
    """Who wrote it: transformers, lightning or torch."""
    ignored: list[tuple[Path, str]]
    """The files that were not taken, and why."""
    taken: list[Taken] = field(default_factory=list)
    skipped: list[int] = field(default_factory=list)
    """The steps that the run had already."""


def import_folder(
    store: Store,
    path: str | os.PathLike[str],
    name: str | None = None,
    report: Callable[[Taken], None] = lambda taken: None,
) -> Imported:
    """Save each checkpoint of a folder into a run, in the order of their steps.

    The run is called as the folder is, unless a name is given. Steps that it has are skipped, so
    that an import can be repeated. `report` is told of each checkpoint once it is saved.
    """
    folder = read_folder(path)
    run = store.run(_name_of(path) if name is None else name)
    imported = Imported(run, folder.kind, folder.ignored)
    with run:
        known = {checkpoint.step for checkpoint in run.checkpoints()}
        for found in folder.found:
            if found.step in known:
                imported.skipped.append(found.step)
                continue
            taken = _take(run, found)
            imported.taken.append(taken)
            report(taken)
    return imported


def _take(run: Run, found: Found) -> Taken:
    checkpoint = run.save(
        found.step, found.state(), metrics=found.metrics, epoch=found.epoch, best=found.best
    )
    return Taken(checkpoint, found.paths, dict(found.left_out))


def _name_of(path: str | os.PathLike[str]) -> str:
    name = os.path.basename(os.path.realpath(path))
    try:
        return names.check_label(os.fsdecode(name), "a run's name")
    except BadLabel as error:
        raise BadLabel(f"{error}; give the run a name: name=") from error
