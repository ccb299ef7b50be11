"""What lies at a site of a mesh: a number, or the fields of a lattice gauge theory."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from standfast.amr.mesh.topology import MAX_ND, Topology, topology_of
from standfast.errors import BadField, BadOption
from standfast.formats.sunc.header import MAX_GROUP, MIN_BLOCK_SIZE

_MAX_BLOCK_SIZE: Final = 1 << 16
_MAX_VOLUME: Final = 1 << 32
_MAX_SPINOR: Final = 1 << 16
_DTYPES: Final = (
    *("float64", "float32", "float16", "complex128", "complex64"),
    *("int64", "int32", "int16", "int8", "uint64", "uint32", "uint16", "uint8"),
)


@dataclass(frozen=True)
class ScalarFrontend:
    """One number at each site.

    >>> ScalarFrontend(2, 16, OpenTopology(2, (16.0, 16.0)))
    """

    nd: int
    block_size: int
    """Sites of a block along each dimension: a power of two, at least 4."""
    topology: Topology
    dtype: Any = np.float64

    def __post_init__(self) -> None:
        _check(self.nd, self.block_size, self.topology)
        try:
            dtype = np.dtype(self.dtype)
        except TypeError as error:
            raise BadOption(f"dtype={self.dtype!r}: there are {', '.join(_DTYPES)}") from error
        if dtype.name not in _DTYPES:
            raise BadOption(f"dtype={dtype.name}: there are {', '.join(_DTYPES)}")
        object.__setattr__(self, "dtype", dtype.newbyteorder("<"))

    @property
    def block_volume(self) -> int:
        """How many sites a block has."""
        return int(self.block_size**self.nd)

    @property
    def components(self) -> int:
        """How many numbers a field has at one site."""
        return 1

    @property
    def field_shape(self) -> tuple[int, ...]:
        """The shape of the field at one site."""
        return ()

    @property
    def field_bytes(self) -> int:
        """The size of the field at one site."""
        return int(self.dtype.itemsize)

    def describe(self) -> dict[str, Any]:
        """What it is, in the types of JSON; `frontend_of` makes it again."""
        return {
            "kind": "scalar",
            "nd": self.nd,
            "block_size": self.block_size,
            "dtype": self.dtype.name,
            "topology": self.topology.describe(),
        }


@dataclass(frozen=True)
class GaugeFrontend:
    """A spinor at each site, and to each neighbour a link of U(1), SU(2), SU(3), …

    The component of a field is spinor · n_gauge + gauge.

    >>> GaugeFrontend(3, 1, 4, 4, PeriodicTopology(4, (8.0, 8.0, 8.0, 8.0)))
    """

    n_gauge: int
    """The N of its N × N links."""
    n_spinor: int
    nd: int
    block_size: int
    """Sites of a block along each dimension: a power of two, at least 4."""
    topology: Topology

    def __post_init__(self) -> None:
        _check(self.nd, self.block_size, self.topology)
        for name, value, most in (
            ("n_gauge", self.n_gauge, MAX_GROUP),
            ("n_spinor", self.n_spinor, _MAX_SPINOR),
        ):
            if type(value) is not int or not 1 <= value <= most:
                raise BadOption(f"{name}={value!r}: it is a whole number from 1 to {most}")

    @property
    def dtype(self) -> np.dtype[np.complex128]:
        """The type of one component."""
        return np.dtype(np.complex128)

    @property
    def block_volume(self) -> int:
        """How many sites a block has."""
        return int(self.block_size**self.nd)

    @property
    def components(self) -> int:
        """How many numbers a field has at one site."""
        return self.n_spinor * self.n_gauge

    @property
    def field_shape(self) -> tuple[int, ...]:
        """The shape of the field at one site."""
        return (self.components,)

    @property
    def field_bytes(self) -> int:
        """The size of the field at one site."""
        return self.components * self.dtype.itemsize

    @property
    def links_per_block(self) -> int:
        """A link for each site and dimension."""
        return self.block_volume * self.nd

    @property
    def link_shape(self) -> tuple[int, int, int]:
        """The shape of a block's links; the index of a link is site · nd + dimension."""
        return self.links_per_block, self.n_gauge, self.n_gauge

    def describe(self) -> dict[str, Any]:
        """What it is, in the types of JSON; `frontend_of` makes it again."""
        return {
            "kind": "gauge",
            "n_gauge": self.n_gauge,
            "n_spinor": self.n_spinor,
            "nd": self.nd,
            "block_size": self.block_size,
            "topology": self.topology.describe(),
        }


Frontend = ScalarFrontend | GaugeFrontend


def _check(nd: int, block_size: int, topology: Topology) -> None:
    if type(nd) is not int or not 1 <= nd <= MAX_ND:
        raise BadOption(f"nd={nd!r}: a mesh has 1 to {MAX_ND} dimensions")
    power = type(block_size) is int and block_size > 0 and not block_size & (block_size - 1)
    if not power or not MIN_BLOCK_SIZE <= block_size <= _MAX_BLOCK_SIZE:
        raise BadOption(
            f"block_size={block_size!r}: it is a power of two from {MIN_BLOCK_SIZE} to "
            f"{_MAX_BLOCK_SIZE:,}"
        )
    if block_size**nd > _MAX_VOLUME:
        raise BadOption(
            f"block_size={block_size} in {nd} dimensions: a block may have {_MAX_VOLUME:,} sites"
        )
    if not isinstance(topology, Topology):
        raise BadOption(f"topology={topology!r}: give an OpenTopology or a PeriodicTopology")
    if topology.nd != nd:
        raise BadOption(f"the topology has {topology.nd} dimensions, and the frontend {nd}")


_FIELDS: Final = {
    "scalar": ("nd", "block_size", "dtype"),
    "gauge": ("n_gauge", "n_spinor", "nd", "block_size"),
}


def frontend_of(described: Any) -> Frontend:
    """What `describe` told of; raises BadField for what it never tells."""
    kind = described.get("kind") if isinstance(described, dict) else None
    names = _FIELDS.get(kind) if isinstance(kind, str) else None
    if names is None or set(described) != {"kind", "topology", *names}:
        raise BadField(f"no frontend: expected the kind, one of {', '.join(_FIELDS)}, and its own")
    for name in names:
        wanted = str if name == "dtype" else int
        if type(described[name]) is not wanted:
            raise BadField(f"the frontend's {name}: expected a {wanted.__name__}")
    try:
        topology = topology_of(described["topology"], described["nd"])
        values = {name: described[name] for name in names}
        if kind == "scalar":
            return ScalarFrontend(**values, topology=topology)
        return GaugeFrontend(**values, topology=topology)
    except BadOption as error:
        raise BadField(f"the frontend: {error}") from error
