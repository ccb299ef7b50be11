"""What only all fields and links can tell: their range on each level, and how unitary links are."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from standfast.amr.inspect.items import Items
from standfast.amr.inspect.trees import COMPLEX, SavedTree
from standfast.amr.mesh.arena import INVALID
from standfast.files.reader import Progress

Array = np.ndarray[Any, Any]


@dataclass(frozen=True)
class FieldRange:
    """The numbers of the live blocks' fields on one level; of complex ones, their moduli."""

    least: float
    greatest: float
    mean: float
    not_finite: int
    """How many are infinite or no numbers; the others say nothing of them."""


@dataclass(frozen=True)
class Scanned:
    """All fields and links of the live blocks were read for this."""

    of_moduli: bool
    levels: dict[int, FieldRange]
    unitarity: float | None
    """The largest |U U† − 1| of an entry of any link; None if there are no links."""


def scan(*trees: SavedTree, progress: Progress | None = None) -> Scanned:
    """Read the fields and links of all live blocks, verified; the trees are sound."""
    totals: dict[int, list[float]] = {}
    worst: float | None = None
    for tree in trees:
        for levels, fields in _fields(tree, progress):
            for level in np.unique(levels).tolist():
                _add(
                    totals.setdefault(level, [math.inf, -math.inf, 0.0, 0, 0]),
                    fields[levels == level],
                )
        if tree.links is not None:
            live = np.flatnonzero(tree.is_live)
            for rows in _chosen(tree.links, live, progress):
                worst = max(worst or 0.0, _unitarity(rows[1], tree.group))
    return Scanned(
        of_moduli=trees[0].number.kind == "c",
        levels={
            level: FieldRange(least, greatest, total / (count or 1), int(odd))
            for level, (least, greatest, total, count, odd) in sorted(totals.items())
        },
        unitarity=worst,
    )


def _fields(tree: SavedTree, progress: Progress | None) -> Iterator[tuple[Array, Array]]:
    """The fields of live blocks with their levels, some at a time."""
    blocks = np.flatnonzero(tree.is_live & (tree.field_slots != INVALID))
    blocks = blocks[np.argsort(tree.field_slots[blocks], kind="stable")]
    slots = tree.field_slots[blocks].astype(np.int64)
    done = 0
    for chosen, rows in _chosen(tree.fields, slots, progress):
        levels = tree.blocks["level"][blocks[done : done + len(chosen)]]
        done += len(chosen)
        yield levels, np.ascontiguousarray(rows).view(tree.number)


def _chosen(
    items: Items, numbers: Array, progress: Progress | None
) -> Iterator[tuple[Array, Array]]:
    """These items, which are in order, and their bytes, a window at a time."""
    for start, stop, _ in items.windows:
        chosen = numbers[np.searchsorted(numbers, start) : np.searchsorted(numbers, stop)]
        if len(chosen):
            rows = items.read(start, stop)
            if progress:
                progress(rows.nbytes)
            yield chosen, rows[chosen - start]


def _add(totals: list[float], fields: Array) -> None:
    with np.errstate(all="ignore"):
        numbers = np.abs(fields) if fields.dtype.kind == "c" else fields
        finite = np.isfinite(numbers)
        totals[4] += int(numbers.size - np.count_nonzero(finite))
        numbers = numbers[finite]
        if numbers.size:
            totals[0] = min(totals[0], float(numbers.min()))
            totals[1] = max(totals[1], float(numbers.max()))
            totals[2] += float(numbers.sum(dtype=np.float64))
            totals[3] += numbers.size


def _unitarity(rows: Array, group: int) -> float:
    links = np.ascontiguousarray(rows).view(COMPLEX).reshape(-1, group, group)
    with np.errstate(all="ignore"):
        product = links @ links.conj().transpose(0, 2, 1)
        apart = float(np.abs(product - np.eye(group)).max(initial=0.0))
    return math.inf if math.isnan(apart) else apart
