"""Checkpoints that another program wrote become a run, or several."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, Final

from standfast.errors import (
    BadLabel,
    BadOption,
    DamagedFile,
    FileError,
    RefusedPickle,
    RefusedState,
    UnknownFormat,
    UnsupportedFile,
)
from standfast.identity import Identity, identify
from standfast.store.checkpoint import Checkpoint
from standfast.store.run import Run
from standfast.store.save.planning import plan_state
from standfast.store.save.saving import SAFETENSORS, TORCH
from standfast.store.schema import names
from standfast.store.schema.run_file import local_time
from standfast.store.store import Store
from standfast.tensorfile.importers import Experiment, Found, Root, read_folder, read_root

Problem = tuple[Path, str]
"""A file, and what is the matter with it."""
_DAMAGED: Final = (DamagedFile, FileError)
_UNREADABLE: Final = (*_DAMAGED, RefusedPickle, UnknownFormat, UnsupportedFile)


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
    """What became of a folder, or of one experiment of a root."""

    run: Run
    kind: str
    """Who wrote it: transformers, lightning, torch or weightslab."""
    ignored: list[Problem]
    """The files that were not taken, and why."""
    taken: list[Taken] = field(default_factory=list)
    skipped: list[int] = field(default_factory=list)
    """The steps that the run had already."""
    experiment: str | None = None
    """What weightslab called it."""


@dataclass(frozen=True)
class ImportedRoot:
    """What became of a root that weightslab wrote."""

    runs: list[Imported]
    """One for each experiment that has checkpoints."""
    problems: list[Problem]
    """What could not be read in the root itself; the rest was taken."""


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
        for found in _unknown(folder.found, imported):
            taken = _take(run, found, found.state())
            imported.taken.append(taken)
            report(taken)
    return imported


def import_root(
    store: Store,
    path: str | os.PathLike[str],
    name: str | None = None,
    report: Callable[[Taken], None] = lambda taken: None,
    finished: Callable[[Imported], None] = lambda imported: None,
) -> ImportedRoot:
    """Save each experiment of a root that weightslab wrote into a run of its own.

    The run's hyperparameters and data are those of the experiment, its model the weights by their
    names and shapes; where two experiments come to the same, the younger has its hash as `trial`.
    A note on each checkpoint says of which experiment it is. Steps that a run has are skipped, so
    that an import can be repeated. `report` is told of each checkpoint, `finished` of each run.
    What is damaged is listed, and the rest is taken. Raises UnsupportedFile before anything is
    saved if samples are in a file that cannot be read here.
    """
    root = read_root(path)
    problems = list(root.problems)
    sources = _sources(root, problems)
    if name is not None and len(sources) != 1:
        raise BadOption(
            f"{os.fsdecode(path)} has {len(sources)} experiments with checkpoints, and each "
            "becomes a run of its own name: import it without name="
        )
    done = ImportedRoot([], problems)
    for source in sources:
        done.runs.append(_import(store, source, name, report))
        finished(done.runs[-1])
    return done


@dataclass(frozen=True)
class _Source:
    """An experiment, and what the run is that it becomes."""

    experiment: Experiment
    hp: Any
    model: Any
    data: Any
    trial: str | None
    damaged: list[Problem]
    """What of these could not be read."""

    @property
    def is_bare(self) -> bool:
        """Whether nothing of what it is could be read, so that its name stands for it."""
        return self.hp is None and self.model is None and self.data is None

    @property
    def name(self) -> str:
        """The experiment's name; its hash, where it has none that a run may have."""
        name, hash = self.experiment.name, self.experiment.hash
        if name is None or self.is_bare:
            return hash  # which alone tells it from others
        try:
            return names.check_label(name, "a run's name")
        except BadLabel:
            return hash


def _sources(root: Root, problems: list[Problem]) -> list[_Source]:
    """The experiments that have checkpoints, the last used one last, each with its own identity."""
    sources = []
    seen: set[Identity] = set()
    # The order must be the same when a root that has grown is imported again.
    for experiment in sorted(root.experiments.values(), key=lambda e: (e.created or "", e.hash)):
        model, unreadable = _model(experiment)
        if len(unreadable) == len(experiment.checkpoints):
            problems += unreadable
            continue
        damaged: list[Problem] = []
        hp = _readable(experiment.config, root.path, damaged)
        data = _readable(experiment.data_state, root.path, damaged)
        is_bare = hp is None and model is None and data is None
        name = experiment.hash if is_bare else None
        identity = identify(name=name, hp=hp, model=model, data=data)
        trial = experiment.hash if identity in seen else None
        seen.add(identity)
        sources.append(_Source(experiment, hp, model, data, trial, damaged))
    # The one that was used last comes last, so that the latest stays the latest.
    used = [each.hash for each in root.experiments.values()]
    if root.latest in used:
        used.insert(0, root.latest)
    return sorted(sources, key=lambda source: -used.index(source.experiment.hash))


def _model(experiment: Experiment) -> tuple[Any, list[Problem]]:
    """The model by the first checkpoint that can be read, and what is wrong with those before."""
    problems: list[Problem] = []
    for step, path in experiment.checkpoints.items():
        count = len(problems)
        model = _readable(partial(experiment.model, step), path, problems, _UNREADABLE)
        if len(problems) == count:
            return model, problems
    return None, problems


def _readable(
    read: Callable[[], Any],
    path: Path,
    problems: list[Problem],
    errors: tuple[type[Exception], ...] = _DAMAGED,
) -> Any:
    """What can be read; None, and a problem, if it cannot."""
    try:
        return read()
    except errors as error:
        problems.append((path, getattr(error, "strerror", None) or str(error)))
        return None


def _import(
    store: Store, source: _Source, name: str | None, report: Callable[[Taken], None]
) -> Imported:
    experiment = source.experiment
    label = name or source.name
    if source.is_bare:
        run = store.run(label, trial=source.trial)
    else:
        run = store.run(hp=source.hp, model=source.model, data=source.data, trial=source.trial)
        if run.name is None:
            run.rename(label)
    run.date(local_time(experiment.created), local_time(experiment.last_used))
    imported = Imported(run, "weightslab", source.damaged, experiment=experiment.hash)
    with run:
        found = [experiment.found(step) for step in experiment.checkpoints]
        for each in _unknown(found, imported):
            state = _readable(each.state, each.paths[0], imported.ignored, _UNREADABLE)
            if state is None:
                continue
            written = state.get("timestamp") or experiment.file_of(each.step)[1]
            taken = _take_whole(run, each, state, local_time(written))
            taken.checkpoint.note(f"imported from weightslab experiment {experiment.hash}")
            imported.taken.append(taken)
            report(taken)
    return imported


def _unknown(found: Iterable[Found], imported: Imported) -> Iterator[Found]:
    """The checkpoints that the run has not; the others are put down as skipped."""
    known = {checkpoint.step for checkpoint in imported.run.checkpoints()}
    for each in found:
        if each.step in known:
            imported.skipped.append(each.step)
        else:
            yield each


def _take(run: Run, found: Found, state: Any) -> Taken:
    checkpoint = run.save(
        found.step, state, metrics=found.metrics, epoch=found.epoch, best=found.best
    )
    return Taken(checkpoint, found.paths, dict(found.left_out))


def _take_whole(run: Run, found: Found, state: Any, time: str | None) -> Taken:
    """Save a file of weights as one, where readers of layout V3 find it, with its time."""
    wanted = replace(run.wanted(found.step, format=TORCH), time=time)
    try:
        head = run.commit(plan_state(state), wanted)
    except RefusedState:  # torch would not read it with weights_only=True
        head = run.commit(plan_state(state), replace(wanted, format=SAFETENSORS))
    run.tidy()
    return Taken(Checkpoint(run.store, head), found.paths, dict(found.left_out))


def _name_of(path: str | os.PathLike[str]) -> str:
    name = os.path.basename(os.path.realpath(path))
    try:
        return names.check_label(os.fsdecode(name), "a run's name")
    except BadLabel as error:
        raise BadLabel(f"{error}; give the run a name: name=") from error
