"""Bytes of a tensor become numbers, of whatever dtype they are."""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache
from typing import Any, Final

import ml_dtypes
import numpy as np

from standfast.tensors import TensorSpec
from standfast.tensors.dtypes import DTYPES
from standfast.tensors.sources import Bytes
from standfast.web.samples import Elements, unit_of

Array = np.ndarray[Any, Any]

PIECE: Final = 1 << 18
"""Elements at a time: as many as stay in the processor's cache while they are worked on."""

_PACKED: Final[dict[str, Any]] = {
    "float4_e2m1fn": ml_dtypes.float4_e2m1fn,
    "float6_e2m3fn": ml_dtypes.float6_e2m3fn,
    "float6_e3m2fn": ml_dtypes.float6_e3m2fn,
}


def is_narrow(spec: TensorSpec) -> bool:
    """Whether there are so few different elements that each of them can be counted."""
    return spec.kind.bits <= 16


def is_whole(spec: TensorSpec) -> bool:
    """Whether the elements are whole numbers."""
    return spec.kind.numpy.kind in "biu" and not spec.kind.packed


@lru_cache
def table(dtype: str) -> Array:
    """The values of a narrow dtype, by the bits of an element."""
    kind = DTYPES[dtype]
    codes = np.arange(1 << kind.bits)
    if kind.packed:
        values = codes.astype(np.uint8).view(_PACKED[dtype])
    elif dtype == "bool":
        return np.asarray(codes != 0, np.float64)
    else:
        values = codes.astype(f"u{kind.bits // 8}").view(kind.numpy)
    return _as(values, np.float64)


def codes_of(spec: TensorSpec, data: Bytes) -> Array:
    """The bits of each element of a narrow dtype; the first of packed ones is in the low bits."""
    bits = spec.kind.bits
    if bits == 16:
        return data.view(np.uint16)
    if bits == 8:
        return data
    if bits == 4:
        return np.stack((data & 15, data >> 4), axis=1).reshape(-1)
    padded = np.zeros(-(-data.size // 3) * 3, np.uint8)
    padded[: data.size] = data
    a, b, c = padded.reshape(-1, 3).T
    parts = (a & 63, (a >> 6) | (b & 15) << 2, (b >> 4) | (c & 3) << 4, c >> 2)
    return np.stack(parts, axis=1).reshape(-1)[: data.size * 8 // 6]


def numbers_of(spec: TensorSpec, data: Bytes) -> Array:
    """The elements as numbers that NumPy has: float64, or wide integers as they are.

    Complex ones stay complex.
    """
    if is_narrow(spec):
        return table(spec.dtype)[codes_of(spec, data)]
    kind = spec.kind.numpy
    array = data.view(kind)
    if kind.kind == "c":
        return _as(array, np.complex128)
    return array if kind.itemsize == 8 and kind.kind in "iu" else _as(array, np.float64)


def _as(array: Array, dtype: Any) -> Array:
    with np.errstate(invalid="ignore"):  # a NaN of the kind that signals
        return np.asarray(array.astype(dtype))


def moduli(array: Array) -> Array:
    """Complex numbers by how large they are, all others as they are."""
    with np.errstate(all="ignore"):
        return np.abs(array) if array.dtype.kind == "c" else array


def pieces_of(spec: TensorSpec, data: Bytes) -> Iterator[Bytes]:
    """The bytes of some elements at a time."""
    unit = unit_of(spec)
    step = max(1, PIECE * spec.kind.bits // 8 // unit) * unit
    yield from (data[at : at + step] for at in range(0, data.size, step))


def some_numbers(elements: Elements, first: int, stop: int) -> Array:
    """The elements from one number on up to another, in C order, as real float64."""
    spec = elements.spec
    bits, unit = spec.kind.bits, unit_of(spec)
    start = first * bits // 8 // unit * unit
    end = min(-(-stop * bits // (8 * unit)) * unit, spec.nbytes)
    found = moduli(numbers_of(spec, elements.read(start, end)))
    skip = first - start * 8 // bits
    return np.asarray(found[skip : skip + stop - first].astype(np.float64, copy=False))
