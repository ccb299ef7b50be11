"""Writes the experiments of a program: what they are, as soon as training goes on, and how far."""

from __future__ import annotations

import copy
import sys
import weakref
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Final

import msgspec

from standfast.errors import (
    BadOption,
    NotOpen,
    RefNotFound,
    RefusedState,
    StandfastError,
    UnstableValue,
)
from standfast.experiments.architectures import pickle_architecture
from standfast.experiments.hashes import COMPONENTS, data_of, digests_of
from standfast.experiments.store import Loaded, as_step
from standfast.identity import Identity, identify
from standfast.store import Checkpoint, Run, Store
from standfast.store.save.taken import change_run
from standfast.store.schema import names
from standfast.store.schema.run_file import now, read_run
from standfast.store.tree import tree
from standfast.store.v3.companions import files_beside, write_beside
from standfast.tensors import TensorSpec, source_of
from standfast.tensors.frameworks import unwrapped
from standfast.training.parts import part_of

_UNCHANGING: Final = (str, int, float, bool, bytes, complex, type(None))


@dataclass(frozen=True)
class Snapshot:
    """An experiment as it was told of; later changes of what was given do not reach it."""

    identity: Identity
    hp: Any
    model: Any
    """The program's own, of which only the architecture counts."""
    data: Any
    weights: Mapping[str, TensorSpec] | None = None
    """What stands for the model of an import, whose classes are not known."""

    @property
    def hash(self) -> str:
        """The 24 characters of the experiment."""
        return self.identity.hash


def take_snapshot(before: Snapshot | None, hp: Any, model: Any, data: Any) -> Snapshot:
    """The experiment with these parts, and those of the one before for what is not given."""
    before = before or Snapshot(Identity(None, None, None), None, None, None)
    known = digests_of(before.identity)
    if hp is not None:
        known["hp"] = identify(hp=hp).hp
    if model is not None:
        known["model"] = identify(model=model).model
    is_same = data is None
    if not is_same:
        data = data_of(data)
        known["data"] = None if data is None else identify(data=data).data
    identity = Identity(known["hp"], known["model"], known["data"])
    if identity == Identity(None, None, None):
        raise BadOption(
            "there is no experiment yet, and nothing that says what it is: give "
            "model_snapshot, hp_snapshot or dfm_snapshot"
        )
    # A million samples that did not change need no copy.
    is_same |= before.identity.data == identity.data
    return Snapshot(
        identity,
        hp=before.hp if hp is None else _copied(hp),
        model=before.model if model is None else model,
        data=before.data if is_same else _copied(data),
    )


def by_weights(snapshot: Snapshot) -> Snapshot | None:
    """The same with a model of which only names, dtypes and shapes of the weights are known."""
    if snapshot.model is None:
        return None
    try:
        _, leaves = tree.flatten(part_of("model", snapshot.model).tree())
    except RefusedState:  # such a model cannot be saved either
        return None
    weights = {names.dotted(leaf.path): source_of(leaf.value).spec for leaf in leaves}
    identity = replace(snapshot.identity, model=identify(model=weights).model)
    return replace(snapshot, identity=identity, weights=weights)


def changed_parts(before: Mapping[str, str | None], after: Identity) -> set[str]:
    """Which parts of an experiment have other digests than they had."""
    new = digests_of(after)
    return {part for part in COMPONENTS if before[part] != new[part]}


def _copied(value: Any) -> Any:
    """A copy all the way down, without the bookkeeping that makes deepcopy slow.

    What holds itself was refused when the digests were made.
    """
    if isinstance(value, _UNCHANGING):
        return value
    if isinstance(value, Mapping):
        return {key: _copied(member) for key, member in value.items()}
    if type(value) in (list, tuple, set):
        return type(value)(map(_copied, value))
    torch: Any = sys.modules.get("torch")
    if torch and isinstance(value, torch.Tensor):
        value = value.detach()  # only leaves of a graph can be copied
    try:
        return copy.deepcopy(value)
    except Exception as error:  # whatever the class of a value raises
        raise UnstableValue(
            f"a {type(value).__name__} cannot be copied ({error}): give plain values instead"
        ) from error


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
        self._is_loaded: bool | None = False
        """Whether it was loaded, so that what is saved next continues it, at whatever step.

        None if the program loaded what it had saved, into no model that is known: to go on from
        there or just to evaluate it.
        """
        self._trained: Callable[[], Any] | None = None
        """The model that was written last or loaded into; None if the program did that itself."""

    def update(
        self, hp: Any = None, model: Any = None, data: Any = None, force: bool = False
    ) -> tuple[str, bool, set[str]]:
        """Take in what the experiment is from now on; nothing is written.

        Returns its hash, whether it is another than before, and which parts changed.
        """
        before = self.current
        self._take(hp, model, data)
        assert self.current is not None
        known = digests_of(before.identity if before and not force else None)
        changed = changed_parts(known, self.current.identity)
        self._forced |= changed if force else set()
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

    def loaded(self, checkpoint: Checkpoint, model: Any = None) -> None:
        """The program goes on from a checkpoint that was loaded, into this model if it is given."""
        before, self._origin = self._origin, checkpoint
        is_own = before is not None and before.head.run == checkpoint.head.run
        if model is None and is_own and not self._is_loaded:
            self._is_loaded = None
        else:
            self._is_loaded, self._trained = True, None if model is None else _reference(model)

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
        self._continue(model, step)
        run = self._store.run(
            hp=current.hp,
            model=current.model if current.weights is None else current.weights,
            data=current.data,
            parent=self._parent(),
        )
        self._write_beside(run, current, force)
        if self._origin is None:
            self._is_loaded, self._trained = False, _reference(model)
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
            used = partial(msgspec.structs.replace, last_used=now())
            change_run(self._store.backend, self._store.index, exp_hash, used, wait=0.0)

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
        if not isinstance(metadata, Mapping | None):
            raise BadOption(f"metadata is a mapping, not a {type(metadata).__name__}")
        weights = part_of("model", model)  # what is refused changes nothing
        if self._known().model is not None:
            self.update(model=model)  # which may have got other layers since
        step = self.last_step(model) + 1 if step is None else as_step(step)
        self.dump(force_dump, step, model)
        self._continue(model, step)
        assert self.run is not None
        state = {"step": step, "model_state_dict": weights.tree()}
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
        if origin is None or origin.head.run == self._known().hash:
            return origin
        is_later = self._is_loaded or step is None or step > origin.step
        if self._is_loaded is None and step is not None:
            return origin if is_later else None
        if model is None or self._trained is None:
            return origin if self._is_loaded else None
        return origin if is_later and unwrapped(model) is self._trained() else None

    def _continue(self, model: Any, step: int | None) -> None:
        """Go on from the checkpoint of before, or anew.

        If that shows only now, the run that was written has a parent which is none.
        """
        before, self._origin = self._origin, self._continued(model, step)
        if before is None or self._origin is not None or self.run is None:
            return
        run = self.run.hash
        if run == self._known().hash and self.run.parent == before.head.place:
            no_parent = partial(msgspec.structs.replace, parent=None)
            change_run(self._store.backend, self._store.index, run, no_parent)
            self.run = self._store.open_run(run)

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


def _reference(model: Any) -> Callable[[], Any]:
    """The model inside, which is not kept alive if that is possible."""
    model = unwrapped(model)
    try:
        return weakref.ref(model)
    except TypeError:  # a dict, such as one of arrays
        return lambda: model


# Back into a model and an optimizer

_NAMES: Final = {
    "model": ("model_state_dict", "model"),
    "optimizer": ("optimizer_state_dict", "optimizer"),
}
"""What a manager calls the parts of a state, and what a Checkpointer does."""


def restore(loaded: Loaded, model: Any, optimizer: Any) -> None:
    """Put the weights into a model, and what there is for it into an optimizer; None for neither.

    Raises RefNotFound if there are no weights, StateMismatch if an object refuses its part.
    """
    if model is not None:
        weights = _part(loaded.content, "model")
        if weights is None:
            raise RefNotFound(
                f"{loaded.checkpoint.ref} has no model_state_dict: another program wrote it"
            )
        part_of("model", model).restore(weights)
    saved = _part(loaded.content, "optimizer")
    if optimizer is not None and saved is not None:
        part_of("optimizer", optimizer).restore(saved)


def _part(content: Any, part: str) -> Any:
    if not isinstance(content, dict):
        return None
    return next((content[name] for name in _NAMES[part] if name in content), None)
