"""Which block lies beyond which face of which, for all blocks at once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from standfast.amr.ghosts.places import NOWHERE, Indices, Mask, Places
from standfast.amr.ghosts.sites import sites_of


@dataclass(frozen=True)
class Pieces:
    """Pieces of layers, each from a source block to a face of a target block.

    `part` says which part: of a coarser source 1 + the number of the child that would lie there,
    0 of one of the same level; of a finer source the quarter of the target's face that it meets.
    """

    target: Indices
    face: Indices
    source: Indices
    part: Indices

    def __len__(self) -> int:
        return len(self.target)

    def where(self, mask: Mask) -> Pieces:
        """Some of them, in their order."""
        return Pieces(self.target[mask], self.face[mask], self.source[mask], self.part[mask])

    def renumbered(self, rows: Indices) -> Pieces:
        """The same, with `rows[block]` for each block."""
        return Pieces(rows[self.target], self.face, rows[self.source], self.part)


@dataclass(frozen=True)
class Neighbours:
    """What lies beyond the faces of all blocks."""

    copies: Pieces
    """From neighbours of the same level or the next coarser, whole faces."""
    means: Pieces
    """From neighbours of the next finer level, quarters of faces."""


def find_neighbours(places: Places) -> Neighbours:
    """The neighbours of all blocks, each of the same level or one from it.

    A face has none at an open border, beside a hole, and beside blocks that are finer or coarser
    by more than one level, or leave a part of the face bare.
    """
    copies, means = [], []
    for level in places.present():
        blocks = places.at(level)
        for face in range(2 * places.frontend.nd):
            origins, inside = places.beside(blocks, level, face_step(places.frontend.nd, face))
            rest, origins = blocks[inside], origins[inside]
            found = places.find(origins, level)
            copies.append(_pieces(rest, face, found, np.zeros_like(found)))
            rest, origins = rest[found == NOWHERE], origins[found == NOWHERE]
            found = places.find(places.parents(origins), level - 1)
            copies.append(_pieces(rest, face, found, 1 + places.child_numbers(origins)))
            rest, origins = rest[found == NOWHERE], origins[found == NOWHERE]
            means.append(_finer(places, rest, face, origins, level + 1))
    return Neighbours(_joined(copies), _joined(means))


def face_step(nd: int, face: int) -> tuple[int, ...]:
    """How many blocks along each dimension the neighbour beyond a face is away."""
    step = [0] * nd
    step[face // 2] = -1 if face % 2 else 1
    return tuple(step)


def beside_finer(places: Places, least: int) -> Indices:
    """The blocks that have, over a face, a neighbour finer by `least` levels or more."""
    found = [np.zeros(0, np.int64)]
    for level in places.present():
        if level < least:
            continue
        blocks = places.at(level)
        for face in range(2 * places.frontend.nd):
            origins, inside = places.beside(blocks, level, face_step(places.frontend.nd, face))
            ancestors = origins[inside]
            for coarser in range(1, level + 1):
                ancestors = places.parents(ancestors)
                if coarser >= least:
                    found.append(places.find(ancestors, level - coarser))
    every = np.unique(np.concatenate(found))
    finer: Indices = every[every != NOWHERE]
    return finer


def _finer(places: Places, blocks: Indices, face: int, origins: Indices, level: int) -> Pieces:
    frontend = places.frontend
    meeting = sites_of(frontend.nd, frontend.block_size).quarter_children[face]
    children = places.children(origins)[:, meeting]
    found = places.find(children.reshape(-1, frontend.nd), level).reshape(children.shape[:2])
    whole = np.all(found != NOWHERE, axis=1)
    count = len(meeting)
    quarters = np.tile(np.arange(count), int(whole.sum()))
    return _pieces(np.repeat(blocks[whole], count), face, found[whole].ravel(), quarters)


def _pieces(target: Indices, face: int, source: Indices, part: Indices) -> Pieces:
    everything = Pieces(target, np.full(len(target), face, np.int64), source, part)
    return everything.where(source != NOWHERE)


def _joined(parts: Sequence[Pieces]) -> Pieces:
    nothing = np.zeros(0, np.int64)
    return Pieces(
        *(
            np.concatenate([nothing, *(getattr(part, name) for part in parts)])
            for name in ("target", "face", "source", "part")
        )
    )
