"""What lies at a site."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from standfast.amr import GaugeFrontend, OpenTopology, PeriodicTopology, ScalarFrontend
from standfast.amr.mesh.frontends import frontend_of
from standfast.errors import BadField, BadOption

BOX = OpenTopology(2, (16.0, 16.0))
TORUS = PeriodicTopology(4, (8.0,) * 4)


def test_a_scalar_frontend_has_one_number_at_a_site() -> None:
    frontend = ScalarFrontend(2, 16, BOX)
    assert (frontend.block_volume, frontend.components, frontend.field_shape) == (256, 1, ())
    assert (frontend.dtype, frontend.field_bytes) == (np.dtype("<f8"), 8)
    assert ScalarFrontend(2, 16, BOX, np.complex64).field_bytes == 8
    assert ScalarFrontend(2, 16, BOX, ">f4").dtype == np.dtype("<f4")


def test_a_gauge_frontend_has_spinors_and_links() -> None:
    frontend = GaugeFrontend(3, 4, 4, 4, TORUS)
    assert (frontend.components, frontend.field_shape, frontend.field_bytes) == (12, (12,), 192)
    assert frontend.dtype == np.complex128
    assert (frontend.block_volume, frontend.links_per_block) == (256, 1024)
    assert frontend.link_shape == (1024, 3, 3)


@pytest.mark.parametrize("block_size", [0, 2, 3, 12, 2**17, 4.0, True])
def test_a_block_size_is_a_power_of_two_from_4_on(block_size: Any) -> None:
    with pytest.raises(BadOption, match="a power of two from 4"):
        ScalarFrontend(2, block_size, BOX)


def test_a_block_that_no_memory_holds_is_refused() -> None:
    with pytest.raises(BadOption, match="may have"):
        GaugeFrontend(1, 1, 4, 2**16, TORUS)


@pytest.mark.parametrize("dtype", ["float128", "U3", "object", "no dtype", "bool", "datetime64[s]"])
def test_other_dtypes_are_refused(dtype: str) -> None:
    with pytest.raises(BadOption, match="there are float64"):
        ScalarFrontend(2, 4, BOX, dtype)


@pytest.mark.parametrize("topology", [None, "open", TORUS], ids=["none", "text", "4-d"])
def test_the_topology_has_the_dimensions_of_the_frontend(topology: Any) -> None:
    with pytest.raises(BadOption, match="topology"):
        ScalarFrontend(2, 4, topology)


@pytest.mark.parametrize(("n_gauge", "n_spinor"), [(0, 1), (65, 1), (1, 0), (1.0, 1), (True, 1)])
def test_groups_and_spinors_are_counted(n_gauge: Any, n_spinor: Any) -> None:
    with pytest.raises(BadOption, match="whole number from 1"):
        GaugeFrontend(n_gauge, n_spinor, 4, 4, TORUS)


@pytest.mark.parametrize(
    "frontend",
    [
        ScalarFrontend(2, 16, BOX),
        ScalarFrontend(2, 4, BOX, np.uint16),
        GaugeFrontend(3, 4, 4, 8, TORUS),
    ],
    ids=["float64", "uint16", "gauge"],
)
def test_a_description_makes_it_again(frontend: Any) -> None:
    assert frontend_of(frontend.describe()) == frontend


SCALAR = ScalarFrontend(2, 16, BOX).describe()
GAUGE = GaugeFrontend(3, 1, 4, 4, TORUS).describe()


@pytest.mark.parametrize(
    "described",
    [
        None,
        {"kind": "other"},
        {"kind": ["scalar"]},
        {**SCALAR, "more": 1},
        {**SCALAR, "nd": 2.0},
        {**SCALAR, "nd": 3},
        {**SCALAR, "nd": 2**70},
        {**SCALAR, "block_size": 5},
        {**SCALAR, "dtype": 8},
        {**SCALAR, "dtype": "object"},
        {**SCALAR, "topology": None},
        {**GAUGE, "n_gauge": 0},
        {**GAUGE, "n_gauge": True},
    ],
    ids=range(13),
)
def test_what_no_description_says_is_a_bad_field(described: Any) -> None:
    with pytest.raises(BadField):
        frontend_of(described)
