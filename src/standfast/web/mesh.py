"""A tree of blocks as numbers for a picture: where its blocks are, and the field in them."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from typing import Any, Final

import numpy as np

from standfast.amr.inspect.description import check, describe
from standfast.amr.inspect.items import Items
from standfast.amr.inspect.trees import COMPLEX, SavedTree, opened, tree_in_file
from standfast.amr.mesh.arena import INVALID
from standfast.errors import BadOption, BlockNotFound
from standfast.store import Checkpoint
from standfast.tensorfile.open import TensorFile

Array = np.ndarray[Any, Any]
Tree = TensorFile | Checkpoint
"""An open `.sunc` file, or a snapshot of a store."""

MOST_BLOCKS: Final = 20_000
"""Of more blocks the coarsest are told of."""
_FIELDS: Final = 128 << 20
_LINKS: Final = 64 << 20
"""So many bytes of fields, and of links, are read for a picture of all blocks."""
_BLOCK: Final = 256 << 20
"""A field of one block that is larger than this is not read."""
_SITES: Final = 64
"""Sites of a plane along each of its sides; of more, the means of some."""


@dataclass(frozen=True)
class _Blocks:
    """The live blocks of all ranks, in the order of ranks and lists."""

    trees: Sequence[SavedTree]
    ranks: Array
    """The rank of each, and below the position in the list of that rank's tree."""
    positions: Array
    levels: Array
    origins: Array
    """In the units of the spacing."""
    lengths: Array
    """Of the sides of each: blocks are as long along all dimensions."""

    def told(self, number: int) -> dict[str, Any]:
        length = float(self.lengths[number])
        return {
            "block": number,
            "rank": int(self.ranks[number]),
            "level": int(self.levels[number]),
            "origin": self.origins[number].tolist(),
            "size": [length] * self.origins.shape[1],
        }


def blocks(what: Tree, component: int = 0) -> dict[str, Any]:
    """The live blocks with their places, and the mean of the field in each.

    Places are in the units of the spacing. At most 20,000 blocks are told of, the coarsest, and
    128 MiB of fields and 64 MiB of links are read, evenly spread: where nothing was read, `mean`
    and `unitarity` are None. Of complex fields it is the modulus.
    """
    with _opened(what) as trees:
        found = _live(trees)
        total = len(found.levels)
        shown = np.argsort(found.levels, kind="stable")[:MOST_BLOCKS]
        components = _components(trees[0], component)
        means, low, high = _means(found, shown, component)
        unitarity = _unitarity(found, shown)
        ends = found.origins + found.lengths[:, np.newaxis]
        low_ends = found.origins.min(axis=0).tolist() if total else []
        high_ends = ends.max(axis=0).tolist() if total else []
        return {
            "dims": trees[0].header.nd,
            "block_size": trees[0].header.block_size,
            "ranks": len(trees),
            "bounds": [list(pair) for pair in zip(low_ends, high_ends, strict=True)],
            "blocks": [
                {**found.told(n), "mean": means.get(n), "unitarity": unitarity.get(n)}
                for n in shown.tolist()
            ],
            "field": {
                "min": low,
                "max": high,
                "of": _of(trees[0]),
                "dtype": trees[0].number.name,
                "component": component,
                "components": components,
                "blocks": len(means),
            },
            "blocks_total": total,
        }


def field(what: Tree, block: int, component: int = 0) -> dict[str, Any]:
    """The field of one block, by its number in `blocks`: rows along dimension 1 of sites along 0.

    Of more dimensions it is a plane through the middle, which `plane` tells of.
    """
    with _opened(what) as trees:
        found = _live(trees)
        if not 0 <= block < len(found.levels):
            raise BlockNotFound(f"there is no block {block:,} among {len(found.levels):,}")
        tree = trees[int(found.ranks[block])]
        components = _components(tree, component)
        values = _sites(tree, int(found.positions[block]), component)
        reduced = None
        plane: list[dict[str, Any]] = []
        if values is not None:
            values, plane = _plane(values, found, block)
            side = values.shape[-1]
            if side > _SITES:
                values, reduced = _reduced(values, side // _SITES), "mean"
        shown = [] if values is None else values.tolist()
        finite = [v for row in shown for v in row if math.isfinite(v)]
        return {
            **found.told(block),
            "rows": len(shown),
            "columns": len(shown[0]) if shown else 0,
            "values": [[v if math.isfinite(v) else None for v in row] for row in shown],
            "min": min(finite, default=None),
            "max": max(finite, default=None),
            "of": _of(tree),
            "reduced": reduced,
            "plane": plane,
            "component": component,
            "components": components,
        }


def tree_json(file: TensorFile) -> dict[str, Any]:
    """The tree in an open file, as `standfast show --json` tells of it."""
    tree = tree_in_file(file)
    found = asdict(describe(tree))
    return {**found, "fields": None, "ranks": [{"rank": 0, **found}], "simulation": None}


@contextmanager
def _opened(what: Tree) -> Iterator[Sequence[SavedTree]]:
    """The trees of all ranks, which are sound; raises BadOption for what has none."""
    if isinstance(what, TensorFile):
        tree = tree_in_file(what)  # the file that is open, whatever its path leads to by now
        check(tree)
        yield [tree]
        return
    with opened(what) as state:
        for tree in state.trees:
            check(tree)
        yield state.trees


def _live(trees: Sequence[SavedTree]) -> _Blocks:
    header = trees[0].header
    positions = [np.flatnonzero(tree.is_live) for tree in trees]
    records = [tree.blocks[live] for tree, live in zip(trees, positions, strict=True)]
    levels = np.concatenate([each["level"] for each in records]).astype(np.int64)
    spacings = header.base_spacing / 2.0**levels
    origins = np.concatenate([each["origin"] for each in records]).astype(np.float64)
    return _Blocks(
        trees=trees,
        ranks=np.repeat(np.arange(len(trees)), [len(each) for each in positions]),
        positions=np.concatenate(positions),
        levels=levels,
        origins=origins.reshape(len(levels), header.nd) * spacings[:, np.newaxis],
        lengths=spacings * header.block_size,
    )


def _components(tree: SavedTree, component: int) -> int:
    """How many numbers a field has at one site; raises BadOption if it has not this one."""
    count = max(1, tree.header.field_bytes // tree.number.itemsize)
    if not 0 <= component < count:
        raise BadOption(f"component={component}: the field of a site has {count}, counted from 0")
    return count


def _of(tree: SavedTree) -> str:
    return "modulus" if tree.number.kind == "c" else "value"


def _numbers(tree: SavedTree, rows: Array, component: int) -> Array:
    """One component of some fields, [field, site], as real numbers."""
    width = tree.number.itemsize
    if not tree.header.field_bytes:
        return np.zeros((len(rows), 0))
    sites = np.ascontiguousarray(rows).reshape(len(rows), -1, tree.header.field_bytes)
    one = np.ascontiguousarray(sites[..., component * width : (component + 1) * width])
    with np.errstate(all="ignore"):
        found = one.view(tree.number)[..., 0]
        return np.asarray(np.abs(found) if found.dtype.kind == "c" else found, np.float64)


def _means(
    found: _Blocks, shown: Array, component: int
) -> tuple[dict[int, float | None], float | None, float | None]:
    """The mean in each block that was read, and the range of all that was read."""
    means: dict[int, float | None] = {}
    low, high = math.inf, -math.inf
    for rank, tree in enumerate(found.trees):
        chosen = shown[found.ranks[shown] == rank]
        slots = tree.field_slots[found.positions[chosen]]
        chosen, slots = chosen[slots != INVALID], slots[slots != INVALID].astype(np.int64)
        share = _FIELDS // len(found.trees)
        for numbers, rows in _read(tree.fields, chosen, slots, share):
            values = _numbers(tree, rows, component)
            finite = values[np.isfinite(values)]
            low, high = min(low, finite.min(initial=low)), max(high, finite.max(initial=high))
            if values.shape[1]:
                with np.errstate(all="ignore"):
                    each = values.mean(axis=1).tolist()
                means |= {
                    number: mean if math.isfinite(mean) else None
                    for number, mean in zip(numbers.tolist(), each, strict=True)
                }
    is_known = math.isfinite(low)
    return means, float(low) if is_known else None, float(high) if is_known else None


def _unitarity(found: _Blocks, shown: Array) -> dict[int, float | None]:
    """By how much the links of each block fail to be unitary: the largest |U U† − 1| of them."""
    apart: dict[int, float | None] = {}
    for rank, tree in enumerate(found.trees):
        if tree.links is None:
            continue
        chosen = shown[found.ranks[shown] == rank]
        share = _LINKS // len(found.trees)
        for numbers, rows in _read(tree.links, chosen, found.positions[chosen], share):
            links = np.ascontiguousarray(rows).view(COMPLEX)
            links = links.reshape(len(rows), -1, tree.group, tree.group)
            with np.errstate(all="ignore"):
                product = links @ links.conj().swapaxes(2, 3)
                largest = np.abs(product - np.eye(tree.group)).max(axis=(1, 2, 3), initial=0.0)
            apart |= {
                number: value if math.isfinite(value) else None
                for number, value in zip(numbers.tolist(), largest.tolist(), strict=True)
            }
    return apart


def _read(items: Items, numbers: Array, places: Array, most: int) -> Iterator[tuple[Array, Array]]:
    """The bytes of items for some blocks, window by window; beyond `most`, of some windows."""
    order = np.argsort(places, kind="stable")
    numbers, places = numbers[order], places[order]
    wanted = []
    for start, stop, _ in items.windows:
        first, last = np.searchsorted(places, (start, stop)).tolist()
        if first < last:
            wanted.append((start, stop, first, last))
    sizes = sum((stop - start) * items.nbytes for start, stop, _, _ in wanted)
    if sizes > most:
        each = max(1, sizes // len(wanted))
        count = min(len(wanted), max(1, most // each)) if each <= most else 0
        wanted = [wanted[(2 * i + 1) * len(wanted) // (2 * count)] for i in range(count)]
    for start, stop, first, last in wanted:
        yield numbers[first:last], items.read(start, stop)[places[first:last] - start]


def _sites(tree: SavedTree, position: int, component: int) -> Array | None:
    """The field of a block, [x_(nd−1), …, x_0]; None if it has none."""
    slot = int(tree.field_slots[position])
    if slot == INVALID or not tree.header.field_bytes:
        return None
    if tree.fields.nbytes > _BLOCK:
        raise BadOption(f"the field of a block has {tree.fields.nbytes:,} bytes: too many to show")
    values = _numbers(tree, tree.fields.read(slot, slot + 1), component)
    return values.reshape((tree.header.block_size,) * tree.header.nd)


def _plane(values: Array, found: _Blocks, block: int) -> tuple[Array, list[dict[str, Any]]]:
    """The last two dimensions, which are 1 and 0, in the middle of all others."""
    nd, size = values.ndim, values.shape[-1]
    spacing = float(found.lengths[block]) / size
    plane = [
        {
            "dimension": d,
            "site": size // 2,
            "at": float(found.origins[block][d]) + (size // 2 + 0.5) * spacing,
        }
        for d in range(2, nd)
    ]
    return values[(size // 2,) * max(0, nd - 2)].reshape(-1, size), plane


def _reduced(values: Array, step: int) -> Array:
    """The means of squares of sites, or of stretches of a row."""
    height = step if values.shape[0] > 1 else 1
    cells = values.reshape(values.shape[0] // height, height, -1, step)
    with np.errstate(all="ignore"):
        return np.asarray(cells.mean(axis=(1, 3)))
