"""What lies at a site."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from standfast.amr import (
    AMRTree,
    FieldArena,
    GaugeFrontend,
    GaugeTree,
    GridTopology,
    OpenTopology,
    PeriodicTopology,
    ScalarFrontend,
    TreeCheckpoint,
)
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


def test_a_field_may_have_several_components_at_a_site() -> None:
    """The seed: "Payload ... depends on `FieldType`"; the original's fields may be `[3]f64`."""
    frontend = ScalarFrontend(2, 16, BOX, components=3)
    assert (frontend.components, frontend.field_shape, frontend.field_bytes) == (3, (3,), 24)
    assert ScalarFrontend(2, 16, BOX, np.float32, 3).field_bytes == 12
    assert FieldArena(frontend, 2).storage.shape == (2, 256, 3)


@pytest.mark.parametrize("components", [0, -1, 2**16 + 1, 3.0, True, (3,), None])
def test_components_are_counted(components: Any) -> None:
    with pytest.raises(BadOption, match="components="):
        ScalarFrontend(2, 16, BOX, components=components)


class Wider(ScalarFrontend):
    """A frontend of a program's own, whose fields a snapshot would describe as single numbers."""

    @property
    def field_shape(self) -> tuple[int, ...]:
        return (3,)


class Cylinder(GridTopology):
    """A topology of a program's own, which a snapshot would describe as another one."""


@pytest.mark.parametrize(
    "frontend",
    [Wider(2, 4, BOX), object(), None, "scalar"],
    ids=["wider", "object", "None", "text"],
)
def test_a_frontend_that_cannot_be_saved_is_refused_when_the_simulation_begins(
    frontend: Any,
) -> None:
    """The seed: "arena.storage[arena_max_blocks] (raw FieldType bytes)"."""
    with pytest.raises(BadOption, match="frontend="):
        AMRTree(frontend, 1.0, 4, 2)
    with pytest.raises(BadOption, match="frontend="):
        FieldArena(frontend, 4)
    with pytest.raises(BadOption, match="frontend="):
        TreeCheckpoint(frontend)
    with pytest.raises(BadOption, match="GaugeFrontend"):
        GaugeTree(frontend, 1.0, 4, 2)


def test_a_topology_that_cannot_be_saved_is_refused_by_the_frontend() -> None:
    with pytest.raises(BadOption, match="topology="):
        ScalarFrontend(2, 4, Cylinder(2, ("periodic", "open"), (8.0, 8.0)))


def test_a_gauge_frontend_has_spinors_and_links() -> None:
    frontend = GaugeFrontend(3, 4, 4, 4, TORUS)
    assert (frontend.components, frontend.field_shape, frontend.field_bytes) == (12, (12,), 192)
    assert frontend.dtype == np.complex128
    assert (frontend.block_volume, frontend.links_per_block) == (256, 1024)
    assert frontend.link_shape == (1024, 3, 3)


@pytest.mark.parametrize("block_size", [0, 2, 3, 12, 2**17, 4.0, True])
def test_a_block_size_is_a_power_of_two_from_4_on(block_size: Any) -> None:
    with pytest.raises(BadOption, match="block_size"):
        ScalarFrontend(2, block_size, BOX)


def test_a_block_that_no_memory_holds_is_refused() -> None:
    with pytest.raises(BadOption):
        GaugeFrontend(1, 1, 4, 2**16, TORUS)


@pytest.mark.parametrize("dtype", ["float128", "U3", "object", "no dtype", "bool", "datetime64[s]"])
def test_other_dtypes_are_refused(dtype: str) -> None:
    with pytest.raises(BadOption, match="dtype"):
        ScalarFrontend(2, 4, BOX, dtype)


@pytest.mark.parametrize("topology", [None, "open", TORUS], ids=["none", "text", "4-d"])
def test_the_topology_has_the_dimensions_of_the_frontend(topology: Any) -> None:
    with pytest.raises(BadOption, match="topology"):
        ScalarFrontend(2, 4, topology)


@pytest.mark.parametrize(("n_gauge", "n_spinor"), [(0, 1), (65, 1), (1, 0), (1.0, 1), (True, 1)])
def test_groups_and_spinors_are_counted(n_gauge: Any, n_spinor: Any) -> None:
    with pytest.raises(BadOption):
        GaugeFrontend(n_gauge, n_spinor, 4, 4, TORUS)


@pytest.mark.parametrize(
    "frontend",
    [
        ScalarFrontend(2, 16, BOX),
        ScalarFrontend(2, 4, BOX, np.uint16),
        ScalarFrontend(2, 4, GridTopology(2, ("open", "periodic"), (1.0, 2.0)), components=3),
        GaugeFrontend(3, 4, 4, 8, TORUS),
    ],
    ids=["float64", "uint16", "mixed vector", "gauge"],
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
        {**SCALAR, "components": 0},
        {**SCALAR, "components": 3.0},
        {**SCALAR, "topology": None},
        {**GAUGE, "n_gauge": 0},
        {**GAUGE, "n_gauge": True},
    ],
    ids=range(15),
)
def test_what_no_description_says_is_a_bad_field(described: Any) -> None:
    with pytest.raises(BadField):
        frontend_of(described)
