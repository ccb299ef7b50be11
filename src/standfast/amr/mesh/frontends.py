"""What lies at a site of a mesh: numbers, or the fields of a lattice gauge theory."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from standfast.amr.mesh.topology import MAX_ND, GridTopology, topology_of
from standfast.errors import BadField, BadOption, shortened
from standfast.formats.sunc.header import MAX_GROUP, MIN_BLOCK_SIZE

_MAX_BLOCK_SIZE: Final = 1 << 16
_MAX_VOLUME: Final = 1 << 32
_MAX_COMPONENTS: Final = 1 << 16
_DTYPES: Final = (
    *("float64", "float32", "float16", "complex128", "complex64"),
    *("int64", "int32", "int16", "int8", "uint64", "uint32", "uint16", "uint8"),
)


@dataclass(frozen=True)
class ScalarFrontend:
    """One number at each site, or several: the components of a vector.

    >>> ScalarFrontend(2, 16, OpenTopology(2, (16.0, 16.0)))
    >>> ScalarFrontend(3, 16, OpenTopology(3, (1.0, 1.0, 1.0)), components=3)
    """

    nd: int
    block_size: int
    """Sites of a block along each dimension: a power of two, at least 4."""
    topology: GridTopology
    dtype: Any = np.float64
    components: int = 1
    """How many numbers a field has at one site."""

    def __post_init__(self) -> None:
        _check(self.nd, self.block_size, self.topology)
        _check_count("components", self.components, _MAX_COMPONENTS)
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
    def field_shape(self) -> tuple[int, ...]:
        """The shape of the field at one site: empty for a single number."""
        return () if self.components == 1 else (self.components,)

    @property
    def field_bytes(self) -> int:
        """The size of the field at one site."""
        return self.components * int(self.dtype.itemsize)

    def describe(self) -> dict[str, Any]:
        """What it is, in the types of JSON; `frontend_of` makes it again."""
        return {
            "kind": "scalar",
            "nd": self.nd,
            "block_size": self.block_size,
            "dtype": self.dtype.name,
            "components": self.components,
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
    topology: GridTopology

    def __post_init__(self) -> None:
        _check(self.nd, self.block_size, self.topology)
        _check_count("n_gauge", self.n_gauge, MAX_GROUP)
        _check_count("n_spinor", self.n_spinor, _MAX_COMPONENTS)

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


def check_savable(frontend: Any) -> None:
    """Raise BadOption for what `frontend_of` could not make again when a checkpoint is read.

    That includes subclasses: a checkpoint would hold what they override, but not say so.
    """
    if type(frontend) not in (ScalarFrontend, GaugeFrontend):
        raise BadOption(
            f"frontend={shortened(repr(frontend))}: checkpoints describe a ScalarFrontend or a "
            "GaugeFrontend, and no other class; a ScalarFrontend has dtype and components for "
            "fields of several numbers"
        )


def _check_count(name: str, value: int, most: int) -> None:
    if type(value) is not int or not 1 <= value <= most:
        raise BadOption(f"{name}={value!r}: it is a whole number from 1 to {most}")


def _check(nd: int, block_size: int, topology: GridTopology) -> None:
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
    if type(topology) is not GridTopology:  # what a subclass overrides would not be saved
        raise BadOption(
            f"topology={topology!r}: give a GridTopology, an OpenTopology or a PeriodicTopology"
        )
    if topology.nd != nd:
        raise BadOption(f"the topology has {topology.nd} dimensions, and the frontend {nd}")


_FIELDS: Final = {
    "scalar": ("nd", "block_size", "dtype", "components"),
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
