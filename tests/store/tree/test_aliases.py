"""Tensors that share memory come back sharing it; all others come back apart."""

from collections.abc import Sequence
from typing import Any

import ml_dtypes
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from standfast.errors import BadRange
from standfast.store.tree.aliases import Aliases, View, check_view, find_aliases, view_array
from standfast.tensors import (
    DTYPES,
    Packed,
    Source,
    TensorSpec,
    kind_of,
    memory_of,
    source_of,
    tensor_of,
)

Array = np.ndarray[Any, Any]


def _bytes(source: Source) -> Array:
    out = np.empty(source.spec.nbytes, np.uint8)
    source.copy_to(out, 0)
    return out


def _found(values: Sequence[Any]) -> Aliases:
    return find_aliases(values, [source_of(value) for value in values])


def _round_trip(values: Sequence[Any]) -> list[Any]:
    """Store what is to be stored, and make every tensor of it again."""
    aliases = _found(values)
    assert sorted([*aliases.stored, *aliases.views]) == list(range(len(values)))
    sources = [source_of(values[i]) for i in aliases.stored]
    bases = [_bytes(source) for source in [*sources, *(added.source for added in aliases.added)]]
    arrays = {
        position: source.spec.view(base)
        for position, source, base in zip(aliases.stored, sources, bases, strict=False)
    }
    for position, view in aliases.views.items():
        spec = source_of(values[position]).spec
        arrays[position] = view_array(bases[view.base], spec, view.offset, view.strides)
    return [
        tensor_of(arrays[i], source_of(value).spec, kind_of(value))
        for i, value in enumerate(values)
    ]


def _overlaps(values: Sequence[Any]) -> list[tuple[int, int]]:
    """Which two have a byte in common."""
    bytes_of = [_addresses(value) for value in values]
    return [
        (i, j)
        for i, some in enumerate(bytes_of)
        for j, others in enumerate(bytes_of)
        if i < j and some & others
    ]


def _addresses(value: Any) -> set[int]:
    memory = memory_of(value)
    if memory is None:
        return set()
    firsts = np.array(memory.address)
    for length, stride in zip(memory.shape, memory.strides, strict=True):
        firsts = np.add.outer(firsts, np.arange(length) * stride)
    return {first + k for first in firsts.reshape(-1).tolist() for k in range(memory.itemsize)}


def _assert_alike(values: Sequence[Any]) -> list[Any]:
    back = _round_trip(values)
    for value, copy in zip(values, back, strict=True):
        assert type(copy) is type(value)
        assert _bytes(source_of(copy)).tobytes() == _bytes(source_of(value)).tobytes()
        assert source_of(copy).spec == source_of(value).spec
    assert _overlaps(back) == _overlaps(values)
    return back


def test_a_part_is_a_view_of_the_whole_with_its_own_strides():
    x, y = torch.arange(9.0), torch.randn(3, 4)
    assert _found([x[2:5], x]).views == {0: View(0, 8, (4,))}
    assert _found([y.T, y]).views == {0: View(0, 0, (4, 16))}
    _assert_alike([y.T, y, torch.nn.Parameter(y)])
    part, whole = _assert_alike([x[2:5], x])
    part.zero_()
    assert whole.tolist() == [0, 1, 0, 0, 0, 5, 6, 7, 8]


@pytest.mark.parametrize("make", [torch.arange, np.arange], ids=["torch", "numpy"])
def test_parts_that_overlap_get_a_base_of_their_own(make):
    x = make(12.0)
    first, second = x[0:6], x[3:9]
    other = make(3.0)
    aliases = _found([other, first, second])
    assert aliases.stored == [0]
    assert aliases.views == {
        1: View(1, 0, (x[:1].nbytes,)),
        2: View(1, 3 * x[:1].nbytes, (x[:1].nbytes,)),
    }
    assert [added.beside for added in aliases.added] == [1]
    assert aliases.added[0].source.spec == TensorSpec("uint8", (9 * x[:1].nbytes,))
    _, a, b = _assert_alike([other, first, second])
    a[5] = -1
    assert b[2] == -1


def test_what_shares_nothing_is_stored_however_it_lies():
    flat, x = torch.arange(10.0), torch.randn(6, 6)
    assert _found([flat[:4], flat[4:], torch.ones(2), torch.ones(2)]).stored == [0, 1, 2, 3]
    for lone in (x.T, x[::2, 1:3], x[:1].expand(4, 6)):
        assert _found([lone, torch.ones(3)]).stored == [0, 1]


def test_twins_that_are_scattered_are_stored_without_what_lies_between():
    column = torch.randn(1000, 100)[:, 3]
    aliases = _found([column, column])
    assert aliases.stored == [0]
    assert aliases.views == {1: View(0, 0, (4,))}
    a, b = _assert_alike([column, column])
    a.zero_()
    assert b.abs().sum() == 0


def test_expanded_and_reversed_views():
    x = np.arange(12, dtype=np.int32)
    values = [x, x[::-1], x[8:2:-2], np.broadcast_to(x[3:4], (4, 5)), x.reshape(3, 4)[::-1, ::2]]
    whole, backwards, *_ = _assert_alike(values)
    backwards[0] = 77
    assert whole[-1] == 77
    # Without the whole, too.
    _assert_alike(values[2:])
    assert _found(values[2:]).stored == []


@pytest.mark.parametrize("dtype", [torch.bool, torch.bfloat16, torch.complex64, torch.float8_e5m2])
def test_views_of_every_width(dtype):
    x = torch.arange(20).remainder(2).to(dtype).reshape(4, 5)
    values = [x[1:3], x, x.T, x[:, ::2]]
    assert _found(values).stored == [1]
    _assert_alike(values)
    _assert_alike(values[2:])


def test_one_memory_as_two_dtypes():
    x = torch.randn(6)
    as_integers, as_floats, as_bytes = _assert_alike([x.view(torch.int32), x, x.view(torch.uint8)])
    as_integers.zero_()
    assert as_floats.abs().sum() == 0
    assert as_bytes.sum() == 0
    y = np.arange(6, dtype=ml_dtypes.bfloat16)
    _assert_alike([y.view(np.uint16)[1:3], y])


def test_torch_and_numpy_on_one_memory():
    x = np.arange(8.0)
    array, tensor = _assert_alike([x, torch.from_numpy(x[2:4])])
    tensor.zero_()
    assert array[2:4].sum() == 0
    # Neither storage has the whole.
    _assert_alike([torch.from_numpy(x[0:5]), torch.from_numpy(x[3:8])])


def test_packed_tensors_share_memory_unless_they_are_scattered():
    data = np.arange(24, dtype=np.uint8)
    a = Packed(data, "float4_e2m1fn", (6, 8))
    b = Packed(data[8:16], "float4_e2m1fn", (2, 8))
    assert _found([a, b]).views == {1: View(0, 8, (4, 1))}
    whole, part = _assert_alike([a, b])
    part.data[...] = 0
    assert whole.data.reshape(-1)[8:16].sum() == 0
    values = [Packed(data[::2], "float4_e2m1fn", shape) for shape in ((24,), (3, 8))]
    assert _found(values).stored == [0, 1]
    assert [back.data.tobytes() for back in _round_trip(values)] == [data[::2].tobytes()] * 2


def test_what_memory_does_not_hold_is_stored_for_itself():
    x = torch.randn(4, dtype=torch.complex64)
    swapped = np.arange(4, dtype=">i4")
    empty = torch.ones(0)
    values = [x, x.conj(), x.conj().imag, swapped, swapped, empty, empty]
    assert _found(values).stored == list(range(7))
    assert torch.equal(_round_trip(values)[1], x.conj().resolve_conj())


@given(st.lists(st.tuples(st.booleans(), *[st.integers(-7, 7)] * 4), max_size=6))
@settings(max_examples=200, deadline=None)
def test_any_views_of_one_array_come_back(cuts):
    x = np.arange(42, dtype=np.int16).reshape(6, 7)
    values = [
        (x.T if turned else x)[a : b or None, c : d or None][:: -1 if a < b else 2]
        for turned, a, b, c, d in cuts
    ]
    _assert_alike(values)


OUTSIDE = {
    "behind the end": ((4,), 8, (4,)),
    "before the start": ((3,), 4, (-4,)),
    "a stride beyond memory": ((1,), 0, (1 << 64,)),
    "strides that cancel": ((3, 3), 0, (1 << 61, -(1 << 61))),
    "a negative length": ((-1,), 0, (4,)),
    "none of too many": ((0, 1 << 63), 0, (4, 4)),
    "too few strides": ((2, 2), 0, (4,)),
    "too many dimensions": ((1,) * 65, 0, (4,) * 65),
    "nothing, outside": ((0,), 21, (4,)),
}


@pytest.mark.parametrize("name", OUTSIDE)
def test_a_view_that_reaches_outside_of_its_base_is_refused(name):
    shape, offset, strides = OUTSIDE[name]
    with pytest.raises(BadRange):
        check_view(TensorSpec("int32", shape), offset, strides, 20)
    with pytest.raises(BadRange):
        view_array(np.zeros(20, np.uint8), TensorSpec("int32", shape), offset, strides)


def test_views_up_to_the_very_edge():
    base = np.arange(20, dtype=np.uint8)
    for shape, offset, strides in [((4,), 4, (4,)), ((5,), 16, (-4,)), ((9,), 16, (0,))]:
        check_view(TensorSpec("int32", shape), offset, strides, 20)
        assert view_array(base, TensorSpec("int32", shape), offset, strides).shape == shape
    assert view_array(base, TensorSpec("uint8", (0, 3)), 20, (1, 1)).size == 0
    assert view_array(base, TensorSpec("uint8", ()), 7, ()) == 7


@given(
    st.sampled_from(sorted(DTYPES)),
    st.lists(st.integers(-1, 9) | st.integers(), max_size=3),
    st.integers(-1, 70) | st.integers(),
    st.lists(st.integers(-9, 9) | st.integers(), max_size=3),
)
@settings(max_examples=300, deadline=None)
def test_any_view_is_made_within_its_base_or_refused(dtype, shape, offset, strides):
    base = np.zeros(64, np.uint8)
    try:
        view = view_array(base, TensorSpec(dtype, tuple(shape)), offset, strides)
    except BadRange:
        return
    if view.size:
        low, high = np.lib.array_utils.byte_bounds(view)
        start, stop = np.lib.array_utils.byte_bounds(base)
        assert start <= low < high <= stop


def test_what_lies_between_tensors_that_share_nothing_is_not_stored():
    big = np.arange(1 << 20)
    aliases = _found([big[:: (1 << 20) - 1], big[5:6]])
    assert aliases.stored == [0, 1]
    assert not aliases.added
    shared = _found([big[:: (1 << 20) - 1], big[:3:2]])
    assert len(shared.added) == 1, "they have the first element in common"
