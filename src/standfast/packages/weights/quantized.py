"""Weights as integers of 8 bits with one scale for each row, and back.

The metadata of the file says which tensors were what before."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import Any, Final, TypeAlias

import numpy as np

from standfast.errors import (
    BadField,
    DuplicateName,
    RefusedTensor,
    UnsupportedFile,
    printable,
    shortened,
)
from standfast.tensors import DTYPES, ArraySource, Source, TensorSpec
from standfast.tensors.sources import Bytes, aligned_bytes

SCHEME: Final = "int8 per row"
QUANTIZABLE: Final = frozenset({"float16", "bfloat16", "float32", "float64"})


def scale_name(name: str) -> str:
    """The name of the tensor that holds the scales of another."""
    return f"{name}.scale"


def column_count(spec: TensorSpec) -> int:
    """How many elements a row has: what is not the first dimension counts as columns; 0 if none."""
    return math.prod(spec.shape[1:]) if len(spec.shape) >= 2 else 0


def dequantized_specs(specs: Mapping[str, TensorSpec], scheme: Any) -> dict[str, TensorSpec]:
    """The tensors of a quantized file as they were before, without their scales.

    Nothing that the file says is believed: raises BadField or UnsupportedFile.
    """
    dtypes = _dtypes(scheme)
    scales = {scale_name(name) for name in dtypes}
    for name, dtype in dtypes.items():
        _check(name, dtype, specs)
    return {
        name: TensorSpec(dtypes[name], spec.shape) if name in dtypes else spec
        for name, spec in specs.items()
        if name not in scales
    }


def _dtypes(scheme: Any) -> dict[str, Any]:
    if not isinstance(scheme, dict):
        raise BadField(
            f"quantization should be an object with scheme and tensors, found {_found(scheme)}"
        )
    kind = scheme.get("scheme")
    if not isinstance(kind, str):
        raise BadField(f"quantization: scheme should be a text, found {_found(kind)}")
    if kind != SCHEME:
        raise UnsupportedFile(
            f"the quantization scheme is {_shown(kind)}, and only {SCHEME!r} is read here: a newer "
            "version of Standfast may know it"
        )
    tensors = scheme.get("tensors")
    if not isinstance(tensors, dict):
        raise BadField(
            f"quantization: tensors should be an object of names and dtypes, found "
            f"{_found(tensors)}"
        )
    return tensors


def _check(name: str, dtype: Any, specs: Mapping[str, TensorSpec]) -> None:
    if not isinstance(dtype, str) or dtype not in QUANTIZABLE:
        raise BadField(
            f"quantization: the dtype of {_shown(name)} should be one of "
            f"{', '.join(sorted(QUANTIZABLE))}, found {_found(dtype)}"
        )
    numbers = specs.get(name)
    if numbers is None:
        raise BadField(f"quantization: the tensor {_shown(name)} is listed and not in the file")
    if numbers.dtype != "int8" or column_count(numbers) < 2:
        raise BadField(
            f"quantization: the tensor {_shown(name)} should be a matrix of int8, found "
            f"{numbers.dtype} {list(numbers.shape)}"
        )
    scales = specs.get(scale_name(name))
    expected = TensorSpec("float32", numbers.shape[:1])
    if scales != expected:
        found = f"{scales.dtype} {list(scales.shape)}" if scales else "no such tensor"
        raise BadField(
            f"quantization: {_shown(scale_name(name))} should be float32 {list(expected.shape)}, "
            f"found {found}"
        )


def _shown(name: str) -> str:
    return repr(shortened(printable(name)))


def _found(value: Any) -> str:
    return "nothing" if value is None else printable(f"{value!r:.80}")


Array: TypeAlias = np.ndarray[Any, Any]

BLOCK: Final = 1 << 17
"""So many elements are worked on at once, in a few MiB, however large the tensor is."""
_LARGEST: Final = float(np.finfo(np.float32).max)
# Below the smallest normal number a scale would lose its digits, and the row with it. The other
# end is a step below the largest number / 127, which rounds up: 127 times that is infinite.
_SCALES: Final = (
    np.finfo(np.float32).smallest_normal,
    np.nextafter(np.float32(_LARGEST / 127), np.float32(0)),
)


def quantized(tensors: Mapping[str, Source]) -> tuple[dict[str, Source], dict[str, Any]]:
    """The tensors with every matrix as int8, and what the metadata of the file says about them.

    All are read once, for the scales, and again in blocks as they are written. Raises
    RefusedTensor for NaN and infinities, and DuplicateName where a scale's name is taken.
    """
    made: dict[str, Source] = {}
    dtypes: dict[str, str] = {}
    for name, source in tensors.items():
        if not is_quantizable(source.spec):
            made[name] = source
            continue
        if (taken := scale_name(name)) in tensors:
            raise DuplicateName(
                f"the tensor {shortened(taken)!r} has the name that the scales of "
                f"{shortened(name)!r} would have: rename it, or save without quantize"
            )
        scales = _scales(name, source)
        made[name] = _QuantizedSource(source, scales)
        made[taken] = ArraySource(scales, TensorSpec("float32", scales.shape))
        dtypes[name] = source.spec.dtype
    return made, {"scheme": SCHEME, "tensors": dtypes}


def dequantized(arrays: Mapping[str, Array], scheme: Any) -> dict[str, Array]:
    """What `quantized` was given, as near as it comes back, of the dtypes it had.

    Raises BadField or UnsupportedFile where the arrays and the scheme, which come out of a file,
    do not fit together.
    """
    specs = {name: TensorSpec(_dtype_name(each), each.shape) for name, each in arrays.items()}
    restored: dict[str, Array] = {}
    for name, spec in dequantized_specs(specs, scheme).items():
        restored[name] = arrays[name]
        if spec != specs[name]:
            restored[name] = _restored(name, arrays[name], arrays[scale_name(name)], spec)
    return restored


@dataclass(frozen=True, slots=True)
class Report:
    """What quantizing costs, and what it saves."""

    largest_error: float
    """The largest difference between a weight and what becomes of it."""
    relative_error: float
    """The root of the summed squares of the differences, over that of the matrices."""
    nbytes_before: int
    nbytes_after: int
    """Of all tensors, those that stay as they are among them."""

    def as_dict(self) -> dict[str, Any]:
        """For `generation_info.json`."""
        return {"scheme": SCHEME, **asdict(self)}


def measure(tensors: Mapping[str, Source], written: Mapping[str, Source] | None = None) -> Report:
    """Compare the tensors with what comes back of them, block by block.

    `written` is what `quantized` made of them; without it, it is made once more.
    """
    made = quantized(tensors)[0] if written is None else written
    largest, errors, weights = 0.0, [], []
    for name, source in tensors.items():
        if not isinstance(after := made[name], _QuantizedSource):
            continue
        for first, block in _blocks(source):
            x = block.astype(np.float64)
            difference = x - after.restored(first, first + x.size)
            largest = max(largest, float(np.abs(difference).max()))
            errors.append(_length(difference))
            weights.append(_length(x))
    total = math.hypot(*weights)
    return Report(
        largest_error=largest,
        relative_error=math.hypot(*errors) / total if total else 0.0,
        nbytes_before=sum(source.spec.nbytes for source in tensors.values()),
        nbytes_after=sum(source.spec.nbytes for source in made.values()),
    )


def is_quantizable(spec: TensorSpec) -> bool:
    """Whether a tensor is a matrix of numbers with a point, of two columns or more."""
    return spec.dtype in QUANTIZABLE and column_count(spec) >= 2


def _length(x: Array) -> float:
    """The root of the summed squares."""
    largest = float(np.abs(x).max())
    if not largest:
        return 0.0
    # The square of a number below 1e-162 would be 0.
    return largest * math.sqrt(np.square(x / largest).sum())


class _QuantizedSource:
    """A matrix as int8, made of another source's rows when they are asked for."""

    def __init__(self, source: Source, scales: Array) -> None:
        self.spec = TensorSpec("int8", source.spec.shape)
        self.sequential = source.sequential
        self._source = source
        self._scales = scales

    def contiguous(self) -> Bytes | None:
        """None: the bytes lie nowhere yet."""
        return None

    def copy_to(self, out: Bytes, start: int) -> None:
        """Fill `out` with the whole numbers that begin at `start`."""
        for at in range(0, out.size, BLOCK):
            piece = out[at : at + BLOCK]
            np.copyto(piece, self._numbers(start + at, start + at + piece.size).view(np.uint8))

    def restored(self, first: int, last: int) -> Array:
        """What comes back of these elements."""
        scales = self._scales_of(first, last)
        return _product(self._numbers(first, last), scales, self._source.spec.kind.numpy)

    def _numbers(self, first: int, last: int) -> Array:
        x = _elements(self._source, first, last).astype(np.float64)
        # With 53 digits no quotient of two float32 is rounded to a half that it is not.
        x /= self._scales_of(first, last)
        return np.rint(x, out=x).astype(np.int8)

    def _scales_of(self, first: int, last: int) -> Array:
        """The scale of each element."""
        begins, rows = _rows(first, last, column_count(self.spec))
        return np.repeat(self._scales[rows], np.diff(begins, append=last - first))


def _scales(name: str, source: Source) -> Array:
    """One scale for each row: its largest magnitude / 127, or 1 if it is zero everywhere."""
    columns = column_count(source.spec)
    largest = np.zeros(source.spec.shape[0], np.float64)
    for first, block in _blocks(source):
        begins, rows = _rows(first, first + block.size, columns)
        # NaN is larger than all others here, so that it is found below.
        found = np.maximum.reduceat(np.abs(block), begins)
        largest[rows] = np.maximum(largest[rows], found)
    sound = largest <= _LARGEST
    if not sound.all():
        row = int(np.argmin(sound))
        raise RefusedTensor(
            f"the tensor {shortened(name)!r} cannot be quantized: {largest[row]} is in row "
            f"{row:,}, and only numbers that float32 holds can be; save without quantize, or "
            "repair it"
        )
    scales = np.clip((largest / 127).astype(np.float32), *_SCALES)
    return np.where(largest > 0, scales, np.float32(1))


def _rows(first: int, last: int, columns: int) -> tuple[Array, slice]:
    """Where in a stretch of elements each row begins, the first one cut, and which rows it has."""
    rows = slice(first // columns, -(-last // columns))
    begins = np.arange(rows.start, rows.stop) * columns - first
    return np.maximum(begins, 0), rows


def _blocks(source: Source) -> Iterator[tuple[int, Array]]:
    """All elements in stretches, each with the number of its first."""
    for first in range(0, source.spec.size, BLOCK):
        yield first, _elements(source, first, min(first + BLOCK, source.spec.size))


def _elements(source: Source, first: int, last: int) -> Array:
    """Elements as float32, or as float64 if that is what they are: nothing is rounded."""
    dtype = source.spec.kind.numpy
    data = np.empty((last - first) * dtype.itemsize, np.uint8)
    source.copy_to(data, first * dtype.itemsize)
    wide = np.float64 if dtype == np.float64 else np.float32
    return data.view(dtype).astype(wide, copy=False)


def _restored(name: str, numbers: Array, scales: Array, spec: TensorSpec) -> Array:
    if not (np.isfinite(scales) & (scales > 0)).all():
        raise BadField(
            f"quantization: {shortened(scale_name(name))!r} should hold finite numbers above 0"
        )
    whole = spec.view(aligned_bytes(spec.nbytes))
    rows = max(1, BLOCK // column_count(spec))
    for at in range(0, spec.shape[0], rows):
        part = slice(at, at + rows)
        wide = scales[part].reshape(-1, *[1] * (len(spec.shape) - 1))
        whole[part] = _product(numbers[part], wide, spec.kind.numpy)
    return whole


def _product(numbers: Array, scales: Array, dtype: np.dtype[Any]) -> Array:
    product = numbers.astype(np.float32)
    # Only a scale that no writer wrote goes over; infinite is what it asks for.
    with np.errstate(over="ignore"):
        product *= scales
        return product.astype(dtype, copy=False)


def _dtype_name(array: Array) -> str:
    return next((name for name, each in DTYPES.items() if each.numpy == array.dtype), "")
