"""What a kernel gets: all blocks of a level, with the sites around them."""

from __future__ import annotations

from typing import Final

import numpy as np

from standfast.amr.ghosts.places import Indices
from standfast.amr.mesh.frontends import Frontend
from standfast.amr.mesh.restriction import Field, as_boxes
from standfast.errors import BadOption


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
