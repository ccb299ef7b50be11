"""Where two saved states differ: which blocks, at which sites, by how much.

Blocks are compared by level and origin, whatever slots they have and whichever ranks hold them.
What differs besides and means nothing to the physics, slots, lists, dead blocks and free lists, is
the layout: all of it is a part of an exact restart.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields
from typing import Any, Final, Literal

import numpy as np

from standfast.amr.inspect.items import Items, Window
from standfast.amr.inspect.trees import COMPLEX, SavedState, SavedTree
from standfast.amr.mesh.arena import INVALID
from standfast.files.digests import worker_count
from standfast.files.threads import Threads

Array = np.ndarray[Any, Any]

_BYTE: Final = np.dtype(np.uint8)
_PIECE: Final = 1 << 20
"""The bytes that are compared at a time: what is copied for it stays in a processor's cache."""
_NEAR: Final = 4
"""Items of the second tree are read in one piece if the gaps hold at most 4 times as many."""
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


@dataclass(frozen=True)
class Layout:
    """What differs besides the blocks, in numbers, over all ranks; false if nothing does."""

    order: int = 0
    """Ranks whose lists have the live blocks of both in another order."""
    slots: int = 0
    """Live blocks of both that have another slot."""
    dead: int = 0
    """Dead blocks, or places of such, that are not the same in both lists."""
    free: int = 0
    """Ranks whose free lists do not give the same slots in the same order."""
    stale: int = 0
    """Words of free lists that differ where they mean nothing yet."""
    unused: int = 0
    """Slots of no live block whose bytes differ."""
    dead_links: int = 0
    """Dead blocks whose links differ."""
    arenas: int = 0
    """Ranks whose arenas have another number of slots."""
    records: int = 0
    """Records of the same live blocks whose padding differs."""

    def __bool__(self) -> bool:
        return any(getattr(self, field.name) for field in fields(self))


def compare_layouts(
    before: Sequence[SavedTree], after: Sequence[SavedTree], pool: Threads
) -> Layout:
    """What differs besides the blocks, rank by rank."""
    parts = [_layout(a, b, pool) for a, b in zip(before, after, strict=True)]
    return Layout(*(sum(getattr(part, f.name) for part in parts) for f in fields(Layout)))


def _layout(a: SavedTree, b: SavedTree, pool: Threads) -> Layout:
    length = min(len(a.blocks), len(b.blocks))
    more = slice(length, None)
    live_a, live_b = a.is_live[:length], b.is_live[:length]
    dead = ~live_a & ~live_b
    same_slots = a.field_slots[:length] == b.field_slots[:length]
    same_dead = dead & same_slots & (_bytes(a)[:length] == _bytes(b)[:length])
    extra = int((~a.is_live[more]).sum() + (~b.is_live[more]).sum())
    in_a, in_b = _live_in_both(a, b)
    same_arena = len(a.free_slots) == len(b.free_slots)
    return Layout(
        order=int(not np.array_equal(np.argsort(in_a), np.argsort(in_b))),
        slots=int((a.field_slots[in_a] != b.field_slots[in_b]).sum()),
        dead=int(((~live_a | ~live_b) & ~same_dead).sum()) + extra,
        free=int(not np.array_equal(a.free, b.free)),
        stale=_stale(a, b) if same_arena else 0,
        unused=_unused(a, b, pool) if same_arena else 0,
        dead_links=_dead_links(a, b, np.flatnonzero(dead), pool),
        arenas=int(not same_arena),
        records=int((_padding(a)[in_a] != _padding(b)[in_b]).sum()),
    )


def _live_in_both(a: SavedTree, b: SavedTree) -> tuple[Array, Array]:
    """The indices of the live blocks that both have, in one order of their places."""
    live_a, live_b = np.flatnonzero(a.is_live), np.flatnonzero(b.is_live)
    places = _places(a)[live_a], _places(b)[live_b]
    _, at_a, at_b = np.intersect1d(*places, assume_unique=True, return_indices=True)
    return live_a[at_a], live_b[at_b]


def _places(tree: SavedTree) -> Array:
    """Level and origin of each block, as one value each."""
    names = ["level", *(f"origin{d}" for d in range(tree.header.nd))]
    places = np.empty(len(tree.blocks), [(name, np.uint64) for name in names])
    places["level"] = tree.blocks["level"]
    for d in range(tree.header.nd):
        places[f"origin{d}"] = tree.blocks["origin"][:, d]
    return places


def _bytes(tree: SavedTree) -> Array:
    return np.ascontiguousarray(tree.blocks).view(f"V{tree.blocks.dtype.itemsize}")


def _padding(tree: SavedTree) -> Array:
    return np.ascontiguousarray(tree.blocks["padding"]).view("V7").ravel()


def _stale(a: SavedTree, b: SavedTree) -> int:
    above = max(a.header.arena_free_count, b.header.arena_free_count)
    return int((a.free_slots[above:] != b.free_slots[above:]).sum())


def _unused(a: SavedTree, b: SavedTree, pool: Threads) -> int:
    unused = np.ones(len(a.free_slots), bool)
    for tree in (a, b):
        slots = tree.field_slots[tree.is_live]
        unused[slots[slots < len(unused)].astype(np.int64)] = False
    return _differing(a.fields, b.fields, np.flatnonzero(unused), pool)


def _dead_links(a: SavedTree, b: SavedTree, dead: Array, pool: Threads) -> int:
    if a.links is None or b.links is None or a.group != b.group:
        return 0
    return _differing(a.links, b.links, dead, pool)


def _differing(a: Items, b: Items, numbers: Array, pool: Threads) -> int:
    """How many of these items are not the same in both."""
    if not a.nbytes or not len(numbers):
        return 0
    found = compared(Pairs(a, b, numbers, numbers), _BYTE, a.nbytes, pool)
    return sum(len(apart) for apart, _ in found)


@dataclass(frozen=True)
class Pairs:
    """Which item of one tree is compared with which of another."""

    a: Items
    b: Items
    in_a: Array
    in_b: Array


@dataclass(frozen=True)
class Apart:
    """A pair that differs."""

    pair: int
    count: int
    """How many of its elements, sites or links, differ in any bit."""
    of: int
    first: int
    worst: int
    """The numbers of the first element that differs, and of the one that does most."""
    by: float


def compared(
    pairs: Pairs, dtype: np.dtype[Any], element: int, pool: Threads
) -> Iterator[tuple[list[Apart], int]]:
    """The pairs that differ, some at a time, and how many were equal by their digests.

    An element is `element` bytes long, and consists of numbers of the dtype.
    """
    order = np.argsort(pairs.in_a, kind="stable")
    sorted_a = pairs.in_a[order]
    digests = {(w.start, w.stop): w.digest for w in pairs.b.windows}

    def compare(window: Window) -> tuple[list[Apart], int]:
        chosen = order[
            np.searchsorted(sorted_a, window.start) : np.searchsorted(sorted_a, window.stop)
        ]
        known = window.digest is not None and window.digest == digests.get(window[:2])
        if known:
            moved = pairs.in_a[chosen] != pairs.in_b[chosen]
            spared = len(chosen) - int(np.count_nonzero(moved))
            chosen = chosen[moved]
        else:
            spared = 0
        found: list[Apart] = []
        step = max(1, _PIECE // max(1, pairs.a.nbytes))
        for at in range(0, len(chosen), step):
            some = chosen[at : at + step]
            x, y = _rows(pairs.a, pairs.in_a[some]), _rows(pairs.b, pairs.in_b[some])
            differ = np.flatnonzero((_words(x) != _words(y)).any(axis=1))
            if len(differ):
                found += measured(some[differ], x[differ], y[differ], dtype, element)
        return found, spared

    yield from pool.map(compare, pairs.a.windows)


def _rows(items: Items, numbers: Array) -> Array:
    """The bytes of these items, in memory of their own."""
    low, high = int(numbers.min()), int(numbers.max())
    if high - low < _NEAR * len(numbers):
        near: Array = items.read(low, high + 1)[numbers - low]
        return near
    return np.concatenate([items.read(n, n + 1) for n in numbers.tolist()])


def _words(rows: Array) -> Array:
    """The same bytes as the widest integers that fit, which are compared faster."""
    return rows.view(np.uint64) if rows.shape[1] and rows.shape[1] % 8 == 0 else rows


def measured(pairs: Array, x: Array, y: Array, dtype: np.dtype[Any], element: int) -> list[Apart]:
    """How far apart these pairs are, which all differ; x and y are their bytes."""
    of = x.shape[1] // element
    shape = (len(x), of, element)
    unequal = (x.reshape(shape) != y.reshape(shape)).any(axis=2)
    apart = distances(x.view(dtype), y.view(dtype)).reshape(len(x), of, -1).max(axis=2)
    apart[~unequal] = -1.0
    worst = apart.argmax(axis=1)
    by = apart[np.arange(len(x)), worst]
    columns = (pairs, unequal.sum(axis=1), unequal.argmax(axis=1), worst, by)
    return [
        Apart(pair, count, of, first, most, largest)
        for pair, count, first, most, largest in zip(
            *(column.tolist() for column in columns), strict=True
        )
    ]


def distances(x: Array, y: Array) -> Array:
    """How far apart numbers are; infinitely, if just one of two is no number."""
    if x.dtype.kind in "iu":
        # The modulus of the unsigned type makes the difference right whatever the signs are.
        high, low = np.maximum(x, y).astype(np.uint64), np.minimum(x, y).astype(np.uint64)
        return (high - low).astype(np.float64)
    wide = np.complex128 if x.dtype.kind == "c" else np.float64
    with np.errstate(all="ignore"):
        a, b = x.astype(wide), y.astype(wide)
        apart: Array = np.abs(a - b)
    apart[(a == b) | (np.isnan(a) & np.isnan(b))] = 0.0
    apart[np.isnan(apart)] = math.inf
    return apart
