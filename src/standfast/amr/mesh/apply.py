"""Kernels: what they get, and how all fields are updated at once.

What a kernel returns is written when it has returned for all levels.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from standfast.amr.ghosts.fields import Ghosts, field_slots, fill_ghosts
from standfast.amr.ghosts.places import Indices
from standfast.amr.ghosts.plans import jointly
from standfast.amr.ghosts.sites import sites_of
from standfast.amr.mesh.arena import FieldArena
from standfast.amr.mesh.frontends import Frontend
from standfast.amr.mesh.restriction import Field, as_boxes
from standfast.errors import BadOption

if TYPE_CHECKING:
    from standfast.amr.mesh.tree import AMRTree


class Patch:
    """The blocks of one level that one rank has, as arrays.

    >>> def diffuse(patch):
    ...     around = sum(patch.shifted(d, s) for d in range(2) for s in (+1, -1))
    ...     return patch.field + 0.1 * (around - 4 * patch.field)
    """

    def __init__(
        self,
        frontend: Frontend,
        level: int,
        spacing: float,
        blocks: Indices,
        origins: Indices,
        fields: Field,
        layers: Field,
    ) -> None:
        self.nd: Final = frontend.nd
        self.level: Final = level
        self.spacing: Final = spacing
        """The distance of two sites."""
        self.blocks: Final = blocks
        """The indices of the blocks in the tree's list."""
        self.field: Final = as_boxes(fields, frontend)
        """[block, x_(nd-1), …, x_0, component]: dimension 0 is on the last axis of the sites.

        It cannot be written to: the new field is what the kernel returns.
        """
        self.field.flags.writeable = False
        self._origins = origins
        self._field_axes = len(frontend.field_shape)
        face = (frontend.block_size,) * (frontend.nd - 1)
        self._layers = layers.reshape(*layers.shape[:2], *face, *frontend.field_shape)

    def shifted(self, d: int, step: int) -> Field:
        """At each site the field of its neighbour along dimension `d`, the next or the one before.

        At the faces of a block these are its ghosts.
        """
        axis = self._axis(d)
        if step not in (1, -1):
            raise BadOption(f"step={step!r}: a site has a neighbour at +1 and at -1")
        layer = np.expand_dims(self._layers[:, 2 * d + (step < 0)], axis)
        inner = (slice(None),) * axis
        if step > 0:
            return np.concatenate((self.field[(*inner, slice(1, None))], layer), axis)
        return np.concatenate((layer, self.field[(*inner, slice(0, -1))]), axis)

    def positions(self, d: int) -> Field:
        """Where the sites are along dimension `d`, in units of space, to be used with `field`.

        A site is in the middle of its cell: site 0 of the box is half a spacing from its border.
        """
        axis = self._axis(d)
        size = self.field.shape[axis]
        along = self._origins[:, d, np.newaxis] + np.arange(size) + 0.5
        shape = [len(along)] + [1] * (self.nd + self._field_axes)
        shape[axis] = size
        return (along * self.spacing).reshape(shape)

    def _axis(self, d: int) -> int:
        if not 0 <= d < self.nd:
            raise BadOption(f"d={d!r}: the dimensions are 0 to {self.nd - 1}")
        return self.nd - d


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
    if fits and dtype.kind in "iu":
        least, most = np.iinfo(dtype).min, np.iinfo(dtype).max
        # As numbers of Python, which compare exactly: 2.0**63 is not within int64.
        fits = all(least <= each <= most and each % 1 == 0 for each in value.ravel().tolist())
    with np.errstate(over="ignore", invalid="ignore"):
        beyond = value.astype(dtype) if fits else None
    if beyond is None or np.any(np.isfinite(beyond) != np.isfinite(value)):
        raise BadOption(f"outside={outside!r}: the field is of {dtype.name}, which cannot hold it")
    return beyond


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
