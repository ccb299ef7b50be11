"""What differs between two files, or two checkpoints, tensor by tensor, and by how much."""

from __future__ import annotations

import math
import os
import threading
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from enum import Enum
from typing import Any, Final, Protocol

import numpy as np

from holdfast.files.digests import worker_count
from holdfast.tensors import ArraySource, TensorSpec
from holdfast.verbs.open import TensorFile

Array = np.ndarray[Any, Any]

_PIECE: Final = 1 << 18
"""Elements compared at a time."""


class _Absent(Enum):
    ABSENT = "absent"

    def __repr__(self) -> str:
        return self.value


ABSENT: Final = _Absent.ABSENT
"""In the place of a metadata value that one of the two does not have."""


@dataclass(frozen=True, slots=True)
class Change:
    """A tensor that both have, and that differs."""

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
    """The differences between two files, or between two checkpoints."""

    added: Mapping[str, TensorSpec]
    """The tensors that only the second has."""
    removed: Mapping[str, TensorSpec]
    """The tensors that only the first has."""
    changed: Sequence[Change]
    """The worst first: other shapes, then by the largest difference."""
    same: int
    """How many tensors are the same, bit for bit."""
    by_digests: int
    """How many of these are so by the digests in both, and were not read."""
    metadata: Mapping[str, tuple[Any, Any]]
    """What each key was and is, ABSENT where it is not there, for those that differ."""

    def __bool__(self) -> bool:
        return bool(self.added or self.removed or self.changed or self.metadata)


class Comparable(Protocol):
    """Tensors by name and plain values beside them: an open file, or a checkpoint of a store.

    It is asked for tensors from several threads.
    """

    @property
    def metadata(self) -> Mapping[str, Any]:
        """The plain values."""
        ...

    def spec(self, name: str) -> TensorSpec:
        """A tensor's dtype and logical shape."""
        ...

    def stored_digests(self) -> Mapping[str, bytes]:
        """The chunk digests that are known without reading a tensor, by name."""
        ...

    def __iter__(self) -> Iterator[str]: ...

    def __contains__(self, name: object, /) -> bool: ...

    def __getitem__(self, name: str, /) -> Array: ...


def diff(
    before: str | os.PathLike[str],
    after: str | os.PathLike[str],
    *,
    names: Sequence[str] | None = None,
    tensors_only: bool = False,
) -> Diff:
    """Compare two files, of any formats; true if they differ in anything.

    Tensors of another dtype are compared by their values. Tensors whose digests are equal in
    both files are not read: whether the bytes still match them, `verify` says.

    >>> holdfast.diff("step_100.safetensors", "step_200.pt").changed[0].name
    'embedding.weight'
    """
    with (
        TensorFile(before, names=names, tensors_only=tensors_only) as old,
        TensorFile(after, names=names, tensors_only=tensors_only) as new,
    ):
        return compare(old, new)


def compare(old: Comparable, new: Comparable) -> Diff:
    """Compare what is open already."""
    both = [name for name in old if name in new]
    differing = _differing(both, old, new)
    stop = threading.Event()
    with ThreadPoolExecutor(worker_count(), "holdfast-diff") as pool:
        try:
            changes = list(pool.map(lambda name: _compare(name, old, new, stop), differing))
        except BaseException:  # Ctrl-C too: nobody waits for what is left
            stop.set()
            pool.shutdown(cancel_futures=True)
            raise
    changed = [change for change in changes if change is not None]
    return Diff(
        added={name: new.spec(name) for name in new if name not in old},
        removed={name: old.spec(name) for name in old if name not in new},
        changed=sorted(changed, key=_badness, reverse=True),
        same=len(both) - len(changed),
        by_digests=len(both) - len(differing),
        metadata=differences(old.metadata, new.metadata),
    )


def _differing(names: list[str], old: Comparable, new: Comparable) -> list[str]:
    """Those that the digests in both do not show to be equal."""
    before, after = old.stored_digests(), new.stored_digests()
    return [
        name
        for name in names
        if name not in before or before[name] != after.get(name) or old.spec(name) != new.spec(name)
    ]


def _compare(name: str, old: Comparable, new: Comparable, stop: threading.Event) -> Change | None:
    before, after = old.spec(name), new.spec(name)
    if before.shape != after.shape:
        return Change(name, before, after, None, None, None)
    a, b = old[name], new[name]
    if before.dtype != after.dtype and (before.kind.packed or after.kind.packed):
        return Change(name, before, after, None, None, None)
    numbers = not before.kind.packed and a.dtype.names is None
    measured = _measure(_pieces(a), _pieces(b), numbers, stop)
    if before == after and measured[2] == 0:
        return None
    return Change(name, before, after, *measured)


def _pieces(array: Array) -> Iterator[Array]:
    """All elements in a row, some at a time; what is no number as bytes."""
    if array.dtype.names is not None:
        array = np.ascontiguousarray(array).view(np.uint8)
    if array.flags.c_contiguous:
        flat = array.reshape(-1)
        yield from (flat[at : at + _PIECE] for at in range(0, flat.size, _PIECE))
        return
    width = array.dtype.itemsize
    source = ArraySource(array, TensorSpec("uint8", (array.nbytes,)))
    for at in range(0, array.size, _PIECE):
        piece = np.empty(min(_PIECE, array.size - at) * width, np.uint8)
        source.copy_to(piece, at * width)
        yield piece.view(array.dtype)


def _measure(
    before: Iterator[Array],
    after: Iterator[Array],
    numbers: bool,
    stop: threading.Event,
) -> tuple[float | None, float | None, float]:
    """The largest and the mean difference, and the share of elements that differ."""
    largest, total, count, seen = 0.0, 0.0, 0, 0
    for x, y in zip(before, after, strict=True):
        if stop.is_set():
            break
        seen += x.size
        unequal = _unequal(x, y)
        if not unequal.any():
            continue
        count += int(np.count_nonzero(unequal))
        if numbers:
            distance = _distance(x[unequal], y[unequal])
            with np.errstate(over="ignore"):
                largest = max(largest, float(distance.max()))
                total += float(distance.sum())
    share = count / max(1, seen)
    return (largest, total / max(1, seen), share) if numbers else (None, None, share)


def _unequal(x: Array, y: Array) -> Array:
    if x.dtype != y.dtype:
        a, b = _wide(x, y)
        return np.asarray(~((a == b) | (np.isnan(a) & np.isnan(b))))
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
    with np.errstate(all="ignore"):
        a, b = _wide(x, y)
        distance: Array = np.abs(a - b).astype(np.float64)
    distance[(a == b) | (np.isnan(a) & np.isnan(b))] = 0.0
    distance[np.isnan(distance)] = math.inf
    return distance


def _wide(x: Array, y: Array) -> tuple[Array, Array]:
    """Both in one dtype that has the values of both: of 64-bit integers too, where there is one."""
    is_complex = "c" in (x.dtype.kind, y.dtype.kind)
    is_integer = "i" in (x.dtype.kind, y.dtype.kind) or "u" in (x.dtype.kind, y.dtype.kind)
    wide: Any = np.longdouble if is_integer else np.float64
    if is_complex:
        wide = np.clongdouble if is_integer else np.complex128
    # What ml_dtypes has can be cast to float32 and float64 alone.
    x, y = (each if each.dtype.kind in "biufc" else each.astype(np.float64) for each in (x, y))
    return x.astype(wide), y.astype(wide)


def _badness(change: Change) -> tuple[bool, float, float]:
    return change.max is None, change.max or 0.0, change.share or 0.0


def differences(old: Mapping[str, Any], new: Mapping[str, Any]) -> dict[str, tuple[Any, Any]]:
    """What each key was and is, ABSENT where it is not there, for those that differ."""
    return {
        key: (old.get(key, ABSENT), new.get(key, ABSENT))
        for key in dict.fromkeys([*old, *new])
        if key not in old or key not in new or not _same(old[key], new[key])
    }


def _same(a: Any, b: Any) -> bool:
    """Equal, and of equal types all the way down: 1 is not True here, and nan is nan."""
    if type(a) is not type(b):
        return False
    if isinstance(a, dict):
        return list(a) == list(b) and all(_same(a[key], b[key]) for key in a)
    if isinstance(a, list | tuple):
        return len(a) == len(b) and all(map(_same, a, b))
    if isinstance(a, np.ndarray):
        return a.dtype == b.dtype and np.array_equal(a, b)
    return bool(a == b or (a != a and b != b))
