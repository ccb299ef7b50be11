"""Writes the experiments of a program: what they are, as soon as training goes on, and how far."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any

import msgspec

from standfast.errors import BadOption, NotOpen, StandfastError
from standfast.experiments.architectures import pickle_architecture
from standfast.experiments.hashes import digests_of
from standfast.experiments.snapshot import Snapshot, by_weights, changed_parts, take_snapshot
from standfast.experiments.steps import as_step
from standfast.store import Checkpoint, Run, Store
from standfast.store.schema import names
from standfast.store.schema.run_file import now, read_run
from standfast.store.v3.companions import change_run, files_beside, write_beside
from standfast.training.parts import part_of


class Recorder:
    """The experiment of a program, which may change under way into another."""

    def __init__(self, store: Store, pickle_architectures: bool) -> None:
        self._store = store
        self._pickle_architectures = pickle_architectures
        self._forced: set[str] = set()
        self.current: Snapshot | None = None
        """What the experiment is, whether that is written or not."""
        self._told: Snapshot | None = None
        """The same, by the model itself where `current` is an import."""
        self.run: Run | None = None
        """The one that was written last."""
        self._origin: Checkpoint | None = None
        """The checkpoint that was saved or loaded last."""
        self._is_loaded = False
        """Whether it was loaded, so that whatever is saved next continues it."""
        self._trained: Callable[[], Any] = _nothing
        """The model that was written last, unless it is gone."""

    def update(
        self, hp: Any = None, model: Any = None, data: Any = None, force: bool = False
    ) -> tuple[str, bool, set[str]]:
        """Take in what the experiment is from now on; nothing is written.

        Returns its hash, whether it is another than before, and which parts changed.
        """
        before = self.current
        if before is None and hp is None and model is None and data is None:
            raise BadOption(
                "there is no experiment yet, and nothing that says what it is: give "
                "model_snapshot, hp_snapshot or dfm_snapshot"
            )
        self._take(hp, model, data)
        assert self.current is not None
        known = digests_of(before.identity if before else None)
        changed = changed_parts(known, self.current.identity)
        if force:
            changed = changed_parts(digests_of(None), self.current.identity)
            self._forced |= changed
        is_new = force or before is None or before.identity != self.current.identity
        return self.current.hash, is_new, changed

    def _take(self, hp: Any, model: Any, data: Any) -> Snapshot:
        """Take in these parts; an import knows a model by its weights alone."""
        self._told = take_snapshot(self._told, hp, model, data)
        self.current = self._told
        if not self._is_known(self._told):
            known = by_weights(self._told)
            if known is not None and self._is_known(known):
                self.current = known
        return self.current

    def _is_known(self, snapshot: Snapshot) -> bool:
        return self._store.backend.exists(names.run_file(snapshot.hash))

    def pending(self) -> set[str]:
        """Which parts of the experiment are others than those that are written."""
        if self.current is None:
            return set()
        written = self.run.file.identity if self.run else digests_of(None)
        return changed_parts(written, self.current.identity) | self._forced

    def loaded(self, checkpoint: Checkpoint | None) -> None:
        """The program has loaded a checkpoint, and goes on from there."""
        self._origin, self._is_loaded = checkpoint, checkpoint is not None

    def dump(self, force: bool = False, step: int | None = None, model: Any = None) -> Run | None:
        """Write what the experiment is, if that is pending; None if there was nothing to do.

        `step` and `model` are those that are about to be saved, as far as they are known.
        """
        current = self._known()
        if not force and not self.pending():
            return None
        if current.model is not None:  # somebody may have changed it since, without a word
            current = self._take(None, current.model, None)
        model = current.model if model is None else model
        self._origin = self._continued(model, step)
        run = self._store.run(
            hp=current.hp,
            model=current.model if current.weights is None else current.weights,
            data=current.data,
            parent=self._parent(),
        )
        self._write_beside(run, current, force)
        self._trained = _reference(model)
        if self.run is None or self.run.hash != run.hash:
            self.use(run.hash)
            if self.run is not None:
                self.run.close()
        self.run = run
        self._forced.clear()
        return run

    def _write_beside(self, run: Run, current: Snapshot, force: bool) -> None:
        """Bring the files up to date that a run which was there before may have others of."""
        backend, hash = self._store.backend, run.hash
        before = run.file
        if current.hp is not None:
            run.describe(current.hp)  # settings that do not count may have changed
        is_complete = all(map(backend.exists, files_beside(hash)))
        if force or not is_complete or run.file != before:
            write_beside(backend, read_run(backend, hash), current.model, current.data)
        wants_pickle = self._pickle_architectures and current.model is not None
        if wants_pickle and (force or not backend.exists(names.architecture_file(hash, ".pkl"))):
            pickle_architecture(self._store, hash, current.model)

    def use(self, exp_hash: str) -> None:
        """Let it be the one that was used last, if the store can be written to."""
        with suppress(StandfastError):
            change_run(
                self._store.backend,
                exp_hash,
                lambda file: msgspec.structs.replace(file, last_used=now()),
                wait=0.0,
            )

    def save(
        self,
        model: Any,
        step: int | None,
        optimizer: Any = None,
        metadata: Mapping[str, Any] | None = None,
        metrics: Mapping[str, Any] | None = None,
        best: bool = False,
        force_dump: bool = False,
    ) -> Checkpoint:
        """Commit a checkpoint of the experiment as it is now."""
        if self._known().model is not None:
            self.update(model=model)  # which may have got other layers since
        step = self.last_step(model) + 1 if step is None else as_step(step)
        self.dump(force_dump, step, model)
        assert self.run is not None
        state = {"step": step, "model_state_dict": part_of("model", model).tree()}
        if optimizer is not None:
            state["optimizer_state_dict"] = part_of("optimizer", optimizer).tree()
        state |= {"timestamp": now(), "exp_hash": self.run.hash}
        if metadata:
            state["metadata"] = dict(metadata)
        saved = self.run.save(step, state, metrics=metrics, best=best, replace=True, format="torch")
        self._origin, self._is_loaded, self._trained = saved, False, _reference(model)
        return saved

    def last_step(self, model: Any = None) -> int:
        """The step that the experiment continues from, else its latest, else 0."""
        known = self._known()
        last = self._continued(known.model if model is None else model, None)
        last = last or self._latest_of(known.hash)
        return last.step if last else 0

    def close(self) -> None:
        """Let other processes write into the experiment; the next save takes it again."""
        if self.run is not None:
            self.run.close()
            self._store.close()

    def _known(self) -> Snapshot:
        if self.current is None:
            raise NotOpen(
                "there is no experiment yet: say by update_experiment_hash what its "
                "hyperparameters, model or data are"
            )
        return self.current

    def _continued(self, model: Any, step: int | None) -> Checkpoint | None:
        """The checkpoint that the training goes on from; None if it begins anew.

        A sweep has a new model for each experiment, or takes the same one back to its first step.
        """
        origin = self._origin
        if origin is None and self.run is not None:
            origin = self._latest_of(self.run.hash)
        if origin is None or self._is_loaded or origin.head.run == self._known().hash:
            return origin
        is_later = step is None or step > origin.step
        return origin if is_later and model is not None and model is self._trained() else None

    def _parent(self) -> Checkpoint | None:
        """The checkpoint that a new experiment comes from."""
        parent = self._origin
        if parent is None or parent.head.run == self._known().hash:
            return None
        self._store.index.refresh()
        found = self._store.find(parent.head.run, parent.step)  # it may have been deleted since
        return parent if found == parent else None

    def _latest_of(self, exp_hash: str) -> Checkpoint | None:
        self._store.index.refresh()
        newest = next(self._store.index.newest(exp_hash), None)
        return Checkpoint(self._store, newest.head) if newest else None


def _nothing() -> None:
    return None


def _reference(model: Any) -> Callable[[], Any]:
    """The model, which is not kept alive if that is possible."""
    try:
        return weakref.ref(model)
    except TypeError:  # a dict, such as one of arrays
        return lambda: model
