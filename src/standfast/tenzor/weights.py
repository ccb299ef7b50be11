"""Weights: a module or a mapping of names to tensors, and the tensors of a file to fill it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final

import numpy as np

from standfast.errors import (
    BadField,
    BadName,
    RefusedTensor,
    SizeMismatch,
    StateMismatch,
    UnsupportedTensor,
    shortened,
)
from standfast.formats.limits import check_name
from standfast.formats.tenzor.file import DTYPES, MAX_RANK, hash_name
from standfast.store.load.filling import LoadReport
from standfast.store.tree.aliases import check_shared
from standfast.tensorfile.open import TensorFile
from standfast.tensors import TensorSpec, fill, kind_of, source_of, tensor_of, why_not_fillable
from standfast.tensors.frameworks import unwrapped
from standfast.tensors.sources import aligned_bytes
from standfast.tenzor.document import Spec, bytes_of

Array = np.ndarray[Any, Any]

BYTES: Final = "standfast/bytes/"
"""The names of tensors that the format cannot hold begin so; each is a row of bytes."""


def named_tensors(weights: Any) -> dict[str, Any]:
    """The tensors of a module, buffers too, or of a mapping; wrappers do not show in the names."""
    module = unwrapped(weights)
    found = module.state_dict() if is_module(module) else weights
    if not isinstance(found, Mapping):
        raise UnsupportedTensor(
            f"weights are a module or a mapping of names to tensors, not a {type(weights).__name__}"
        )
    return dict(found)


def is_module(weights: Any) -> bool:
    """Whether it hands its tensors out and takes them back by itself."""
    return callable(getattr(weights, "state_dict", None))


def writable(tensors: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, TensorSpec]]:
    """The tensors as the format can hold them, and the specs of those that became bytes."""
    fitting: dict[str, Any] = {}
    as_bytes: dict[str, TensorSpec] = {}
    for name, tensor in tensors.items():
        check_name(name)
        try:
            spec = source_of(tensor).spec
        except RefusedTensor as error:
            error.args = (f"tensor {name!r}: {error}",)
            raise
        if spec.dtype in DTYPES and len(spec.shape) <= MAX_RANK:
            fitting[name] = tensor
        else:
            fitting[BYTES + name] = bytes_of(tensor)
            as_bytes[name] = spec
    if taken := {BYTES + name for name in as_bytes} & (tensors.keys() - as_bytes.keys()):
        name = shortened(min(taken))
        raise BadName(f"tensor {name!r}: the bytes of {name.removeprefix(BYTES)!r} need this name")
    return fitting, as_bytes


class StoredTensors:
    """The tensors of a file by the names that they had, as bytes or not."""

    def __init__(self, file: TensorFile, as_bytes: Mapping[str, Spec]) -> None:
        self._file = file
        self._specs = {
            name: spec.checked(f"tensor {shortened(name)!r}") for name, spec in as_bytes.items()
        }
        for name, spec in self._specs.items():
            if BYTES + name not in file:
                raise BadField(f"there is no tensor {shortened(BYTES + name)!r}, though it is told")
            found = file.spec(BYTES + name)
            if found != TensorSpec("uint8", (spec.nbytes,)):
                raise SizeMismatch(
                    f"tensor {shortened(BYTES + name)!r}: expected {spec.nbytes:,} bytes, found "
                    f"{found.dtype} {list(found.shape)}"
                )

    def __iter__(self) -> Iterator[str]:
        for name in self._file:
            inner = name.removeprefix(BYTES)
            yield inner if inner in self._specs and name.startswith(BYTES) else name

    def find(self, name: str) -> str | None:
        """The name that a tensor goes by here, which may be its hash alone."""
        try:
            if name in self._file or name in self._specs:
                return name
            hashed = f"{hash_name(name):#018x}"
        except (AttributeError, UnicodeEncodeError):  # a name that no file can have
            return None
        return hashed if hashed in self._file else None

    def spec(self, name: str) -> TensorSpec:
        """What a tensor is."""
        return self._specs.get(name) or self._file.spec(name)

    def array(self, name: str) -> Array:
        """A tensor, verified, in memory that is private to this process."""
        if name in self._specs:
            return self._specs[name].view(self._file[BYTES + name].copy())
        return self._file[name]

    def fresh(self, name: str) -> Array:
        """A tensor in memory of its own, which outlives the file."""
        array = self.array(name)
        memory = aligned_bytes(array.nbytes)
        memory[:] = array.reshape(-1).view(np.uint8)
        return self.spec(name).view(memory)


def plan_filling(
    weights: Any,
    mine: Mapping[str, Any],
    saved: StoredTensors,
    names: Mapping[str, str],
    strict: bool,
) -> Callable[[], LoadReport]:
    """What fills the weights, once all was compared; if `strict`, all must fit.

    `mine` are the tensors of `weights`; `names` has those of the file by the names they had.
    """
    report = LoadReport()
    for name, tensor in mine.items():
        if name not in names:
            report.missing.append(name)
        elif problem := _problem(tensor, saved.spec(names[name])):
            report.mismatched.append(f"{name}: {problem}")
        else:
            report.loaded.append(name)
    report.unexpected.extend(name for name in names if name not in mine)
    if strict and not report.exact:
        head = "the checkpoint and the weights differ, and nothing was filled:"
        raise StateMismatch("\n".join([head, *report.differences()]))
    # Every byte is verified before the first one changes.
    arrays = {name: saved.array(names[name]) for name in report.loaded}
    check_shared({name: mine[name] for name in arrays}, arrays)
    specs = {name: saved.spec(names[name]) for name in report.loaded}

    def fill_all() -> LoadReport:
        module = unwrapped(weights)
        if is_module(module):
            kinds = {name: kind_of(mine[name]) for name in arrays}
            found = {n: tensor_of(arrays[n], specs[n], kinds[n]) for n in arrays}
            module.load_state_dict(found, **({} if report.exact else {"strict": False}))
        else:
            for name, array in arrays.items():
                fill(mine[name], array, specs[name])
        return report

    return fill_all


def _problem(tensor: Any, saved: TensorSpec) -> str | None:
    spec = source_of(tensor).spec
    if spec != saved:
        return (
            f"{saved.dtype} {list(saved.shape)} was saved, {spec.dtype} {list(spec.shape)} is given"
        )
    return why_not_fillable(tensor)
