"""Means and injections, against loops over sites."""

import itertools
from typing import Any

import numpy as np
import pytest

from standfast.amr import OpenTopology, ScalarFrontend
from standfast.amr.mesh.restriction import inject, restrict


def scalar(nd: int, dtype: Any = np.float64) -> ScalarFrontend:
    return ScalarFrontend(nd, 4, OpenTopology(nd, (8.0,) * nd), dtype)


def site(place: tuple[int, ...]) -> int:
    """The number of a site of a block of 4; dimension 0 runs fastest."""
    return sum(value * 4**d for d, value in enumerate(place))


def fine_sites(place: tuple[int, ...]) -> list[tuple[int, int]]:
    """The child and the site of each of the 2^nd that a site of the parent covers."""
    found = []
    for steps in itertools.product((0, 1), repeat=len(place)):
        fine = [2 * value + step for value, step in zip(place, steps, strict=True)]
        child = sum((value // 4) << d for d, value in enumerate(fine))
        found.append((child, site(tuple(value % 4 for value in fine))))
    return found


@pytest.mark.parametrize("nd", [1, 2, 3])
def test_the_parent_has_the_mean_of_what_it_covers(nd):
    children = np.random.default_rng(nd).integers(-999, 999, (2**nd, 4**nd)).astype(np.float64)
    parent = restrict(children, scalar(nd))
    injected = inject(parent, scalar(nd))
    for place in itertools.product(range(4), repeat=nd):
        covered = fine_sites(place)
        assert parent[site(place)] == sum(children[each] for each in covered) / 2**nd
        assert {injected[each] for each in covered} == {parent[site(place)]}


def test_signs_of_zero_and_infinities_survive():
    frontend = scalar(1, np.complex128)
    children = np.full((2, 4), complex(-0.0, np.inf))
    assert restrict(children, frontend).tobytes() == children[0].tobytes()


@pytest.mark.parametrize("dtype", ["int8", "uint8", "int64", "uint64"])
def test_the_mean_of_whole_numbers_is_rounded_down_and_does_not_overflow(dtype):
    most = np.iinfo(dtype).max
    children = np.full((4, 16), most, dtype)
    children[0, 0] = most - 3
    parent = restrict(children, scalar(2, dtype))
    assert parent.dtype == np.dtype(dtype)
    assert parent.tolist() == [most - 1, *[most] * 15]
    if dtype == "int8":
        children = np.array([[-1, -2, -5, -6], [3, 4, 3, 3]], np.int8)
        assert restrict(children, scalar(1, np.int8)).tolist() == [-2, -6, 3, 3]


def test_half_precision_is_summed_in_single():
    children = np.full((4, 16), 60000, np.float16)
    assert restrict(children, scalar(2, np.float16)).tolist() == children[0].tolist()
