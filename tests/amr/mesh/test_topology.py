"""Borders, or none, along each dimension."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from standfast.amr import GridTopology, OpenTopology, PeriodicTopology
from standfast.amr.mesh.topology import topology_of
from standfast.errors import BadField, BadOption

OPEN = OpenTopology(2, (4.0, 8.0))
PERIODIC = PeriodicTopology(2, [4, 8])
MIXED = GridTopology(2, ("periodic", "open"), (4.0, 8.0))


def test_sites_are_counted_by_their_distance() -> None:
    assert OPEN.sites(0.5) == (8, 16)
    assert OPEN.sites(0.25) == (16, 32)
    assert OpenTopology(1, (0.3,)).sites(0.1) == (3,)  # 0.3 / 0.1 is less than 3


def test_each_dimension_has_a_boundary_of_its_own() -> None:
    origins = np.array([[-1, 0], [8, 15], [3, 16], [-1, -1]])
    for box, expected, inside in (
        (OPEN, origins.tolist(), [False, False, False, False]),
        (PERIODIC, [[7, 0], [0, 15], [3, 0], [7, 15]], [True] * 4),
        (MIXED, [[7, 0], [0, 15], [3, 16], [7, -1]], [True, True, False, False]),
    ):
        wrapped, found = box.wrapped(origins, 0.5)
        assert (wrapped.tolist(), found.tolist()) == (expected, inside)
    assert OPEN.wrapped(np.array([[0, 0], [7, 15]]), 0.5)[1].all()
    assert GridTopology(2, ["open", "open"], (4.0, 8.0)) == OPEN
    assert GridTopology(2, ("periodic",) * 2, (4.0, 8.0)) == PERIODIC
    assert MIXED not in (OPEN, PERIODIC)


@pytest.mark.parametrize(
    "boundary", [("open",), ("open", "round"), ("open",) * 3, "open", None, ("open", None)]
)
def test_a_boundary_is_open_or_periodic_for_each_dimension(boundary: Any) -> None:
    with pytest.raises(BadOption, match="boundary="):
        GridTopology(2, boundary, (4.0, 8.0))


@pytest.mark.parametrize(
    ("nd", "extents"),
    [
        *((nd, (1.0,) * 2) for nd in (0, 9, -1, 2.0, True, "2")),
        *((2, (1.0, value)) for value in (0.0, -1.0, np.inf, np.nan, "wide", 1j, None, 10**400)),
        *((2, value) for value in ((1.0,), 1.0, None)),
    ],
)
def test_a_box_has_1_to_8_dimensions_and_a_length_for_each(nd: Any, extents: Any) -> None:
    with pytest.raises(BadOption):
        OpenTopology(nd, extents)


@pytest.mark.parametrize("spacing", [1e-300, 1e300, 1e-18])
def test_a_spacing_that_makes_no_box_is_refused(spacing: float) -> None:
    with pytest.raises(BadOption):
        PERIODIC.wrapped(np.zeros((1, 2), np.int64), spacing)


@pytest.mark.parametrize("topology", [OPEN, PERIODIC, MIXED], ids=["open", "periodic", "mixed"])
def test_a_description_makes_it_again(topology: Any) -> None:
    assert topology_of(topology.describe(), 2) == topology


OPENS = ["open"] * 2


@pytest.mark.parametrize(
    "described",
    [
        *(None, {}, {"boundary": OPENS}),
        {"boundary": ["open", "round"], "extents": [1.0, 1.0]},
        {"boundary": ["open", ["open"]], "extents": [1.0, 1.0]},
        {"boundary": ["open"], "extents": [1.0, 1.0]},
        {"boundary": "open", "extents": [1.0, 1.0]},
        *({"boundary": OPENS, "extents": each} for each in ([1.0], [1.0, -1.0], [1, 1], "11")),
        {"boundary": OPENS, "extents": [1.0, 1.0], "more": 1},
    ],
    ids=repr,
)
def test_what_no_description_says_is_a_bad_field(described: Any) -> None:
    with pytest.raises(BadField):
        topology_of(described, 2)
