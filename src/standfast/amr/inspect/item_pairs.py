"""Items of two trees compared in pairs: equal bytes fast, what differs measured."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from standfast.amr.inspect.items import Items, Window
from standfast.files.threads import Threads

Array = np.ndarray[Any, Any]

_PIECE: Final = 1 << 20
"""The bytes that are compared at a time: what is copied for it stays in a processor's cache."""
_NEAR: Final = 4
"""Items of the second tree are read together if no more than so many times others lie between."""


@dataclass(frozen=True)
class Pairs:
    """Which item of one tree is compared with which of another."""

    a: Items
    b: Items
    in_a: Array
    in_b: Array


@dataclass(frozen=True)
class Apart:
    """A pair that differs."""

    pair: int
    count: int
    """How many of its elements, sites or links, differ in any bit."""
    of: int
    first: int
    worst: int
    """The numbers of the first element that differs, and of the one that does most."""
    by: float


def compared(
    pairs: Pairs, dtype: np.dtype[Any], element: int, pool: Threads
) -> Iterator[tuple[list[Apart], int]]:
    """The pairs that differ, some at a time, and how many were equal by their digests.

    An element, of so many bytes, consists of numbers of the dtype.
    """
    order = np.argsort(pairs.in_a, kind="stable")
    sorted_a = pairs.in_a[order]
    digests = {(w.start, w.stop): w.digest for w in pairs.b.windows}

    def compare(window: Window) -> tuple[list[Apart], int]:
        chosen = order[
            np.searchsorted(sorted_a, window.start) : np.searchsorted(sorted_a, window.stop)
        ]
        known = window.digest is not None and window.digest == digests.get(window[:2])
        if known:
            moved = pairs.in_a[chosen] != pairs.in_b[chosen]
            spared = len(chosen) - int(np.count_nonzero(moved))
            chosen = chosen[moved]
        else:
            spared = 0
        found: list[Apart] = []
        step = max(1, _PIECE // max(1, pairs.a.nbytes))
        for at in range(0, len(chosen), step):
            some = chosen[at : at + step]
            x, y = _rows(pairs.a, pairs.in_a[some]), _rows(pairs.b, pairs.in_b[some])
            differ = np.flatnonzero((_words(x) != _words(y)).any(axis=1))
            if len(differ):
                found += measured(some[differ], x[differ], y[differ], dtype, element)
        return found, spared

    yield from pool.map(compare, pairs.a.windows)


def _rows(items: Items, numbers: Array) -> Array:
    """The bytes of these items, in memory of their own."""
    low, high = int(numbers.min()), int(numbers.max())
    if high - low < _NEAR * len(numbers):
        near: Array = items.read(low, high + 1)[numbers - low]
        return near
    return np.concatenate([items.read(n, n + 1) for n in numbers.tolist()])


def _words(rows: Array) -> Array:
    """The same bytes as the widest integers that fit, which are compared faster."""
    return rows.view(np.uint64) if rows.shape[1] and rows.shape[1] % 8 == 0 else rows


def measured(pairs: Array, x: Array, y: Array, dtype: np.dtype[Any], element: int) -> list[Apart]:
    """How far apart these pairs are, which all differ; x and y are their bytes."""
    of = x.shape[1] // element
    shape = (len(x), of, element)
    unequal = (x.reshape(shape) != y.reshape(shape)).any(axis=2)
    apart = distances(x.view(dtype), y.view(dtype)).reshape(len(x), of, -1).max(axis=2)
    apart[~unequal] = -1.0
    worst = apart.argmax(axis=1)
    by = apart[np.arange(len(x)), worst]
    columns = (pairs, unequal.sum(axis=1), unequal.argmax(axis=1), worst, by)
    return [
        Apart(pair, count, of, first, most, largest)
        for pair, count, first, most, largest in zip(
            *(column.tolist() for column in columns), strict=True
        )
    ]


def distances(x: Array, y: Array) -> Array:
    """How far apart numbers are; infinitely, if just one of two is no number."""
    if x.dtype.kind in "iu":
        # The modulus of the unsigned type makes the difference right whatever the signs are.
        high, low = np.maximum(x, y).astype(np.uint64), np.minimum(x, y).astype(np.uint64)
        return (high - low).astype(np.float64)
    wide = np.complex128 if x.dtype.kind == "c" else np.float64
    with np.errstate(all="ignore"):
        a, b = x.astype(wide), y.astype(wide)
        apart: Array = np.abs(a - b)
    apart[(a == b) | (np.isnan(a) & np.isnan(b))] = 0.0
    apart[np.isnan(apart)] = math.inf
    return apart
