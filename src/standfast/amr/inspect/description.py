"""What there is to tell of a saved tree: its levels, slots, free list and links.

Only the small sections are looked at, however large the arena is. An unsound tree is described as
far as it goes, with what is wrong.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from standfast.amr.inspect.trees import SavedTree
from standfast.amr.mesh.arena import INVALID
from standfast.amr.mesh.checks import header_problems, state_problems
from standfast.errors import DamagedFile

_NEXT: Final = 8
"""So many of the slots that will be taken next are named."""
_GROUPS: Final = {1: "U(1)", 2: "SU(2)", 3: "SU(3)"}


@dataclass(frozen=True)
class Level:
    """The blocks of one level."""

    level: int
    spacing: float
    """The distance of two sites, as the tree's base spacing gives it."""
    live: int
    dead: int
    with_field: int
    """How many of the live ones have a slot."""
    sites: int
    """Those of the live blocks."""
    share: float
    """The part of all live blocks' volume that is theirs."""


@dataclass(frozen=True)
class Slots:
    """What the slots of an arena are used for; each is counted once."""

    total: int
    taken: int
    """Named by a live block."""
    free: int
    """On the free list, and of no live block."""
    dead: int
    """Named by dead blocks alone, and not free: kept until the tree is reordered."""
    lost: int
    """Neither named nor free, as after a reorder."""
    next: tuple[int, ...]
    """The free slots that will be taken next, in this order; of one arena alone."""


@dataclass(frozen=True)
class Links:
    """The links of a tree."""

    group: int
    """The N of N × N matrices."""
    name: str
    per_block: int
    live: int
    """Those of the live blocks."""
    dead: int


@dataclass(frozen=True)
class Described:
    """A tree, or the trees of several ranks in sum."""

    blocks: int
    """How many stand in the list, dead ones too."""
    live: int
    levels: tuple[Level, ...]
    slots: Slots
    links: Links | None
    problems: tuple[str, ...]
    """What no tree has that a program saved."""


def group_name(group: int) -> str:
    """What physicists call it: U(1), SU(2), SU(3), 4×4."""
    return _GROUPS.get(group, f"{group}×{group}")


def describe(*trees: SavedTree) -> Described:
    """What there is to tell of one tree, or of those of all ranks in sum."""
    live = sum(int(np.count_nonzero(tree.is_live)) for tree in trees)
    blocks = sum(len(tree.blocks) for tree in trees)
    alone = len(trees) == 1
    return Described(
        blocks=blocks,
        live=live,
        levels=_levels(trees),
        slots=_sum([_slots(tree) for tree in trees]),
        links=_links(trees[0], live, blocks - live) if trees[0].group else None,
        problems=tuple(
            str(problem) if alone else f"{tree.label}: {problem}"
            for tree in trees
            for problem in problems(tree)
        ),
    )


def _links(tree: SavedTree, live: int, dead: int) -> Links:
    per_block = tree.header.block_volume * tree.header.nd
    return Links(tree.group, group_name(tree.group), per_block, live * per_block, dead * per_block)


def check(tree: SavedTree) -> None:
    """Raise what is wrong with a tree first, a DamagedFile that says which tree it is."""
    for problem in problems(tree):
        problem.args = (f"{tree.label}: {problem}", *problem.args[1:])
        raise problem


def problems(tree: SavedTree) -> Iterator[DamagedFile]:
    """What is wrong with a tree, the first of each kind."""
    header = tree.header
    geometry = header.base_spacing, header.bits_per_dim
    yield from header_problems(header.nd, *geometry, header.max_level)
    yield from state_problems(
        *(header.block_size, *geometry),
        *(tree.blocks, tree.field_slots, tree.free_slots),
        *(header.arena_free_count, header.arena_max_blocks),
    )


def _levels(trees: Sequence[SavedTree]) -> tuple[Level, ...]:
    live, dead, with_field = (np.zeros(256, np.int64) for _ in range(3))
    for tree in trees:
        is_live = tree.is_live
        has_field = is_live & (tree.field_slots != INVALID)
        for counts, chosen in ((live, is_live), (dead, ~is_live), (with_field, has_field)):
            counts += np.bincount(tree.blocks["level"][chosen], minlength=256)
    header = trees[0].header
    volumes = live * 2.0 ** (-header.nd * np.arange(256))
    shares = volumes / (volumes.sum() or 1.0)
    return tuple(
        Level(
            level=level,
            spacing=header.base_spacing / 2**level,
            live=int(live[level]),
            dead=int(dead[level]),
            with_field=int(with_field[level]),
            sites=int(live[level]) * header.block_volume,
            share=float(shares[level]),
        )
        for level in np.flatnonzero(live + dead).tolist()
    )


def _slots(tree: SavedTree) -> Slots:
    """Each slot once; what lies outside of the arena is not counted, and told as a problem."""
    total, live = tree.header.arena_max_blocks, tree.is_live
    use = np.zeros(total, np.uint8)
    for mark, slots in ((3, tree.field_slots[~live]), (2, tree.free), (1, tree.field_slots[live])):
        use[slots[slots < total].astype(np.int64)] = mark
    lost, taken, free, dead = np.bincount(use, minlength=4).tolist()
    coming = tuple(tree.free[::-1][:_NEXT].tolist())
    return Slots(total, taken, free, dead, lost, coming)


def _sum(parts: Sequence[Slots]) -> Slots:
    """What is next is said of one arena alone."""
    counts = ("total", "taken", "free", "dead", "lost")
    sums = {name: sum(getattr(part, name) for part in parts) for name in counts}
    return Slots(**sums, next=parts[0].next if len(parts) == 1 else ())
