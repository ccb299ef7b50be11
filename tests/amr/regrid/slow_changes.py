"""Changes of many blocks, done one by one: what the fast ones must equal, byte by byte."""

from __future__ import annotations

from typing import Any

import numpy as np

from standfast.amr import INVALID, GaugeTree
from standfast.amr.ghosts.places import Places
from standfast.amr.mesh.restriction import inject
from standfast.amr.regrid.adapt import gradients, plan_adaption


def adapt_slowly(tree: Any, arena: Any, threshold: float, hysteresis: float) -> None:
    """`adapt_mesh` of a tree without a shard."""
    found = gradients(tree, arena, tree.fill_ghosts(arena))
    places = Places.of(tree)
    adaption = plan_adaption(
        places,
        np.zeros(len(places), np.int64),
        found > threshold,
        found < threshold * hysteresis,
        tree.max_level,
    )
    for chosen in adaption.refined:
        for index in sorted(indices_of(tree, chosen.origins, chosen.levels)):
            refine_slowly(tree, arena, index)
    families = [
        indices_of(tree, places.origins[family], places.levels[family])
        for family in adaption.families
    ]
    for family in sorted(families, key=min):
        if not arena.free_count:
            arena.grow()
        tree.coarsen_blocks(family, arena)


def indices_of(tree: Any, origins: Any, levels: Any) -> list[int]:
    pairs = zip(origins.tolist(), levels.tolist(), strict=True)
    return [tree.find(origin, level) for origin, level in pairs]


def refine_slowly(tree: Any, arena: Any, index: int) -> None:
    """Put children in the place of a block; the first takes the slot that it gives back."""
    slot = int(tree.field_slots[index])
    fields = inject(arena.storage[slot], tree.frontend).copy()
    children = tree.refine_block(index)
    arena.free(slot)
    tree.field_slots[index] = INVALID
    for child, field in zip(children, fields, strict=True):
        if not arena.free_count:
            arena.grow()
        tree.field_slots[child] = arena.alloc()
        arena.storage[int(tree.field_slots[child])] = field


def move_slowly(tree: Any, arena: Any, dying: list[Any], coming: list[Any]) -> None:
    """Let blocks at some places die, and insert others: (place, field or None, links)."""
    indices = [tree.find(*place) for place in dying]
    freed = sum(int(tree.field_slots[index]) != INVALID for index in indices)
    while arena.free_count + freed < sum(field is not None for _, field, _ in coming):
        arena.grow()
    for index in indices:
        if tree.field_slots[index] != INVALID:
            arena.free(int(tree.field_slots[index]))
            tree.field_slots[index] = INVALID
        tree.invalidate_block(index)
    for place, field, links in coming:
        if field is None:
            index = tree.insert_block(*place)
        else:
            index = tree.insert_block_with_field(*place, arena)
            arena.storage[int(tree.field_slots[index])] = field
        if isinstance(tree, GaugeTree):
            tree.links[index] = links
