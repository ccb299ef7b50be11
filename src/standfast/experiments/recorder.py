"""Writes the experiments of a program: what they are, as soon as training goes on, and how far."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from standfast.errors import BadOption, NotOpen
from standfast.experiments.architectures import pickle_architecture
from standfast.experiments.hashes import digests_of
from standfast.experiments.snapshot import Snapshot, changed_parts, take_snapshot
from standfast.experiments.steps import as_step
from standfast.store import Checkpoint, Run, Store
from standfast.store.schema import names
from standfast.store.schema.run_file import now, read_run
from standfast.store.v3.companions import files_beside, write_beside
from standfast.training.parts import part_of


class Recorder:
    """The experiment of a program, which may change under way into another."""

    def __init__(self, store: Store, pickle_architectures: bool) -> None:
        self._store = store
        self._pickle_architectures = pickle_architectures
        self._forced: set[str] = set()
        self.current: Snapshot | None = None
        """What the experiment is, whether that is written or not."""
        self.run: Run | None = None
        """The one that was written last."""
        self.origin: Checkpoint | None = None
        """The checkpoint that was saved or loaded last."""

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
        self.current = take_snapshot(before, hp, model, data)
        known = digests_of(before.identity if before else None)
        changed = changed_parts(known, self.current.identity)
        if force:
            changed = changed_parts(digests_of(None), self.current.identity)
            self._forced |= changed
        is_new = force or before is None or before.identity != self.current.identity
        return self.current.hash, is_new, changed

    def pending(self) -> set[str]:
        """Which parts of the experiment are others than those that are written."""
        if self.current is None:
            return set()
        written = self.run.file.identity if self.run else digests_of(None)
        return changed_parts(written, self.current.identity) | self._forced

    def dump(self, force: bool = False) -> Run | None:
        """Write what the experiment is, if that is pending; None if there was nothing to do."""
        current = self._known()
        if not force and not self.pending():
            return None
        if current.model is not None:  # somebody may have changed it since, without a word
            self.current = current = take_snapshot(current, None, current.model, None)
        run = self._store.run(
            hp=current.hp, model=current.model, data=current.data, parent=self._parent(current.hash)
        )
        self._write_beside(run, current, force)
        if self.run is not None and self.run.hash != run.hash:
            self.run.close()
        self.run = run
        self._forced.clear()
        return run

    def _write_beside(self, run: Run, current: Snapshot, force: bool) -> None:
        """Bring the files up to date that a run which was there before may have others of."""
        backend, hash = self._store.backend, run.hash
        before = run.hyperparameters
        if current.hp is not None:
            run.describe(current.hp)  # settings that do not count may have changed
        is_complete = all(map(backend.exists, files_beside(hash)))
        if force or not is_complete or run.hyperparameters != before:
            write_beside(backend, read_run(backend, hash), current.model, current.data)
        wants_pickle = self._pickle_architectures and current.model is not None
        if wants_pickle and (force or not backend.exists(names.architecture_file(hash, ".pkl"))):
            pickle_architecture(self._store, hash, current.model)

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
        step = self.last_step() + 1 if step is None else as_step(step)
        self.dump(force_dump)
        assert self.run is not None
        state = {"step": step, "model_state_dict": part_of("model", model).tree()}
        if optimizer is not None:
            state["optimizer_state_dict"] = part_of("optimizer", optimizer).tree()
        state |= {"timestamp": now(), "exp_hash": self.run.hash}
        if metadata:
            state["metadata"] = dict(metadata)
        self.origin = self.run.save(
            step, state, metrics=metrics, best=best, replace=True, format="torch"
        )
        return self.origin

    def last_step(self) -> int:
        """The step that was saved or loaded last, else the latest of the experiment, else 0."""
        if self.origin is not None:
            return self.origin.step
        latest = self._latest_of(self._known().hash)
        return latest.step if latest else 0

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

    def _parent(self, exp_hash: str) -> Checkpoint | None:
        """The checkpoint that a new experiment goes on from."""
        parent = self.origin
        if parent is None and self.run is not None:
            parent = self._latest_of(self.run.hash)
        if parent is None or parent.head.run == exp_hash:
            return None
        self._store.index.refresh()
        found = self._store.find(parent.head.run, parent.step)  # it may have been deleted since
        return parent if found == parent else None

    def _latest_of(self, exp_hash: str) -> Checkpoint | None:
        self._store.index.refresh()
        newest = next(self._store.index.newest(exp_hash), None)
        return Checkpoint(self._store, newest.head) if newest else None
