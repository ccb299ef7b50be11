"""A store: the runs in a folder, and what refers to their checkpoints."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self, TypeVar

import msgspec

from standfast.errors import (
    AlreadyExists,
    AmbiguousRef,
    DamagedFile,
    MissingFile,
    NotAStore,
    RefNotFound,
    RunCollision,
    WriteFailed,
)
from standfast.identity import Identity, identify, recorded
from standfast.policies import Retention, as_bytes
from standfast.store.backends.address import opened, place_of
from standfast.store.backends.backend import Backend
from standfast.store.checkpoint import Checkpoint
from standfast.store.index.index import Index
from standfast.store.index.manifest import Manifest
from standfast.store.load import choosing
from standfast.store.retention.budgets import keep_within
from standfast.store.retention.history import why_gone
from standfast.store.retention.restoring import Restored, restore
from standfast.store.retention.retaining import Retained
from standfast.store.run import Run
from standfast.store.save.changing import change_of
from standfast.store.schema import names
from standfast.store.schema.marks import read_marks, write_marks
from standfast.store.schema.run_file import RunFile, encode, environment, known_from, now, read_run
from standfast.store.schema.settings import change_settings, read_settings
from standfast.store.v3.companions import write_beside, write_config
from standfast.store.v3.foreign import is_foreign_store

Result = TypeVar("Result")


class Store:
    """The checkpoints of many runs in one folder.

    >>> store = standfast.Store("experiments")
    >>> run = store.run("gpt", hp={"lr": 3e-4, "layers": 12})
    >>> store.resolve("latest").metrics
    """

    def __init__(
        self, place: str | os.PathLike[str] | Backend, *, cache: int | float | str | None = None
    ) -> None:
        """A folder, which is made with the first run, a URL such as s3://bucket/prefix, or a
        backend. With `cache`, so many bytes of what is read from a URL are kept on this machine.
        """
        self.backend: Final[Backend] = opened(place, as_bytes(cache))
        self.index: Final = Index(self.backend)
        self._manifest: Final = Manifest(self.backend)

    @property
    def url(self) -> str:
        """Where the store is."""
        return self.backend.url

    @property
    def place(self) -> str | None:
        """The folder or URL that `Store` takes for this one, in another process too, if any."""
        return place_of(self.backend)

    @property
    def logs(self) -> Path | None:
        """The folder of the metrics logs, beside that of the checkpoints; None if it has none."""
        models = self.backend.path(names.MODELS)
        return models.parent.parent / "logs" if models else None

    @property
    def budget(self) -> int | None:
        """The bytes that all runs and the trash may take; beyond them the oldest checkpoints go.

        It holds after every save into the store, until it is set to None: see `retain`.
        """
        return read_settings(self.backend).budget

    @budget.setter
    def budget(self, budget: int | float | str | None) -> None:
        self.check_exists()
        change_settings(self.backend, budget=as_bytes(budget))

    def retain(self) -> Retained:
        """Delete what the runs do not keep, and the oldest of all until the budget is kept."""
        return keep_within(self, self.budget)

    def restore(self, run: str, *steps: int) -> Restored:
        """Bring back from the trash these steps of a run, by its whole hash, or all there is."""
        restored = restore(self.backend, run, steps or None)
        self.open_run(run).mark_best()
        self.write_manifest()
        return restored

    # Runs

    def run(
        self,
        name: str | None = None,
        hp: Any = None,
        model: Any = None,
        data: Any = None,
        trial: Any = None,
        *,
        volatile: Collection[str] = (),
        parent: Checkpoint | None = None,
    ) -> Run:
        """The run of this identity: found if there is one, else made.

        A run is what its hyperparameters, model and data are; `trial` tells apart runs that are
        equal in these, and the keys in `volatile` do not count. Where none of the three is given,
        the name stands for them, and a run that was given this name is found as well. Otherwise
        a name is a label, given when the run is made; so is the parent, the checkpoint that a new
        run goes on from.
        """
        identity, found = self._look_up(name, hp, model, data, trial, volatile)
        if found is not None:
            return Run(self, self._completed(found, name, hp))
        if is_foreign_store(self.backend):
            raise NotAStore(
                errno.EPERM,
                f"{self.url} was written by another program, and Standfast writes nothing into it: "
                "make a store of its checkpoints elsewhere with `standfast import`",
            )
        file = RunFile(
            run=identity.hash,
            identity=_digests(identity),
            name=name,
            trial=None if trial is None else recorded(trial),
            created=now(),
            parent=parent.head.place if parent else None,
            hyperparameters=recorded(hp),
            environment=environment(),
            retention=self._retention_of(parent) if parent else None,
        )
        encoded = encode(file)
        write_beside(self.backend, file.run, hp, model, data)
        try:
            self.backend.create(names.run_file(file.run), encoded)
        except AlreadyExists:  # another process was faster
            found = self._found(identity)
            if found is None:
                raise  # it is there, and cannot be read
            return Run(self, found)
        self.index.close()  # now there is a folder for its file
        self.write_manifest()
        return Run(self, file)

    def _retention_of(self, parent: Checkpoint) -> Retention | None:
        """What the run of a checkpoint keeps, which a branch of it takes over."""
        file = self.index.run_file(parent.head.run)
        return file.retention if file else None

    def known_run(
        self,
        name: str | None = None,
        hp: Any = None,
        model: Any = None,
        data: Any = None,
        trial: Any = None,
        *,
        volatile: Collection[str] = (),
    ) -> Run | None:
        """The run that `run` would find; None if it would make one."""
        _, found = self._look_up(name, hp, model, data, trial, volatile)
        return Run(self, found) if found else None

    def _look_up(
        self,
        name: str | None,
        hp: Any,
        model: Any,
        data: Any,
        trial: Any,
        volatile: Collection[str],
    ) -> tuple[Identity, RunFile | None]:
        if name is not None:
            names.check_label(name, "a run's name")
        identity = identify(
            name=name, hp=hp, model=model, data=data, trial=trial, volatile=volatile
        )
        found = self._found(identity)
        if found is None and hp is None and model is None and data is None and trial is None:
            found = self._labelled(str(name))
        return identity, found

    def _found(self, identity: Identity) -> RunFile | None:
        """The run of this identity; raises RunCollision if another goes by the same hash."""
        try:
            file = read_run(self.backend, identity.hash)
            digests: Mapping[str, str | None] = file.identity
        except MissingFile:
            file = None
            self.index.refresh()
            newest = next(self.index.newest(identity.hash), None)
            if newest is None:
                return None
            digests = newest.head.identity
        if digests != _digests(identity):
            raise RunCollision(
                f"run {identity.hash} has another identity than the one asked for, which has the "
                "same short hash: give a `trial` to tell them apart"
            )
        return file

    def _completed(self, file: RunFile, name: str | None, hp: Any) -> RunFile:
        """The run file with what it does not know: it may have been made again from a record."""
        if (file.name or name is None) and (file.hyperparameters is not None or hp is None):
            return file
        new = msgspec.structs.replace(
            file,
            name=file.name or name,
            hyperparameters=recorded(hp) if file.hyperparameters is None else file.hyperparameters,
        )
        with suppress(WriteFailed):  # in a store that can only be read
            self.backend.replace(names.run_file(file.run), encode(new))
            if new.hyperparameters != file.hyperparameters:
                write_config(self.backend, file.run, hp)
        return new

    def _labelled(self, name: str) -> RunFile | None:
        self.index.refresh()
        found = self.index.runs(name=name)
        if len(found) > 1:
            raise AmbiguousRef(
                f"{len(found)} runs are called {name!r}: {', '.join(each.run for each in found)}; "
                "give hp, model or data too"
            )
        return read_run(self.backend, found[0].run) if found else None

    def runs(self) -> list[Run]:
        """All runs, the one with the latest checkpoint first."""
        self.check_exists()
        self.index.refresh()
        return [self.open_run(each.run) for each in self.index.runs()]

    def open_run(self, run: str) -> Run:
        """The run of this hash, all 24 characters of it."""
        try:
            return Run(self, read_run(self.backend, run))
        except (MissingFile, DamagedFile) as error:
            newest = next(self.index.newest(run), None)
            if newest is None and isinstance(error, DamagedFile):
                raise
            if newest is None:
                raise RefNotFound(f"{self.url} has no run {run}") from None
            head = newest.head  # records know what matters, and doctor makes the file again
            return Run(self, known_from(head))

    def find_run(self, ref: str) -> Run:
        """The run that goes by a name or by the beginning of a hash."""
        self.check_exists()
        self.index.refresh()
        return self._run_of(ref)

    def _run_of(self, ref: str) -> Run:
        found = self.index.runs(name=ref)
        found = [each for each in found if each.used] or found  # those that have a checkpoint
        prefix = ref.replace("_", "")
        if not found and len(prefix) >= names.SHORTEST:
            found = self.index.runs(prefix=prefix)
        if not found:
            short = len(prefix) < names.SHORTEST and self.index.runs(prefix=prefix)
            hint = f": of a hash, give at least {names.SHORTEST} characters" if short else ""
            raise RefNotFound(f"{self.url}: no run goes by {ref!r}{hint}")
        if len(found) > 1:
            more = ", …" if len(found) > 5 else ""
            shown = ", ".join(f"{each.run} (saved {_day(each.used)})" for each in found[:5])
            raise AmbiguousRef(
                f"{len(found)} runs go by {ref!r}: {shown}{more}; use the beginning of a hash, and "
                "`standfast log` to see how they differ"
            )
        return self.open_run(found[0].run)

    # Checkpoints

    def resolve(self, ref: str) -> Checkpoint:
        """The checkpoint that is meant: `latest`, a tag, a run's name or the beginning of its
        hash (which mean its latest), or `RUN@STEP`, where a step may be `latest` or `best` too.
        """
        self.check_exists()
        if ref == "latest":
            return self.with_latest(_checked)
        self.index.refresh()
        tagged = self.tagged(ref)
        if tagged is not None:
            return tagged
        run, at, step = ref.partition("@")
        if run == "best" and not at:
            raise RefNotFound("the best of which run? RUN@best is the best of one")
        return self._run_of(run).checkpoint(step if at else "latest")

    def tagged(self, tag: str) -> Checkpoint | None:
        """The checkpoint that bears a tag."""
        found = self.index.tagged(tag)
        if len(found) > 1:
            raise AmbiguousRef(
                f"the tag {tag!r} is on {' and '.join(f'{run}@{step}' for run, step in found)}: "
                "remove it from one of them"
            )
        return self.checkpoint(*found[0]) if found else None

    def untag(self, tag: str) -> None:
        """Remove a tag from wherever it is."""
        self.check_exists()
        self.index.refresh()
        found = self.index.tagged(tag)
        if not found:
            raise RefNotFound(f"{self.url} has no tag {tag!r}")
        for run, step in found:
            with change_of(self.backend, "tags"), change_of(self.backend, run):
                marks = read_marks(self.backend, run, step)
                left = [each for each in marks.tags if each != tag]
                write_marks(self.backend, msgspec.structs.replace(marks, tags=left))

    def find(self, run: str, step: int) -> Checkpoint | None:
        """The checkpoint of a run and a step, if there is one that can be read."""
        self.index.refresh()
        listed = self.index.record(run, step)
        return Checkpoint(self, listed.head) if listed else None

    def checkpoint(self, run: str, step: int) -> Checkpoint:
        """The checkpoint of a run and a step; raises RefNotFound, or a DamagedFile."""
        found = self.find(run, step)
        if found is not None:
            return found
        for _, damaged, problem in self.index.unreadable(run):
            if damaged == step:
                raise DamagedFile(f"{names.record_file(run, step)}: {problem}")
        steps = self.index.steps(run)
        shown = ", ".join(map(str, steps if len(steps) < 8 else [*steps[:3], "…", *steps[-3:]]))
        raise RefNotFound(
            f"run {run} has no checkpoint of step {step}{why_gone(self, run, step)}; it has "
            f"{shown or 'none'}"
        )

    def with_latest(self, action: Callable[[Checkpoint], Result], run: str | None = None) -> Result:
        """Do it with the latest checkpoint, of a run or of the store, that it can be done with."""
        self.index.refresh()
        return choosing.with_latest(self, action, run)

    def with_best(self, action: Callable[[Checkpoint], Result], run: str) -> Result:
        """Do it with the best checkpoint of a run, or if that is damaged with the latest."""
        self.index.refresh()
        return choosing.with_best(self, action, run)

    # Views

    def saved(self) -> None:
        """A checkpoint was saved: the manifest is written again once in a while, by a thread."""
        self._manifest.refresh()

    def will_tell(self) -> None:
        """A checkpoint was saved: `flush` writes the manifest, if nobody does before."""
        self._manifest.mark()

    def write_manifest(self) -> None:
        """Write the manifest anew, now."""
        self._manifest.write(self.index)

    def flush(self) -> None:
        """Return once the manifest tells of all that this process has saved."""
        self._manifest.close()

    def close(self) -> None:
        """Let the manifest be up to date, and let go of the index; the next call opens it again."""
        self.flush()
        self.index.close()
        self.backend.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        at: TracebackType | None,
    ) -> None:
        self.close()

    def check_exists(self) -> None:
        """Raise NotAStore if there is none at this place."""
        if self.backend.version(names.MODELS) is None:
            raise NotAStore(
                errno.ENOENT, f"{self.url} is no store: there is no folder {names.MODELS} in it"
            )

    def __repr__(self) -> str:
        return f"<store {self.url!r}>"


def _checked(checkpoint: Checkpoint) -> Checkpoint:
    checkpoint.check_files()
    return checkpoint


def _day(time: str | None) -> str:
    return time[:19].replace("T", " ") if time else "never"


def _digests(identity: Identity) -> dict[str, str | None]:
    return {"hp": identity.hp, "model": identity.model, "data": identity.data}
