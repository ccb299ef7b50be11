"""What lies at a site, and the box around a mesh."""

import numpy as np
import pytest

from standfast import amr
from standfast.amr.mesh.frontends import frontend_of
from standfast.errors import BadField, BadOption

OPEN = amr.OpenTopology(2, (4.0, 8.0))
PERIODIC = amr.PeriodicTopology(2, [4, 8])
MIXED = amr.GridTopology(2, ("periodic", "open"), (4.0, 8.0))
BOX = amr.OpenTopology(2, (16.0, 16.0))
TORUS = amr.PeriodicTopology(4, (8.0,) * 4)


def test_a_frontend_says_what_is_at_a_site():
    assert amr.ScalarFrontend(2, 16, BOX, ">f4").dtype == np.dtype("<f4")
    assert amr.ScalarFrontend(2, 16, BOX, np.complex64).field_bytes == 8
    one, three = amr.ScalarFrontend(2, 16, BOX), amr.ScalarFrontend(2, 16, BOX, components=3)
    assert (one.dtype, one.field_bytes, one.field_shape) == (np.dtype("<f8"), 8, ())
    assert (three.components, three.field_bytes, three.field_shape) == (3, 24, (3,))
    assert amr.FieldArena(three, 2).storage.shape == (2, 256, 3)
    gauge = amr.GaugeFrontend(3, 4, 4, 4, TORUS)
    assert (gauge.components, gauge.field_shape, gauge.field_bytes) == (12, (12,), 192)
    assert (gauge.block_volume, gauge.links_per_block) == (256, 1024)
    assert (gauge.dtype, gauge.link_shape) == (np.complex128, (1024, 3, 3))


class Wider(amr.ScalarFrontend):
    """A frontend of a program's own, whose fields a snapshot would describe as single numbers."""

    @property
    def field_shape(self) -> tuple[int, ...]:
        return (3,)


class Cylinder(amr.GridTopology):
    """A topology of a program's own, which a snapshot would describe as another one."""


@pytest.mark.parametrize(
    "frontend",
    [Wider(2, 4, BOX), object(), None, "scalar"],
    ids=["wider", "object", "None", "text"],
)
def test_a_frontend_that_cannot_be_saved_is_refused_when_the_simulation_begins(frontend):
    for make in (
        lambda: amr.AMRTree(frontend, 1.0, 4, 2),
        lambda: amr.FieldArena(frontend, 4),
        lambda: amr.TreeCheckpoint(frontend),
        lambda: amr.GaugeTree(frontend, 1.0, 4, 2),
        lambda: amr.GaugeTree(amr.ScalarFrontend(2, 4, BOX), 1.0, 4, 2),  # type: ignore[arg-type]
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
def test_options_of_a_scalar_frontend_are_checked(changed, told):
    with pytest.raises(BadOption, match=told):
        amr.ScalarFrontend(**{"nd": 2, "block_size": 4, "topology": BOX} | changed)


@pytest.mark.parametrize(
    ("n_gauge", "n_spinor", "block_size"),
    [(0, 1, 4), (65, 1, 4), (1, 0, 4), (1.0, 1, 4), (True, 1, 4), (1, 1, 2**16)],
)
def test_options_of_a_gauge_frontend_are_checked(n_gauge, n_spinor, block_size):
    with pytest.raises(BadOption):
        amr.GaugeFrontend(n_gauge, n_spinor, 4, block_size, TORUS)


def test_sites_are_counted_by_their_distance():
    assert OPEN.sites(0.5) == (8, 16)
    assert OPEN.sites(0.25) == (16, 32)
    assert amr.OpenTopology(1, (0.3,)).sites(0.1) == (3,)  # 0.3 / 0.1 is less than 3


def test_each_dimension_has_a_boundary_of_its_own():
    origins = np.array([[-1, 0], [8, 15], [3, 16], [-1, -1]])
    for box, expected, inside in (
        (OPEN, origins.tolist(), [False, False, False, False]),
        (PERIODIC, [[7, 0], [0, 15], [3, 0], [7, 15]], [True] * 4),
        (MIXED, [[7, 0], [0, 15], [3, 16], [7, -1]], [True, True, False, False]),
    ):
        wrapped, found = box.wrapped(origins, 0.5)
        assert (wrapped.tolist(), found.tolist()) == (expected, inside)
    assert OPEN.wrapped(np.array([[0, 0], [7, 15]]), 0.5)[1].all()
    assert amr.GridTopology(2, ["open", "open"], (4.0, 8.0)) == OPEN
    assert amr.GridTopology(2, ("periodic",) * 2, (4.0, 8.0)) == PERIODIC
    assert MIXED not in (OPEN, PERIODIC)


@pytest.mark.parametrize(
    "boundary", [("open",), ("open", "round"), ("open",) * 3, "open", None, ("open", None)]
)
def test_a_boundary_is_open_or_periodic_for_each_dimension(boundary):
    with pytest.raises(BadOption, match="boundary="):
        amr.GridTopology(2, boundary, (4.0, 8.0))


@pytest.mark.parametrize(
    ("nd", "extents"),
    [
        *((nd, (1.0,) * 2) for nd in (0, 9, -1, 2.0, True, "2")),
        *((2, (1.0, value)) for value in (0.0, -1.0, np.inf, np.nan, "wide", 1j, None, 10**400)),
        *((2, value) for value in ((1.0,), 1.0, None)),
    ],
)
def test_a_box_has_1_to_8_dimensions_and_a_length_for_each(nd, extents):
    with pytest.raises(BadOption):
        amr.OpenTopology(nd, extents)


@pytest.mark.parametrize("spacing", [1e-300, 1e300, 1e-18])
def test_a_spacing_that_makes_no_box_is_refused(spacing):
    with pytest.raises(BadOption):
        PERIODIC.wrapped(np.zeros((1, 2), np.int64), spacing)


@pytest.mark.parametrize(
    "frontend",
    [
        amr.ScalarFrontend(2, 16, OPEN),
        amr.ScalarFrontend(2, 4, PERIODIC, np.uint16),
        amr.ScalarFrontend(2, 4, MIXED, components=3),
        amr.GaugeFrontend(3, 4, 4, 8, TORUS),
    ],
    ids=["open", "periodic", "mixed", "gauge"],
)
def test_a_description_makes_it_again(frontend):
    assert frontend_of(frontend.describe()) == frontend


SCALAR = amr.ScalarFrontend(2, 16, BOX).describe()
GAUGE = amr.GaugeFrontend(3, 1, 4, 4, TORUS).describe()
OPENS = ["open"] * 2


@pytest.mark.parametrize(
    "described",
    [
        *(None, {"kind": "other"}, {"kind": ["scalar"]}, SCALAR | {"more": 1}),
        *(SCALAR | {"nd": nd} for nd in (2.0, 3, 2**70)),
        *(SCALAR | {"block_size": 5}, SCALAR | {"dtype": 8}, SCALAR | {"dtype": "object"}),
        *(SCALAR | {"components": 0}, SCALAR | {"components": 3.0}, SCALAR | {"topology": None}),
        *(GAUGE | {"n_gauge": 0}, GAUGE | {"n_gauge": True}),
        *(
            SCALAR | {"topology": {"boundary": boundary, "extents": [1.0, 1.0]}}
            for boundary in (["open", "round"], ["open", ["open"]], ["open"], "open")
        ),
        *(
            SCALAR | {"topology": {"boundary": OPENS, "extents": extents}}
            for extents in ([1.0], [1.0, -1.0], [1, 1], "11")
        ),
        *(SCALAR | {"topology": {}}, SCALAR | {"topology": {"boundary": OPENS}}),
        SCALAR | {"topology": {"boundary": OPENS, "extents": [1.0, 1.0], "more": 1}},
    ],
)
def test_what_no_description_says_is_a_bad_field(described):
    with pytest.raises(BadField):
        frontend_of(described)
