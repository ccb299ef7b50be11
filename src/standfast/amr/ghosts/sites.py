"""Which sites of a block lie at its faces, and which sites of another level they meet.

A face is numbered +d0, −d0, +d1, …; the sites of a face run over the other dimensions, the lowest
fastest, as the sites of a block do over all.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from standfast.amr.ghosts.places import Indices


@dataclass(frozen=True)
class Sites:
    """Tables of the sites of a block, the same for all blocks of a size."""

    boundary: Indices
    """[face, site of the face]: the sites of a block that lie at its faces."""
    across: Indices
    """[same or coarser, face, site of the face]: the neighbour's sites beyond a face.

    Of a coarser neighbour these are in its first corner; `part_offsets` leads to the others.
    """
    part_offsets: Indices
    """[1 + part]: from a coarser block's first corner to its part of this number; 0 to itself."""
    pairs: Indices
    """[face, site of half a face, corner]: the finer sites that one site beyond a face covers."""
    quarters: Indices
    """[quarter, site of half a face]: the sites of a face that a finer neighbour meets."""
    quarter_children: Indices
    """[face, quarter]: which child of the place beyond a face meets that quarter."""
    halved: Indices
    """[site]: the site of the parent that covers it, if the block is its first child."""


@lru_cache(maxsize=16)
def sites_of(nd: int, size: int) -> Sites:
    """The tables of a block of `nd` dimensions with `size` sites along each."""
    half = size // 2
    strides = size ** np.arange(nd, dtype=np.int64)
    child_bits = np.arange(2**nd)[:, np.newaxis] >> np.arange(nd) & 1
    halved = coordinates(nd, size) // 2 @ strides
    boundary, pairs, quarter_children = [], [], []
    for face in range(2 * nd):
        d, minus = divmod(face, 2)
        others = np.delete(np.arange(nd), d)
        edge = 0 if minus else size - 1
        boundary.append(coordinates(nd - 1, size) @ strides[others] + edge * strides[d])
        first = size - 2 if minus else 0
        lowest = 2 * coordinates(nd - 1, half) @ strides[others] + first * strides[d]
        pairs.append(lowest[:, np.newaxis] + child_bits @ strides)
        quarter_bits = coordinates(nd - 1, 2)
        quarter_children.append(quarter_bits @ (1 << others) + minus * (1 << d))
    across = np.array([boundary[face ^ 1] for face in range(2 * nd)])
    face_strides = size ** np.arange(nd - 1, dtype=np.int64)
    half_face = coordinates(nd - 1, half) @ face_strides
    quarter_corners = half * coordinates(nd - 1, 2) @ face_strides
    return Sites(
        boundary=np.array(boundary),
        across=np.stack((across, halved[across])),
        part_offsets=np.concatenate(([0], half * child_bits @ strides)),
        pairs=np.array(pairs),
        quarters=quarter_corners[:, np.newaxis] + half_face,
        quarter_children=np.array(quarter_children),
        halved=halved,
    )


def coordinates(nd: int, size: int) -> Indices:
    """The coordinates of the sites of a box, [site, dimension], dimension 0 fastest."""
    sites = np.arange(size**nd, dtype=np.int64)
    return sites[:, np.newaxis] // size ** np.arange(nd, dtype=np.int64) % size
