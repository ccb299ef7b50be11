"""The experiments of a store: lists of them, and the content of their checkpoints."""

from __future__ import annotations

import operator
import warnings
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from standfast.errors import (
    AmbiguousRef,
    BadOption,
    DamagedFile,
    MissingFile,
    NotVerified,
    RefNotFound,
    UnstableValue,
    UnsupportedFile,
)
from standfast.experiments.hashes import data_of, split_hash
from standfast.identity import identify
from standfast.store import Checkpoint, Store
from standfast.store.schema import names
from standfast.store.schema.run_file import now
from standfast.store.v3.companions import read_config, read_data_state
from standfast.store.v3.foreign import is_foreign_store


def as_step(value: Any, what: str = "a step") -> int:
    """A whole number as Python has it, which a file can keep; raises BadOption."""
    try:
        if not isinstance(value, bool):
            return operator.index(value)
    except TypeError:
        pass
    raise BadOption(f"{what} is a whole number, not a {type(value).__name__}")


def closest_step(steps: Iterable[int], target: int) -> int:
    """The step nearest to a target; of two that are equally near, the higher."""
    return min(steps, key=lambda step: (abs(step - target), -step))


@dataclass(frozen=True)
class Entry:
    """An experiment in a list."""

    hash: str
    created: str
    last_used: str

    def as_dict(self) -> dict[str, str]:
        """What a manifest says of it, with its hash."""
        return {**parts_of(self.hash), "created": self.created, "last_used": self.last_used}


class Loaded(NamedTuple):
    """The content of a checkpoint."""

    content: Any
    checkpoint: Checkpoint


def parts_of(exp_hash: str) -> dict[str, str]:
    """A hash and its parts, by the keys that a manifest has for them."""
    return {
        "hash": exp_hash,
        **{f"{part}_hash": value for part, value in split_hash(exp_hash).items()},
    }


class StoredExperiments:
    """The runs of a store, as experiments. All methods but `find` take a whole hash."""

    def __init__(self, store: Store) -> None:
        self._store = store

    def entries(self) -> list[Entry]:
        """All runs, the one that was used last first."""
        self._store.write_manifest()  # whoever looks at the file after this sees the same
        listed = []
        for run in self._store.index.runs():
            created = run.created or run.used or now()
            listed.append(Entry(run.run, created, run.last_used or created))
        return sorted(listed, key=lambda entry: entry.last_used, reverse=True)

    def latest(self) -> str | None:
        """The run of the latest commit."""
        self._store.write_manifest()
        newest = next(self._store.index.newest(), None)
        return newest.run if newest else None

    def find(self, exp_hash: str) -> str:
        """The run whose hash begins so, or that has this name."""
        if not isinstance(exp_hash, str):
            raise BadOption(f"a hash or a name is text, not a {type(exp_hash).__name__}")
        prefix = exp_hash.replace("_", "")
        self._store.index.refresh()
        found = self._store.index.runs(prefix=prefix) if prefix else []
        if len(found) == 1:
            return found[0].run
        if found and len(prefix) < names.SHORTEST:
            hashes = ", ".join(run.run for run in found[:5])
            raise AmbiguousRef(f"{len(found)} experiments begin with {exp_hash!r}: {hashes}")
        return self._store.find_run(exp_hash).hash

    def config(self, exp_hash: str) -> Any:
        """The hyperparameters in its run file, with a NotVerified warning if its config was edited.

        The config is for people too, who may change it; what was saved stays in the run file.
        """
        settings = self._store.open_run(exp_hash).file.settings
        try:
            read_config(self._store.backend, exp_hash)
        except MissingFile:
            pass
        except DamagedFile as error:
            warnings.warn(
                f"{self._path(names.config_file(exp_hash))} was changed since it was written "
                f"({error}): these are the hyperparameters that the experiment was made with",
                NotVerified,
                stacklevel=3,
            )
        return settings

    def data_state(self, exp_hash: str) -> Any:
        """The samples in its file, with a NotVerified warning if they are not those it was made of.

        The file is for people too, who may change it; and what YAML has not is text in it.
        """
        digest = self._store.open_run(exp_hash).file.identity["data"]
        if digest is None:
            return None
        try:
            found = read_data_state(self._store.backend, exp_hash)
        except MissingFile as error:
            if is_foreign_store(self._store.backend):
                return None
            raise MissingFile(
                error.errno, f"{error.strerror}: load_data=False loads the rest"
            ) from error
        except UnsupportedFile as error:
            raise type(error)(f"{error}; load_data=False loads the rest") from error
        # The hash that weightslab gave says nothing about the content of the file.
        if not is_foreign_store(self._store.backend) and not _has_digest(found, digest):
            warnings.warn(
                f"{self._path(names.data_state_file(exp_hash))} is not what the experiment was "
                "made of: it was changed, or the samples have uids or tags that YAML has not",
                NotVerified,
                stacklevel=3,
            )
        return found

    def architecture(self, exp_hash: str) -> Path:
        """Where its model would lie, pickled."""
        return self._path(names.architecture_file(exp_hash, ".pkl"))

    def has_checkpoint(self, exp_hash: str) -> bool:
        """Whether there is one, intact or not."""
        self._store.index.refresh()
        return self._store.index.count(exp_hash) > 0

    def load(self, exp_hash: str, target_step: int | None = None) -> Loaded:
        """A checkpoint, every byte of it verified; only `latest` falls back to an older one."""
        if target_step is None:
            return self._store.with_latest(_loaded, exp_hash)
        self._store.index.refresh()
        steps = self._store.index.steps(exp_hash)
        if not steps:
            raise RefNotFound(f"experiment {exp_hash} has no checkpoint yet")
        return _loaded(self._store.checkpoint(exp_hash, closest_step(steps, target_step)))

    def info(self, exp_hash: str) -> dict[str, Any]:
        """What its run file and the heads of its records say."""
        run = self._store.open_run(exp_hash)
        checkpoints = run.checkpoints()  # in the order of their commits
        times = [each.head.time for each in checkpoints]
        best = self._store.index.best(exp_hash)
        return {
            **parts_of(exp_hash),
            "name": run.name,
            "created": run.file.created,
            "last_used": max(run.file.last_used or run.file.created, *times),
            "parent": f"{run.parent.run}@{run.parent.step}" if run.parent else None,
            "config": run.file.settings,
            "steps": self._store.index.steps(exp_hash),
            "latest_step": checkpoints[-1].step if checkpoints else None,
            "best_step": best.step if best else None,
            "nbytes": sum(each.nbytes for each in checkpoints),
            "checkpoints": [self._described(each) for each in checkpoints],
        }

    def _described(self, checkpoint: Checkpoint) -> dict[str, Any]:
        path = self._path(names.whole_file(checkpoint.head.run, checkpoint.step))
        return {
            "step": checkpoint.step,
            "time": checkpoint.head.time,
            "metrics": checkpoint.metrics,
            "nbytes": checkpoint.nbytes,
            "path": path if path.exists() else None,  # others may save in other forms
        }

    def _path(self, name: str) -> Path:
        path = self._store.backend.path(name)
        assert path is not None  # a manager's store is a folder
        return path


def _loaded(checkpoint: Checkpoint) -> Loaded:
    return Loaded(checkpoint.state(), checkpoint)


def _has_digest(data_state: dict[str, Any], digest: str) -> bool:
    """Whether an experiment of this digest was made of these samples."""
    forms = [form for form in (data_state, data_of(data_state)) if form is not None]
    try:
        return any(identify(data=form).data == digest for form in forms)
    except UnstableValue:
        return False
