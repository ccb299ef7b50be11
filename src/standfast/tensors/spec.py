"""The description of a tensor, without its bytes."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np

from standfast.tensors.dtypes import DTYPES, DType


@lru_cache(1 << 16)
def _nbytes(dtype: str, shape: tuple[int, ...]) -> int:
    # It is asked for again and again, and a state has thousands of tensors of few shapes.
    return (math.prod(shape) * DTYPES[dtype].bits + 7) // 8


@dataclass(frozen=True, slots=True)
class TensorSpec:
    """A tensor's dtype, by name, and its logical shape.

    >>> TensorSpec("bfloat16", (2, 3)).nbytes
    12
    """

    dtype: str
    shape: tuple[int, ...]

    @property
    def kind(self) -> DType:
        """The dtype behind the name."""
        return DTYPES[self.dtype]

    @property
    def size(self) -> int:
        """How many elements there are."""
        return math.prod(self.shape)

    @property
    def nbytes(self) -> int:
        """How many bytes the elements take; packed ones are rounded up to a whole byte."""
        return _nbytes(self.dtype, self.shape)

    @property
    def array_shape(self) -> tuple[int, ...]:
        """The shape of the array that holds the tensor.

        It is the logical shape, except for packed dtypes: there the last dimension counts bytes,
        and where its rows do not end on a byte the array is flat.
        """
        bits = self.kind.bits
        if bits >= 8:
            return self.shape
        if self.shape and self.shape[-1] * bits % 8 == 0:
            return (*self.shape[:-1], self.shape[-1] * bits // 8)
        return (self.nbytes,)

    def view(self, data: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        """See flat bytes as this tensor; bytes that are not aligned for its dtype are copied."""
        array = data.view(self.kind.numpy).reshape(self.array_shape)
        return array if array.flags.aligned else array.copy()
