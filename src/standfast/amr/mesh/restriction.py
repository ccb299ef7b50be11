"""Fields between levels: fine to coarse by the mean, coarse to fine by injection.

Sums are taken dimension by dimension, element by element, so that every machine gets the same
bits.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from standfast.amr.mesh.frontends import Frontend

Field = np.ndarray[Any, Any]


def restrict(children: Field, frontend: Frontend) -> Field:
    """The field of a parent, [site, …], of those of its children, [child, site, …]."""
    parent: Field = restrict_families(children[np.newaxis], frontend)[0]
    return parent


def restrict_families(children: Field, frontend: Frontend) -> Field:
    """The fields of parents, [family, site, …], of those of their children, [family, child, …]."""
    families, count = children.shape[:2]
    boxes = as_boxes(children.reshape(families * count, *children.shape[2:]), frontend)
    means = averaged(boxes, frontend.nd)
    return joined(means.reshape(families, count, *means.shape[1:]), frontend)


def inject(parent: Field, frontend: Frontend) -> Field:
    """The fields of the children, [child, site, …], of that of their parent, [site, …]."""
    nd, half = frontend.nd, frontend.block_size // 2
    box = as_boxes(parent[np.newaxis], frontend)[0]
    children = []
    for child in range(2**nd):
        # Dimension 0 is on the last of the axes of the sites.
        part = box[tuple(_half(child >> (nd - 1 - axis) & 1, half) for axis in range(nd))]
        for axis in range(nd):
            part = np.repeat(part, 2, axis=axis)
        children.append(part.reshape(parent.shape))
    return np.stack(children)


def as_boxes(fields: Field, frontend: Frontend) -> Field:
    """Fields [block, site, …] as [block, x_(nd-1), …, x_0, …]: dimension 0 is the last of these."""
    sites = (frontend.block_size,) * frontend.nd
    return fields.reshape(len(fields), *sites, *fields.shape[2:])


def averaged(boxes: Field, nd: int) -> Field:
    """Boxes of half the sites along each dimension, each the mean of the 2^nd that it covers.

    Whole numbers are rounded down.
    """
    if boxes.dtype.kind in "iu":
        # Quotients and remainders apart, because the sum may not fit into the dtype.
        quotients = _summed(boxes >> nd, nd)
        remainders = _summed((boxes & (2**nd - 1)).astype(np.int32), nd)
        quotients += (remainders >> nd).astype(boxes.dtype)
        return quotients
    wide = boxes.astype(np.float32) if boxes.dtype == np.float16 else boxes
    sums = _summed(wide, nd)
    numbers = sums.view(sums.real.dtype)  # a complex product would lose signs and infinities
    numbers *= 0.5**nd
    return sums.astype(boxes.dtype, copy=False)


def _summed(boxes: Field, nd: int) -> Field:
    """The sums of two neighbours along each dimension, in an array of their own."""
    for axis in range(1, nd + 1):
        before = (slice(None),) * axis
        boxes = boxes[(*before, slice(0, None, 2))] + boxes[(*before, slice(1, None, 2))]
    return np.ascontiguousarray(boxes)


def joined(boxes: Field, frontend: Frontend) -> Field:
    """Boxes of half a block, [family, child, x_(nd-1), …, x_0, …], as blocks [family, site, …]."""
    nd, size = frontend.nd, frontend.block_size
    half, rest = size // 2, boxes.shape[nd + 2 :]
    blocks = np.empty((len(boxes), *(size,) * nd, *rest), boxes.dtype)
    for child in range(2**nd):
        part = tuple(_half(child >> (nd - 1 - axis) & 1, half) for axis in range(nd))
        blocks[(slice(None), *part)] = boxes[:, child]
    return blocks.reshape(len(boxes), frontend.block_volume, *rest)


def _half(upper: int, half: int) -> slice:
    return slice(half, None) if upper else slice(0, half)
