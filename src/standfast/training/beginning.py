"""Which run a program goes on with, and from which checkpoint."""

from __future__ import annotations

import itertools
import os
import sys
from collections.abc import Collection, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from standfast.errors import (
    AmbiguousRef,
    BadLabel,
    NotAStore,
    RefNotFound,
    RunBusy,
    RunExists,
    StandfastError,
)
from standfast.identity import Identity, identify, recorded
from standfast.store import Checkpoint, Run, Store
from standfast.store.schema import names
from standfast.store.schema.run_file import RunFile
from standfast.store.store import others_like
from standfast.training.mirror.recovery import Elsewhere

MODES: Final = ("auto", "never", "must")
PROOF: Final = "_STANDFAST_PROOF_STORE"
"""Set by a proof for the program that it runs: where all of its checkpoints go."""
_LOOKED_AT: Final = 64
"""Of more runs than these, only the newest are looked at for the nearest."""
_SHOWN: Final = 8


@dataclass(frozen=True)
class Settings:
    """What makes a run the one it is."""

    name: str | None
    hp: Any
    model: Any
    data: Any
    trial: Any
    volatile: Collection[str]
    label: str | None = None
    """What a run without a name is called; it is no part of the identity."""

    def identity(self, trial: Any) -> Identity:
        """The digests of these settings, for a trial of them."""
        return identify(
            name=self.name,
            hp=self.hp,
            model=self.model,
            data=self.data,
            trial=trial,
            volatile=self.volatile,
        )

    def known(self, store: Store, trial: Any) -> Run | None:
        """The run with these settings, if there is one; the store need not be there yet."""
        try:
            return store.known_run(
                self.name, self.hp, self.model, self.data, trial, volatile=self.volatile
            )
        except NotAStore:
            return None

    def run(self, store: Store, trial: Any, parent: Checkpoint | None = None) -> Run:
        """The run with these settings, made if need be."""
        run = store.run(
            self.name,
            self.hp,
            self.model,
            self.data,
            trial,
            volatile=self.volatile,
            parent=parent,
        )
        if self.label is not None and run.name is None:
            run.rename(self.label)
        return run


@dataclass(frozen=True)
class Beginning:
    """A run, and what it goes on from."""

    run: Run
    hp: Any
    """The hyperparameters that the program has now."""
    parent: Checkpoint | None = None
    """The checkpoint of another run that it branches from, if it has none of its own yet."""
    notes: tuple[str, ...] = ()
    is_new: bool = False
    """Whether the run was made for this."""


def store_of(place: str | os.PathLike[str] | Store) -> Store:
    """The store that a program names, or the one that a proof puts in its place."""
    elsewhere = os.environ.get(PROOF)
    if elsewhere:
        return Store(elsewhere)
    return place if isinstance(place, Store) else Store(place)


def is_named(place: str | os.PathLike[str] | Store, store: Store) -> bool:
    """Whether a store is the one that a program names, and not one in its place."""
    return (place if isinstance(place, Store) else Store(place)).url == store.url


def program_name() -> str:
    """The name of the program, which stands for a run that nothing else identifies."""
    stem = Path(sys.argv[0] if sys.argv else "").stem
    try:
        return "run" if stem.startswith("-") else names.check_label(stem, "the name of the program")
    except BadLabel:
        return "run"


def begin(
    store: Store, settings: Settings, resume: str, mirror: Elsewhere | None = None
) -> Beginning:
    """The run to go on with; raises RefNotFound, RunExists or AmbiguousRef.

    What the mirror has of it, and the store has not, is brought back first.
    """
    if resume == "never":
        return _new(store, settings, mirror)
    if resume not in MODES:
        return _branch(store, settings, resume, mirror)
    run = settings.known(store, settings.trial)
    if mirror is not None:
        sought = _sought(settings, settings.trial, run, mirror)
        mirror.bring_back(sought)
        run = _here(store, settings, settings.trial, sought)
    if run is not None and (_has_checkpoints(store, run) or run.parent):
        return Beginning(run, settings.hp, _parent(store, run))
    if resume == "must":
        wanted = f"run {run.hash} has no checkpoint yet" if run else "no run has this identity"
        lines = [f'{store.url}: {wanted}, and resume="must" was asked for']
        raise RefNotFound("\n".join([*lines, *_nearest(store, settings)]))
    notes = () if run else tuple(_others(store, settings)) or tuple(_nearest(store, settings))
    made = settings.run(store, settings.trial)
    return Beginning(made, settings.hp, None, notes, is_new=run is None)


def _sought(settings: Settings, trial: Any, known: Run | None, mirror: Elsewhere | None) -> str:
    """The hash of the run with these settings, here or in the mirror: identities before labels."""
    identity = settings.identity(trial)
    if known is not None:
        is_there = mirror and known.hash != identity.hash and mirror.may_have(identity.hash)
        return identity.hash if is_there else known.hash
    file = None
    if mirror is not None and settings.name is not None and trial is None:
        file = mirror.labelled(settings.name, identity, settings.hp, settings.volatile)
    return file.run if file else identity.hash


def _here(store: Store, settings: Settings, trial: Any, sought: str) -> Run | None:
    """The run that was sought in the mirror; None if there is none.

    Raises RefNotFound if nothing of it could be brought back, and its name is the label of
    another run here.
    """
    run = settings.known(store, trial)
    return run if run is None or run.hash == sought else store.open_run(sought)


def _new(store: Store, settings: Settings, mirror: Elsewhere | None) -> Beginning:
    for trial in _trials(settings):
        try:
            if settings.known(store, trial) is not None:
                continue
        except AmbiguousRef:  # several have the name as their label
            continue
        if mirror is None or not mirror.may_have(settings.identity(trial).hash):
            run = settings.run(store, trial)
            with suppress(RunBusy):  # another process took it at the same moment
                run.take()
                return Beginning(run, settings.hp, None, _trial_note(trial), is_new=True)
    raise _taken(settings)


def _branch(store: Store, settings: Settings, ref: str, mirror: Elsewhere | None) -> Beginning:
    """A run that goes on from a checkpoint; one that did so before goes on with its own."""
    for trial in _trials(settings):
        known = settings.known(store, trial)
        run = _sought(settings, trial, known, mirror)
        file = known.file if known and known.hash == run else None
        if file is None and mirror is not None:
            file = mirror.run_file(run)
        if file is not None and not _is_meant(store, ref, file):
            continue
        if mirror is not None:
            mirror.bring_back(run)
            known = _here(store, settings, trial, run)
        if known is not None:
            return Beginning(known, settings.hp, _parent(store, known))
        parent = _resolved(store, ref)
        made = settings.run(store, trial, parent)
        return Beginning(made, settings.hp, parent, _trial_note(trial), is_new=True)
    raise _taken(settings)


def _resolved(store: Store, ref: str) -> Checkpoint:
    try:
        return store.resolve(ref)
    except (NotAStore, RefNotFound) as error:
        raise RefNotFound(
            f"resume={ref!r} is none of {', '.join(map(repr, MODES))}, and no checkpoint goes by "
            f"it: {error}"
        ) from error


def _is_meant(store: Store, ref: str, branch: RunFile) -> bool:
    """Whether a reference may have led to the parent of a branch when that was made.

    By now it may lead elsewhere, or to several: a branch can bear the name of its parent's run.
    Or to nothing, where the branch is on another machine than its parent.
    """
    place = branch.parent
    if place is None:
        return False
    if ref == "latest":  # of the store, and so of the branch itself by now
        return True
    run, _, step = ref.partition("@")
    is_step = step == str(place.step) or not step.isdecimal()
    prefix = run.replace("_", "")
    if len(prefix) >= names.SHORTEST and place.run.startswith(prefix):
        return is_step
    is_known, found = False, None
    with suppress(StandfastError):
        name, is_known = store.open_run(place.run).name, True
        if name == run:
            return is_step
    with suppress(StandfastError):
        found = store.resolve(ref).head.place
    if is_known or (found is not None and found.run != branch.run):
        return found == place
    return is_step


def _parent(store: Store, run: Run) -> Checkpoint | None:
    """Where a run that has no checkpoint of its own came from."""
    if run.parent is None or _has_checkpoints(store, run):
        return None
    return store.checkpoint(run.parent.run, run.parent.step)


def _has_checkpoints(store: Store, run: Run) -> bool:
    store.index.refresh()
    return store.index.count(run.hash) > 0


def _trials(settings: Settings) -> Iterator[Any]:
    """The trials to be tried: the one that was asked for, or one after the other."""
    if settings.trial is not None:
        return iter([settings.trial])
    return itertools.chain([None], itertools.count(2))


def _trial_note(trial: Any) -> tuple[str, ...]:
    return () if trial is None else (f"it is trial {trial} of its settings",)


def _taken(settings: Settings) -> RunExists:
    return RunExists(
        f"there is a run with these settings and trial {settings.trial!r} already, here or in the "
        "mirror: give another trial, or none to take the next free one"
    )


def _others(store: Store, settings: Settings) -> Iterator[str]:
    """A line that names the runs with the same settings, if there are any."""
    identity = settings.identity(settings.trial)
    return others_like(store.index, identity, settings.hp, settings.volatile)


def _nearest(store: Store, settings: Settings) -> Iterator[str]:
    """The run of the store that is most like the one that was not found, and what differs."""
    with suppress(StandfastError):  # it is a courtesy
        candidates = [run for run in store.runs()[:_LOOKED_AT] if store.index.count(run.hash)]
        compared = [(run, list(_differences(settings, run.file))) for run in candidates]
        if compared:
            run, lines = min(compared, key=lambda pair: len(pair[1]))
            label = f"{run.name!r} ({run.hash})" if run.name else run.hash
            yield f"the nearest run with checkpoints is {label}; there it is"
            yield from (f"  {line}" for line in lines[:_SHOWN])
            if len(lines) > _SHOWN:
                yield f"  and {len(lines) - _SHOWN} more differences"


def _differences(settings: Settings, file: RunFile) -> Iterator[str]:
    """What is another in a run than here, a line each."""
    yield from changed_settings(settings.hp, file.hyperparameters, settings.volatile)
    identity = settings.identity(settings.trial)
    if identity.model != file.identity["model"]:
        yield "another model"
    if identity.data != file.identity["data"]:
        yield "other data"
    if settings.trial is not None and recorded(settings.trial) != file.trial:
        yield f"trial {file.trial}, and here {settings.trial}"
    if settings.trial is None and settings.name not in (file.name, file.trial):
        yield f"called {file.name!r}, and here {settings.name!r}"


def changed_settings(hp: Any, recorded_hp: Any, volatile: Collection[str] = ()) -> Iterator[str]:
    """The hyperparameters that are others than the recorded ones, a line each."""
    here, there = _flat(recorded(hp), ""), _flat(recorded_hp, "")
    for key in {**here, **there}:
        if here.get(key) != there.get(key) and key not in volatile:
            yield f"{key}: {there.get(key, 'absent')}, and here {here.get(key, 'absent')}"


def _flat(value: Any, path: str) -> dict[str, str]:
    """Hyperparameters by their paths, as text."""
    if isinstance(value, Mapping) and value:
        flat: dict[str, str] = {}
        for key, member in value.items():
            flat |= _flat(member, f"{path}.{key}" if path else str(key))
        return flat
    return {path: repr(value)} if path or value is not None else {}
