"""Boxes of a tensor, each function beside another way to come to the same."""

import math
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import standfast
from standfast.errors import BadField, DamagedFile, LimitExceeded
from standfast.files.digests import CHUNK
from standfast.store.maintenance.doctor import examine
from standfast.store.schema.boxes import (
    box_nbytes,
    box_text,
    byte_ranges,
    check_boxes,
    common,
    count_chunks,
    cut_by,
    is_in_order,
    slices,
    span,
    whole_box,
    within,
)
from standfast.tensors import DTYPES, TensorSpec
from standfast.tensors.shards import Box
from tests.kit.cli import flip_in
from tests.kit.rank_threads import ThreadRanks, on_ranks
from tests.store.save.cut import Cut, cut_framework, even

__all__ = ["cut_framework"]

SHAPES = st.lists(st.integers(1, 5), max_size=4).map(tuple)
Shape = tuple[int, ...]


def numbered(shape: Sequence[int]) -> np.ndarray[Any, Any]:
    """Every element is its own number in C order."""
    return np.arange(math.prod(shape)).reshape(shape)


@st.composite
def boxes_in(draw: st.DrawFn, shape: Shape, least: int = 1) -> Box:
    offsets, lengths = [], []
    for length in shape:
        size = draw(st.integers(least, length))
        offsets.append(draw(st.integers(0, length - size)))
        lengths.append(size)
    return Box(tuple(offsets), tuple(lengths))


@st.composite
def partitions(draw: st.DrawFn) -> tuple[Shape, list[Box]]:
    """A tensor that was cut again and again, its boxes in C order of their corners or not."""
    shape = draw(SHAPES)
    boxes = [Box((0,) * len(shape), shape)]
    for _ in range(draw(st.integers(0, 5))):
        at = draw(st.integers(0, len(boxes) - 1))
        box = boxes[at]
        axes = [axis for axis, length in enumerate(box.shape) if length > 1]
        if not axes:
            continue
        axis = draw(st.sampled_from(axes))
        cut = draw(st.integers(1, box.shape[axis] - 1))
        boxes[at : at + 1] = _halves(box, axis, cut)
    if draw(st.booleans()):
        boxes = draw(st.permutations(boxes))
    return shape, boxes


def _halves(box: Box, axis: int, cut: int) -> list[Box]:
    def put(values: Shape, value: int) -> Shape:
        return (*values[:axis], value, *values[axis + 1 :])

    length, offset = box.shape[axis], box.offsets[axis]
    return [
        Box(box.offsets, put(box.shape, cut)),
        Box(put(box.offsets, offset + cut), put(box.shape, length - cut)),
    ]


def test_the_box_of_a_scalar_is_an_array_with_its_own_bytes():
    assert (box_text(Box((0, 8), (4, 8))), box_text(Box((), ()))) == ("[0:4, 8:16]", "[]")
    whole = np.frombuffer(b"\x4d", np.bool_).reshape(())
    box = whole[slices(Box((), ()))]
    assert isinstance(box, np.ndarray)
    assert np.shares_memory(box, whole)
    assert box.tobytes() == b"\x4d"


@given(data=st.data(), shape=SHAPES, width=st.sampled_from([1, 2, 8]))
@settings(max_examples=300, deadline=None)
def test_byte_ranges_are_those_of_the_elements(data, shape, width):
    box = data.draw(boxes_in(shape))
    elements = numbered(shape)[slices(box)].reshape(-1)
    expected = [byte for e in elements.tolist() for byte in range(e * width, (e + 1) * width)]
    ranges = byte_ranges(shape, box, width, 1 << 16)
    assert [byte for a, b in ranges for byte in range(a, b)] == expected
    # No more of them than there are rows: a loader asks for each.
    assert len(ranges) <= math.prod(box.shape[:-1])
    assert byte_ranges(shape, box, width, len(ranges)) == ranges
    if len(ranges) > 1:
        all_of_it = [(expected[0], expected[-1] + 1)]
        assert byte_ranges(shape, box, width, len(ranges) - 1) == all_of_it


@given(data=st.data(), shape=SHAPES)
@settings(max_examples=200, deadline=None)
def test_a_span_goes_from_the_first_element_to_the_last(data, shape):
    box = data.draw(boxes_in(shape, least=0))
    elements = numbered(shape)[slices(box)].reshape(-1).tolist()
    assert span(shape, box) == ((elements[0], elements[-1] + 1) if elements else (0, 0))


@given(data=st.data(), shape=SHAPES)
@settings(max_examples=300, deadline=None)
def test_what_boxes_have_in_common_are_their_common_elements(data, shape):
    one, other = data.draw(boxes_in(shape)), data.draw(boxes_in(shape))
    all_elements = numbered(shape)
    both = {*all_elements[slices(one)].flat} & {*all_elements[slices(other)].flat}
    found = common(one, other)
    assert found == common(other, one)
    assert {*(all_elements[slices(found)].flat if found else ())} == both
    if found:
        inner = all_elements[slices(one)][slices(within(found, one))]
        assert inner.tolist() == all_elements[slices(found)].tolist()
        assert within(one, one) == Box((0,) * len(shape), one.shape)


@given(partition=partitions())
@settings(max_examples=300, deadline=None)
def test_boxes_are_in_order_if_their_bytes_are(partition):
    shape, boxes = partition
    spec = TensorSpec("int64", shape)
    array = numbered(shape)
    one_after_the_other = b"".join(array[slices(box)].tobytes() for box in boxes)
    assert is_in_order(spec, boxes) == (one_after_the_other == array.tobytes())
    assert not is_in_order(spec, boxes[:-1])


@given(data=st.data(), partition=partitions())
@settings(max_examples=300, deadline=None)
def test_boxes_have_each_element_once(data, partition):
    shape, boxes = partition
    at = data.draw(st.integers(0, len(boxes) - 1))
    other = data.draw(boxes_in(shape))
    changes = [boxes[at : at + 1], [other], [boxes[at], other], [], [boxes[at], boxes[at]]]
    changed = [*boxes[:at], *data.draw(st.sampled_from(changes)), *boxes[at + 1 :]]
    counts = np.zeros(shape, int)
    for box in changed:
        counts[slices(box)] += 1
    if changed and (counts == 1).all():
        check_boxes(TensorSpec("uint8", shape), changed)
    else:
        with pytest.raises(BadField):
            check_boxes(TensorSpec("uint8", shape), changed)


@given(data=st.data(), shape=SHAPES)
@settings(max_examples=200, deadline=None)
def test_a_box_that_leaves_the_tensor_is_refused(data, shape):
    numbers = st.integers(-2, 7) | st.sampled_from([-(1 << 63), 1 << 31, (1 << 63) - 1, 1 << 64])
    axes = data.draw(st.integers(0, 5))
    box = Box(
        tuple(data.draw(numbers) for _ in range(axes)),
        tuple(data.draw(numbers) for _ in range(axes)),
    )
    inside = axes == len(shape) and all(
        at >= 0 and length > 0 and at + length <= n
        for at, length, n in zip(*box, shape, strict=True)
    )
    if inside and box.shape == shape:
        check_boxes(TensorSpec("uint8", shape), [box])
    else:
        with pytest.raises(DamagedFile):
            check_boxes(TensorSpec("uint8", shape), [box])


@pytest.mark.parametrize("dtype", [name for name, each in DTYPES.items() if each.bits < 8])
def test_an_element_of_less_than_a_byte_is_in_no_box(dtype):
    spec = TensorSpec(dtype, (4, 8))
    with pytest.raises(BadField, match=dtype):
        check_boxes(spec, [whole_box(spec)])


def test_cuts_that_make_too_many_cells_are_refused():
    spec = TensorSpec("uint8", (2100, 2100))
    with pytest.raises(LimitExceeded, match="4,410,000"):
        check_boxes(spec, [Box((n, n), (1, 1)) for n in range(2100)])
    with pytest.raises(BadField):
        check_boxes(spec, [Box((n, n), (1, 1)) for n in range(200)])


@given(partition=partitions(), pieces=st.lists(st.integers(1, 3), min_size=50, max_size=50))
@settings(max_examples=100, deadline=None)
def test_extents_end_where_boxes_do(partition, pieces):
    shape, boxes = partition
    sizes = box_nbytes(TensorSpec("uint16", shape), boxes)
    assert sum(sizes) == 2 * math.prod(shape)
    extents: list[int] = []
    bounds = [0]
    for number, size in enumerate(sizes):
        parts = min(pieces[number % len(pieces)], size)
        ends = [size * n // parts for n in range(parts + 1)]
        extents += [b - a for a, b in pairwise(ends)]
        bounds.append(len(extents))
    expected = [[*range(a, b)] for a, b in pairwise(bounds)]
    assert list(cut_by(sizes, extents)) == expected


def test_each_box_begins_a_chunk():
    spec = TensorSpec("uint8", (3, CHUNK))
    assert count_chunks(spec, [whole_box(spec)]) == 3
    halves = [Box((0, 0), (3, CHUNK // 2)), Box((0, CHUNK // 2), (3, CHUNK // 2))]
    assert count_chunks(spec, halves) == 4
    assert count_chunks(spec, [Box((n, 0), (1, CHUNK)) for n in range(3)]) == 3


@pytest.mark.usefixtures("cut_framework")
def test_the_doctor_keeps_the_extents_of_boxes_apart(tmp_path):
    array = np.arange(40, dtype=np.float32).reshape(4, 10)
    store = standfast.Store(tmp_path)
    with store.run("other") as run:
        run.save(1, {"v": np.arange(5.0)})

    def save(comm: ThreadRanks) -> None:
        run = standfast.Store(tmp_path).run("run")
        boxes = even(array.shape, [4, 1])[2 * comm.rank : 2 * comm.rank + 2]
        run.save(1, {"w": Cut(array, boxes), "v": np.arange(5.0)}, comm=comm)
        run.close()

    on_ranks(2, save)
    record = store.resolve("run@1").record
    assert record.counts.tolist() == [4, 1]
    assert record.starts[0] + record.sizes[0] == record.starts[1]
    flip_in(store, "run@1", "v")
    assert len(examine(store.backend, store.index).restored) == 1
    checkpoint = standfast.Store(tmp_path).resolve("run@1")
    checkpoint.verify()
    assert checkpoint.state()["w"].tobytes() == array.tobytes()
