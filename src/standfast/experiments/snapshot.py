"""What an experiment is at a moment: its hyperparameters, model and data, with their digests."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

from standfast.errors import RefusedState
from standfast.experiments.hashes import COMPONENTS, digests_of
from standfast.identity import Identity, identify, is_data_state
from standfast.store.schema import names
from standfast.store.tree import tree
from standfast.tensors import TensorSpec, source_of
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
    known = digests_of(before.identity if before else None)
    if hp is not None:
        known["hp"] = identify(hp=hp).hp
    if model is not None:
        known["model"] = identify(model=model).model
    is_same = data is None
    if not is_same:
        data = None if _is_empty(data) else data
        known["data"] = None if data is None else identify(data=data).data
    identity = Identity(known["hp"], known["model"], known["data"])
    if before is None:
        return Snapshot(identity, _copied(hp), model, _copied(data))
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


def _is_empty(data: Any) -> bool:
    """Whether it is what the file of an experiment without data says."""
    return is_data_state(data) and all(
        key in ("uids", "discarded", "tags") and (value is None or not len(value))
        for key, value in data.items()
    )


def _copied(value: Any) -> Any:
    """A copy all the way down, without the bookkeeping that makes deepcopy slow.

    What holds itself was refused when the digests were made.
    """
    if isinstance(value, _UNCHANGING):
        return value
    if type(value) is dict:
        return {key: _copied(member) for key, member in value.items()}
    if type(value) in (list, tuple, set):
        return type(value)(map(_copied, value))
    return copy.deepcopy(value)
