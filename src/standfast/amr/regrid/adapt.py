"""The mesh follows the field: finer where it is steep, coarser where it is flat."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from standfast.amr.ghosts.fields import Ghosts, field_slots, fill_ghosts
from standfast.amr.ghosts.plans import jointly, partition_of
from standfast.amr.ghosts.sites import sites_of
from standfast.amr.mesh.arena import FieldArena
from standfast.amr.mesh.restriction import Field, as_boxes
from standfast.amr.regrid.criteria import Adaption, plan_adaption
from standfast.amr.regrid.regrid import bring_together, coarsen, refined
from standfast.errors import BadOption
from standfast.parallel import agree

if TYPE_CHECKING:
    from standfast.amr.mesh.tree import AMRTree

_TO_COARSER: Final = 1.5
"""From a site to the one beyond the face of a coarser block, in spacings of its own."""


@dataclass(frozen=True)
class Adapted:
    """What `adapt_mesh` did, on all ranks together."""

    refined: int
    """How many blocks gave way to their children."""
    coarsened: int
    """How many families gave way to their parent."""


def adapt_mesh(
    tree: AMRTree, arena: FieldArena, threshold: float, hysteresis: float = 0.5
) -> Adapted:
    """Refine where the gradient exceeds the threshold, coarsen where it is far below it.

    Siblings become one block if the gradients of all are below `threshold` · `hysteresis`.
    Neighbours over a face differ by one level at most then. A block changes by one level, unless
    the mesh did not satisfy that before. Collective, if the tree has a shard.
    """
    steepest = _checked(tree, threshold, hysteresis)
    ghosts = fill_ghosts(tree, arena)
    local = jointly(tree, lambda: gradients(tree, arena, ghosts))
    partition = partition_of(tree)
    everywhere = _gathered(tree, local)

    def plan() -> tuple[Adaption, str]:
        adaption = plan_adaption(
            partition.places,
            partition.owners,
            everywhere > steepest,
            everywhere < steepest * hysteresis,
            tree.max_level,
        )
        return adaption, tree.shard.kind_with(adaption.owners) if tree.shard else ""

    adaption, kind = jointly(tree, plan)
    report = Adapted(sum(map(len, adaption.refined)), len(adaption.families))
    if report == Adapted(0, 0):
        return report
    draft = jointly(tree, lambda: refined(tree, arena, adaption.refined))
    if tree.shard is not None:
        bring_together(draft, tree.shard.comm, partition, adaption.families)
    jointly(tree, lambda: coarsen(draft, partition.places, adaption.families))
    jointly(tree, draft.prepare)
    draft.commit()  # nothing has changed until here, and nothing fails from here
    if tree.shard is not None:
        tree.shard.adopt(kind, adaption.places, adaption.owners)
    return report


def gradients(tree: AMRTree, arena: FieldArena, ghosts: Ghosts) -> Any:
    """The gradient of each live block: the steepest difference between two neighbouring sites.

    Both in the block, or one beyond a face, over their distance along their dimension. Of a field
    of several components the steepest counts.
    """
    frontend = tree.frontend
    # Differences of small or unsigned numbers need more room than the numbers.
    wide = np.result_type(frontend.dtype, np.float64)
    fields = arena.storage[field_slots(tree, arena)].astype(wide)
    boxes = as_boxes(fields, frontend)
    boundary = sites_of(frontend.nd, frontend.block_size).boundary
    steepest = np.zeros(len(fields))
    with np.errstate(invalid="ignore", over="ignore"):
        for axis in range(1, frontend.nd + 1):
            steepest = np.maximum(steepest, _largest(np.diff(boxes, axis=axis)))
        for face, sites in enumerate(boundary):
            difference = _largest(ghosts.layers[:, face].astype(wide) - fields[:, sites])
            distance = np.where(ghosts.coarser[:, face], _TO_COARSER, 1.0)
            over_face = np.where(ghosts.valid[:, face], difference / distance, 0.0)
            steepest = np.maximum(steepest, over_face)
        return steepest / tree.blocks["spacing"][ghosts.blocks]


def _largest(differences: Field) -> Any:
    """The largest absolute value of each row.

    Not `np.abs` of complex numbers, whose last bit may depend on where in memory a number lies.
    """
    rows = differences.reshape(len(differences), math.prod(differences.shape[1:]))
    if np.iscomplexobj(rows):
        return np.sqrt(np.max(rows.real**2 + rows.imag**2, axis=1))
    return np.max(np.abs(rows), axis=1)


def _checked(tree: AMRTree, threshold: float, hysteresis: float) -> float:
    tree.check_idle()
    if tree.shard is not None:
        given = [repr(threshold), repr(hysteresis), tree.max_level]
        agree(tree.shard.comm, "threshold, hysteresis and max_level", given)
    if not (isinstance(threshold, int | float) and math.isfinite(threshold) and threshold >= 0):
        raise BadOption(f"threshold={threshold!r}: it is a finite number of at least 0")
    if not (isinstance(hysteresis, int | float) and 0 <= hysteresis <= 1):
        raise BadOption(f"hysteresis={hysteresis!r}: it is a number from 0 to 1")
    return float(threshold)


def _gathered(tree: AMRTree, local: Any) -> Any:
    """The gradients of the blocks of all ranks, in the order of the partition's places."""
    partition = partition_of(tree)
    if tree.shard is None:
        return local
    everywhere = np.zeros(len(partition.places))
    rows = partition.rows[partition.owners == partition.rank]
    for rank, part in enumerate(tree.shard.comm.all_gather(local[rows].tobytes())):
        everywhere[partition.owners == rank] = np.frombuffer(part)
    return everywhere
