"""Who writes what: each box that several ranks hold is written by one of them.

Pure: numbers in, an answer out, the same on all ranks.

    holdings = [unpacked(data) for data in comm.all_gather(packed(mine))]
    to_write = writers(holdings)[comm.rank]
"""

from __future__ import annotations

import heapq
import itertools
import struct
from collections.abc import Sequence
from typing import Final, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from standfast.errors import BadField, RanksDisagree

Numbers: TypeAlias = NDArray[np.int64]

MOST_TENSORS: Final = 1 << 24
"""Tensors are numbered from 0 up to this, which none reaches; memory follows from it."""

MOST_ELEMENTS: Final = 1 << 62
"""All tensors together have fewer elements, so that each element has a number."""

HEADER: Final = struct.Struct("<Q4B")
"""The number of boxes; how many bytes a number takes in each of the four columns that follow."""

WIDTHS: Final = (1, 2, 4, 8)


class Holding(NamedTuple):
    """The boxes that one rank holds: four columns of the same length, in any order of rows.

    No box stands twice. In a tensor of known shape, its first and its last element say which box
    it is. A box without elements begins and ends at 0: that is how a rank holds a tensor that has
    none; of any other tensor, leave such a box out.
    """

    tensors: Numbers
    """The number of the tensor, the same on all ranks."""
    starts: Numbers
    """The number of the box's first element in the whole tensor, in C order."""
    stops: Numbers
    """That of its last element, plus one."""
    nbytes: Numbers
    """How many bytes the box has."""


def writers(holdings: Sequence[Holding]) -> list[NDArray[np.bool_]]:
    """Of each rank's boxes, which ones it writes: every box is written by one rank that holds it.

    The ranks write about the same number of bytes. First each gets what it alone holds; then the
    boxes of several ranks go, the largest first (of equal ones, those on fewer ranks), to whichever
    of their ranks has least so far (of equal ones, the lowest). Nothing but the holdings decides.
    It is fastest where each holding is in the order of tensors and starts.
    """
    # Most boxes are on one rank, and most of these share their place with no other box at all.
    # They are found by one sort of one column, and only the rest is looked at closely.
    places = _places(holdings)
    shared = _shared(places)
    offsets = np.cumsum([0, *(len(holding.tensors) for holding in holdings)])
    parts = [slice(*bounds) for bounds in itertools.pairwise(offsets.tolist())]
    several = [shared[part] for part in parts]

    writes = ~shared
    loads = [
        int(holding.nbytes[writes[part]].sum())
        for holding, part in zip(holdings, parts, strict=True)
    ]
    rows = np.flatnonzero(shared)
    writes[rows] = _chosen(
        loads,
        places[rows],
        _gathered([holding.stops[mask] for holding, mask in zip(holdings, several, strict=True)]),
        _gathered([holding.nbytes[mask] for holding, mask in zip(holdings, several, strict=True)]),
        np.repeat(np.arange(len(holdings)), [np.count_nonzero(mask) for mask in several]),
    )
    return [writes[part] for part in parts]


def packed(holding: Holding) -> bytes:
    """A holding as bytes, for the other ranks; each column in the narrowest of integers."""
    _check(holding)
    columns = [np.asarray(column, np.int64) for column in holding]
    widths = [_width(int(column.max(initial=0))) for column in columns]
    narrow = [c.astype(f"<u{w}").tobytes() for c, w in zip(columns, widths, strict=True)]
    return b"".join([HEADER.pack(len(columns[0]), *widths), *narrow])


def unpacked(data: bytes) -> Holding:
    """The holding that was packed; raises BadField if these bytes are none."""
    if len(data) < HEADER.size:
        raise BadField(
            f"a rank's holding has {len(data)} bytes: expected at least the {HEADER.size} of its "
            "header"
        )
    count, *widths = HEADER.unpack_from(data)
    if not set(widths) <= set(WIDTHS):
        raise BadField(f"a rank's holding has integers of {widths} bytes: expected 1, 2, 4 or 8")
    expected = HEADER.size + count * sum(widths)
    if len(data) != expected:
        raise BadField(
            f"a rank's holding of {count:,} boxes has {len(data):,} bytes: expected {expected:,}"
        )
    columns = []
    at = HEADER.size
    for width in widths:
        column = np.frombuffer(data, f"<u{width}", count, at)
        columns.append(column.astype(np.int64))  # what is too large turns negative
        at += count * width
    holding = Holding(*columns)
    _check(holding)
    return holding


def _check(holding: Holding) -> None:
    """Refuse numbers that no boxes have."""
    tensors, starts, stops, nbytes = holding
    if len({column.shape for column in holding}) != 1 or tensors.ndim != 1:
        raise BadField("a rank's holding has columns that are not of the same length")
    wrong = (tensors < 0) | (tensors >= MOST_TENSORS) | (nbytes < 0) | (starts < 0)
    wrong |= (starts >= stops) & ((starts != 0) | (stops != 0))
    if wrong.any():
        row = int(wrong.argmax())
        raise BadField(
            f"a rank's holding has a box of tensor {tensors[row]:,} from {starts[row]:,} to "
            f"{stops[row]:,} with {nbytes[row]:,} bytes, which cannot be: expected a tensor below "
            f"{MOST_TENSORS:,}, elements from 0 that end after they begin, and no negative number"
        )


def _width(largest: int) -> int:
    return next(width for width in WIDTHS if largest < 1 << 8 * width)


def _places(holdings: Sequence[Holding]) -> Numbers:
    """A number for each row, equal where tensor and start are: as if all tensors were one."""
    count = max((int(holding.tensors.max(initial=-1)) + 1 for holding in holdings), default=0)
    extents = np.ones(count, np.int64)  # a tensor without elements has a place too
    for holding in holdings:
        np.maximum.at(extents, holding.tensors, holding.stops)
    if extents.sum(dtype=np.float64) >= MOST_ELEMENTS:
        raise BadField(f"the tensors have more elements than {MOST_ELEMENTS:,}, which cannot be")
    before = np.cumsum(extents) - extents
    return _gathered([before[holding.tensors] + holding.starts for holding in holdings])


def _gathered(columns: Sequence[Numbers]) -> Numbers:
    return np.concatenate([np.empty(0, np.int64), *columns])


def _shared(places: Numbers) -> NDArray[np.bool_]:
    """Which of these numbers stand more than once."""
    order = np.argsort(places, kind="stable")  # each rank's are sorted already: this merges them
    in_order = places[order]
    again = in_order[1:] == in_order[:-1]
    shared = np.zeros(len(places), np.bool_)
    shared[order[1:][again]] = True
    shared[order[:-1][again]] = True
    return shared


def _chosen(
    loads: list[int], places: Numbers, stops: Numbers, nbytes: Numbers, ranks: Numbers
) -> NDArray[np.bool_]:
    """Which of these rows are written, where each rank has `loads` to write already."""
    order = np.argsort(places, kind="stable")
    same_place = _same_as_before(places[order])
    if (same_place & ~_same_as_before(stops[order])).any():
        order = np.lexsort((stops, places))
        same_place = _same_as_before(places[order])
    same_box = same_place & _same_as_before(stops[order])
    _check_boxes(same_box, nbytes[order], ranks[order])

    firsts = np.flatnonzero(~same_box)
    counts = np.diff(firsts, append=len(order))
    alone = order[firsts[counts == 1]]
    np.add.at(own := np.zeros(len(loads), np.int64), ranks[alone], nbytes[alone])
    loads = [load + more for load, more in zip(loads, own.tolist(), strict=True)]

    chosen = np.zeros(len(order), np.bool_)
    chosen[alone] = True
    firsts, counts = firsts[counts > 1], counts[counts > 1]
    box_bytes = nbytes[order[firsts]]
    by_size = np.lexsort((counts, -box_bytes))
    positions = _spread(loads, box_bytes[by_size], ranks[order], firsts[by_size], counts[by_size])
    chosen[order[positions]] = True
    return chosen


def _same_as_before(column: Numbers) -> NDArray[np.bool_]:
    same = np.zeros(len(column), np.bool_)
    same[1:] = column[1:] == column[:-1]
    return same


def _check_boxes(same_box: NDArray[np.bool_], nbytes: Numbers, ranks: Numbers) -> None:
    """Refuse rows, in order, that cannot be of one box although they say so."""
    twice = same_box & _same_as_before(ranks)
    if twice.any():
        raise BadField(f"rank {ranks[twice.argmax()]} holds a box twice: expected it once")
    other = same_box & ~_same_as_before(nbytes)
    if other.any():
        row = int(other.argmax())
        raise RanksDisagree(
            f"rank {ranks[row - 1]} has a box of {nbytes[row - 1]:,} bytes, and rank {ranks[row]} "
            f"has the same box with {nbytes[row]:,}: the tensor must have one dtype on all ranks"
        )


def _spread(
    loads: list[int], nbytes: Numbers, ranks: Numbers, firsts: Numbers, counts: Numbers
) -> list[int]:
    """The row of the rank that writes each box; `ranks` has its ranks from `firsts` on.

    Boxes that the same ranks hold share a heap of them. A load in a heap may be out of date, but
    only too low: the top is put right until it is true.
    """
    heaps: dict[bytes, list[tuple[int, int, int]]] = {}
    chosen = []
    for size, first, count in zip(nbytes.tolist(), firsts.tolist(), counts.tolist(), strict=True):
        holders = ranks[first : first + count]
        heap = heaps.get(key := holders.tobytes())
        if heap is None:
            members = enumerate(holders.tolist())
            heap = heaps[key] = sorted((loads[rank], rank, at) for at, rank in members)
        load, rank, at = heap[0]
        while load != loads[rank]:
            heapq.heapreplace(heap, (loads[rank], rank, at))
            load, rank, at = heap[0]
        loads[rank] = load + size
        heapq.heapreplace(heap, (load + size, rank, at))
        chosen.append(first + at)
    return chosen
