"""What differs between two files, tensor by tensor, and by how much."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from holdfast.files.digests import worker_count
from holdfast.tensors import TensorSpec
from holdfast.verbs.open import TensorFile

Array = np.ndarray[Any, Any]

_PIECE: Final = 1 << 18
"""Elements compared at a time."""


@dataclass(frozen=True, slots=True)
class Change:
    """A tensor that both files have, and that differs."""

    name: str
    before: TensorSpec
    after: TensorSpec
    max: float | None
    """The largest difference of two elements; infinite where one is no number.

    None where elements cannot be compared: the shapes differ, or they are no numbers.
    """
    mean: float | None
    """The mean difference over all elements."""
    share: float | None
    """The share of elements that are not the same, bit for bit."""


@dataclass(frozen=True, slots=True)
class Diff:
    """The differences between two files."""

    added: Mapping[str, TensorSpec]
    """The tensors that only the second file has."""
    removed: Mapping[str, TensorSpec]
    """The tensors that only the first file has."""
    changed: Sequence[Change]
    """The worst first: other shapes, then by the largest difference."""
    same: int
    """How many tensors are the same, bit for bit."""
    metadata: Mapping[str, tuple[Any, Any]]
    """What each key was and is, None where it is not there, for those that differ."""

    def __bool__(self) -> bool:
        return bool(self.added or self.removed or self.changed or self.metadata)


def diff(
    before: str | os.PathLike[str],
    after: str | os.PathLike[str],
    *,
    names: Sequence[str] | None = None,
    tensors_only: bool = False,
) -> Diff:
    """Compare two files, of any formats; true if they differ in anything.

    Tensors of another dtype are compared by their values. Tensors whose digests are equal in
    both files are not read again.

    >>> holdfast.diff("step_100.safetensors", "step_200.pt").changed[0].name
    'embedding.weight'
    """
    with (
        TensorFile(before, names=names, tensors_only=tensors_only) as old,
        TensorFile(after, names=names, tensors_only=tensors_only) as new,
    ):
        both = [name for name in old if name in new]
        with ThreadPoolExecutor(worker_count(), "holdfast-diff") as pool:
            changes = list(
                pool.map(lambda name: _compare(name, old, new), _differing(both, old, new))
            )
        changed = [change for change in changes if change is not None]
        return Diff(
            added={name: new.spec(name) for name in new if name not in old},
            removed={name: old.spec(name) for name in old if name not in new},
            changed=sorted(changed, key=_badness, reverse=True),
            same=len(both) - len(changed),
            metadata=_metadata(old.metadata, new.metadata),
        )


def _differing(names: list[str], old: TensorFile, new: TensorFile) -> list[str]:
    """Those that the digests in the files do not show to be equal."""
    before, after = old.stored_digests(), new.stored_digests()
    return [
        name
        for name in names
        if name not in before or before[name] != after.get(name) or old.spec(name) != new.spec(name)
    ]


def _compare(name: str, old: TensorFile, new: TensorFile) -> Change | None:
    before, after = old.spec(name), new.spec(name)
    if before.shape != after.shape:
        return Change(name, before, after, None, None, None)
    a, b = old[name], new[name]
    if before.dtype != after.dtype and (before.kind.packed or after.kind.packed):
        return Change(name, before, after, None, None, None)
    measured = _measure(
        _flat(a), _flat(b), numbers=not before.kind.packed and a.dtype.names is None
    )
    if before == after and measured[2] == 0:
        return None
    return Change(name, before, after, *measured)


def _flat(array: Array) -> Array:
    """All elements in a row; what is no number as bytes."""
    if array.dtype.names is not None:
        return np.ascontiguousarray(array).view(np.uint8).reshape(-1)
    return array.reshape(-1)


def _measure(a: Array, b: Array, numbers: bool) -> tuple[float | None, float | None, float]:
    """The largest and the mean difference, and the share of elements that differ."""
    largest, total, count = 0.0, 0.0, 0
    for at in range(0, a.size, _PIECE):
        x, y = a[at : at + _PIECE], b[at : at + _PIECE]
        unequal = _unequal(x, y)
        if not unequal.any():
            continue
        count += int(np.count_nonzero(unequal))
        if numbers:
            distance = _distance(x[unequal], y[unequal])
            largest = max(largest, float(distance.max()))
            total += float(distance.sum())
    share = count / max(1, a.size)
    return (largest, total / max(1, a.size), share) if numbers else (None, None, share)


def _unequal(x: Array, y: Array) -> Array:
    if x.dtype != y.dtype:
        return np.asarray(~((x == y) | ((x != x) & (y != y))))
    width = x.dtype.itemsize
    bits = np.ascontiguousarray(x).view(np.uint8).reshape(-1, width)
    differs: Array = (bits != np.ascontiguousarray(y).view(np.uint8).reshape(-1, width)).any(axis=1)
    return differs


def _distance(x: Array, y: Array) -> Array:
    """How far apart elements are; infinitely, if just one of two is no number."""
    if x.dtype.kind in "iu" and x.dtype == y.dtype:
        # The modulus of the unsigned type makes the difference right whatever the signs are.
        high, low = np.maximum(x, y), np.minimum(x, y)
        return (high.astype(np.uint64) - low.astype(np.uint64)).astype(np.float64)
    wide = np.complex128 if "c" in (x.dtype.kind, y.dtype.kind) else np.float64
    with np.errstate(all="ignore"):
        a, b = x.astype(wide), y.astype(wide)
        distance: Array = np.abs(a - b)
    distance[(a == b) | (np.isnan(a) & np.isnan(b))] = 0.0
    distance[np.isnan(distance)] = math.inf
    return distance


def _badness(change: Change) -> tuple[bool, float, float]:
    return change.max is None, change.max or 0.0, change.share or 0.0


def _metadata(old: dict[str, Any], new: dict[str, Any]) -> dict[str, tuple[Any, Any]]:
    keys = dict.fromkeys([*old, *new])
    pairs = {key: (old.get(key), new.get(key)) for key in keys}
    return {key: pair for key, pair in pairs.items() if not _same(*pair)}


def _same(a: Any, b: Any) -> bool:
    if isinstance(a, np.ndarray) or isinstance(b, np.ndarray):
        return type(a) is type(b) and np.array_equal(a, b)
    return type(a) is type(b) and (a == b or a != a)
