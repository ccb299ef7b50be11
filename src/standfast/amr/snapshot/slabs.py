"""Long arrays in pieces of about 1 MiB, each of whole rows.

A store keeps a tensor once, however many checkpoints have it. What changes between two snapshots
is a few slots of an arena, so that it pays to store many small tensors rather than one.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import numpy as np

from standfast.errors import BadField
from standfast.files.forms import gathered
from standfast.tensors import TensorSpec

SLAB: Final = 1 << 20
"""The bytes of a slab at most, unless one row takes more."""

Array = np.ndarray[Any, Any]


def rows_per_slab(row_bytes: int) -> int:
    """How many rows a slab has, the last one excepted."""
    return max(1, SLAB // max(1, row_bytes))


def slabs(array: Array) -> list[Array]:
    """An array in slabs, which share its memory."""
    rows = rows_per_slab(array.itemsize * array[:1].size)
    return [array[first : first + rows] for first in range(0, len(array), rows)]


def check_slabs(specs: Sequence[TensorSpec], dtype: str, shape: tuple[int, ...], name: str) -> None:
    """Raise BadField unless these are the slabs of an array of this dtype and shape."""
    row = TensorSpec(dtype, (1, *shape[1:]))
    rows = rows_per_slab(row.nbytes)
    firsts = range(0, shape[0], rows)
    if len(specs) != len(firsts):
        raise BadField(f"{name}: expected {len(firsts):,} slabs, found {len(specs):,}")
    for number, (first, spec) in enumerate(zip(firsts, specs, strict=True)):
        wanted = TensorSpec(dtype, (min(rows, shape[0] - first), *shape[1:]))
        if spec != wanted:
            raise BadField(f"{name}, slab {number}: expected {wanted}, found {spec}")


def joined(pieces: Sequence[Array], dtype: str, shape: tuple[int, ...]) -> Array:
    """The array that slabs were made of, in memory of its own."""
    return TensorSpec(dtype, shape).view(gathered([p.reshape(-1).view(np.uint8) for p in pieces]))
