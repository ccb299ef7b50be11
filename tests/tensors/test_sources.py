"""The bytes of any array, from anywhere in it, in C order and little-endian."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from standfast.tensors import DTYPES, ArraySource, TensorSpec, source_of
from tests.formats.builders import Array
from tests.kit.strategies import WHOLE_BYTE_DTYPES, arrays


@given(arrays(WHOLE_BYTE_DTYPES), st.data())
@settings(max_examples=150, deadline=None)
def test_any_range_of_bytes_is_what_numpy_would_write(array: Array, data: st.DataObject) -> None:
    source = source_of(array)
    expected = array.astype(array.dtype.newbyteorder("<")).tobytes()
    assert source.spec.nbytes == len(expected)
    start = data.draw(st.integers(0, len(expected)))
    out = np.zeros(data.draw(st.integers(0, len(expected) - start)), np.uint8)
    source.copy_to(out, start)
    assert out.tobytes() == expected[start : start + out.size]


def test_only_scattered_arrays_are_gathered_piece_by_piece() -> None:
    plain = np.arange(10.0)
    assert np.shares_memory(source_of(plain).contiguous(), plain)  # type: ignore[arg-type]
    array = np.arange(3_000_000, dtype=np.int32).reshape(1000, 3, 1000).transpose(2, 0, 1)
    source = source_of(array)
    assert source.contiguous() is None
    out = np.empty((2 << 20) + 7, np.uint8)  # longer than two pieces
    for start in (0, 1, 4_000_003):
        source.copy_to(out, start)
        assert out.tobytes() == array.tobytes()[start : start + out.size]


def test_the_shape_of_packed_arrays_counts_bytes_in_the_last_dimension() -> None:
    assert TensorSpec("float4_e2m1fn", (3, 8)).array_shape == (3, 4)
    assert TensorSpec("float6_e3m2fn", (3, 8)).array_shape == (3, 6)
    assert TensorSpec("float6_e3m2fn", (4, 2)).array_shape == (6,)
    assert TensorSpec("float4_e2m1fn", ()).array_shape == (1,)


def test_the_width_of_every_dtype_is_that_of_its_array() -> None:
    for kind in DTYPES.values():
        spec = TensorSpec(kind.name, (4, 8))
        array = np.zeros(spec.array_shape, kind.numpy)
        assert array.nbytes == spec.nbytes == 32 * kind.bits // 8
        assert ArraySource(array, spec).spec.kind is kind
