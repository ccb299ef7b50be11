"""What one rank has of a state that all ranks save as one.

Every rank has the same tree, with the same tensors under the same names: that is the skeleton.
Of a tensor that is cut up a rank has some boxes, of any other all of it. Besides, each rank may
have trees of its own. The rows of a rank are what it could write: its boxes, then what is its own.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, NamedTuple

import msgspec
import numpy as np
from blake3 import blake3

from standfast.errors import RefusedTensor
from standfast.parallel.assignment import Holding
from standfast.store.save.planning import (
    HasSpec,
    Plan,
    PlannedTensor,
    Unique,
    by_part,
    files_of,
    part_keys,
    parts_of,
    plan_leaves,
    planned_source,
    shape_of,
    shape_of_all,
)
from standfast.store.schema import names
from standfast.store.schema.boxes import box_text, span, whole_box
from standfast.store.tree import tree
from standfast.store.tree.aliases import Aliases, View, c_order, find_aliases
from standfast.store.tree.per_rank import PerRank, Rank
from standfast.store.tree.refusals import refused_value
from standfast.store.tree.tree import Leaf, Path
from standfast.tensors import Source, TensorSpec, source_of
from standfast.tensors.shards import Box

OWN: Final = -1
"""The item of a row that is a rank's own."""
_LABEL: Final = 24
"""So much of a part's label is in that of a rank's file."""


@dataclass(frozen=True)
class Skeleton:
    """A state without its bytes, and without what each rank has for itself."""

    node: Any
    """The tree, with a Ref to the number of each item, and an Own for what is the ranks' own."""
    numbers: Sequence[int]
    """The item of each leaf of the tree."""
    items: Sequence[PlannedTensor]
    """All tensors, part by part, those that are views of others too; none has a source."""
    keys: Sequence[str | None]
    """The part of each item."""
    own: Sequence[Path]
    """Where the ranks have what is their own."""

    def shape_digest(self) -> bytes:
        """A digest of all of it but the tree, equal on ranks that have the same tensors."""
        views = [
            [n, item.view.base, item.view.offset, item.view.strides]
            for n, item in enumerate(self.items)
            if item.view
        ]
        columns = [
            [item.name for item in self.items],
            [item.kind for item in self.items],
            [item.spec.dtype for item in self.items],
            [item.spec.shape for item in self.items],
            views,
            self.keys,
            [names.dotted(path) for path in self.own],
        ]
        return blake3(msgspec.msgpack.encode(columns)).digest()

    def text(self) -> bytes:
        """The tree with its plain values: what must be the same on all ranks."""
        return tree.encode(self.node, self.numbers, range(len(self.own)))


@dataclass(frozen=True)
class Held:
    """What one rank has: the skeleton, and its rows as the plan of all that it could write."""

    skeleton: Skeleton
    plan: Plan
    """Its tree is the list of what is this rank's own."""
    items: Sequence[int]
    """The item that each row is of, or OWN."""
    boxes: Sequence[Box]
    """The box of the item that each row is."""

    def rows_digest(self) -> bytes:
        """A digest of all that the plan of the rows is made of, but their bytes: its own too."""
        rows = [
            [
                tensor.name,
                tensor.kind,
                tensor.spec.dtype,
                tensor.spec.shape,
                tensor.view and [tensor.view.base, tensor.view.offset, tensor.view.strides],
            ]
            for tensor in self.plan.tensors
        ]
        columns = [rows, self.items, self.boxes, self.plan.parts]
        return blake3(msgspec.msgpack.encode(columns)).digest()

    def holding(self) -> Holding:
        """Its rows for whoever shares out what is written, without those that are its own."""
        rows = [row for row, item in enumerate(self.items) if item != OWN]
        specs = [self.skeleton.items[self.items[row]].spec for row in rows]
        spans = [span(spec.shape, self.boxes[row]) for spec, row in zip(specs, rows, strict=True)]
        return Holding(
            np.array([self.items[row] for row in rows], np.int64),
            np.array([first for first, _ in spans], np.int64),
            np.array([end for _, end in spans], np.int64),
            np.array([self.plan.tensors[row].nbytes for row in rows], np.int64),
        )


def is_cut_up(leaves: Sequence[Leaf]) -> bool:
    """Whether any tensor of a state is."""
    return any(leaf.shards is not None for leaf in leaves)


def hold(state: Any, rank: int = 0) -> Held:
    """What a rank has of a state; all that will be refused of it is refused here."""
    return hold_leaves(state, *tree.flatten_apart(state), rank)


def hold_leaves(
    state: Any, node: Any, leaves: Sequence[Leaf], own: Sequence[tuple[Path, Any]], rank: int = 0
) -> Held:
    """The same of a state that is flat already."""
    sources = [planned_source(leaf) if leaf.shards is None else None for leaf in leaves]
    aliases = _aliases(leaves, sources)
    keys = part_keys(state, leaves)
    shape = shape_of_all(leaves, [*map(_spec_of, leaves, sources)], aliases, keys)
    items, keys = shape.tensors, [*keys, *(keys[added.beside] for added in aliases.added)]
    skeleton = Skeleton(
        node, shape.numbers, items, [keys[n] for n in shape.order], [path for path, _ in own]
    )
    found = [*sources, *(added.source for added in aliases.added)]
    rows = _Rows()
    for number, (position, item) in enumerate(zip(shape.order, items, strict=True)):
        source = found[position]
        if item.view:
            continue
        if source is not None:
            rows.add(number, whole_box(item.spec), item.name, item, source, keys[position])
            continue
        shards = leaves[position].shards
        for box, tensor in shards.shards if shards else ():
            name = f"{item.name}{box_text(box)}"
            source = _shard_source(item.name, box, tensor)
            rows.add(number, box, name, item, source, keys[position])
    own_node = rows.add_own(state, own, rank)
    return rows.held(skeleton, own_node)


def _spec_of(leaf: Leaf, source: Source | None) -> HasSpec:
    if leaf.shards is not None:
        return _Spec(leaf.shards.spec)
    assert source is not None
    return source


@dataclass(frozen=True, slots=True)
class _Spec:
    """Stands for the source of a tensor that is cut up, of which nobody has all bytes."""

    spec: TensorSpec


class _Rows:
    """The rows of a rank as they are found."""

    def __init__(self) -> None:
        self._items: list[int] = []
        self._boxes: list[Box] = []
        self._keys: list[str | None] = []
        self._tensors: list[PlannedTensor] = []

    def add(
        self,
        item: int,
        box: Box,
        name: str,
        planned: PlannedTensor,
        source: Source | None,
        key: str | None,
        view: View | None = None,
    ) -> None:
        spec = TensorSpec(planned.spec.dtype, box.shape)
        self._items.append(item)
        self._boxes.append(box)
        self._keys.append(key)
        nbytes = 0 if view else spec.nbytes
        row = PlannedTensor(name, name, planned.kind, spec, nbytes, source, view)
        self._tensors.append(row)

    def add_own(self, state: Any, own: Sequence[tuple[Path, Any]], rank: int) -> Any:
        """Add what is in the rank's own trees; returns their nodes, with Refs to rows."""
        paths = [path for path, _ in own]
        node, found = tree.flatten_own([value for _, value in own])
        leaves = [_own_leaf(leaf, paths, rank) for leaf in found]
        sources = [planned_source(leaf) for leaf in leaves]
        aliases = find_aliases([leaf.value for leaf in leaves], sources)
        keys = [_own_key(state, leaf.path) for leaf in leaves]
        shape = shape_of(leaves, sources, aliases, [*keys])
        sources += [added.source for added in aliases.added]
        keys += [keys[added.beside] for added in aliases.added]
        first = len(self._items)
        for position, tensor in zip(shape.order, shape.tensors, strict=True):
            view = tensor.view and replace(tensor.view, base=first + tensor.view.base)
            source = None if view else sources[position]
            box = whole_box(tensor.spec)
            self.add(OWN, box, tensor.name, tensor, source, keys[position], view)
        return tree.parse(tree.encode(node, [first + number for number in shape.numbers]))

    def held(self, skeleton: Skeleton, own: Any) -> Held:
        """All rows, sorted by part."""
        order = by_part(self._keys)
        numbers = {row: number for number, row in enumerate(order)}
        unique = Unique()
        tensors = []
        for row in order:
            tensor = self._tensors[row]
            name = unique.name(tensor.name)
            view = tensor.view and replace(tensor.view, base=numbers[tensor.view.base])
            tensors.append(tensor._replace(name=name, entry=name, view=view))
        return Held(
            skeleton,
            Plan(
                tree.encode(own, numbers),
                tensors,
                parts_of([self._keys[row] for row in order]),
                [],  # which there are once it is known who writes what
            ),
            [self._items[row] for row in order],
            [self._boxes[row] for row in order],
        )


def _shard_source(name: str, box: Box, tensor: Any) -> Source:
    try:
        source = source_of(tensor)
    except RefusedTensor as error:
        raise refused_value(name, tensor, str(error)) from error
    if source.spec.shape != box.shape:
        has = list(source.spec.shape)
        raise refused_value(name, tensor, f"its part {box_text(box)} is a tensor of {has}")
    return source


def _own_key(state: Any, path: Path) -> str | None:
    """The part that a rank's own tensor is in: the top-level dict, or what is marked there."""
    member = state.get(path[0]) if isinstance(state, dict) else None
    return names.key_text(path[0]) if isinstance(member, dict | PerRank) else None


def _own_leaf(leaf: Leaf, paths: Sequence[Path], rank: int) -> Leaf:
    """A leaf of the list of own trees, with the path that its tensor goes by."""
    position, *rest = leaf.path
    path = (*paths[position], f"rank{rank}", *rest)
    if leaf.shards is not None:
        raise refused_value(
            tree.path_text(path), leaf.value, "it is shared out over ranks, and not one rank's own"
        )
    return Leaf(path, leaf.value, leaf.kind)


def _aliases(leaves: Sequence[Leaf], sources: Sequence[Source | None]) -> Aliases:
    """Which tensors share memory; those that are cut up share all of it, or nothing."""
    plain = [n for n, source in enumerate(sources) if source is not None]
    found = find_aliases(
        [leaves[n].value for n in plain], [source for source in sources if source is not None]
    )
    first: dict[Any, int] = {}
    tied: dict[int, int] = {}
    for number, leaf in enumerate(leaves):
        if leaf.shards is not None and leaf.shards.same is not None:
            boxes = tuple(shard.box for shard in leaf.shards.shards)
            base = first.setdefault((leaf.shards.spec, leaf.shards.same, boxes), number)
            if base != number:
                tied[number] = base
    views = {plain[n] for n in found.views} | tied.keys()
    stored = [n for n in range(len(leaves)) if n not in views]
    place = {n: position for position, n in enumerate(stored)}
    # Where a view's base is counted: what is stored of the leaves, and then what is added.
    bases = [place[plain[n]] for n in found.stored]
    bases += range(len(stored), len(stored) + len(found.added))
    return Aliases(
        stored,
        {
            **{plain[n]: replace(view, base=bases[view.base]) for n, view in found.views.items()},
            **{n: _tie(leaves[n], place[base]) for n, base in tied.items()},
        },
        [replace(added, beside=plain[added.beside]) for added in found.added],
    )


def _tie(leaf: Leaf, base: int) -> View:
    assert leaf.shards is not None
    return View(base, 0, c_order(leaf.shards.spec))


class Planned(NamedTuple):
    """What will be saved: the plan, and if ranks share a state, what this one has of it."""

    plan: Plan
    held: Held | None = None

    def of_copies(self, copies: Sequence[Source]) -> Planned:
        """The same, of copies; it keeps nothing of the state alive."""
        staged = iter(copies)
        tensors = [t._replace(source=next(staged)) if t.source else t for t in self.plan.tensors]
        plan = replace(self.plan, tensors=tensors)
        return Planned(plan, self.held and replace(self.held, plan=plan))


def plan_for(state: Any, ranks: Rank) -> Planned:
    """Plan a save by one of so many ranks."""
    if ranks.size == 1:
        node, leaves = tree.flatten(state)
        if not is_cut_up(leaves):
            return Planned(plan_leaves(state, node, leaves))
    held = hold(state, ranks.rank)
    return Planned(held.plan, held)


def divided(plan: Plan, written: Sequence[int], rank: int, like: Plan | None = None) -> Plan:
    """The plan of some rows, by their numbers, which a rank writes into files of its own.

    `like` is the one that was made of the rows of these numbers in an equal plan before.
    """
    numbers = {row: number for number, row in enumerate(written)}
    text = tree.encode(tree.parse(plan.tree), numbers)
    if like is not None:
        pairs = zip(like.tensors, written, strict=True)
        tensors = [old._replace(source=plan.tensors[row].source) for old, row in pairs]
        return Plan(text, tensors, like.parts, like.files)
    keys = [part.key for part in plan.parts for _ in range(part.count)]
    tensors = []
    for row in written:
        tensor = plan.tensors[row]
        view = tensor.view and replace(tensor.view, base=numbers[tensor.view.base])
        tensors.append(tensor._replace(view=view))
    parts = parts_of([keys[row] for row in written])
    files, tensors = files_of(tensors, parts)
    unique = Unique()
    labelled = [
        file._replace(label=unique.label(f"{file.label[:_LABEL]}-rank{rank}")) for file in files
    ]
    return Plan(text, tensors, parts, labelled)
