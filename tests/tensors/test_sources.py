"""The bytes of any array, in C order and little-endian, and the sums that tell of a change."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from standfast.tensors import DTYPES, ArraySource, TensorSpec, source_of
from standfast.tensors.devices import COLUMNS, WORD, sum_length, sums_of
from standfast.tensors.sources import Bytes
from standfast.torch.devices import _sums
from tests.kit.strategies import WHOLE_BYTE_DTYPES, arrays


@given(arrays(WHOLE_BYTE_DTYPES), st.data())
@settings(max_examples=150, deadline=None)
def test_any_range_of_bytes_is_what_numpy_would_write(array, data):
    source = source_of(array)
    expected = array.astype(array.dtype.newbyteorder("<")).tobytes()
    assert source.spec.nbytes == len(expected)
    start = data.draw(st.integers(0, len(expected)))
    out = np.zeros(data.draw(st.integers(0, len(expected) - start)), np.uint8)
    source.copy_to(out, start)
    assert out.tobytes() == expected[start : start + out.size]


def test_only_scattered_arrays_are_gathered_piece_by_piece():
    plain = np.arange(10.0)
    assert np.shares_memory(source_of(plain).contiguous(), plain)  # type: ignore[arg-type]
    array = np.arange(3_000_000, dtype=np.int32).reshape(1000, 3, 1000).transpose(2, 0, 1)
    source = source_of(array)
    assert source.contiguous() is None
    out = np.empty((2 << 20) + 7, np.uint8)  # longer than two pieces
    for start in (0, 1, 4_000_003):
        source.copy_to(out, start)
        assert out.tobytes() == array.tobytes()[start : start + out.size]


def test_the_shape_of_packed_arrays_counts_bytes_in_the_last_dimension():
    assert TensorSpec("float4_e2m1fn", (3, 8)).array_shape == (3, 4)
    assert TensorSpec("float6_e3m2fn", (3, 8)).array_shape == (3, 6)
    assert TensorSpec("float6_e3m2fn", (4, 2)).array_shape == (6,)
    assert TensorSpec("float4_e2m1fn", ()).array_shape == (1,)


def test_the_width_of_every_dtype_is_that_of_its_array():
    for kind in DTYPES.values():
        spec = TensorSpec(kind.name, (4, 8))
        array = np.zeros(spec.array_shape, kind.numpy)
        assert array.nbytes == spec.nbytes == 32 * kind.bits // 8
        assert ArraySource(array, spec).spec.kind is kind


ROW = COLUMNS * WORD
SIZES = [
    *range(41),
    *(rows * ROW + more for rows in (1, 2, 3) for more in (-9, -8, -1, 0, 1, 7, 8, 9)),
    5 * ROW + 1234,
]


def _bytes(size: int, seed: int = 0) -> Bytes:
    return np.frombuffer(bytearray(np.random.default_rng(seed).bytes(size)), np.uint8)


@pytest.mark.parametrize("size", SIZES)
def test_any_changed_byte_changes_the_sums(size):
    data = _bytes(size)
    before = sums_of(data).copy()
    assert before.size == sum_length(size) <= 2 * COLUMNS
    edges = {0, 1, 7, 8, ROW - 1, ROW, size // 2, size - 9, size - 8, size - 2, size - 1}
    for at in sorted(edges & set(range(size))):
        for bit in (1, 128):
            data[at] ^= bit
            assert not np.array_equal(sums_of(data), before)
            data[at] ^= bit
    assert np.array_equal(sums_of(data), before)
    # A device sums as the host does.
    parts = [*_sums(torch.from_numpy(data)), torch.empty(0, dtype=torch.int64)]
    assert np.array_equal(torch.cat(parts).numpy(), before)


@given(
    size=st.integers(1, 4 * ROW),
    where=st.floats(0, 1, exclude_max=True),
    change=st.integers(1, 255),
    seed=st.integers(0, 1000),
)
@settings(max_examples=40, deadline=None)
def test_any_byte_anywhere_may_be_the_one(size, where, change, seed):
    data = _bytes(size, seed)
    before = sums_of(data).copy()
    data[int(where * size)] ^= change
    assert not np.array_equal(sums_of(data), before)


@pytest.mark.parametrize("width", [4, 64, 4096, 4 * 4092, 4 * 4094, 1 << 16])
def test_two_rows_that_change_places_change_the_sums(width):
    rows = _bytes(6 * width).reshape(6, width)
    before = sums_of(rows.reshape(-1)).copy()
    for first, second in ((0, 1), (1, 4), (0, 5)):
        swapped = rows.copy()
        swapped[[first, second]] = swapped[[second, first]]
        assert not np.array_equal(sums_of(swapped.reshape(-1)), before)


def test_data_that_begins_at_any_address_has_the_same_sums():
    data = _bytes(2 * ROW + 100)
    expected = sums_of(data)
    for shift in range(1, 8):
        memory = np.zeros(data.size + shift, np.uint8)
        memory[shift:] = data
        assert np.array_equal(sums_of(memory[shift:]), expected)


@pytest.mark.parametrize("dtype", [np.float64, np.float32, np.float16])
def test_signs_that_all_change_are_found(dtype):
    values = np.random.default_rng(0).standard_normal(4 * ROW).astype(dtype)
    assert not np.array_equal(sums_of(values.view(np.uint8)), sums_of((-values).view(np.uint8)))
