"""Where two saved states differ: which blocks, at which sites, by how much.

Blocks are compared by level and origin, whatever slots they have and whichever ranks hold them.
What differs besides, and means nothing to the physics, is told apart as the layout.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal

import numpy as np

from standfast.amr.inspect.item_pairs import Apart, Pairs, compared
from standfast.amr.inspect.layouts import Layout, compare_layouts
from standfast.amr.inspect.trees import COMPLEX, SavedState, SavedTree
from standfast.amr.mesh.arena import INVALID
from standfast.files.digests import worker_count
from standfast.files.threads import Threads

Array = np.ndarray[Any, Any]

_HEADER: Final = (
    *("nd", "block_size", "field_bytes", "base_spacing", "bits_per_dim", "max_level"),
)
_SHAPE: Final = ("nd", "block_size", "field_bytes")
"""Where these differ, no two blocks can be compared."""


@dataclass(frozen=True)
class Block:
    """A live block, and where it stands."""

    level: int
    origin: tuple[int, ...]
    rank: int
    index: int


@dataclass(frozen=True)
class Site:
    """A site of a block, or a link that starts there."""

    number: int
    """Its number in the block, dimension 0 fastest."""
    coordinates: tuple[int, ...]
    """In sites of the block's level, as origins are."""
    direction: int | None
    """The dimension of a link; None for a field."""


@dataclass(frozen=True)
class BlockChange:
    """A block that both states have, and that is not the same."""

    before: Block
    after: Block
    what: Literal["field", "links", "spacing", "field added", "field removed"]
    count: int
    """How many sites, or links, differ in any bit."""
    of: int
    first: Site | None
    worst: Site | None
    by: float | None
    """The largest difference of two numbers; infinite where one is no number."""


@dataclass(frozen=True)
class TreeDiff:
    """The differences between two states."""

    header: dict[str, tuple[Any, Any]]
    comparable: bool
    """Whether blocks could be compared: dimension, block size and field size are the same."""
    removed: list[Block]
    """The live blocks that only the first has."""
    added: list[Block]
    changed: list[BlockChange]
    """The worst first."""
    same: int
    """In how many blocks no difference was found, in field and links."""
    by_digests: int
    """How many fields and links have the same digests in both, and were not read."""
    layout: Layout | None
    """What differs beside the blocks; None if the numbers of ranks do."""

    @property
    def same_blocks(self) -> bool:
        """Whether both are one state of the simulation, whatever slots it lies in."""
        return self.comparable and not (self.removed or self.added or self.changed)

    def __bool__(self) -> bool:
        return bool(self.header or not self.same_blocks or self.layout)


def differences(before: SavedState, after: SavedState) -> TreeDiff:
    """Compare two states; what has equal digests in both, at the same place, is not read."""
    header = _header(before, after)
    if any(name in header for name in _SHAPE):
        return TreeDiff(header, False, [], [], [], 0, 0, None)
    old, new = _Live(before.trees), _Live(after.trees)
    both = [(old.places[place], new.places[place]) for place in old.places if place in new.places]
    changes: list[BlockChange] = []
    with Threads(worker_count()) as pool:
        by_digests = 0
        for found, skipped in _compare_all(old, new, np.array(both).reshape(-1, 2), pool):
            changes += found
            by_digests += skipped
        layout = None
        if len(before.trees) == len(after.trees):
            layout = compare_layouts(before.trees, after.trees, pool)
    differing = {(change.before.rank, change.before.index) for change in changes}
    return TreeDiff(
        header=header,
        comparable=True,
        removed=[old.block(n) for place, n in old.places.items() if place not in new.places],
        added=[new.block(n) for place, n in new.places.items() if place not in old.places],
        changed=sorted(changes, key=_badness),
        same=len(both) - len(differing),
        by_digests=by_digests,
        layout=layout,
    )


def _badness(change: BlockChange) -> tuple[Any, ...]:
    """The worst first: what cannot be measured, then the farthest apart, then in order."""
    by = -1.0 if change.by is None else -change.by
    return change.by is not None, by, -change.count, change.before.level, change.before.origin


def _header(before: SavedState, after: SavedState) -> dict[str, tuple[Any, Any]]:
    a, b = before.trees[0], after.trees[0]
    pairs = {name: (getattr(a.header, name), getattr(b.header, name)) for name in _HEADER}
    pairs["link_group"] = a.group, b.group
    pairs["ranks"] = len(before.trees), len(after.trees)
    return {name: pair for name, pair in pairs.items() if pair[0] != pair[1]}


class _Live:
    """The live blocks of all ranks, in the order of their places."""

    def __init__(self, trees: Sequence[SavedTree]) -> None:
        self.trees = trees
        indices = [np.flatnonzero(tree.is_live) for tree in trees]
        self.ranks = np.repeat(np.arange(len(trees)), [len(each) for each in indices])
        self.indices = np.concatenate(indices)
        self.blocks = np.concatenate(
            [tree.blocks[each] for tree, each in zip(trees, indices, strict=True)]
        )
        self.slots = np.concatenate(
            [tree.field_slots[each] for tree, each in zip(trees, indices, strict=True)]
        )
        origins = self.blocks["origin"]
        order = np.lexsort((*origins.T[::-1], self.blocks["level"]))
        levels = self.blocks["level"].astype(np.uint64)
        keys = np.ascontiguousarray(np.column_stack((levels, origins))).view(
            f"V{8 + 8 * origins.shape[1]}"
        )
        self.places: dict[bytes, int] = {}
        for n, key in zip(order.tolist(), keys.ravel()[order].tolist(), strict=True):
            self.places.setdefault(key, n)  # one that two ranks hold counts once

    def block(self, n: int) -> Block:
        """The block of this number among all."""
        record = self.blocks[n]
        origin = tuple(record["origin"].tolist())
        return Block(int(record["level"]), origin, int(self.ranks[n]), int(self.indices[n]))


def _compare_all(
    old: _Live, new: _Live, both: Array, pool: Threads
) -> Iterator[tuple[list[BlockChange], int]]:
    """What differs in the blocks of both, and how many comparisons digests spared."""
    a, b = both[:, 0], both[:, 1]
    yield _unmeasured(old, new, both[_bits(old, a) != _bits(new, b)], "spacing"), 0
    has_old, has_new = old.slots[a] != INVALID, new.slots[b] != INVALID
    yield _unmeasured(old, new, both[has_old & ~has_new], "field removed"), 0
    yield _unmeasured(old, new, both[~has_old & has_new], "field added"), 0
    fields = both[has_old & has_new]
    yield _compare(old, new, fields, "field", pool)
    if old.trees[0].group and old.trees[0].group == new.trees[0].group:
        yield _compare(old, new, both, "links", pool)


def _bits(live: _Live, numbers: Array) -> Array:
    bits: Array = live.blocks["spacing"][numbers].view(np.uint64)
    return bits


def _unmeasured(
    old: _Live,
    new: _Live,
    pairs: Array,
    what: Literal["spacing", "field added", "field removed"],
) -> list[BlockChange]:
    volume = old.trees[0].header.block_volume
    return [
        BlockChange(old.block(a), new.block(b), what, volume, volume, None, None, None)
        for a, b in pairs.tolist()
    ]


def _compare(
    old: _Live,
    new: _Live,
    both: Array,
    what: Literal["field", "links"],
    pool: Threads,
) -> tuple[list[BlockChange], int]:
    """The fields or the links of blocks that both have, for each two ranks that share some."""
    changes: list[BlockChange] = []
    spared = 0
    ranks = np.column_stack((old.ranks[both[:, 0]], new.ranks[both[:, 1]]))
    for r, s in np.unique(ranks, axis=0).tolist():
        chosen = both[(ranks == (r, s)).all(axis=1)]
        a, b = old.trees[r], new.trees[s]
        if what == "field":
            numbers = old.slots[chosen[:, 0]], new.slots[chosen[:, 1]]
            items, dtype, each = (a.fields, b.fields), a.number, a.header.field_bytes
        else:
            assert a.links is not None
            assert b.links is not None
            numbers = old.indices[chosen[:, 0]], new.indices[chosen[:, 1]]
            items, dtype, each = (a.links, b.links), COMPLEX, 16 * a.group**2
        pairs = Pairs(*items, *(words.astype(np.int64) for words in numbers))
        for found, skipped in compared(pairs, dtype, each, pool):
            spared += skipped
            for apart in found:
                n, m = chosen[apart.pair].tolist()
                changes.append(_change(old.block(n), new.block(m), what, apart, a))
    return changes, spared


def _change(
    before: Block, after: Block, what: Literal["field", "links"], apart: Apart, tree: SavedTree
) -> BlockChange:
    first, worst = (_site(number, what, before, tree) for number in (apart.first, apart.worst))
    return BlockChange(before, after, what, apart.count, apart.of, first, worst, apart.by)


def _site(number: int, what: str, block: Block, tree: SavedTree) -> Site:
    nd, size = tree.header.nd, tree.header.block_size
    direction = None
    if what == "links":
        number, direction = divmod(number, nd)
    inside = (number // size**d % size for d in range(nd))
    coordinates = tuple(o + i for o, i in zip(block.origin, inside, strict=True))
    return Site(number, coordinates, direction)
