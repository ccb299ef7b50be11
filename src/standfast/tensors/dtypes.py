"""The dtypes that Standfast knows, by the names that NumPy, ml_dtypes and torch share."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import ml_dtypes
import numpy as np


@dataclass(frozen=True, slots=True)
class DType:
    """One dtype: its name, its width, and the NumPy dtype that stands for it in memory."""

    name: str
    bits: int
    numpy: np.dtype[Any]

    @property
    def packed(self) -> bool:
        """Whether elements are narrower than a byte, so that arrays hold packed uint8."""
        return self.bits < 8


def _dtype(name: str, bits: int, numpy: Any) -> DType:
    return DType(name, bits, np.dtype(numpy))


DTYPES: dict[str, DType] = {
    dtype.name: dtype
    for dtype in (
        _dtype("bool", 8, np.bool_),
        _dtype("uint8", 8, np.uint8),
        _dtype("int8", 8, np.int8),
        _dtype("uint16", 16, np.uint16),
        _dtype("int16", 16, np.int16),
        _dtype("uint32", 32, np.uint32),
        _dtype("int32", 32, np.int32),
        _dtype("uint64", 64, np.uint64),
        _dtype("int64", 64, np.int64),
        _dtype("float16", 16, np.float16),
        _dtype("bfloat16", 16, ml_dtypes.bfloat16),
        _dtype("float32", 32, np.float32),
        _dtype("float64", 64, np.float64),
        _dtype("complex64", 64, np.complex64),
        _dtype("complex128", 128, np.complex128),
        _dtype("float8_e4m3fn", 8, ml_dtypes.float8_e4m3fn),
        _dtype("float8_e4m3fnuz", 8, ml_dtypes.float8_e4m3fnuz),
        _dtype("float8_e5m2", 8, ml_dtypes.float8_e5m2),
        _dtype("float8_e5m2fnuz", 8, ml_dtypes.float8_e5m2fnuz),
        _dtype("float8_e8m0fnu", 8, ml_dtypes.float8_e8m0fnu),
        _dtype("float4_e2m1fn", 4, np.uint8),
        _dtype("float6_e2m3fn", 6, np.uint8),
        _dtype("float6_e3m2fn", 6, np.uint8),
    )
}

BY_NUMPY: dict[np.dtype[Any], DType] = {
    dtype.numpy: dtype for dtype in DTYPES.values() if not dtype.packed
}
