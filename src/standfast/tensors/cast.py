"""Casting tensors to what a format can hold: which dtype and shape, and the casting itself."""

from __future__ import annotations

import math
from collections.abc import Collection
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Final

import numpy as np

from standfast.errors import BadOption
from standfast.tensors.dtypes import DTYPES
from standfast.tensors.frameworks import plain
from standfast.tensors.sources import PIECE, Bytes, Source, aligned_bytes
from standfast.tensors.spec import TensorSpec

_ORDER: Final = tuple(DTYPES)
_FLOATS: Final = ("float64", "float32", "bfloat16", "float16")
_COMPLEX: Final = ("complex128", "complex64")


@dataclass(frozen=True, slots=True)
class Cast:
    """One tensor that was saved as something else than it was."""

    name: str
    before: TensorSpec
    after: TensorSpec
    exact: bool
    """Whether every value that the old dtype has is a value of the new one too."""


def fitting(spec: TensorSpec, dtypes: Collection[str], max_rank: int) -> TensorSpec | None:
    """The nearest tensor that a format with these dtypes and dimensions holds, if there is one.

    A dtype becomes the narrowest that holds all its values, or else the widest floating-point
    one; a complex number never loses its imaginary part. The first dimensions are joined.
    """
    dtype = spec.dtype if spec.dtype in dtypes else _fitting_dtype(spec.dtype, dtypes)
    if dtype is None:
        return None
    shape = spec.shape
    if len(shape) > max_rank:
        joined = len(shape) - max_rank + 1
        shape = (math.prod(shape[:joined]), *shape[joined:])
    return TensorSpec(dtype, shape)


def _fitting_dtype(dtype: str, dtypes: Collection[str]) -> str | None:
    if DTYPES[dtype].packed:
        return None
    safe = [name for name in dtypes if not DTYPES[name].packed and is_exact(dtype, name)]
    if safe:
        return min(safe, key=lambda name: (DTYPES[name].bits, _ORDER.index(name)))
    lossy = _COMPLEX if dtype in _COMPLEX else _FLOATS
    return next((name for name in lossy if name in dtypes), None)


@lru_cache
def is_exact(before: str, after: str) -> bool:
    """Whether every value of one dtype is a value of the other."""
    if before == after:
        return True
    old, new = DTYPES[before].numpy, DTYPES[after].numpy
    if before == "bool" or old.itemsize > 2:
        # NumPy calls it safe to make a float of a 64-bit integer; it is not exact.
        rounds = before in ("int64", "uint64") and new.kind not in "iu"
        return not rounds and np.can_cast(old, new, "safe")
    if old.kind == "c" or new.kind == "b":
        return False
    # Few enough to try them all, which no table of mantissas and infinities is as sure as.
    values = np.arange(1 << 8 * old.itemsize).astype(f"u{old.itemsize}").view(old)
    with np.errstate(all="ignore"):
        back = values.astype(new).astype(old)
        same = (back == values) | ((back != back) & (values != values))
    return bool(same.all())


def castable_dtype(value: Any) -> str:
    """The name of a dtype that tensors are loaded as, by its name or as a framework's own.

    Raises BadOption for all but the everyday ones of floating point.
    """
    name = value if isinstance(value, str) else plain(value)
    if name is None or (name := name.removeprefix("torch.")) not in _FLOATS:
        raise BadOption(f"cast={value!r}: floating-point tensors become {', '.join(_FLOATS)}")
    return name


def cast_spec(spec: TensorSpec, dtype: str | None) -> TensorSpec:
    """What a tensor is when all that are of an everyday floating-point dtype become `dtype`."""
    return TensorSpec(dtype, spec.shape) if dtype and spec.dtype in _FLOATS else spec


def cast_array(
    array: np.ndarray[Any, Any], spec: TensorSpec, dtype: str | None
) -> np.ndarray[Any, Any]:
    """An array that holds a tensor of this spec, as what `cast_spec` makes of it.

    It is cast bit for bit as torch does it, piece by piece, into memory that is aligned as torch
    aligns its own; values beyond the new dtype become infinite. What stays is not copied.
    """
    after = cast_spec(spec, dtype)
    if after == spec:
        return array
    found = aligned_bytes(after.nbytes).view(after.kind.numpy)
    flat = np.ascontiguousarray(array).reshape(-1)
    for start in range(0, flat.size, PIECE):
        piece = slice(start, start + PIECE)
        found[piece] = _cast(flat[piece], after.kind.numpy)
    return found.reshape(array.shape)


def _cast(array: np.ndarray[Any, Any], target: np.dtype[Any]) -> np.ndarray[Any, Any]:
    with np.errstate(all="ignore"):
        if array.dtype == np.float64 and target.itemsize == 2:
            array = array.astype(np.float32)  # torch rounds twice, and so do all devices
        return array.astype(target, copy=False)


class CastSource:
    """A source as another dtype and shape, cast piece by piece."""

    def __init__(self, source: Source, spec: TensorSpec) -> None:
        self.spec = spec
        self.sequential = source.sequential
        self._source = source
        self._before = source.spec.kind.numpy
        self._after = spec.kind.numpy

    def contiguous(self) -> Bytes | None:
        """All the bytes, if only the shape is another."""
        return self._source.contiguous() if self._before == self._after else None

    def copy_to(self, out: Bytes, start: int) -> None:
        """Fill `out` with the bytes, once cast, that begin at `start`."""
        if self._before == self._after:
            self._source.copy_to(out, start)
            return
        width = self._after.itemsize
        for at in range(0, out.size, PIECE):
            piece = out[at : at + PIECE]
            first, skip = divmod(start + at, width)
            last = -(-(start + at + piece.size) // width)
            cast = self._elements(first, last)
            np.copyto(piece, cast.view(np.uint8)[skip : skip + piece.size])

    def _elements(self, first: int, last: int) -> np.ndarray[Any, Any]:
        width = self._before.itemsize
        data = np.empty((last - first) * width, np.uint8)
        self._source.copy_to(data, first * width)
        # A value beyond the new dtype's becomes infinite: that is what was asked for.
        with np.errstate(over="ignore", invalid="ignore"):
            return data.view(self._before).astype(self._after)
