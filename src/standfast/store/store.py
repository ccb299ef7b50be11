"""A store: the runs in a folder, and what refers to their checkpoints."""

from __future__ import annotations

import errno
import logging
import os
import warnings
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, Final, Self, TypeVar

import msgspec

from standfast.errors import (
    AmbiguousRef,
    DamagedFile,
    FellBack,
    FileError,
    MissingFile,
    NotAStore,
    RefNotFound,
    RunBusy,
    RunCollision,
    TooNew,
    WriteFailed,
)
from standfast.identity import Identity, identify, is_trial, recorded
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
from standfast.store.retention.retaining import Retained, said
from standfast.store.retention.trash import Trash
from standfast.store.run import Run
from standfast.store.save.taken import change_run, changing
from standfast.store.schema import names
from standfast.store.schema.hyperparameters import exact_form
from standfast.store.schema.run_file import RunFile, encode, environment, known_from, now, read_run
from standfast.store.schema.settings import Settings, change_settings, read_settings
from standfast.store.v3.companions import recover_run, write_beside
from standfast.store.v3.foreign import is_foreign_store, read_only

Result = TypeVar("Result")
_log: Final = logging.getLogger("standfast")
_SHOWN: Final = 8


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
        settings = read_settings(self.backend)
        if settings == Settings():
            self.check_exists()
        return settings.budget

    @budget.setter
    def budget(self, budget: int | float | str | None) -> None:
        self.check_exists()
        change_settings(self.backend, budget=as_bytes(budget))

    def retain(self) -> Retained:
        """Delete what the runs do not keep, and the oldest of all until the budget is kept."""
        return keep_within(self, self.budget)

    def restore(self, run: str, *steps: int) -> Restored:
        """Bring back from the trash these steps of a run, by its whole hash, or all there is."""
        if not Trash(self.backend).entries(run):
            self.check_exists()
        restored = restore(self.backend, self.index, run, steps or None)
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
        equal in these, `name` does if no trial is given, and the keys in `volatile` do not count.
        A name that no run was made with finds the run that was renamed to it, if that is equal in
        all three, or if none of the three is given; raises AmbiguousRef if there are several.
        `parent` is the checkpoint that a new run goes on from.
        """
        identity, found = self._look_up(name, hp, model, data, trial, volatile)
        named = trial is None and name is not None
        if named and not (hp is None and model is None and data is None):
            trial = name
        if found is not None and not self.backend.exists(names.run_file(found.run)):
            with (
                suppress(FileError, RunBusy, TooNew),  # in a store that can only be read
                changing(self.backend, self.index, found.run, 0.0),
            ):
                if self.index.steps(found.run):
                    self.backend.create(names.run_file(found.run), encode(found))
                else:  # it was deleted since it was found
                    found = None
        if found is not None:
            return Run(self, self._labelled_now(found, name))
        if is_foreign_store(self.backend):
            raise NotAStore(errno.EROFS, read_only(Path(self.url).parent))
        file = RunFile(
            run=identity.hash,
            identity=_digests(identity),
            name=name,
            trial=None if trial is None else recorded(trial),
            created=now(),
            parent=parent.head.place if parent else None,
            hyperparameters=recorded(hp),
            exact=exact_form(hp),
            environment=environment(),
            retention=self._retention_of(parent) if parent else None,
            named=named,
        )
        encoded = encode(file)
        with changing(self.backend, self.index, file.run):  # one may make or delete it too
            found = self._found(identity)
            if found is not None:
                return Run(self, found)
            write_beside(self.backend, file, model, data)
            self.backend.create(names.run_file(file.run), encoded)
        self.index.close()  # now there is a folder for its file
        self.write_manifest()
        if _log.isEnabledFor(logging.INFO):
            for line in others_like(self.index, identity, hp, volatile):
                _log.info("run %s is new: %s", name or identity.hash, line)
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
        """The run that `run` would find; None if it would make one. Raises NotAStore."""
        _, found = self._look_up(name, hp, model, data, trial, volatile)
        if found is None:
            self.check_exists()
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
        if found is None and name is not None and trial is None:
            self.index.refresh()
            found = labelled(self, name, identity, hp, volatile)
        return identity, found

    def _found(self, identity: Identity) -> RunFile | None:
        """The run of this identity; raises RunCollision if another goes by the same hash."""
        problem = ""
        file: RunFile | None
        try:
            file = read_run(self.backend, identity.hash)
            digests: Mapping[str, str | None] = file.identity
        except (MissingFile, DamagedFile) as error:
            problem = said(error)
            self.index.refresh()
            newest = next(self.index.newest(identity.hash), None)
            if newest is None and isinstance(error, MissingFile):
                return None
            file = recover_run(self.backend, identity.hash)
            if file is None and isinstance(error, DamagedFile):
                raise
            if file is not None:
                digests = file.identity
            elif newest is not None:
                digests = newest.head.identity
        if digests != _digests(identity):
            raise RunCollision(
                f"run {identity.hash} has another identity than the one asked for, which has the "
                "same short hash: give a `trial` to tell them apart"
            )
        if problem:
            _fell_back(problem, file)
        return file

    def _labelled_now(self, file: RunFile, name: str | None) -> RunFile:
        """The run file, with this name if it has none."""
        if file.name or name is None:
            return file
        with suppress(WriteFailed, RunBusy, MissingFile, DamagedFile, TooNew):  # a label can wait
            return change_run(
                self.backend,
                self.index,
                file.run,
                lambda now: msgspec.structs.replace(now, name=now.name or name),
                wait=0.0,
            )
        return msgspec.structs.replace(file, name=name)

    def runs(self) -> list[Run]:
        """All runs, the one with the latest checkpoint first.

        With a FellBack warning for each that is not listed because its run file is too new, or is
        damaged and nothing else tells of it; `open_run` of that one raises.
        """
        self.check_exists()
        self.index.refresh()
        found = []
        for each in self.index.runs():
            try:
                with suppress(RefNotFound):  # deleted since it was listed
                    found.append(self.open_run(each.run))
            except (TooNew, DamagedFile) as error:
                warnings.warn(f"{error}: run {each.run} is not listed", FellBack, stacklevel=2)
        return found

    def open_run(self, run: str) -> Run:
        """The run of this hash, all 24 characters of it.

        With a FellBack warning if its run file is damaged or missing: then the run is what its
        config says, or if that is damaged too, as much as its records do.
        """
        try:
            return Run(self, read_run(self.backend, run))
        except (MissingFile, DamagedFile) as error:
            newest = next(self.index.newest(run), None)
            if isinstance(error, MissingFile) and not self.index.steps(run):
                self.check_exists()
                raise RefNotFound(f"{self.url} has no run {run}") from None
            file = recover_run(self.backend, run)
            if newest is None and file is None:
                raise
            _fell_back(said(error), file)
            if file is None and newest is not None:
                return Run(self, known_from(newest.head), is_known=False)
            assert file is not None
            return Run(self, file)

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
        if not found:
            self.check_exists()
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
            with suppress(RefNotFound):  # deleted, or untagged, by another process
                self.checkpoint(run, step).untag(tag)

    def find(self, run: str, step: int) -> Checkpoint | None:
        """The checkpoint of a run and a step, if there is one that can be read."""
        self.index.refresh()
        listed = self.index.record(run, step)
        if listed is None:
            self.check_exists()
        return Checkpoint(self, listed.head) if listed else None

    def checkpoint(self, run: str, step: int) -> Checkpoint:
        """The checkpoint of a run and a step; raises RefNotFound, or a DamagedFile."""
        found = self.find(run, step)
        if found is not None:
            return found
        newer = self.index.too_new(run)
        for each in self.index.unreadable(run):
            if each[1] == step:
                kind = TooNew if each in newer else DamagedFile
                raise kind(f"{names.record_file(run, step)}: {each[2]}")
        steps = self.index.steps(run)
        shown = ", ".join(map(str, steps if len(steps) < 8 else [*steps[:3], "…", *steps[-3:]]))
        raise RefNotFound(
            f"run {run} has no checkpoint of step {step}{why_gone(self, run, step)}; it has "
            f"{shown or 'none'}"
        )

    def with_latest(self, action: Callable[[Checkpoint], Result], run: str | None = None) -> Result:
        """Do it with the latest checkpoint, of a run or of the store, that it can be done with."""
        self._refresh_for(run)
        return choosing.with_latest(self, action, run)

    def with_best(self, action: Callable[[Checkpoint], Result], run: str) -> Result:
        """Do it with the best checkpoint of a run, or if that is damaged with the latest."""
        self._refresh_for(run)
        return choosing.with_best(self, action, run)

    def _refresh_for(self, run: str | None) -> None:
        """Let the index know what there is now; raises NotAStore if there is nothing."""
        self.index.refresh()
        if not self.index.count(run):
            self.check_exists()

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

    def __exit__(self, *error: object) -> None:
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


def _fell_back(problem: str, file: RunFile | None) -> None:
    """Say that a run is not what its run file says, which cannot be read."""
    source = "its config has the same" if file else "its name, settings and retention are unknown"
    warnings.warn(
        f"{problem}: {source}; `standfast doctor` looks into it",
        FellBack,
        stacklevel=1,  # from one place, so that it is shown once
    )


def _day(time: str | None) -> str:
    return time[:19].replace("T", " ") if time else "never"


def labelled(
    store: Store, name: str, identity: Identity, hp: Any, volatile: Collection[str]
) -> RunFile | None:
    """The run with this label and these settings, if they are given; raises AmbiguousRef.

    If its run file cannot be read, it is what `open_run` finds; raises TooNew.
    """
    # Of a run whose file is missing, the index knows neither the name nor when it was made.
    runs = [each.run for each in store.index.runs() if each.name == name or not each.created]
    found = [store.index.run_file(run) for run in runs]
    files = [file for file in found if file is not None and file.name == name]
    if hp is not None or identity.model is not None or identity.data is not None:
        files = [f for f in files if is_trial(f.identity, f.trial, identity, hp, volatile)]
    if len(files) > 1:
        raise AmbiguousRef(
            f"{len(files)} runs are called {name!r}: {', '.join(file.run for file in files)}; "
            "give the `trial`, or hp, model and data, of one of them"
        )
    if files and not store.index.has_run_file(files[0].run):
        return store.open_run(files[0].run).file
    return files[0] if files else None


def others_like(
    index: Index, identity: Identity, hp: Any, volatile: Collection[str]
) -> Iterator[str]:
    """One line that names the runs with these settings, if there are others."""
    index.refresh()
    files = index.run_files()
    files.pop(identity.hash, None)
    found = [
        f"{file.name!r} ({run})" if file.name else run
        for run, file in files.items()
        if is_trial(file.identity, file.trial, identity, hp, volatile)
    ]
    if found:
        more = f" and {len(found) - _SHOWN:,} more" if len(found) > _SHOWN else ""
        yield f"runs with the same settings are {', '.join(found[:_SHOWN])}{more}"


def _digests(identity: Identity) -> dict[str, str | None]:
    return {"hp": identity.hp, "model": identity.model, "data": identity.data}
