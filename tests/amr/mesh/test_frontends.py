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


def test_a_frontend_says_what_is_at_a_site() -> None:
    assert ScalarFrontend(2, 16, BOX, ">f4").dtype == np.dtype("<f4")
    assert ScalarFrontend(2, 16, BOX, np.complex64).field_bytes == 8
    one, three = ScalarFrontend(2, 16, BOX), ScalarFrontend(2, 16, BOX, components=3)
    assert (one.dtype, one.field_bytes, one.field_shape) == (np.dtype("<f8"), 8, ())
    assert (three.components, three.field_bytes, three.field_shape) == (3, 24, (3,))
    assert FieldArena(three, 2).storage.shape == (2, 256, 3)
    gauge = GaugeFrontend(3, 4, 4, 4, TORUS)
    assert (gauge.components, gauge.field_shape, gauge.field_bytes) == (12, (12,), 192)
    assert (gauge.block_volume, gauge.links_per_block) == (256, 1024)
    assert (gauge.dtype, gauge.link_shape) == (np.complex128, (1024, 3, 3))


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
    for make in (
        lambda: AMRTree(frontend, 1.0, 4, 2),
        lambda: FieldArena(frontend, 4),
        lambda: TreeCheckpoint(frontend),
        lambda: GaugeTree(frontend, 1.0, 4, 2),
        lambda: GaugeTree(ScalarFrontend(2, 4, BOX), 1.0, 4, 2),  # type: ignore[arg-type]
    ):
        with pytest.raises(BadOption, match=r"(?i)frontend"):
            make()


@pytest.mark.parametrize(
    ("changed", "told"),
    [
        *(({"block_size": size}, "block_size") for size in (0, 2, 3, 12, 2**17, 4.0, True)),
        *(({"components": n}, "components=") for n in (0, -1, 2**16 + 1, 3.0, True, (3,), None)),
        *(
            ({"dtype": name}, "dtype")
            for name in "float128 U3 object bool datetime64 nothing".split()
        ),
        *(({"topology": other}, "topology") for other in (None, "open", TORUS)),
        ({"topology": Cylinder(2, ("periodic", "open"), (8.0, 8.0))}, "topology="),
    ],
)
def test_options_of_a_scalar_frontend_are_checked(changed: Any, told: str) -> None:
    with pytest.raises(BadOption, match=told):
        ScalarFrontend(**{"nd": 2, "block_size": 4, "topology": BOX} | changed)


@pytest.mark.parametrize(
    ("n_gauge", "n_spinor", "block_size"),
    [(0, 1, 4), (65, 1, 4), (1, 0, 4), (1.0, 1, 4), (True, 1, 4), (1, 1, 2**16)],
)
def test_options_of_a_gauge_frontend_are_checked(
    n_gauge: Any, n_spinor: Any, block_size: int
) -> None:
    with pytest.raises(BadOption):
        GaugeFrontend(n_gauge, n_spinor, 4, block_size, TORUS)


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
        *(None, {"kind": "other"}, {"kind": ["scalar"]}, SCALAR | {"more": 1}),
        *(SCALAR | {"nd": nd} for nd in (2.0, 3, 2**70)),
        *(SCALAR | {"block_size": 5}, SCALAR | {"dtype": 8}, SCALAR | {"dtype": "object"}),
        *(SCALAR | {"components": 0}, SCALAR | {"components": 3.0}, SCALAR | {"topology": None}),
        *(GAUGE | {"n_gauge": 0}, GAUGE | {"n_gauge": True}),
    ],
)
def test_what_no_description_says_is_a_bad_field(described: Any) -> None:
    with pytest.raises(BadField):
        frontend_of(described)
