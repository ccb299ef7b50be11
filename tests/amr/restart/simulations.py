"""Two simulations: heat on a mesh that adapts, and the links of a lattice.

All arithmetic is on real numbers, one operation at a time: it is exactly rounded, and so its
result does not depend on where in memory a number lies.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import numpy as np

from standfast.amr import GaugeFrontend, OpenTopology, PeriodicTopology, ScalarFrontend
from standfast.amr.ghosts.links import link_halo
from tests.amr.restart.simulation import Change, Simulation


class Heat(Simulation):
    """A temperature that spreads."""

    frontend = ScalarFrontend(2, 4, OpenTopology(2, (16.0, 16.0)))
    holes = ((12, 12), (12, 8))
    script: ClassVar[Mapping[int, Sequence[Change]]] = {
        1: [("insert", (12, 12), 0)],
        2: [("refine", (0, 0), 0)],
        3: [("invalidate", (8, 4), 0)],
        4: [("coarsen", (0, 0), 0)],
        5: [("recycle",)],
        6: [("insert", (8, 4), 0)],
        7: [("grow",), ("refine", (4, 4), 0)],
        8: [("repartition",)],
        9: [("reorder",)],
        10: [("adapt", 5.0)],
        11: [("insert", (12, 8), 0)],
        12: [("adapt", 30.0)],
        13: [("recycle",), ("repartition",)],
        14: [("adapt", 5.0)],
        15: [("reorder",), ("defragment",)],
        16: [("adapt", 60.0)],
    }

    def evolve(self) -> None:
        self.tree.apply(_spread, self.arena, outside=0.25)


def _spread(patch: Any) -> Any:
    around = patch.shifted(0, 1) + patch.shifted(0, -1) + patch.shifted(1, 1)
    return patch.field + 0.125 * (around + patch.shifted(1, -1) - 4.0 * patch.field)


class Links(Simulation):
    """Links of U(1) that are pulled towards the identity around each plaquette, and kicked."""

    frontend = GaugeFrontend(1, 1, 2, 4, PeriodicTopology(2, (16.0, 16.0)))
    holes = ((12, 12),)
    script: ClassVar[Mapping[int, Sequence[Change]]] = {
        1: [("insert", (12, 12), 0)],
        2: [("invalidate", (4, 4), 0)],
        3: [("invalidate", (8, 12), 0)],
        4: [("recycle",)],
        5: [("insert", (4, 4), 0)],
        6: [("repartition",)],
        7: [("reorder",)],
        8: [("grow",), ("insert", (8, 12), 0)],
        9: [("invalidate", (0, 8), 0)],
        10: [("reorder",), ("defragment",)],
        11: [("insert", (0, 8), 0)],
    }

    def evolve(self) -> None:
        halo = link_halo(self.tree)[..., 0, 0]
        force = _force(halo.real, halo.imag)
        live, shape = self.tree.live, force.shape
        turn = 0.25 * (self._noise(shape[1:], live) - 0.5 * force)
        # What has the modulus 1 without a sine: ((1 - t^2) + 2it) / (1 + t^2).
        square = turn * turn
        by = (1.0 - square) / (1.0 + square), (turn + turn) / (1.0 + square)
        links = self.tree.links[live].reshape(shape)
        turned = np.empty(shape, np.complex128)
        turned.real, turned.imag = _times((links.real, links.imag), by)
        self.tree.links[live] = turned.reshape(self.tree.links[live].shape)


Complex = tuple[Any, Any]


def _times(a: Complex, b: Complex) -> Complex:
    return a[0] * b[0] - a[1] * b[1], a[0] * b[1] + a[1] * b[0]


def _force(real: Any, imaginary: Any) -> Any:
    """[row, y, x, dimension]: how much the plaquettes at a link differ from the identity."""
    near, far = slice(0, -1), slice(1, None)

    def link(d: int, y: slice, x: slice, sign: float = 1.0) -> Complex:
        return real[:, y, x, d], sign * imaginary[:, y, x, d]

    there = _times(link(0, near, near), link(1, near, far))
    back = _times(link(0, far, near, -1.0), link(1, near, near, -1.0))
    _, sine = _times(there, back)
    here = sine[:, 1:, 1:]
    return np.stack((here - sine[:, :-1, 1:], sine[:, 1:, :-1] - here), axis=-1)


SIMULATIONS: Mapping[str, type[Simulation]] = {"heat": Heat, "links": Links}
LAST: Mapping[str, int] = {"heat": 17, "links": 13}
"""The last step of each."""
