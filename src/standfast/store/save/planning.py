"""What will be saved of a state: its tree, its tensors by part, and the files they go into."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from types import MappingProxyType
from typing import Any, Final, NamedTuple, Protocol

from standfast.errors import RefusedTensor
from standfast.store.save.known import SMALL
from standfast.store.schema import names
from standfast.store.schema.record import STORAGE, Part
from standfast.store.tree import tree
from standfast.store.tree.aliases import Aliases, View, find_aliases
from standfast.store.tree.refusals import refused_value
from standfast.store.tree.tree import Leaf
from standfast.tensors import Source, TensorSpec, source_of
from standfast.tensors.sources import ALIGNMENT

TOGETHER: Final = 1 << 20
"""Parts of less than this share a file."""
LOOSE: Final = "state"
"""The label of tensors that are in no part."""
SHARED: Final = "parts"
"""The label of a file that several parts share."""
LONGEST: Final = 4096
"""No name is longer, in characters; longer paths are cut."""
_HEADER: Final = 256
"""What a tensor takes in a header, about, besides its name."""


class PlannedTensor(NamedTuple):
    """A tensor that will be saved, or one that shares the memory of another."""

    name: str
    entry: str
    """Its name in its data file."""
    kind: str
    spec: TensorSpec
    nbytes: int
    """What is stored of it: nothing, if it is a view."""
    source: Source | None
    view: View | None


class PlannedFile(NamedTuple):
    """A data file, with the tensors that may go into it, in the order of the file."""

    label: str
    prefix: str
    """What its tensors' names begin with in the record, and not in the file."""
    tensors: Sequence[int]
    shared: Mapping[str, str] = MappingProxyType({})
    """The tensors that are not in it because they are others that are, by another name."""


@dataclass(frozen=True)
class Plan:
    """What will be saved, before anything is known to be stored already."""

    tree: bytes
    tensors: Sequence[PlannedTensor]
    """Part by part, each in the order of the tree."""
    parts: list[Part]
    files: Sequence[PlannedFile]

    @cached_property
    def most(self) -> int:
        """How many bytes its data files take at most, about."""
        data = sum(tensor.nbytes for tensor in self.tensors)
        return data + sum(_HEADER + len(tensor.entry) for tensor in self.tensors)

    @property
    def shares(self) -> bool:
        """Whether any of its tensors is large enough to be looked for in the store."""
        return any(tensor.nbytes >= SMALL for tensor in self.tensors)


def plan_state(state: Any) -> Plan:
    """Plan a save; all that will be refused of the state is refused here."""
    return plan_leaves(state, *tree.flatten(state))


def plan_leaves(state: Any, node: Any, leaves: Sequence[Leaf]) -> Plan:
    """The same of a state that is flat already; none of its tensors is cut up."""
    sources = [planned_source(leaf) for leaf in leaves]
    aliases = find_aliases([leaf.value for leaf in leaves], sources)
    keys = part_keys(state, leaves)
    shape = shape_of_all(leaves, sources, aliases, keys)
    found = [*sources, *(added.source for added in aliases.added)]
    tensors = [
        PlannedTensor(name, entry, kind, spec, nbytes, None if view else found[item], view)
        for item, (name, entry, kind, spec, nbytes, _, view) in zip(
            shape.order, shape.tensors, strict=True
        )
    ]
    return Plan(tree.encode(node, shape.numbers), tensors, shape.parts, shape.files)


@dataclass(frozen=True)
class Shape:
    """A plan without the tensors themselves."""

    order: Sequence[int]
    """The leaves, and after them what is stored besides them, sorted by part."""
    numbers: Sequence[int]
    """The number of each leaf's tensor."""
    tensors: Sequence[PlannedTensor]
    parts: list[Part]
    files: Sequence[PlannedFile]


class HasSpec(Protocol):
    """A source, of which only the spec counts."""

    @property
    def spec(self) -> TensorSpec:
        """What the tensor is."""
        ...


def shape_of_all(
    leaves: Sequence[Leaf],
    sources: Sequence[HasSpec],
    aliases: Aliases,
    keys: list[str | None],
) -> Shape:
    """The shape of a whole state, made anew only if it is another than that of the last one."""
    if aliases.views:
        return shape_of(leaves, sources, aliases, [*keys])
    return _shape_as_before(leaves, sources, aliases, keys)


_before: tuple[Any, Shape] | None = None
"""The last shape and what it was made of: most saves are of the same state, further on."""


def _shape_as_before(
    leaves: Sequence[Leaf],
    sources: Sequence[HasSpec],
    aliases: Aliases,
    keys: list[str | None],
) -> Shape:
    """The shape of a state without views, made only if it is another than that of the last."""
    global _before
    made_of = (
        [leaf.path for leaf in leaves],
        [leaf.kind for leaf in leaves],
        [source.spec for source in sources],
        keys,
    )
    before = _before
    if before is not None and before[0] == made_of and _same_types(before[0][0], made_of[0]):
        return before[1]
    shape = shape_of(leaves, sources, aliases, [*keys])
    _before = (made_of, shape)
    return shape


def _same_types(some: Sequence[tuple[Any, ...]], others: Sequence[tuple[Any, ...]]) -> bool:
    """Whether equal paths are the same: 1, 1.0 and True are equal keys of other names."""
    return all(
        a is b or [*map(type, a)] == [*map(type, b)] for a, b in zip(some, others, strict=True)
    )


def shape_of(
    leaves: Sequence[Leaf],
    sources: Sequence[HasSpec],
    aliases: Aliases,
    keys: list[str | None],
) -> Shape:
    """What all is called, and where it goes; `sources` are asked for specs alone."""
    # What is stored besides the leaves is numbered after them, until all are sorted by part.
    items = [*leaves, *aliases.added]
    keys += [keys[added.beside] for added in aliases.added]
    order = by_part(keys)
    number_of = {item: number for number, item in enumerate(order)}
    bases = [*aliases.stored, *range(len(leaves), len(items))]
    unique = Unique()
    tensors = []
    for item in order:
        key, view = keys[item], aliases.views.get(item)
        if item < len(leaves):
            kind, spec = leaves[item].kind, sources[item].spec
            name = unique.name(names.dotted(leaves[item].path))
        else:
            kind, spec = STORAGE, aliases.added[item - len(leaves)].source.spec
            name = unique.name(f"{key}.{STORAGE}" if key else STORAGE)
        if view is not None:
            view = View(number_of[bases[view.base]], view.offset, view.strides)
        nbytes = spec.nbytes if view is None else 0
        tensors.append(PlannedTensor(name, name, kind, spec, nbytes, None, view))
    parts = parts_of([keys[item] for item in order])
    files, tensors = files_of(tensors, parts)
    return Shape(order, [number_of[leaf] for leaf in range(len(leaves))], tensors, parts, files)


def planned_source(leaf: Leaf) -> Source:
    """The bytes of a tensor; raises RefusedState with its path."""
    try:
        return source_of(leaf.value)
    except RefusedTensor as error:
        raise refused_value(tree.path_text(leaf.path), leaf.value, str(error)) from error


def part_keys(state: Any, leaves: Sequence[Leaf]) -> list[str | None]:
    """The part of each leaf: the key of the top-level dict that it is in."""
    if not isinstance(state, dict):
        return [None] * len(leaves)
    parts = {key: names.key_text(key) for key, value in state.items() if isinstance(value, dict)}
    return [parts.get(leaf.path[0]) for leaf in leaves]


def by_part(keys: Sequence[str | None]) -> list[int]:
    """The items sorted by part, the parts in the order of the tree, those in none at the end."""
    rank: dict[str | None, int] = {key: i for i, key in enumerate(dict.fromkeys(keys))}
    rank[None] = len(rank)
    return sorted(range(len(keys)), key=lambda item: rank[keys[item]])


def parts_of(keys: Sequence[str | None]) -> list[Part]:
    """The parts, of items that are sorted by them."""
    unique = Unique()
    parts, first = [], 0
    for key, members in itertools.groupby(keys):
        count = len(list(members))
        label = unique.label(names.label_of(LOOSE if key is None else key))
        parts.append(Part(key, label, first, count))
        first += count
    return parts


def files_of(
    tensors: list[PlannedTensor], parts: Sequence[Part]
) -> tuple[list[PlannedFile], list[PlannedTensor]]:
    """The files that tensors go into, and the tensors with the names that they have there."""
    files = _files(tensors, parts)
    tensors = _with_entries(tensors, files)
    return [file._replace(shared=_shared(tensors, file)) for file in files], tensors


def _files(tensors: Sequence[PlannedTensor], parts: Sequence[Part]) -> list[PlannedFile]:
    """A file for each part, and one for all that are small together."""
    stored = {
        part: [n for n in range(part.first, part.first + part.count) if not tensors[n].view]
        for part in parts
    }
    small = [
        part
        for part in parts
        if sum(tensors[n].nbytes for n in stored[part]) < TOGETHER and stored[part]
    ]
    files = []
    for part in parts:
        if stored[part] and (part not in small or len(small) == 1):
            prefix = "" if part.key is None else f"{part.key}."
            files.append(PlannedFile(part.label, prefix, _aligned_first(tensors, stored[part])))
    if len(small) > 1:
        together = [n for part in small for n in stored[part]]
        label = Unique(part.label for part in parts).label(SHARED)
        files.append(PlannedFile(label, "", _aligned_first(tensors, together)))
    return files


def _aligned_first(tensors: Sequence[PlannedTensor], numbers: list[int]) -> list[int]:
    """The order in which, without gaps between them, as many as possible are aligned.

    Those whose sizes are multiples of the alignment leave the next one aligned. Of the others
    the widest come first, so that all of them can be seen as what they are where they lie.
    """

    def rank(number: int) -> tuple[bool, int]:
        tensor = tensors[number]
        ragged = tensor.nbytes % ALIGNMENT != 0
        return ragged, -tensor.spec.kind.numpy.itemsize if ragged else 0

    return sorted(numbers, key=rank)


def _with_entries(
    tensors: list[PlannedTensor], files: Sequence[PlannedFile]
) -> list[PlannedTensor]:
    """The tensors with the names that they have in their files."""
    for file in files:
        cut = len(file.prefix)
        entries = [tensors[number].name for number in file.tensors]
        if all(name.startswith(file.prefix) for name in entries):
            entries = [name[cut:] for name in entries]
        if "__metadata__" in entries:
            unique = Unique(["__metadata__", *entries])
            entries = [unique.name(e) if e == "__metadata__" else e for e in entries]
        for number, entry in zip(file.tensors, entries, strict=True):
            tensors[number] = tensors[number]._replace(entry=entry)
    return tensors


def _shared(tensors: Sequence[PlannedTensor], file: PlannedFile) -> dict[str, str]:
    """Which tensors share the memory of one in the file."""
    inside = set(file.tensors)
    return {
        tensor.name.removeprefix(file.prefix): tensors[tensor.view.base].entry
        for tensor in tensors
        if tensor.view and tensor.view.base in inside
    }


class Unique:
    """Gives every name once: the second of two equal ones ends in `~2`."""

    def __init__(self, taken: Iterable[str] = ()) -> None:
        self._taken = set(taken)
        self._counts: dict[str, int] = {}

    def name(self, text: str) -> str:
        """The name of a tensor."""
        if len(text) > LONGEST:
            text = text[:LONGEST]
        return self._unique(text, "~")

    def label(self, text: str) -> str:
        """The label of a data file."""
        return self._unique(text, "-")

    def _unique(self, text: str, sign: str) -> str:
        count, unique = self._counts.get(text, 1), text
        while unique in self._taken:
            count += 1
            unique = f"{text}{sign}{count}"
        self._counts[text] = count
        self._taken.add(unique)
        return unique
