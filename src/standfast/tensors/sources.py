"""Where the bytes of a tensor come from when it is saved."""

from __future__ import annotations

import operator
import sys
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from standfast.errors import UnsupportedTensor, within_memory
from standfast.tensors.dtypes import DTYPES
from standfast.tensors.spec import TensorSpec

Bytes = np.ndarray[Any, np.dtype[np.uint8]]
"""A flat array of bytes."""

PIECE = 1 << 20
"""A gather that must go through scratch memory takes this much of it at a time."""


ALIGNMENT = 64
"""Where torch puts its tensors: sums of what lies elsewhere may differ in the last bit."""


def aligned_bytes(size: int) -> Bytes:
    """Fresh memory that begins at a multiple of the alignment; raises OutOfMemory."""
    with within_memory():
        memory = np.empty(size + ALIGNMENT, np.uint8)
    start = -memory.ctypes.data % ALIGNMENT
    return memory[start : start + size]


class Source(Protocol):
    """The bytes of one tensor, little-endian, in C order.

    Both methods may be called several times and from several threads at once.
    """

    @property
    def spec(self) -> TensorSpec:
        """What the tensor is."""
        ...

    @property
    def sequential(self) -> bool:
        """Whether each thread had better ask for the bytes in their order: a jump is dear."""
        ...

    def contiguous(self) -> Bytes | None:
        """All the bytes where they lie in memory, or None if they must be gathered."""
        ...

    def copy_to(self, out: Bytes, start: int) -> None:
        """Fill `out` with the bytes that begin at `start`."""
        ...


class ArraySource:
    """A NumPy array of any strides and byte order as a source."""

    sequential = False

    def __init__(self, array: np.ndarray[Any, Any], spec: TensorSpec) -> None:
        self.spec = spec
        # A subclass may slice in a way of its own.
        self._array = array if type(array) is np.ndarray else array.view(np.ndarray)
        little = array.dtype.isnative and sys.byteorder == "little"
        self._little = array.dtype if little else array.dtype.newbyteorder("<")
        self._flat: Bytes | None = None
        if little and self._array.flags.c_contiguous:
            self._flat = self._array.reshape(-1).view(np.uint8)

    def contiguous(self) -> Bytes | None:
        """All the bytes, if they lie in order."""
        return self._flat

    def copy_to(self, out: Bytes, start: int) -> None:
        """Fill `out` with the bytes that begin at `start`, gathered where they are scattered."""
        data = self.contiguous()
        if data is not None:
            # Unlike assignment to a memoryview, this releases the GIL.
            np.copyto(out, data[start : start + out.size])
            return
        width = self._little.itemsize
        for at in range(0, out.size, PIECE):
            piece = out[at : at + PIECE]
            first, skip = divmod(start + at, width)
            last = -(-(start + at + piece.size) // width)
            elements = np.empty(last - first, self._little)
            _gather(self._array, first, last, elements)
            np.copyto(piece, elements.view(np.uint8)[skip : skip + piece.size])


def _gather(array: np.ndarray[Any, Any], first: int, last: int, out: np.ndarray[Any, Any]) -> None:
    """Copy the elements `first` to `last` of `array`, counted in C order, into the flat `out`."""
    if array.flags.c_contiguous:
        np.copyto(out, array.reshape(-1)[first:last])
        return
    row = array[0].size
    begin, skip = divmod(first, row)
    filled = 0
    if skip:
        stop = min(row, skip + out.size)
        filled = stop - skip
        _gather(array[begin], skip, stop, out[:filled])
        begin += 1
    rows = (out.size - filled) // row
    if rows:
        whole = out[filled : filled + rows * row].reshape(rows, *array.shape[1:])
        np.copyto(whole, array[begin : begin + rows])
        filled += rows * row
    if filled < out.size:
        _gather(array[begin + rows], 0, out.size - filled, out[filled:])


@dataclass(frozen=True, slots=True, eq=False)
class Packed:
    """A tensor of a dtype narrower than a byte: its packed bytes, dtype and logical shape.

    `standfast.save` takes it where it takes an array.

    >>> weight = Packed(np.zeros(12, np.uint8), "float6_e2m3fn", (4, 4))
    """

    data: np.ndarray[Any, Any]
    dtype: str
    shape: tuple[int, ...]

    def source(self) -> ArraySource:
        """The packed bytes as a source, once they fit the dtype and the shape."""
        kind = DTYPES.get(self.dtype) if isinstance(self.dtype, str) else None
        if kind is None or not kind.packed:
            names = ", ".join(name for name, known in DTYPES.items() if known.packed)
            raise UnsupportedTensor(f"no packed dtype {self.dtype!r}; there are {names}")
        try:
            shape = tuple(operator.index(n) for n in self.shape)
        except TypeError as error:
            raise UnsupportedTensor(f"the shape {self.shape!r} is none: {error}") from error
        if any(n < 0 for n in shape):
            raise UnsupportedTensor(f"the shape {list(shape)} has a negative dimension")
        spec = TensorSpec(self.dtype, shape)
        if spec.size * kind.bits % 8:
            raise UnsupportedTensor(
                f"{spec.size} elements of {self.dtype} do not fill whole bytes: pad the shape"
            )
        if not isinstance(self.data, np.ndarray):
            raise UnsupportedTensor(f"{self.dtype} is packed in an array of uint8")
        if self.data.dtype != np.uint8 or self.data.nbytes != spec.nbytes:
            raise UnsupportedTensor(
                f"{self.dtype} of shape {list(self.shape)} is {spec.nbytes} packed uint8, "
                f"not {self.data.nbytes} bytes of {self.data.dtype}"
            )
        return ArraySource(self.data, spec)
