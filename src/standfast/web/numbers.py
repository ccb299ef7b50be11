"""What can be said of one tensor at a glance, or of the difference of two."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from typing import Any, Final

import numpy as np

from standfast.errors import BadOption
from standfast.tensors import TensorSpec
from standfast.tensors.sources import Bytes
from standfast.web import statistics
from standfast.web.decoder import (
    codes_of,
    is_narrow,
    is_whole,
    moduli,
    numbers_of,
    pieces_of,
    table,
)
from standfast.web.heatmaps import heatmap
from standfast.web.samples import LOOKED, Elements, Source, elements_of, stretches

__all__ = ["difference", "heatmap", "summary"]

Array = np.ndarray[Any, Any]

_FEWEST: Final = 8
_MOST: Final = 512


def summary(source: Source, name: str, bins: int = 64) -> dict[str, Any]:
    """The range, mean, spread and histogram of a tensor.

    At most 64 MiB of it are looked at: `exact` says whether that is all, `seen` how many elements
    it is. Of a part, `norm` is what the whole tensor's would be if all of it were like that.
    """
    _check(bins)
    with elements_of(source, name) as elements:
        data = _some_bytes(elements, stretches(elements))
        return _summary(name, elements.spec, data, bins)


def difference(before: Source, after: Source, name: str, bins: int = 64) -> dict[str, Any]:
    """The summaries of a tensor in two places, and of what was added to each element.

    All three are of the same elements, 32 MiB of each at most. What is the same in both, a NaN
    too, has not changed. Raises BadOption for tensors of different shapes or dtypes.
    """
    _check(bins)
    spec, other = before.spec(name), after.spec(name)
    if spec != other:
        raise BadOption(
            f"{name!r} is {_text(spec)} in one and {_text(other)} in the other: only tensors of "
            "one shape and dtype can be subtracted"
        )
    digests = before.stored_digests().get(name)
    if digests is not None and digests == after.stored_digests().get(name):
        same = summary(before, name, bins)
        zeros = {"seen": spec.size, "exact": True, **statistics.of_zeros(spec.size)}
        return {"before": same, "after": same, "difference": {**_told(name, spec), **zeros}}
    with ExitStack() as stack:
        pair = [stack.enter_context(elements_of(each, name)) for each in (before, after)]
        ranges = stretches(pair[0], LOOKED // 2)
        old, new = (_some_bytes(elements, ranges) for elements in pair)
    changed = {
        **_told(name, spec),
        **_of_seen(spec, old),
        **statistics.of_pieces(lambda: _changes(spec, old, new), bins, _is_counted(spec)),
    }
    _as_of_all(changed)
    return {
        "before": _summary(name, spec, old, bins),
        "after": _summary(name, spec, new, bins),
        "difference": changed,
    }


def _check(bins: int) -> None:
    if not _FEWEST <= bins <= _MOST:
        raise BadOption(f"bins={bins}: a histogram has {_FEWEST} to {_MOST}")


def _some_bytes(elements: Elements, ranges: Sequence[tuple[int, int]]) -> list[Bytes]:
    """What lies in some ranges, in memory that nobody else changes."""
    found = (elements.read(start, stop) for start, stop in ranges)
    return [each if each.flags.writeable else each.copy() for each in found]


def _summary(name: str, spec: TensorSpec, data: Sequence[Bytes], bins: int) -> dict[str, Any]:
    if is_narrow(spec):
        found = statistics.of_counts(table(spec.dtype), _count(spec, data), bins, is_whole(spec))
    else:
        found = statistics.of_pieces(lambda: _numbers(spec, data), bins, is_whole(spec))
    whole = {**_told(name, spec), **_of_seen(spec, data), **found}
    _as_of_all(whole)
    return whole


def _told(name: str, spec: TensorSpec) -> dict[str, Any]:
    of = "modulus" if spec.kind.numpy.kind == "c" else "value"
    told = {"name": name, "dtype": spec.dtype, "shape": list(spec.shape)}
    return {**told, "elements": spec.size, "of": of}


def _of_seen(spec: TensorSpec, data: Sequence[Bytes]) -> dict[str, Any]:
    seen = sum(each.size for each in data) * 8 // spec.kind.bits
    return {"seen": seen, "exact": seen == spec.size}


def _as_of_all(found: dict[str, Any]) -> None:
    """The norm that all elements would have, if they were like those that were seen."""
    if not found["exact"] and found["norm"] is not None:
        norm = found["norm"] * math.sqrt(found["elements"] / found["seen"])
        found["norm"] = norm if math.isfinite(norm) else None


def _count(spec: TensorSpec, data: Sequence[Bytes]) -> Array:
    """How often each element is there that a narrow dtype has."""
    counts = np.zeros(1 << spec.kind.bits, np.int64)
    for each in data:
        for piece in pieces_of(spec, each):
            counts += np.bincount(codes_of(spec, piece), minlength=counts.size)
    return counts


def _numbers(spec: TensorSpec, data: Sequence[Bytes]) -> Iterator[Array]:
    for each in data:
        for piece in pieces_of(spec, each):
            yield moduli(numbers_of(spec, piece))


def _changes(spec: TensorSpec, old: Sequence[Bytes], new: Sequence[Bytes]) -> Iterator[Array]:
    """What was added to each element, some at a time; of complex ones how much."""
    for before, after in zip(old, new, strict=True):
        for x, y in zip(pieces_of(spec, before), pieces_of(spec, after), strict=True):
            yield _subtracted(numbers_of(spec, y), numbers_of(spec, x))


def _subtracted(after: Array, before: Array) -> Array:
    if after.dtype.kind in "iu":
        # The modulus of the unsigned type makes the distance right whatever the signs are.
        distance = np.maximum(after, before).view(np.uint64) - np.minimum(after, before).view(
            np.uint64
        )
        return np.where(after < before, -1.0, 1.0) * distance.astype(np.float64)
    with np.errstate(all="ignore"):
        same = (after == before) | (np.isnan(after) & np.isnan(before))
        found = moduli(after - before)
    found[same] = 0.0
    return found


def _is_counted(spec: TensorSpec) -> bool:
    """Whether differences are whole numbers, and float64 has all of them."""
    return is_whole(spec) and spec.kind.bits <= 32


def _text(spec: TensorSpec) -> str:
    return f"{spec.dtype} {list(spec.shape)}"
