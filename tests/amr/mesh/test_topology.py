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


def test_extents_are_kept_as_floats() -> None:
    assert PERIODIC.extents == (4.0, 8.0)
    assert PeriodicTopology(2, (4.0, 8.0)) == PERIODIC
    assert OPEN != PERIODIC


def test_sites_are_counted_by_their_distance() -> None:
    assert OPEN.sites(0.5) == (8, 16)
    assert OPEN.sites(0.25) == (16, 32)
    assert OpenTopology(1, (0.3,)).sites(0.1) == (3,)  # 0.3 / 0.1 is less than 3


def test_beyond_an_open_border_there_is_nothing() -> None:
    origins = np.array([[0, 0], [-1, 0], [7, 15], [8, 15], [7, 16]])
    same, inside = OPEN.wrapped(origins, 0.5)
    assert same.tolist() == origins.tolist()
    assert inside.tolist() == [True, False, True, False, False]


def test_a_periodic_box_wraps() -> None:
    wrapped, inside = PERIODIC.wrapped(np.array([[-1, 0], [8, 17], [3, 15]]), 0.5)
    assert wrapped.tolist() == [[7, 0], [0, 1], [3, 15]]
    assert inside.all()


def test_each_dimension_has_a_boundary_of_its_own() -> None:
    """The original's topology.zig: "The topology interface allows frontends to specify periodic,
    open, or mixed boundaries per dimension."
    """
    wrapped, inside = MIXED.wrapped(np.array([[-1, 0], [8, 15], [3, 16], [-1, -1]]), 0.5)
    assert wrapped.tolist() == [[7, 0], [0, 15], [3, 16], [7, -1]]
    assert inside.tolist() == [True, True, False, False]
    assert GridTopology(2, ["open", "open"], (4.0, 8.0)) == OPEN
    assert GridTopology(2, ("periodic",) * 2, (4.0, 8.0)) == PERIODIC
    assert MIXED not in (OPEN, PERIODIC)


@pytest.mark.parametrize(
    "boundary", [("open",), ("open", "round"), ("open",) * 3, "open", None, ("open", None)]
)
def test_a_boundary_is_open_or_periodic_for_each_dimension(boundary: Any) -> None:
    with pytest.raises(BadOption, match="boundary="):
        GridTopology(2, boundary, (4.0, 8.0))


@pytest.mark.parametrize("spacing", [1e-300, 1e300, 1e-18])
def test_a_spacing_that_makes_no_box_is_refused(spacing: float) -> None:
    with pytest.raises(BadOption):
        PERIODIC.wrapped(np.zeros((1, 2), np.int64), spacing)


@pytest.mark.parametrize("nd", [0, 9, -1, 2.0, True, "2"])
def test_a_mesh_has_1_to_8_dimensions(nd: Any) -> None:
    with pytest.raises(BadOption):
        OpenTopology(nd, (1.0,) * 2)


@pytest.mark.parametrize(
    "extents",
    [
        *((1.0,), (1.0, 0.0), (1.0, -1.0), (1.0, np.inf), (1.0, np.nan)),
        *((1.0, "wide"), (1.0, 1j), (1.0, None), (1.0, 10**400), 1.0, None),
    ],
)
def test_an_extent_is_a_length_for_each_dimension(extents: Any) -> None:
    with pytest.raises(BadOption):
        OpenTopology(2, extents)


@pytest.mark.parametrize("topology", [OPEN, PERIODIC, MIXED], ids=["open", "periodic", "mixed"])
def test_a_description_makes_it_again(topology: Any) -> None:
    assert topology_of(topology.describe(), 2) == topology


@pytest.mark.parametrize(
    "described",
    [
        None,
        {},
        {"boundary": ["open", "round"], "extents": [1.0, 1.0]},
        {"boundary": ["open", ["open"]], "extents": [1.0, 1.0]},
        {"boundary": ["open"], "extents": [1.0, 1.0]},
        {"boundary": "open", "extents": [1.0, 1.0]},
        {"boundary": ["open"] * 2},
        {"boundary": ["open"] * 2, "extents": [1.0]},
        {"boundary": ["open"] * 2, "extents": [1.0, -1.0]},
        {"boundary": ["open"] * 2, "extents": [1, 1]},
        {"boundary": ["open"] * 2, "extents": "11"},
        {"boundary": ["open"] * 2, "extents": [1.0, 1.0], "more": 1},
    ],
    ids=repr,
)
def test_what_no_description_says_is_a_bad_field(described: Any) -> None:
    with pytest.raises(BadField):
        topology_of(described, 2)
