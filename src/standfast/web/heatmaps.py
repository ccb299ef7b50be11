"""A picture of a tensor: a matrix of at most 256 × 256 cells, each the mean of what lies in it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Final

import numpy as np

from standfast.errors import BadOption
from standfast.files.digests import CHUNK
from standfast.tensors import TensorSpec
from standfast.web.decoder import PIECE, some_numbers
from standfast.web.samples import LOOKED, WHOLE, Elements, Source, elements_of

Array = np.ndarray[Any, Any]
Span = tuple[int, int]
"""Where something begins, and where it ends."""

_MOST: Final = 256
_LARGEST: Final = ("float64", "complex128")
"""Dtypes whose elements can be so large that the sum of a few is infinite."""
_SMALLER: Final = 2.0**-64


@dataclass(frozen=True)
class _Matrix:
    """The part of a tensor that is shown, as rows of elements that follow each other."""

    first: int
    """Its first element, counted in C order."""
    size: int
    """How many elements there are: the last row may be short."""
    rows: int
    columns: int


def heatmap(
    source: Source,
    name: str,
    rows: int = 128,
    columns: int = 128,
    index: Sequence[int] = (),
) -> dict[str, Any]:
    """A tensor as a matrix of at most so many rows and columns; a cell is the mean of its elements.

    A vector is one row, or, if it is longer than `columns`, wrapped into a square. Of more than two
    dimensions, the last two are shown at `index` of the others, zeros where it is not given. Of a
    large tensor some bands are shown, spread evenly: `row_spans` and `column_spans` say what each
    row and column of the picture is. A cell in which anything is not finite is None.
    """
    for what, value in (("rows", rows), ("columns", columns)):
        if not 1 <= value <= _MOST:
            raise BadOption(f"{what}={value}: a picture has 1 to {_MOST}")
    with elements_of(source, name) as elements:
        spec = elements.spec
        leading = _leading(spec, index)
        matrix = _matrix(spec, leading, columns)
        most = WHOLE if elements.cheap else LOOKED
        row_spans, column_spans = _spans(elements, matrix, rows, columns, most)
        values = _values(elements, matrix, row_spans, column_spans)
    area = sum(b - a for a, b in row_spans) * sum(b - a for a, b in column_spans)
    whole = area == matrix.rows * matrix.columns
    finite = values[np.isfinite(values)]
    is_reduced = area != values.size
    return {
        "name": name,
        "dtype": spec.dtype,
        "shape": list(spec.shape),
        "of": "modulus" if spec.kind.numpy.kind == "c" else "value",
        "rows": len(row_spans),
        "columns": len(column_spans),
        "values": [[v if math.isfinite(v) else None for v in row] for row in values.tolist()],
        "min": float(finite.min()) if finite.size else None,
        "max": float(finite.max()) if finite.size else None,
        "reduced": "mean" if is_reduced else None,
        "index": leading,
        "wrapped": matrix.columns if len(spec.shape) == 1 and matrix.rows > 1 else None,
        "exact": whole,
        "row_spans": row_spans,
        "column_spans": column_spans,
    }


def _leading(spec: TensorSpec, index: Sequence[int]) -> list[int]:
    """The indices of all dimensions but the last two."""
    lengths = spec.shape[:-2]
    if len(index) > len(lengths):
        raise BadOption(
            f"index={list(index)}: {len(lengths)} numbers at most, for {len(spec.shape)} dimensions"
        )
    leading = [*index, *(0 for _ in lengths[len(index) :])]
    for at, length in zip(leading, lengths, strict=True):
        if not 0 <= at < length and spec.size:
            raise BadOption(f"index={list(index)}: the tensor's shape is {list(spec.shape)}")
    return leading


def _matrix(spec: TensorSpec, leading: Sequence[int], columns: int) -> _Matrix:
    if not spec.size:
        return _Matrix(0, 0, 0, 0)
    if len(spec.shape) < 2:
        width = spec.size if spec.size <= columns else math.isqrt(spec.size - 1) + 1
        return _Matrix(0, spec.size, -(-spec.size // width), width)
    height, width = spec.shape[-2:]
    number = 0
    for at, length in zip(leading, spec.shape[:-2], strict=True):
        number = number * length + at
    return _Matrix(number * height * width, height * width, height, width)


def _spans(
    elements: Elements, matrix: _Matrix, rows: int, columns: int, most: int
) -> tuple[list[Span], list[Span]]:
    """Which rows and columns of the matrix each row and column of the picture is the mean of."""
    bits = elements.spec.kind.bits
    if matrix.size * bits <= 8 * most:
        return _cut([(0, matrix.rows)], rows), _cut([(0, matrix.columns)], columns)
    chunks, in_chunk = most // CHUNK, CHUNK * 8 // bits
    if matrix.columns <= in_chunk // 2:
        bands = _row_bands(elements, matrix, chunks)
        return _cut(bands, rows), _cut([(0, matrix.columns)], columns)
    # Rows so long that a chunk holds none, or hardly one: parts of some of them.
    count = min(matrix.rows, rows, chunks // 2)
    shown = [(2 * i + 1) * matrix.rows // (2 * count) for i in range(count)]
    parts = max(1, chunks // (2 * count))
    length = min(in_chunk, matrix.columns // parts)
    starts = [(2 * i + 1) * (matrix.columns - length) // (2 * parts) for i in range(parts)]
    return [(row, row + 1) for row in shown], _cut([(at, at + length) for at in starts], columns)


def _row_bands(elements: Elements, matrix: _Matrix, chunks: int) -> list[Span]:
    """The rows that lie within some chunks, spread evenly."""
    bits, shift = elements.spec.kind.bits, elements.shift * 8
    begin = shift + matrix.first * bits
    first, last = begin // (8 * CHUNK), -(-(begin + matrix.size * bits) // (8 * CHUNK))
    numbers = [first + (2 * i + 1) * (last - first) // (2 * chunks) for i in range(chunks)]
    row = matrix.columns * bits
    bands = [
        (max(0, -(-(n * 8 * CHUNK - begin) // row)), ((n + 1) * 8 * CHUNK - begin) // row)
        for n in numbers
    ]
    return [(a, min(b, matrix.rows)) for a, b in bands if a < min(b, matrix.rows)]


def _cut(bands: Sequence[Span], most: int) -> list[Span]:
    """Bands cut into at most so many spans of nearly the same length."""
    found = []
    for number, (a, b) in enumerate(bands):
        share = (number + 1) * most // len(bands) - number * most // len(bands)
        count = max(1, min(share, b - a))
        if a < b:
            cuts = [a + (b - a) * i // count for i in range(count + 1)]
            found += list(pairwise(cuts))
    return found


def _values(
    elements: Elements, matrix: _Matrix, rows: Sequence[Span], columns: Sequence[Span]
) -> Array:
    values = np.zeros((len(rows), len(columns)))
    if values.size:
        means = _means_of_rows if matrix.columns <= PIECE else _means_of_parts
        with np.errstate(all="ignore"):
            for scale in (1.0, _SMALLER):
                read = _Reading(elements, matrix, scale)
                for number, span in enumerate(rows):
                    values[number] = means(read, span, columns) / scale
                if elements.spec.dtype not in _LARGEST or np.isfinite(values).all():
                    break  # else sums may have left the range, which means do not
    return values


@dataclass(frozen=True)
class _Reading:
    """Reads elements of a matrix, made smaller if they must be."""

    elements: Elements
    matrix: _Matrix
    scale: float

    def numbers(self, first: int, stop: int) -> Array:
        at = self.matrix.first
        return some_numbers(self.elements, at + first, at + stop) * self.scale


def _means_of_rows(read: _Reading, span: Span, columns: Sequence[Span]) -> Array:
    """The means of whole rows, by columns of the picture, many rows at a time."""
    width, size = read.matrix.columns, read.matrix.size
    starts = [a for a, _ in columns]
    total, count = np.zeros(len(columns)), np.zeros(len(columns), np.int64)
    step = PIECE // width
    for top in range(span[0], span[1], step):
        bottom = min(top + step, span[1])
        numbers = read.numbers(top * width, min(bottom * width, size))
        found, there = np.zeros((bottom - top) * width), np.zeros((bottom - top) * width, bool)
        found[: numbers.size], there[: numbers.size] = numbers, True
        total += np.add.reduceat(found.reshape(-1, width), starts, axis=1).sum(axis=0)
        count += np.add.reduceat(there.reshape(-1, width).sum(axis=0), starts)
    return total / count


def _means_of_parts(read: _Reading, span: Span, columns: Sequence[Span]) -> Array:
    """The same of rows that are too long to be in memory together."""
    width, size = read.matrix.columns, read.matrix.size
    total, count = np.zeros(len(columns)), np.zeros(len(columns), np.int64)
    for row in range(*span):
        for number, (left, right) in enumerate(columns):
            for at in range(left, right, PIECE):
                first = row * width + at
                stop = min(row * width + min(at + PIECE, right), size)
                if first < stop:
                    total[number] += read.numbers(first, stop).sum()
                    count[number] += stop - first
    return total / count
