"""All fields updated at once: what a kernel makes of them is written when all of it is made."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from standfast.amr.ghosts.fields import Ghosts, field_slots, fill_ghosts
from standfast.amr.ghosts.plans import jointly
from standfast.amr.ghosts.sites import sites_of
from standfast.amr.mesh.arena import FieldArena
from standfast.amr.mesh.frontends import Frontend
from standfast.amr.mesh.patch import Patch
from standfast.amr.mesh.restriction import Field
from standfast.errors import BadOption

if TYPE_CHECKING:
    from standfast.amr.mesh.tree import AMRTree

Kernel = Callable[[Patch], Any]
Outside = complex | Sequence[complex] | Field | None
"""The field beyond a border: a number, or one for each component; None continues the border's."""


def apply(tree: AMRTree, kernel: Kernel, arena: FieldArena, outside: Outside = 0.0) -> None:
    """Put what the kernel returns for each level into the arena; collective, with a shard.

    It is called once for each level that this rank has, from the coarsest. If it fails on a rank,
    no field changes on any.
    """
    ghosts = fill_ghosts(tree, arena)

    def compute() -> list[tuple[Any, Field]]:
        with tree.applying():
            slots = field_slots(tree, arena)
            return [
                (slots[rows], _result(kernel(patch), patch))
                for rows, patch in _patches(tree, arena, slots, ghosts, outside)
            ]

    for slots, values in jointly(tree, compute):
        arena.storage[slots] = values.reshape(len(slots), *arena.storage.shape[1:])


def _patches(
    tree: AMRTree, arena: FieldArena, slots: Any, ghosts: Ghosts, outside: Any
) -> Iterator[tuple[Any, Patch]]:
    """A patch for each level, and the rows of its blocks."""
    records = tree.blocks[ghosts.blocks]
    beyond = None if outside is None else _beyond(outside, tree.frontend)
    for level in np.unique(records["level"]).tolist():
        rows = np.flatnonzero(records["level"] == level)
        fields = arena.storage[slots[rows]]
        layers = ghosts.layers[rows]
        boundary = sites_of(tree.frontend.nd, tree.frontend.block_size).boundary
        for face, sites in enumerate(boundary):
            bare = ~ghosts.valid[rows, face]
            layers[bare, face] = fields[bare][:, sites] if beyond is None else beyond
        blocks, origins = ghosts.blocks[rows], records["origin"][rows].astype(np.int64)
        yield (
            rows,
            Patch(tree.frontend, level, tree.spacing(level), blocks, origins, fields, layers),
        )


def _beyond(outside: Any, frontend: Frontend) -> Any:
    """The field beyond a border in the field's own type."""
    dtype, shape = frontend.dtype, frontend.field_shape
    value = np.asarray(outside)
    if value.shape not in ((), shape):
        raise BadOption(f"outside={outside!r}: expected a number, or the {shape} of a site")
    fits = value.dtype.kind in "biufc" and (dtype.kind == "c" or value.dtype.kind != "c")
    if not fits or (dtype.kind in "iu" and np.any(value != np.floor(value))):
        raise BadOption(f"outside={outside!r}: the field is of {dtype.name}")
    return value.astype(dtype)


def _result(result: Any, patch: Patch) -> Field:
    wanted = patch.field
    if not isinstance(result, np.ndarray):
        found = type(result).__name__
    elif result.shape != wanted.shape or result.dtype != wanted.dtype:
        found = f"{result.dtype} {result.shape}"
    else:
        return result
    raise BadOption(
        f"the kernel returned {found} for level {patch.level}: expected the new field, "
        f"{wanted.dtype} {wanted.shape}"
    )
