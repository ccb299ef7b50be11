"""Who writes what: every box by one rank that holds it, and about as much on each."""

from collections import Counter
from collections.abc import Sequence
from itertools import chain

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from standfast.errors import BadField, RanksDisagree
from standfast.parallel.assignment import (
    HEADER,
    MOST_ELEMENTS,
    MOST_TENSORS,
    Holding,
    packed,
    unpacked,
    writers,
)

Box = tuple[int, int, int]
"""Its tensor, start and stop."""

Sizes = dict[Box, int]


def _holding(boxes: Sequence[Box], sizes: Sizes | None = None) -> Holding:
    """The boxes of a rank; one has four bytes an element, if `sizes` does not say."""
    rows = [(*box, 4 * (box[2] - box[1]) if sizes is None else sizes[box]) for box in boxes]
    return Holding(*np.array(rows, np.int64).reshape(len(rows), 4).T)


def _written(holdings: Sequence[Holding]) -> list[list[Box]]:
    """The boxes that each rank writes, in the order in which it holds them."""
    answer = writers(holdings)
    assert [mask.shape for mask in answer] == [holding.tensors.shape for holding in holdings]
    assert all(mask.dtype == np.bool_ for mask in answer)
    return [
        list(zip(*(column[mask].tolist() for column in holding[:3]), strict=True))
        for holding, mask in zip(holdings, answer, strict=True)
    ]


def _turn(holders: list[int], size: int, box: Box) -> tuple[bool, int, int, Box]:
    return len(holders) > 1, -size, len(holders), box


def _greedy(ranks: Sequence[Sequence[Box]], sizes: Sizes) -> list[set[Box]]:
    """The same choice, made slowly."""
    held: dict[Box, list[int]] = {}
    for rank, boxes in enumerate(ranks):
        for box in boxes:
            held.setdefault(box, []).append(rank)
    written: list[set[Box]] = [set() for _ in ranks]
    for box in sorted(held, key=lambda box: _turn(held[box], sizes[box], box)):
        least = min(held[box], key=lambda rank: (sum(sizes[b] for b in written[rank]), rank))
        written[least].add(box)
    return written


@st.composite
def _worlds(draw: st.DrawFn) -> tuple[list[list[Box]], Sizes]:
    """Ranks that hold some of a few boxes, which overlap, touch, and are empty."""
    bounds = st.sampled_from([(0, 0), (0, 1), (0, 4), (1, 4), (2, 4), (2, 3), (0, 1 << 40)])
    boxes = st.tuples(st.sampled_from([0, 1, 2, 5]), bounds).map(lambda box: (box[0], *box[1]))
    known = draw(st.lists(boxes, unique=True, max_size=12))
    sizes = {box: draw(st.sampled_from([0, 1, 1, 7, 1000])) for box in known}
    some = st.lists(st.sampled_from(known), unique=True) if known else st.just([])
    return draw(st.lists(some, min_size=1, max_size=6)), sizes


@given(_worlds())
@settings(max_examples=150, deadline=None)
@example(([[(0, 0, 0), (1, 0, 1)], [(1, 0, 1), (0, 0, 0)]], {(0, 0, 0): 0, (1, 0, 1): 1}))
@example(([[(0, 0, 4)], [(0, 0, 4), (0, 0, 1)]], {(0, 0, 4): 1, (0, 0, 1): 1}))
def test_every_box_is_written_by_one_rank_that_holds_it(world):
    ranks, sizes = world
    written = _written([_holding(boxes, sizes) for boxes in ranks])
    assert Counter(chain(*written)) == Counter(set(chain(*ranks)))
    assert all(set(writes) <= set(holds) for writes, holds in zip(written, ranks, strict=True))
    assert [set(writes) for writes in written] == _greedy(ranks, sizes)


def _mixed(tensors: int, ranks: int) -> list[Holding]:
    """Of ten tensors six are sharded, three replicated, and one sharded over groups of replicas."""
    numbers = np.arange(tensors)
    kinds = np.array([0, 1, 0, 2, 0, 1, 0, 0, 1, 0])[numbers % 10]
    unit = 1 + numbers * 7919 % 1000
    holdings = []
    for rank in range(ranks):
        starts = np.choose(kinds, [rank * unit, 0 * unit, rank % 8 * 8 * unit])
        lengths = np.choose(kinds, [unit, 64 * unit, 8 * unit])
        holdings.append(Holding(numbers, starts, starts + lengths, 4 * lengths))
    return holdings


def test_tensors_that_are_sharded_in_several_ways_are_spread_evenly():
    holdings = _mixed(10_000, 64)
    answer = writers(holdings)
    assert sum(int(mask.sum()) for mask in answer) == 6_000 * 64 + 3_000 + 1_000 * 8
    loads = [int(h.nbytes[mask].sum()) for h, mask in zip(holdings, answer, strict=True)]
    assert max(loads) - min(loads) <= max(loads) // 1000


@given(_worlds())
@settings(max_examples=50, deadline=None)
def test_a_holding_comes_back_from_its_bytes(world):
    ranks, sizes = world
    for boxes in ranks:
        holding = _holding(boxes, sizes)
        back = unpacked(packed(holding))
        assert [column.dtype for column in back] == [np.dtype(np.int64)] * 4
        assert [column.tolist() for column in back] == [column.tolist() for column in holding]


def test_the_bytes_are_as_few_as_the_numbers_need():
    small = _holding([(3, 0, 4), (200, 1, 9)])
    assert packed(small) == bytes([2, *[0] * 7, 1, 1, 1, 1, 3, 200, 0, 1, 4, 9, 16, 32])
    wide = _holding([(255, 256, 1 << 32)], {(255, 256, 1 << 32): 65535})
    assert packed(wide)[8:12] == bytes([1, 2, 8, 2])
    (large,) = _mixed(10_000, 1)
    assert len(packed(large)) == HEADER.size + 10_000 * (2 + 1 + 2 + 4)


SMALL = packed(_holding([(3, 0, 4), (200, 1, 9)]))


def _changed(at: int, value: int) -> bytes:
    return SMALL[:at] + bytes([value]) + SMALL[at + 1 :]


DAMAGED = {
    "nothing": b"",
    "part of the header": SMALL[:11],
    "cut": SMALL[:-1],
    "longer": SMALL + b"\0",
    "a count beyond all bytes": b"\xff" * 8 + SMALL[8:],
    "a width of 3": _changed(9, 3),
    "a width of 0": _changed(11, 0),
    "a start at its stop": _changed(15, 9),
    "a start after its stop": _changed(15, 10),
    "a stop before all": _changed(17, 0),
    "a tensor beyond all": HEADER.pack(1, 4, 1, 1, 1)
    + MOST_TENSORS.to_bytes(4, "little")
    + bytes([0, 1, 1]),
    "numbers of 64 bits": HEADER.pack(1, 1, 1, 1, 8) + bytes([0, 0, 1]) + b"\xff" * 8,
    "a start of 64 bits": HEADER.pack(1, 1, 8, 1, 1) + b"\0" + b"\xff" * 8 + bytes([1, 1]),
    "a stop of 64 bits": HEADER.pack(1, 1, 1, 8, 1) + bytes([0, 0]) + b"\xff" * 8 + b"\1",
}


@pytest.mark.parametrize("data", DAMAGED.values(), ids=DAMAGED)
def test_bytes_that_are_no_holding_are_refused(data):
    with pytest.raises(BadField):
        unpacked(data)


@given(st.binary(max_size=60) | st.binary(max_size=20).map(lambda tail: SMALL[:12] + tail))
@settings(max_examples=100, deadline=None)
def test_any_bytes_are_a_holding_or_are_refused(data):
    try:
        holding = unpacked(data)
    except BadField:
        return
    assert packed(unpacked(packed(holding))) == packed(holding)


REFUSED = {
    "a negative tensor": (-1, 0, 1, 1),
    "too many tensors": (MOST_TENSORS, 0, 1, 1),
    "a negative start": (0, -1, 1, 1),
    "a negative size": (0, 0, 1, -1),
    "no elements, elsewhere than at 0": (0, 2, 2, 0),
}


@pytest.mark.parametrize("row", REFUSED.values(), ids=REFUSED)
def test_boxes_that_cannot_be_are_not_packed(row):
    with pytest.raises(BadField):
        packed(Holding(*np.array([row], np.int64).T))


def test_columns_of_several_lengths_are_not_packed():
    holding = _holding([(0, 0, 1), (1, 0, 1)])
    with pytest.raises(BadField):
        packed(holding._replace(nbytes=holding.nbytes[:1]))


def test_boxes_that_contradict_each_other_are_refused():
    box = (0, 0, 2)
    with pytest.raises(BadField, match="1"):  # which holds it twice
        writers([_holding([box]), _holding([box, (1, 0, 1), box])])
    with pytest.raises(RanksDisagree, match=r"0.*8.*2.*4"):
        writers([_holding([box]), _holding([]), _holding([box], {box: 4})])


def test_more_elements_than_can_be_numbered_are_refused():
    boxes = [(tensor, 0, MOST_ELEMENTS // 4) for tensor in range(4)]
    sizes = dict.fromkeys(boxes, 1)
    assert _written([_holding(boxes[:3], sizes)]) == [boxes[:3]]
    with pytest.raises(BadField):
        writers([_holding(boxes, sizes)])
