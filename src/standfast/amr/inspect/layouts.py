"""Where two saved states lie differently: slots, lists, dead blocks, free lists.

None of it is seen by who looks at fields and links alone. All of it is a part of an exact restart.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any

import numpy as np

from standfast.amr.inspect.item_pairs import Pairs, compared
from standfast.amr.inspect.items import Items
from standfast.amr.inspect.trees import SavedTree
from standfast.files.threads import Threads

Array = np.ndarray[Any, Any]
_BYTE = np.dtype(np.uint8)


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
    parts = [_compare(a, b, pool) for a, b in zip(before, after, strict=True)]
    return Layout(*(sum(getattr(part, f.name) for part in parts) for f in fields(Layout)))


def _compare(a: SavedTree, b: SavedTree, pool: Threads) -> Layout:
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
