"""A saved tree in numbers: its levels, slots, free list and links, and the range of its fields.

`describe` reads only the small sections, however large the arena is, and describes an unsound tree
as far as it goes, with what is wrong. `scan` reads all fields and links.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from standfast.amr.inspect.items import Items
from standfast.amr.inspect.trees import COMPLEX, SavedTree
from standfast.amr.mesh.arena import INVALID
from standfast.amr.mesh.checks import header_problems, state_problems
from standfast.errors import DamagedFile
from standfast.files.reader import Progress

Array = np.ndarray[Any, Any]

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


@dataclass(frozen=True)
class FieldRange:
    """The numbers of the live blocks' fields on one level; of complex ones, their moduli."""

    least: float
    greatest: float
    mean: float
    not_finite: int
    """How many are infinite or no numbers; the others say nothing of them."""


@dataclass(frozen=True)
class Scanned:
    """All fields and links of the live blocks were read for this."""

    of_moduli: bool
    levels: dict[int, FieldRange]
    unitarity: float | None
    """The largest |U U† − 1| of an entry of any link; None if there are no links."""


def scan(*trees: SavedTree, progress: Progress | None = None) -> Scanned:
    """Read the fields and links of all live blocks, verified; the trees are sound."""
    totals: dict[int, list[float]] = {}
    worst: float | None = None
    for tree in trees:
        for levels, fields in _fields(tree, progress):
            for level in np.unique(levels).tolist():
                _add(
                    totals.setdefault(level, [math.inf, -math.inf, 0.0, 0, 0]),
                    fields[levels == level],
                )
        if tree.links is not None:
            live = np.flatnonzero(tree.is_live)
            for rows in _chosen(tree.links, live, progress):
                worst = max(worst or 0.0, _unitarity(rows[1], tree.group))
    return Scanned(
        of_moduli=trees[0].number.kind == "c",
        levels={
            level: FieldRange(least, greatest, total / (count or 1), int(odd))
            for level, (least, greatest, total, count, odd) in sorted(totals.items())
        },
        unitarity=worst,
    )


def _fields(tree: SavedTree, progress: Progress | None) -> Iterator[tuple[Array, Array]]:
    """The fields of live blocks with their levels, some at a time."""
    blocks = np.flatnonzero(tree.is_live & (tree.field_slots != INVALID))
    blocks = blocks[np.argsort(tree.field_slots[blocks], kind="stable")]
    slots = tree.field_slots[blocks].astype(np.int64)
    done = 0
    for chosen, rows in _chosen(tree.fields, slots, progress):
        levels = tree.blocks["level"][blocks[done : done + len(chosen)]]
        done += len(chosen)
        yield levels, np.ascontiguousarray(rows).view(tree.number)


def _chosen(
    items: Items, numbers: Array, progress: Progress | None
) -> Iterator[tuple[Array, Array]]:
    """These items, which are in order, and their bytes, a window at a time."""
    for start, stop, _ in items.windows:
        chosen = numbers[np.searchsorted(numbers, start) : np.searchsorted(numbers, stop)]
        if len(chosen):
            rows = items.read(start, stop)
            if progress:
                progress(rows.nbytes)
            yield chosen, rows[chosen - start]


def _add(totals: list[float], fields: Array) -> None:
    with np.errstate(all="ignore"):
        numbers = np.abs(fields) if fields.dtype.kind == "c" else fields
        finite = np.isfinite(numbers)
        totals[4] += int(numbers.size - np.count_nonzero(finite))
        numbers = numbers[finite]
        if numbers.size:
            totals[0] = min(totals[0], float(numbers.min()))
            totals[1] = max(totals[1], float(numbers.max()))
            totals[2] += float(numbers.sum(dtype=np.float64))
            totals[3] += numbers.size


def _unitarity(rows: Array, group: int) -> float:
    links = np.ascontiguousarray(rows).view(COMPLEX).reshape(-1, group, group)
    with np.errstate(all="ignore"):
        product = links @ links.conj().transpose(0, 2, 1)
        apart = float(np.abs(product - np.eye(group)).max(initial=0.0))
    return math.inf if math.isnan(apart) else apart
