"""How far apart two tensors are, piece by piece."""

from __future__ import annotations

import math
import threading
from collections.abc import Iterator, Sequence
from typing import Any, Final, NamedTuple

import numpy as np

from standfast.tensors import ArraySource, TensorSpec

Array = np.ndarray[Any, Any]

_PIECE: Final = 1 << 18
"""Elements compared at a time."""
_WORDS: Final = {1: np.uint8, 2: np.uint16, 4: np.uint32, 8: np.uint64}
"""Integers of each width."""


class Measured(NamedTuple):
    """The largest and the mean difference of elements, and the share of them that differ."""

    max: float | None
    mean: float | None
    share: float | None


class Apart(NamedTuple):
    """A piece that is not the same in two tensors."""

    elements: int
    """How many of its elements differ, in any bit."""
    largest: float | None
    total: float | None
    """The largest difference, and the sum of all; None if the elements are no numbers."""


def pieces_apart(before: Array, after: Array, numbers: bool, stop: threading.Event) -> list[Apart]:
    """The pieces that differ, in their order."""
    found = []
    for x, y in zip(_pieces(before), _pieces(after), strict=True):
        if stop.is_set():
            break
        unequal = _unequal(x, y)
        count = int(np.count_nonzero(unequal))
        if not count:
            continue
        if not numbers:
            found.append(Apart(count, None, None))
            continue
        distance = _distance(x[unequal], y[unequal])
        with np.errstate(over="ignore"):
            found.append(Apart(count, float(distance.max()), float(distance.sum())))
    return found


def put_together(pieces: Sequence[Apart] | None, spec: TensorSpec) -> Measured:
    """What the pieces that differ say of their tensor; None says that it cannot be compared."""
    if pieces is None:
        return Measured(None, None, None)
    # Of packed elements whole bytes are compared.
    elements = max(1, spec.nbytes if spec.kind.packed else spec.size)
    share = sum(piece.elements for piece in pieces) / elements
    if spec.kind.packed or any(piece.total is None for piece in pieces):
        return Measured(None, None, share)
    largest = max((piece.largest or 0.0 for piece in pieces), default=0.0)
    return Measured(largest, sum(piece.total or 0.0 for piece in pieces) / elements, share)


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


def _unequal(x: Array, y: Array) -> Array:
    if x.dtype != y.dtype:
        a, b = _wide(x, y)
        return np.asarray(~((a == b) | (np.isnan(a) & np.isnan(b))))
    width = x.dtype.itemsize
    if width in _WORDS:  # which are compared many times faster than bytes
        return np.asarray(x.view(_WORDS[width]) != y.view(_WORDS[width]))
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
