"""One training checkpoint: a `.tenzor` file with weights, optimizer and metadata."""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Mapping
from typing import Any, Self

from standfast.errors import (
    BadField,
    DamagedFile,
    NotVerified,
    RefusedState,
    StateMismatch,
    TensorNotFound,
    UnsupportedFile,
    shortened,
)
from standfast.formats.tenzor.file import NAME
from standfast.store.load.filling import LoadReport
from standfast.store.tree.tree import build
from standfast.tensorfile.open import TensorFile
from standfast.tensorfile.save import save
from standfast.tensors import tensor_of
from standfast.tenzor import document
from standfast.tenzor.document import SLOTS
from standfast.tenzor.metadata import CheckpointMetadata
from standfast.tenzor.optimizers import captured, plan_resuming, plan_slots
from standfast.tenzor.weights import (
    BYTES,
    Array,
    StoredTensors,
    named_tensors,
    plan_filling,
    writable,
)


class Checkpoint:
    """A checkpoint that was loaded; a context manager that closes its file."""

    metadata: CheckpointMetadata
    """Where the training stood, exactly as it was given to `save`."""

    def __init__(self, file: TensorFile) -> None:
        self._file = file
        self._weights: dict[str, Any] | None = None
        found = document.read(file.metadata)
        self._is_ours = found is not None
        self._document, self._state = found or (document.NONE, {})
        members = _members(self._state, "metadata") if self._is_ours else file.metadata
        self.metadata = CheckpointMetadata.from_members(members)
        self._tensors = StoredTensors(file, self._document.bytes)
        names = set(self._tensors)
        for stored in self._document.tensors:
            if stored.name is not None and stored.name not in names:
                raise BadField(f"there is no tensor {stored.name[:200]!r}, though it is told")

    @staticmethod
    def save(
        path: str | os.PathLike[str],
        weights: Any,
        optimizer: Any,
        metadata: CheckpointMetadata | Mapping[str, Any],
        *,
        extra: Mapping[str, Any] | None = None,
    ) -> None:
        """Save a checkpoint; when this returns, the file is whole and on the disk.

        Weights are a torch module or a mapping of names to tensors; the optimizer may be None.
        The metadata may be a dict of some of the fields of CheckpointMetadata. `extra` is a tree
        of plain values and tensors of your own, such as random states.
        """
        metadata = CheckpointMetadata.of(metadata)
        if not isinstance(extra, Mapping | None):
            raise RefusedState(f"extra: expected a mapping, found a {type(extra).__name__}")
        mine = named_tensors(weights)
        optimizer_tree, parameters = (None, []) if optimizer is None else captured(optimizer, mine)
        state = {
            "metadata": metadata.exact(),
            "optimizer": optimizer_tree,
            "extra": dict(extra or {}),
        }
        taken = [*mine, *(f"{BYTES}{name}" for name in mine)]
        text, stored, others = document.written(state, parameters, taken)
        tensors, as_bytes = writable({**mine, **others})
        ours = document.to_text(text, stored, as_bytes)
        save(path, tensors, b"%b,%b}" % (metadata.text()[:-1], ours), format=NAME)

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Self:
        """Open a checkpoint, of Standfast or of the original; its tensors are read when needed."""
        file = TensorFile(path, writable=True)
        try:
            if file.format != NAME:
                raise UnsupportedFile(
                    f"a {file.format} file, not a .tenzor file; standfast.load reads it"
                )
            loaded = cls(file)
        except BaseException as error:
            file.close()
            if isinstance(error, DamagedFile | UnsupportedFile):
                error.args = (f"{file.path}: {error}", *error.args[1:])
            raise
        if not file.has_digests:
            warnings.warn(
                f"{file.path} holds no digests: nothing that is loaded from it is verified",
                NotVerified,
                stacklevel=2,
            )
        return loaded

    @property
    def extra(self) -> dict[str, Any]:
        """What was given to `save` as `extra`, with tensors in memory of their own."""
        return dict(self._build(_members(self._state, "extra"))) if self._is_ours else {}

    def tensor_names(self) -> list[str]:
        """The names of all tensors, the optimizer's too; a hash where the file has no name."""
        return list(self._tensors)

    def tensor(self, name: str) -> Array:
        """One tensor as a NumPy array, verified, in memory of its own.

        It is found by its name even if the file has only the hash. Raises TensorNotFound.
        """
        found = self._tensors.find(name)
        if found is None:
            raise TensorNotFound(f"{self._file.path}: there is no tensor {shortened(repr(name))}")
        return self._tensors.fresh(found)

    def load_weights(self, weights: Any, *, strict: bool = True) -> LoadReport:
        """Fill a module, or the tensors of a mapping, in place.

        Names, dtypes and shapes must be those that were saved: StateMismatch names all that
        differ, and nothing is changed then. With `strict=False` what fits is filled, and the
        report lists the rest.
        """
        return self.plan_weights(weights, strict=strict)()

    def resume_optimizer(self, optimizer: Any) -> None:
        """Give an optimizer the state and the groups that were saved, bit for bit.

        It must have the same class and the same parameters in the same order, or StateMismatch
        says what differs. After `load_weights` their names are compared too.
        """
        self.plan_optimizer(optimizer)()

    def plan_weights(self, weights: Any, *, strict: bool = True) -> Callable[[], LoadReport]:
        """What `load_weights` does once everything was compared and verified."""
        mine = named_tensors(weights)
        fill = plan_filling(weights, mine, self._tensors, self._names(mine), strict)
        self._weights = mine
        return fill

    def plan_optimizer(self, optimizer: Any) -> Callable[[], None]:
        """What `resume_optimizer` does once everything was compared and verified."""
        if not self._is_ours:
            return plan_slots(optimizer, self.metadata, self._tensors, self._weights)
        tree = self._state.get("optimizer")
        if tree is None:
            raise StateMismatch(
                f"{self._file.path} was saved without an optimizer: there is nothing to resume"
            )
        return plan_resuming(optimizer, tree, self._build, self._weights)

    def close(self) -> None:
        """Close the file; what was loaded from it stays."""
        self._file.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<checkpoint {self._file.path!r} of epoch {self.metadata.epoch}>"

    def _names(self, mine: Mapping[str, Any]) -> dict[str, str]:
        """The weights in the file: the name of each there by the name that it had."""
        if self._is_ours:
            others = {stored.name for stored in self._document.tensors}
            return {name: name for name in self._tensors if name not in others}
        found = {name: at for name in mine if (at := self._tensors.find(name))}
        slots = {
            self._tensors.find(f"optim/{name}/{slot}") for name in mine for slot in SLOTS.values()
        }
        known = slots | set(found.values())
        rest = (n for n in self._tensors if n not in known and not n.startswith(("optim/", BYTES)))
        return found | {name: name for name in rest}

    def _build(self, tree: Any) -> Any:
        return build(tree, self._tensor)

    def _tensor(self, number: int) -> Any:
        stored = self._document.tensors[number]
        if stored.name is None:
            return tensor_of(*document.inline_array(stored), stored.kind)
        array = self._tensors.fresh(stored.name)
        return tensor_of(array, self._tensors.spec(stored.name), stored.kind)


def _members(state: Mapping[str, Any], key: str) -> dict[str, Any]:
    members = state.get(key)
    if not isinstance(members, dict):
        raise BadField(f"metadata key {document.KEY}: its state has no object {key!r}")
    return members
