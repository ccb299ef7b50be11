"""Where a mesh ends: at its borders, or nowhere."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Final

import numpy as np

from standfast.errors import BadField, BadOption

MAX_ND: Final = 8
_MOST_SITES: Final = 2.0**62

Coordinates = np.ndarray[Any, np.dtype[np.int64]]


@dataclass(frozen=True)
class _Topology:
    """A box of `nd` dimensions; `extents` are its lengths, in the units of the spacing."""

    nd: int
    extents: tuple[float, ...]
    kind: ClassVar[str]

    def __init__(self, nd: int, extents: Sequence[float]) -> None:
        if type(nd) is not int or not 1 <= nd <= MAX_ND:
            raise BadOption(f"nd={nd!r}: a mesh has 1 to {MAX_ND} dimensions")
        if not isinstance(extents, Iterable):
            raise BadOption(f"extents={extents!r}: give a length for each of the {nd} dimensions")
        lengths = tuple(float(length) for length in extents)
        if len(lengths) != nd or not all(math.isfinite(a) and a > 0 for a in lengths):
            raise BadOption(
                f"extents={extents!r}: give the length of each of the {nd} dimensions, above 0"
            )
        object.__setattr__(self, "nd", nd)
        object.__setattr__(self, "extents", lengths)

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

    def describe(self) -> dict[str, Any]:
        """What it is, in the types of JSON; `topology_of` makes it again."""
        return {"kind": self.kind, "extents": list(self.extents)}


@dataclass(frozen=True, init=False)
class OpenTopology(_Topology):
    """A box with borders: what lies beyond them has no neighbour there.

    >>> OpenTopology(2, (16.0, 16.0))
    """

    kind: ClassVar[str] = "open"

    def wrapped(self, origins: Coordinates, spacing: float) -> tuple[Coordinates, Any]:
        """Origins [n, nd] as they are, and which of them lie in the box."""
        inside = np.all((origins >= 0) & (origins < np.array(self.sites(spacing))), axis=1)
        return origins, inside


@dataclass(frozen=True, init=False)
class PeriodicTopology(_Topology):
    """A box whose opposite borders are the same place.

    >>> PeriodicTopology(4, (8.0, 8.0, 8.0, 8.0))
    """

    kind: ClassVar[str] = "periodic"

    def wrapped(self, origins: Coordinates, spacing: float) -> tuple[Coordinates, Any]:
        """Origins [n, nd] brought back into the box, and which of them lie in it: all."""
        return origins % np.array(self.sites(spacing)), np.ones(len(origins), bool)


Topology = OpenTopology | PeriodicTopology
_KINDS: Final = {kind.kind: kind for kind in (OpenTopology, PeriodicTopology)}


def topology_of(described: Any, nd: int) -> Topology:
    """What `describe` told of; raises BadField for what it never tells."""
    name = described.get("kind") if isinstance(described, dict) else None
    kind = _KINDS.get(name) if isinstance(name, str) else None
    if kind is None or set(described) != {"kind", "extents"}:
        raise BadField(f"no topology: expected kind (one of {', '.join(_KINDS)}) and extents")
    extents = described["extents"]
    if not isinstance(extents, list) or not all(type(each) is float for each in extents):
        raise BadField(f"the topology's extents: expected a list of {nd} floats")
    try:
        return kind(nd, extents)
    except BadOption as error:
        raise BadField(f"the topology: {error}") from error
