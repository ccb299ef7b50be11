"""Slices of a tensor in a file, without reading the rest of it."""

from __future__ import annotations

import operator
from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.lib.stride_tricks import as_strided

from standfast.errors import BadIndex
from standfast.files.digests import CHUNK
from standfast.files.reader import Reader
from standfast.tensors import TensorSpec


class TensorSlice:
    """A tensor in a file, to be indexed by integers, slices, `...` and None."""

    def __init__(self, reader: Reader, row: int, spec: TensorSpec) -> None:
        self._reader = reader
        self._row = row
        self._dtype = spec.kind.numpy
        self.shape = spec.array_shape
        """The shape of the whole array."""

    def __getitem__(self, index: Any) -> np.ndarray[Any, Any]:
        shape, strides, offset = self._geometry(index)
        ranges = list(_touched(shape, strides, offset, self._dtype.itemsize))
        data, start = self._reader.part(self._row, ranges)
        if ranges:
            array = np.ndarray(shape, self._dtype, data.data, offset - start, strides)
        else:
            array = np.empty(shape, self._dtype)
        if not array.flags.aligned:
            array = array.copy()
        array.flags.writeable = False
        return array

    def _geometry(self, index: Any) -> tuple[tuple[int, ...], tuple[int, ...], int]:
        """The shape, strides and offset that an index selects.

        NumPy itself finds them, on an array of this shape that has no memory behind it and is
        never read.
        """
        width = self._dtype.itemsize
        strides = [width]
        for length in self.shape[:0:-1]:
            strides.insert(0, strides[0] * max(1, length))
        ghost = as_strided(np.empty(1, f"V{width}"), self.shape, strides[: len(self.shape)])
        try:
            selected = ghost[_basic_parts(index)]
        except (TypeError, IndexError) as error:
            raise BadIndex(f"a tensor of shape {list(self.shape)}: {error}") from error
        return selected.shape, selected.strides, selected.ctypes.data - ghost.ctypes.data


class ArraySlice:
    """An array that is in memory already, indexed by the same rules."""

    def __init__(self, array: np.ndarray[Any, Any]) -> None:
        self._array = array
        self.shape = array.shape
        """The shape of the whole array."""

    def __getitem__(self, index: Any) -> np.ndarray[Any, Any]:
        try:
            selected: np.ndarray[Any, Any] = self._array[_basic_parts(index)]
        except (TypeError, IndexError) as error:
            raise BadIndex(f"a tensor of shape {list(self.shape)}: {error}") from error
        return selected


def _basic_parts(index: Any) -> tuple[Any, ...]:
    parts = tuple(map(_basic, index if isinstance(index, tuple) else (index,)))
    # An ellipsis makes an array even of one element, so none is read.
    return parts if Ellipsis in parts else (*parts, Ellipsis)


def _basic(part: Any) -> Any:
    """An index that selects a view; anything else would need the tensor's memory."""
    if part is None or part is Ellipsis or isinstance(part, slice):
        return part
    if isinstance(part, bool):
        raise TypeError("True and False are no index here; take the slice first, then the mask")
    return operator.index(part)


def _touched(
    shape: tuple[int, ...], strides: tuple[int, ...], offset: int, width: int
) -> Iterator[tuple[int, int]]:
    """The byte ranges that a strided selection touches, joined where they lie close together."""
    if 0 in shape:
        return
    axes = [(n, stride) for n, stride in zip(shape, strides, strict=True) if n > 1]
    if axes and abs(axes[0][1]) > CHUNK:
        n, stride = axes[0]
        inner_shape, inner_strides = tuple(a[0] for a in axes[1:]), tuple(a[1] for a in axes[1:])
        for i in range(n):
            yield from _touched(inner_shape, inner_strides, offset + i * stride, width)
    else:
        first = offset + sum((n - 1) * stride for n, stride in axes if stride < 0)
        last = offset + sum((n - 1) * stride for n, stride in axes if stride > 0)
        yield first, last + width
