"""Keys, against an interleaving of digits."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from standfast.amr.mesh.morton import key_of, keys_of, morton
from standfast.formats.sunc.file import block_dtype


def plain_morton(origin: list[int], level: int, block_size: int, bits_per_dim: int) -> int:
    """The digits of all coordinates dealt like cards, the last dimension's on top."""
    bits = bits_per_dim + level
    digits = [format((value // block_size << level) % 2**bits, f"0{bits}b") for value in origin]
    return int("".join(each[i] for i in range(bits) for each in reversed(digits)) or "0", 2)


@st.composite
def blocks(draw: Any) -> tuple[list[int], int, int, int]:
    nd = draw(st.integers(1, 8))
    bits = draw(st.integers(0, 64 // nd))
    level = draw(st.integers(0, 64 // nd - bits))
    origin = draw(st.lists(st.integers(0, 2**64 - 1), min_size=nd, max_size=nd))
    return origin, level, 2 ** draw(st.integers(2, 5)), bits


@given(blocks())
def test_one_key_and_many_keys_are_the_interleaved_digits(
    block: tuple[list[int], int, int, int],
) -> None:
    origin, level, block_size, bits = block
    expected = plain_morton(origin, level, block_size, bits)
    assert key_of(origin, level, block_size, bits) == (expected, level)
    many = morton(np.array([origin] * 3, np.uint64), [level, 0, level], block_size, bits)
    assert many.tolist() == [expected, plain_morton(origin, 0, block_size, bits), expected]


@pytest.mark.parametrize("level", [64, 200, 255])
def test_levels_that_no_tree_has_do_no_harm(level: int) -> None:
    records = np.zeros(2, block_dtype(3))
    records["level"] = level
    records["origin"] = 2**64 - 1
    assert [key[1] for key in keys_of(records, 4, 21)] == [level, level]
