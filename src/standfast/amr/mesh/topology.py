"""Where a mesh ends along each dimension: at a border, or nowhere."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from standfast.errors import BadField, BadOption

MAX_ND: Final = 8
_MOST_SITES: Final = 2.0**62

OPEN: Final = "open"
PERIODIC: Final = "periodic"

Coordinates = np.ndarray[Any, np.dtype[np.int64]]


@dataclass(frozen=True, init=False)
class GridTopology:
    """A box of `nd` dimensions, each of which is open or periodic.

    A site at an open border has no neighbour beyond it. Opposite periodic borders are one place.

    >>> GridTopology(2, ("periodic", "open"), (16.0, 16.0))
    """

    nd: int
    boundary: tuple[str, ...]
    """"open" or "periodic", for each dimension."""
    extents: tuple[float, ...]
    """The lengths of the box, in the units of the spacing."""

    def __init__(self, nd: int, boundary: Sequence[str], extents: Sequence[float]) -> None:
        if type(nd) is not int or not 1 <= nd <= MAX_ND:
            raise BadOption(f"nd={nd!r}: a mesh has 1 to {MAX_ND} dimensions")
        kinds = tuple(boundary) if isinstance(boundary, Iterable) else ()
        if len(kinds) != nd or any(kind not in (OPEN, PERIODIC) for kind in kinds):
            raise BadOption(
                f"boundary={boundary!r}: give {OPEN!r} or {PERIODIC!r} for each of the {nd} "
                "dimensions"
            )
        try:
            lengths = tuple(float(length) for length in extents)
        except (OverflowError, TypeError, ValueError):
            lengths = ()
        if len(lengths) != nd or not all(math.isfinite(a) and a > 0 for a in lengths):
            raise BadOption(
                f"extents={extents!r}: give the length of each of the {nd} dimensions, above 0"
            )
        for name, value in (("nd", nd), ("boundary", kinds), ("extents", lengths)):
            object.__setattr__(self, name, value)

    def sites(self, spacing: float) -> tuple[int, ...]:
        """How many sites of this spacing the box has along each dimension.

        Raises BadOption where there is none, or more than can be counted.
        """
        counts = [length / spacing for length in self.extents]
        if not all(0.5 < count < _MOST_SITES for count in counts):
            raise BadOption(
                f"extents={self.extents}: sites at a distance of {spacing} make no box of them"
            )
        return tuple(round(count) for count in counts)

    def wrapped(self, origins: Coordinates, spacing: float) -> tuple[Coordinates, Any]:
        """Origins [n, nd], brought back into the box along its periodic dimensions.

        And which of them lie in the box: all but those beyond an open border.
        """
        sites = np.array(self.sites(spacing))
        is_open = np.array([kind == OPEN for kind in self.boundary])
        beyond = is_open & ((origins < 0) | (origins >= sites))
        return np.where(is_open, origins, origins % sites), ~beyond.any(axis=1)

    def describe(self) -> dict[str, Any]:
        """What it is, in the types of JSON; `topology_of` makes it again."""
        return {"boundary": list(self.boundary), "extents": list(self.extents)}


def OpenTopology(nd: int, extents: Sequence[float]) -> GridTopology:  # noqa: N802
    """A box with borders in all dimensions.

    >>> OpenTopology(2, (16.0, 16.0))
    """
    return GridTopology(nd, _everywhere(OPEN, nd), extents)


def PeriodicTopology(nd: int, extents: Sequence[float]) -> GridTopology:  # noqa: N802
    """A box that is periodic in all dimensions.

    >>> PeriodicTopology(4, (8.0, 8.0, 8.0, 8.0))
    """
    return GridTopology(nd, _everywhere(PERIODIC, nd), extents)


def _everywhere(kind: str, nd: int) -> tuple[str, ...]:
    return (kind,) * (nd if isinstance(nd, int) else 0)


def topology_of(described: Any, nd: int) -> GridTopology:
    """What `describe` told of; raises BadField for what it never tells."""
    if not isinstance(described, dict) or set(described) != {"boundary", "extents"}:
        raise BadField("the topology: expected boundary and extents")
    for name, kind in (("boundary", str), ("extents", float)):
        values = described[name]
        if not isinstance(values, list) or not all(type(each) is kind for each in values):
            raise BadField(f"the topology's {name}: expected a list of {nd} {kind.__name__}s")
    try:
        return GridTopology(nd, **described)
    except BadOption as error:
        raise BadField(f"the topology: {error}") from error
