"""What a snapshot holds, as a state that a store keeps, and what is found when it is read.

The state is a dict with the part `simulation`, which is the same for all ranks, and a part for
each rank, `rank0`, `rank1`, …; docs/snapshots.md has all of it. Nothing that comes out of a store
is believed before it was checked.

Long arrays are kept in slabs of about 1 MiB, each of whole rows. A store keeps a tensor once,
however many checkpoints have it, and two snapshots differ in a few slots of an arena.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from standfast.amr.mesh.arena import FieldArena
from standfast.amr.mesh.frontends import Frontend, GaugeFrontend, frontend_of
from standfast.amr.mesh.gauge import GaugeTree
from standfast.amr.mesh.tree import AMRTree
from standfast.amr.shard import KINDS, ShardContext
from standfast.errors import BadField, BadOption
from standfast.files.forms import gathered
from standfast.formats.sunc.header import record_size
from standfast.store import Checkpoint
from standfast.store.tree import tree
from standfast.store.tree.tree import Ref
from standfast.tensors import TensorSpec

Array = np.ndarray[Any, Any]

FORMAT: Final = "standfast snapshot 1"
SIMULATION: Final = "simulation"
AMR: Final = "amr"
GAUGE: Final = "gauge"
SLAB: Final = 1 << 20
"""The bytes of a slab at most, unless one row takes more."""
_COMMON: Final = frozenset(
    {"format", "ranks", "time", "frontend", "tree", "sharding", "owners", "values"}
)
_HEADER: Final = ("base_spacing", "bits_per_dim", "max_level", "free_count", "max_blocks")
_RANK: Final = frozenset({"header", "blocks", "field_slots", "free_slots", "storage", "random"})
_MAX_RANKS: Final = 1 << 20
_MAX_BLOCKS: Final = 1 << 40


def part_of(rank: int) -> str:
    """The part of the state that is a rank's."""
    return f"rank{rank}"


def simulation_of(
    mesh: AMRTree, ranks: int, time: float, values: Mapping[str, Any]
) -> dict[str, Any]:
    """The part that is the same for all ranks."""
    shard = mesh.shard
    return {
        "format": FORMAT,
        "ranks": ranks,
        "time": time,
        "frontend": mesh.frontend.describe(),
        "tree": GAUGE if isinstance(mesh, GaugeTree) else AMR,
        "sharding": None if shard is None else shard.kind,
        "owners": None if shard is None else _owners_of(shard),
        "values": dict(values),
    }


def _owners_of(shard: ShardContext) -> dict[str, Any]:
    return {
        "origins": np.ascontiguousarray(shard.places.origins, np.uint64),
        "levels": shard.places.levels.astype(np.uint8),
        "owners": shard.owners.astype(np.uint32),
    }


def rank_of(mesh: AMRTree, arena: FieldArena, random: Mapping[str, Any] | None) -> dict[str, Any]:
    """The part of one rank; its tensors share the memory of the tree and the arena.

    `random` has the states of its generators, or is None if there are none, as in a file.
    """
    part = {
        "header": {
            "base_spacing": mesh.base_spacing,
            "bits_per_dim": mesh.bits_per_dim,
            "max_level": mesh.max_level,
            "free_count": arena.free_count,
            "max_blocks": arena.max_blocks,
        },
        "blocks": mesh.blocks.view(np.uint8).reshape(len(mesh), record_size(mesh.frontend.nd)),
        "field_slots": mesh.field_slots,
        "free_slots": arena.free_slots,
        "storage": slabs(arena.storage),
        "random": random,
    }
    if isinstance(mesh, GaugeTree):
        part["links"] = slabs(mesh.links)
    return part


@dataclass(frozen=True)
class SavedRank:
    """The part of one rank, with its tensors by their numbers in the record."""

    base_spacing: float
    bits_per_dim: int
    max_level: int
    free_count: int
    max_blocks: int
    block_count: int
    blocks: int
    field_slots: int
    free_slots: int
    storage: Sequence[int]
    links: Sequence[int]
    random: Any
    """The states of its generators, with a Ref for each tensor."""


@dataclass(frozen=True)
class SavedOwners:
    """Which rank has which block, by the numbers of the tensors that say so."""

    count: int
    origins: int
    levels: int
    owners: int


class SavedParts:
    """A checkpoint that is a snapshot, without the bytes of its tensors.

    Raises BadOption for one that is none, and BadField for one that no writer wrote.
    """

    def __init__(self, checkpoint: Checkpoint) -> None:
        self.checkpoint: Final = checkpoint
        record = checkpoint.record
        self._specs = record.specs
        self._stored = int(record.nbytes.sum())
        self._claimed: dict[int, int] = {}
        state = tree.decode(record.tree, len(record.names))
        common = state.get(SIMULATION) if isinstance(state, dict) else None
        told = common.get("format") if isinstance(common, dict) else None
        if not isinstance(common, dict) or not isinstance(told, str):
            raise BadOption(f"{checkpoint.ref} is no snapshot of a simulation")
        if told != FORMAT:
            raise BadOption(
                f"{checkpoint.ref} is a {told!r:.40}, and this is a reader of {FORMAT!r}: install "
                "a newer Standfast"
            )
        try:
            self._read_common(common)
            if set(state) != {SIMULATION, *map(part_of, range(self.ranks))}:
                raise BadField(f"its parts are not those of {self.ranks} ranks")
        except BadField as error:
            error.args = (f"{checkpoint.ref}: {error}",)
            raise
        self._state: dict[str, Any] = state

    def _read_common(self, common: dict[str, Any]) -> None:
        if set(common) != _COMMON:
            raise BadField(f"the part {SIMULATION!r} has not the keys {', '.join(sorted(_COMMON))}")
        self.ranks: int = _number(common, "ranks", int, 1, _MAX_RANKS)
        self.time: float = _number(common, "time", float)
        self.frontend: Frontend = frontend_of(common["frontend"])
        self.is_gauge: bool = common["tree"] == GAUGE
        self.values: Any = common["values"]
        self.sharding: str | None = common["sharding"]
        if common["tree"] not in (AMR, GAUGE):
            raise BadField(f"tree: expected {AMR!r} or {GAUGE!r}")
        if self.is_gauge and not isinstance(self.frontend, GaugeFrontend):
            raise BadField("tree: one with links, and a frontend that has none")
        if self.sharding not in (None, *KINDS):
            raise BadField(f"sharding: expected one of {', '.join(KINDS)}, or none")
        self.owners: SavedOwners | None = None
        if self.sharding is not None:
            self.owners = self._read_owners(common["owners"])

    def _read_owners(self, owners: Any) -> SavedOwners:
        if not isinstance(owners, dict) or set(owners) != {"origins", "levels", "owners"}:
            raise BadField("owners: expected origins, levels and owners")
        refs = {name: self._ref(owners, name) for name in owners}
        count = self._length(refs["owners"])
        self._expect(refs["origins"], "owners.origins", "uint64", (count, self.frontend.nd))
        self._expect(refs["levels"], "owners.levels", "uint8", (count,))
        self._expect(refs["owners"], "owners.owners", "uint32", (count,))
        return SavedOwners(count, **refs)

    def rank(self, rank: int) -> SavedRank:
        """The part of a rank, checked as far as it goes without its bytes."""
        try:
            saved = self._read_rank(self._state[part_of(rank)])
            self._check_size(rank, saved)
            return saved
        except BadField as error:
            error.args = (f"{self.checkpoint.ref}, rank {rank}: {error}",)
            raise

    def _check_size(self, rank: int, saved: SavedRank) -> None:
        """Views may claim to be larger than what is stored; the sections of a tree never are."""
        own = [saved.blocks, saved.field_slots, saved.free_slots, *saved.storage, *saved.links]
        self._claimed[rank] = sum(self._specs[number].nbytes for number in own)
        claimed = sum(self._claimed.values())
        if claimed > self._stored:
            raise BadField(f"its sections have {claimed:,} bytes, and {self._stored:,} are stored")

    def _read_rank(self, part: Any) -> SavedRank:
        wanted = _RANK | {"links"} if self.is_gauge else _RANK
        if not isinstance(part, dict) or set(part) != wanted:
            raise BadField(f"expected {', '.join(sorted(wanted))}")
        header = part["header"]
        if not isinstance(header, dict) or set(header) != set(_HEADER):
            raise BadField(f"the header has not the fields {', '.join(_HEADER)}")
        frontend, slots = self.frontend, _number(header, "max_blocks", int, 0, _MAX_BLOCKS)
        blocks, field_slots, free_slots = (
            self._ref(part, name) for name in ("blocks", "field_slots", "free_slots")
        )
        count = self._length(blocks)
        self._expect(blocks, "blocks", "uint8", (count, record_size(frontend.nd)))
        self._expect(field_slots, "field_slots", "uint64", (count,))
        self._expect(free_slots, "free_slots", "uint64", (slots,))
        fields = (slots, frontend.block_volume, *frontend.field_shape)
        storage = self._slabs(part, "storage", frontend.dtype.name, fields)
        links: list[int] = []
        if isinstance(frontend, GaugeFrontend) and self.is_gauge:
            links = self._slabs(part, "links", "complex128", (count, *frontend.link_shape))
        return SavedRank(
            base_spacing=_number(header, "base_spacing", float),
            bits_per_dim=_number(header, "bits_per_dim", int, 0, 64),
            max_level=_number(header, "max_level", int, 0, 64),
            free_count=_number(header, "free_count", int, 0, slots),
            max_blocks=slots,
            block_count=count,
            blocks=blocks,
            field_slots=field_slots,
            free_slots=free_slots,
            storage=storage,
            links=links,
            random=part["random"],
        )

    def _ref(self, part: Mapping[str, Any], name: str) -> int:
        ref = part[name]
        if type(ref) is not Ref:
            raise BadField(f"{name}: expected a tensor, found a {type(ref).__name__}")
        return ref.tensor

    def _slabs(
        self, part: Mapping[str, Any], name: str, dtype: str, shape: tuple[int, ...]
    ) -> list[int]:
        refs = part[name]
        if not isinstance(refs, list) or not all(type(ref) is Ref for ref in refs):
            raise BadField(f"{name}: expected a list of tensors")
        numbers = [ref.tensor for ref in refs]
        check_slabs([self._specs[number] for number in numbers], dtype, shape, name)
        return numbers

    def _length(self, tensor: int) -> int:
        shape = self._specs[tensor].shape
        return shape[0] if shape else 0

    def _expect(self, tensor: int, name: str, dtype: str, shape: tuple[int, ...]) -> None:
        wanted = TensorSpec(dtype, shape)
        if self._specs[tensor] != wanted:
            raise BadField(f"{name}: expected {wanted}, found {self._specs[tensor]}")


def _number(
    fields: Mapping[str, Any],
    name: str,
    kind: type[int] | type[float],
    least: float = -math.inf,
    most: float = math.inf,
) -> Any:
    value: Any = fields[name]
    if type(value) is not kind or not math.isfinite(value) or not least <= value <= most:
        raise BadField(f"{name}: expected a {kind.__name__} in its range, found {value!r:.40}")
    return value


def rows_per_slab(row_bytes: int) -> int:
    """How many rows a slab has, the last one excepted."""
    return max(1, SLAB // max(1, row_bytes))


def slabs(array: Array) -> list[Array]:
    """An array in slabs, which share its memory."""
    rows = rows_per_slab(array.itemsize * array[:1].size)
    return [array[first : first + rows] for first in range(0, len(array), rows)]


def check_slabs(specs: Sequence[TensorSpec], dtype: str, shape: tuple[int, ...], name: str) -> None:
    """Raise BadField unless these are the slabs of an array of this dtype and shape."""
    row = TensorSpec(dtype, (1, *shape[1:]))
    rows = rows_per_slab(row.nbytes)
    firsts = range(0, shape[0], rows)
    if len(specs) != len(firsts):
        raise BadField(f"{name}: expected {len(firsts):,} slabs, found {len(specs):,}")
    for number, (first, spec) in enumerate(zip(firsts, specs, strict=True)):
        wanted = TensorSpec(dtype, (min(rows, shape[0] - first), *shape[1:]))
        if spec != wanted:
            raise BadField(f"{name}, slab {number}: expected {wanted}, found {spec}")


def joined(pieces: Sequence[Array], dtype: str, shape: tuple[int, ...]) -> Array:
    """The array that slabs were made of, in memory of its own."""
    return TensorSpec(dtype, shape).view(gathered([p.reshape(-1).view(np.uint8) for p in pieces]))
