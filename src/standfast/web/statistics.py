"""What many numbers have in common: their range, mean, spread and histogram.

Everything is worked out in float64, scaled where squares would leave its range. What is not finite
is counted and left out.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

Array = np.ndarray[Any, Any]
Pieces = Callable[[], Iterable[Array]]
"""Gives all numbers, some at a time; it is called twice, and gives the same."""

_SAFE: Final = 480
"""Numbers between 2^-480 and 2^480 can be squared and added up without any scaling."""
_EXACT: Final = 1 << 52


@dataclass
class _Seen:
    """What a first look finds."""

    count: int = 0
    """Those that are finite."""
    zeros: int = 0
    nan: int = 0
    inf: int = 0
    low: float | int | None = None
    high: float | int | None = None

    def look(self, numbers: Array) -> None:
        if numbers.dtype.kind == "f":
            finite = np.isfinite(numbers)
            if not finite.all():
                nan = int(np.count_nonzero(np.isnan(numbers)))
                self.nan += nan
                self.inf += int(numbers.size - np.count_nonzero(finite)) - nan
                numbers = numbers[finite]
        if not numbers.size:
            return
        low, high = numbers.min().item(), numbers.max().item()
        self.low = low if self.low is None else min(self.low, low)
        self.high = high if self.high is None else max(self.high, high)
        self.zeros += int(numbers.size - np.count_nonzero(numbers))
        self.count += numbers.size


@dataclass
class _Moments:
    """The mean and the spread of what was added so far, as Chan, Golub and LeVeque put them."""

    count: int = 0
    mean: float = 0.0
    squares: float = 0.0
    """Of the distances to the mean."""
    power: float = 0.0
    """Of the numbers themselves."""

    def add(self, numbers: Array, plain: Array) -> None:
        count = numbers.size
        mean = float(numbers.sum()) / count
        apart = numbers - mean
        squares = float(np.multiply(apart, apart, out=apart).sum())
        total, step = self.count + count, mean - self.mean
        self.mean += step * count / total
        self.squares += squares + step * step * self.count * count / total
        self.power += float(np.multiply(plain, plain).sum())
        self.count = total


def of_pieces(pieces: Pieces, bins: int, whole: bool) -> dict[str, Any]:
    """The statistics of numbers; `whole` says that they are whole numbers by their dtype."""
    seen = _Seen()
    for piece in pieces():
        seen.look(piece)
    if seen.low is None or seen.high is None:
        return _nothing(seen)
    scale = _scale(seen.low, seen.high)
    exact = isinstance(seen.low, int)
    low: float = 0.0 if exact else math.ldexp(seen.low, -scale)
    high: float = float(seen.high - seen.low) if exact else math.ldexp(seen.high, -scale)
    edges = _edges(low, high, bins, whole)
    counts = np.zeros(max(1, len(edges) - 1), np.int64)
    moments = _Moments()
    for piece in pieces():
        plain = _scaled(piece, scale)
        numbers = _above(piece, int(seen.low)) if exact else plain
        if not numbers.size:
            continue
        moments.add(numbers, plain)
        if low == high:
            counts[0] += numbers.size
        else:
            span = float(edges[0]), float(edges[-1])
            counts += np.histogram(numbers, len(counts), span)[0]
    first = float(seen.low) if exact else 0.0
    return {
        "min": _shown(seen.low, whole),
        "max": _shown(seen.high, whole),
        "mean": _ldexp(moments.mean, scale) + first,
        "std": _ldexp(math.sqrt(moments.squares / moments.count), scale),
        "norm": _finite(_ldexp(math.sqrt(moments.power), scale)),
        **_counted(seen),
        "histogram": {
            "edges": _shown_edges(edges, seen.low, seen.high, scale, exact),
            "counts": counts.tolist(),
        },
    }


def of_counts(values: Array, counts: Array, bins: int, whole: bool) -> dict[str, Any]:
    """The statistics of numbers of which it is known how often each is there."""
    seen = _Seen()
    there = counts > 0
    values, counts = values[there], counts[there]
    nan, inf = np.isnan(values), np.isinf(values)
    seen.nan, seen.inf = int(counts[nan].sum()), int(counts[inf].sum())
    values, counts = values[~(nan | inf)], counts[~(nan | inf)]
    seen.zeros, seen.count = int(counts[values == 0].sum()), int(counts.sum())
    if not seen.count:
        return _nothing(seen)
    seen.low, seen.high = values.min().item(), values.max().item()
    mean = math.fsum(values * counts) / seen.count
    edges = _edges(seen.low, seen.high, bins, whole)
    found = counts.sum(keepdims=True)
    if seen.low != seen.high:
        found = np.histogram(values, len(edges) - 1, (edges[0], edges[-1]), weights=counts)[0]
    return {
        "min": _shown(seen.low, whole),
        "max": _shown(seen.high, whole),
        "mean": mean + 0.0,
        "std": math.sqrt(math.fsum((values - mean) ** 2 * counts) / seen.count),
        "norm": math.sqrt(math.fsum(values**2 * counts)),
        **_counted(seen),
        "histogram": {
            "edges": _shown_edges(edges, seen.low, seen.high, 0, False),
            "counts": found.astype(np.int64).tolist(),
        },
    }


def of_zeros(count: int) -> dict[str, Any]:
    """The statistics of so many zeros."""
    return of_counts(np.zeros(1), np.array([count]), 1, False)


def _edges(low: float, high: float, bins: int, whole: bool) -> Sequence[float]:
    """Where the bins of a histogram end: evenly spread, as many as there are numbers for.

    Few whole numbers have a bin each, in whose middle they are.
    """
    if low == high:
        return [low, high]
    if whole and high - low < bins and max(abs(low), abs(high)) < _EXACT:
        return [low - 0.5 + i for i in range(int(high - low) + 2)]
    while True:
        edges = np.linspace(low, high, bins + 1)
        if bins == 1 or (np.diff(edges) > 0).all():
            return edges.tolist()  # type: ignore[no-any-return]
        bins //= 2


def _shown_edges(
    edges: Sequence[float], low: float, high: float, scale: int, exact: bool
) -> list[Any]:
    """The edges as they were before numbers were scaled, or counted from the lowest."""
    last = len(edges) - 1
    if exact:
        if edges[0] < 0:  # a bin for each whole number
            return [low + edge for edge in edges]
        return [low, *((low * (last - i) + high * i) / last for i in range(1, last)), high]
    if edges[-1] != math.ldexp(high, -scale):
        return list(edges)
    return [low + 0.0, *(_ldexp(edge, scale) for edge in edges[1:-1]), high + 0.0]


def _scale(low: float, high: float) -> int:
    """The power of two that numbers are divided by; 0 where it need not be."""
    largest = max(abs(low), abs(high))
    if isinstance(largest, int) or largest == 0:
        return 0
    exponent = math.frexp(largest)[1]
    return exponent if abs(exponent) > _SAFE else 0


def _scaled(numbers: Array, scale: int) -> Array:
    numbers = numbers.astype(np.float64, copy=False)
    finite = np.isfinite(numbers)
    if not finite.all():
        numbers = numbers[finite]
    return np.ldexp(numbers, -scale) if scale else numbers


def _above(numbers: Array, low: int) -> Array:
    """How far 64-bit integers are above the lowest: unsigned ones have room for all of it."""
    above = numbers.view(np.uint64) - np.uint64(low % (1 << 64))
    return above.astype(np.float64)


def _ldexp(number: float, scale: int) -> float:
    with np.errstate(all="ignore"):
        return float(np.ldexp(number, scale)) + 0.0  # never a negative zero


def _finite(number: float) -> float | None:
    return number if math.isfinite(number) else None


def _shown(number: float | int, whole: bool) -> float | int:
    return int(number) if whole else number + 0.0


def _counted(seen: _Seen) -> dict[str, int]:
    return {"zeros": seen.zeros, "nan": seen.nan, "inf": seen.inf}


def _nothing(seen: _Seen) -> dict[str, Any]:
    empty = dict.fromkeys(("min", "max", "mean", "std", "norm"))
    return {**empty, **_counted(seen), "histogram": {"edges": [], "counts": []}}
