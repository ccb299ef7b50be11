"""What DCP's plan has one rank write, as rows of a share; what is no tensor stays a plain value."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import msgspec
import torch
from torch.distributed.checkpoint.planner import SavePlan, SavePlanner, WriteItem, WriteItemType

from standfast.errors import BadOption, RefusedState, StateMismatch, shortened
from standfast.store.save.held import divided
from standfast.store.save.planning import (
    Plan,
    PlannedTensor,
    Unique,
    by_part,
    parts_of,
    planned_source,
)
from standfast.store.save.shares import Share
from standfast.store.schema import names
from standfast.store.schema.boxes import box_text, whole_box
from standfast.store.tree import tree
from standfast.store.tree.refusals import refused_value
from standfast.store.tree.tree import Leaf
from standfast.tensors import Source, TensorSpec
from standfast.tensors.shards import Box

NAMED: Final = -1
"""The number of a tensor that has a name in the state dict, and is in no plain value."""
NO_OWN: Final = b"[]"
"""The tree of a rank that has nothing for itself."""
_PLAIN: Final = "torch"
"""The kind of all tensors that DCP hands out: it does not say which were parameters."""

Path = tuple[str | int, ...]


class Item(msgspec.Struct, frozen=True, array_like=True):
    """A tensor that a rank writes, or a part of."""

    name: str
    """What it goes by in the flat state dict, or the plain value that it is in."""
    number: int
    """Its number in the rank's plain values, or NAMED."""
    kind: str
    dtype: str
    shape: tuple[int, ...]
    """That of the whole tensor."""


class Row(msgspec.Struct, frozen=True, array_like=True):
    """A row of a rank's share: a box of one of its items."""

    item: int
    offsets: tuple[int, ...]
    shape: tuple[int, ...]


class Handed(msgspec.Struct, frozen=True):
    """What a rank hands over to the one that commits."""

    items: list[Item]
    """Those of which it has only an empty box, too."""
    rows: list[Row]
    values: bytes
    """The plain values by their names, in the form of the tree."""
    share: Share


@dataclass(frozen=True)
class Gathered:
    """What a rank has to write."""

    items: list[Item]
    rows: list[Row]
    values: bytes
    plan: Plan
    """Of the rows."""


def paths_of(planner_data: Any) -> Mapping[str, Path]:
    """The path of each name in the state dict, as DCP's own planners tell; none of others."""
    if not isinstance(planner_data, dict):
        return {}
    return {
        name: path
        for name, path in planner_data.items()
        if isinstance(name, str) and isinstance(path, tuple) and path
    }


def gather(plan: SavePlan, planner: SavePlanner, rank: int) -> Gathered:
    """All that the plan has this rank write; raises RefusedState, with the name, for what is not.

    Nothing is copied: what the planner hands out must stay as it is until it is written.
    """
    gathering = _Gathering(paths_of(plan.planner_data))
    values: dict[str, Any] = {}
    for item in plan.items:
        if item.type is WriteItemType.BYTE_IO:
            values[item.index.fqn] = _value(planner, item)
        else:
            gathering.add_tensor(item, planner.resolve_data(item))
    return gathering.gathered(gathering.add_values(values), rank)


def _value(planner: SavePlanner, item: WriteItem) -> Any:
    """What is no tensor, as the program has it: `resolve_data` would have pickled it."""
    lookup = getattr(planner, "lookup_object", None)
    if lookup is None:
        raise BadOption(
            f"{item.index.fqn}: a {type(planner).__qualname__} hands out plain values only "
            "pickled, and Standfast stores no pickles: derive it from DefaultSavePlanner, with its "
            "`lookup_object`"
        )
    return lookup(item.index)


class _Gathering:
    """The rows of a rank as they are found."""

    def __init__(self, paths: Mapping[str, Path]) -> None:
        self._paths = paths
        self._items: list[Item] = []
        self._numbers: dict[str, int] = {}
        self._rows: list[Row] = []
        self._keys: list[str | None] = []
        self._tensors: list[PlannedTensor] = []

    def add_tensor(self, item: WriteItem, value: Any) -> None:
        """Add a tensor of the state dict, or a box of one."""
        name, data = item.index.fqn, item.tensor_data
        if data is None or not isinstance(value, torch.Tensor):
            raise RefusedState(f"{name}: the planner has no tensor for it, as its plan says")
        box = Box(tuple(data.chunk.offsets), tuple(data.chunk.sizes))
        source = planned_source(Leaf((name,), value.detach(), _PLAIN))
        if tuple(value.shape) != box.shape:
            raise StateMismatch(
                f"{name}: the planner has {list(value.shape)} where its plan says {list(box.shape)}"
            )
        spec = TensorSpec(source.spec.dtype, tuple(data.size))
        if source.spec.kind.bits < 8:
            if box != whole_box(spec):
                raise RefusedState(f"{name}: no sharded tensors of {value.dtype}: convert it first")
            spec = source.spec
            box = whole_box(spec)
        number = self._item(name, spec)
        if 0 not in box.shape:
            self._add(number, box, source, self._key(name))

    def _item(self, name: str, spec: TensorSpec) -> int:
        """The number of a tensor, of which there may be another box already."""
        if name not in self._numbers:
            self._numbers[name] = len(self._items)
            self._items.append(Item(name, NAMED, _PLAIN, spec.dtype, spec.shape))
        return self._numbers[name]

    def add_values(self, values: Mapping[str, Any]) -> bytes:
        """Add the tensors that are in plain values, such as a tuple of them; returns the values."""
        node, leaves, own = tree.flatten_apart({**values})
        for path, value in own:
            raise refused_value(
                tree.path_text(path), value, "only one rank's would be saved: DCP writes each once"
            )
        for number, leaf in enumerate(leaves):
            if leaf.shards is not None:
                raise RefusedState(
                    f"{tree.path_text(leaf.path)}: it is shared out over ranks, and inside of what "
                    "DCP writes as one value: use a planner that flattens, and lists or dicts"
                )
            source = planned_source(leaf)
            name, spec = leaf.path[0], source.spec
            self._items.append(Item(name, number, leaf.kind, spec.dtype, spec.shape))
            if spec.nbytes:
                self._add(len(self._items) - 1, whole_box(spec), source, self._key(name), leaf.path)
        return tree.encode(node, range(len(leaves)))

    def _key(self, name: str) -> str | None:
        """The part that it is in: the first key, if there are others below it."""
        path = self._paths.get(name, (name,))
        return names.key_text(path[0]) if len(path) > 1 and type(path[1]) is str else None

    def _add(
        self, number: int, box: Box, source: Source, key: str | None, path: tuple[Any, ...] = ()
    ) -> None:
        item = self._items[number]
        whole = whole_box(TensorSpec(item.dtype, item.shape))
        name = names.dotted(path or (item.name,))
        name = name if box == whole else f"{name}{box_text(box)}"
        spec = source.spec
        self._rows.append(Row(number, box.offsets, box.shape))
        self._keys.append(key)
        row = PlannedTensor(name, name, item.kind, spec, spec.nbytes, source, None)
        self._tensors.append(row)

    def gathered(self, values: bytes, rank: int) -> Gathered:
        """All rows, sorted by part."""
        order = by_part(self._keys)
        unique = Unique()
        tensors = [_renamed(self._tensors[n], unique) for n in order]
        plan = Plan(NO_OWN, tensors, parts_of([self._keys[n] for n in order]), ())
        return Gathered(
            self._items,
            [self._rows[n] for n in order],
            values,
            divided(plan, range(len(order)), rank),
        )


def _renamed(tensor: PlannedTensor, unique: Unique) -> PlannedTensor:
    name = unique.name(tensor.name)
    return tensor._replace(name=name, entry=name)


def spec_of(item: Item) -> TensorSpec:
    """What an item is as a whole."""
    return TensorSpec(item.dtype, item.shape)


def shown(names_: Sequence[str]) -> str:
    """Some names for people."""
    more = f" and {len(names_) - 3:,} more" if len(names_) > 3 else ""
    return ", ".join(shortened(name) for name in names_[:3]) + more
