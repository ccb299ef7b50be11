"""The mesh follows the field: finer where it is steep, coarser where it is flat.

What is refined and coarsened is planned first. It follows from places and gradients alone, so all
ranks, which have both of all blocks, make the same plan, however blocks are shared out. Then it is
drafted, and committed at once.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from standfast.amr.ghosts.fields import Ghosts, field_slots, fill_ghosts
from standfast.amr.ghosts.neighbours import beside_finer
from standfast.amr.ghosts.places import NOWHERE, Indices, Places
from standfast.amr.ghosts.plans import Partition, jointly, partition_of
from standfast.amr.ghosts.sites import sites_of
from standfast.amr.mesh.arena import FieldArena
from standfast.amr.mesh.restriction import Field, as_boxes, restrict_families
from standfast.amr.migration import carry
from standfast.amr.regrid.draft import Draft
from standfast.errors import BadBlock, BadOption, MaxRefinementExceeded
from standfast.parallel import Communicator, agree

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


@dataclass(frozen=True)
class Adaption:
    """What to do with a mesh, and what it is then."""

    refined: list[Places]
    """The blocks that each pass refines."""
    families: Indices
    """[family, child]: siblings that become their parent, as they were numbered at the start."""
    places: Places
    """Where the blocks are then, sorted by key."""
    owners: Indices


@dataclass(frozen=True)
class _Mesh:
    """A mesh on its way: for each block its owner, and its number at the start, if it had one."""

    places: Places
    owners: Indices
    start: Indices

    def refined(self, chosen: Indices) -> _Mesh:
        """The chosen blocks give way to their children."""
        children = self.places.children(self.places.origins[chosen])
        count = children.shape[1]
        return self._replaced(
            chosen,
            children.reshape(-1, children.shape[2]),
            np.repeat(self.places.levels[chosen] + 1, count),
            np.repeat(self.owners[chosen], count),
        )

    def coarsened(self, families: Indices) -> _Mesh:
        """Families give way to their parents, whose owner is that of the first child."""
        first = families[:, 0]
        return self._replaced(
            families.ravel(),
            self.places.parents(self.places.origins[first]),
            self.places.levels[first] - 1,
            self.owners[first],
        )

    def _replaced(self, gone: Indices, origins: Any, levels: Any, owners: Any) -> _Mesh:
        stays = np.ones(len(self.places), bool)
        stays[gone] = False
        places = self.places.like(
            np.concatenate((self.places.origins[stays], origins)),
            np.concatenate((self.places.levels[stays], levels)),
        )
        new = np.full(len(levels), NOWHERE)
        return _Mesh(
            places,
            np.concatenate((self.owners[stays], owners)),
            np.concatenate((self.start[stays], new)),
        )


def plan_adaption(
    places: Places, owners: Indices, steep: Any, flat: Any, max_level: int
) -> Adaption:
    """Refine what is steep, then what is next to much finer blocks; coarsen what is flat.

    A block is refined because of its own field once at most. Raises BadBlock for blocks that lie
    in others, and for children that the keys of the tree have no room for.
    """
    _refuse_overlaps(places)
    mesh = _Mesh(places, owners, np.arange(len(places)))
    refined = []
    chosen = np.flatnonzero(steep & (places.levels < max_level))
    while True:
        if len(chosen):
            parents = mesh.places.like(mesh.places.origins[chosen], mesh.places.levels[chosen])
            _refuse_misfits(parents)
            refined.append(parents)
            mesh = mesh.refined(chosen)
        chosen = beside_finer(mesh.places, 2)
        if not len(chosen):
            break
    families = []
    # From the finest: what becomes coarser there may let its neighbours become coarser.
    for level in reversed(places.present()):
        found = _families(mesh, level, flat)
        families.append(mesh.start[found])
        mesh = mesh.coarsened(found)
    children = np.zeros((0, 2**places.frontend.nd), np.int64)
    order = mesh.places.order()
    return Adaption(
        refined,
        np.concatenate((children, *families)),
        places.like(mesh.places.origins[order], mesh.places.levels[order]),
        mesh.owners[order],
    )


def _families(mesh: _Mesh, level: int, flat: Any) -> Indices:
    """The siblings of a level that are all there, flat, and beside nothing finer."""
    places, count = mesh.places, 2**mesh.places.frontend.nd
    willing = (places.levels == level) & (mesh.start != NOWHERE)
    willing &= flat[mesh.start]
    willing[beside_finer(places, 1)] = False
    first = np.flatnonzero(willing & (places.child_numbers(places.origins) == 0) & (level > 0))
    origins = places.children(places.parents(places.origins[first]))
    found = places.find(origins.reshape(-1, origins.shape[2]), level).reshape(-1, count)
    return found[np.all((found != NOWHERE) & willing[found], axis=1)]


def _refuse_overlaps(places: Places) -> None:
    for level in places.present():
        blocks = places.at(level)
        ancestors = places.origins[blocks]
        for coarser in range(level - 1, -1, -1):
            ancestors = places.parents(ancestors)
            found = places.find(ancestors, coarser)
            if np.any(found != NOWHERE):
                inner = blocks[found != NOWHERE][0]
                raise BadBlock(
                    f"the block at {tuple(places.origins[inner].tolist())} of level {level} lies "
                    f"in one of level {coarser}: a mesh that adapts has one block at each place"
                )


def _refuse_misfits(parents: Places) -> None:
    """Raise BadBlock if a child would begin where keys do not reach."""
    ends = (2 * parents.origins // parents.frontend.block_size + 1) >> parents.bits_per_dim
    misfits = np.flatnonzero(np.any(ends > 0, axis=1))
    if len(misfits):
        raise BadBlock(
            f"the block at {tuple(parents.origins[misfits[0]].tolist())} of level "
            f"{parents.levels[misfits[0]]} is too far out to be refined with "
            f"bits_per_dim={parents.bits_per_dim}: give the tree more bits"
        )


_AT_ONCE: Final = 16 << 20
"""How many bytes of fields are averaged at once; one family at least."""


def refined(tree: AMRTree, arena: FieldArena, passes: list[Places]) -> Draft:
    """A draft in which the blocks of each pass give way to their children.

    In the order of the list; each gives its slot back before its children take theirs.
    """
    draft = Draft(tree, arena)
    for chosen in passes:
        _refine(draft, chosen)
    return draft


def _refine(draft: Draft, chosen: Places) -> None:
    frontend, max_level = draft.tree.frontend, draft.tree.max_level
    found = draft.find(chosen)
    order = np.argsort(found)[np.count_nonzero(found == NOWHERE) :]
    parents, levels = found[order], chosen.levels[order]
    if np.any(levels >= max_level):
        raise MaxRefinementExceeded(
            f"a block of level {levels.max()} lies beside one finer by two levels, and the highest "
            f"level is {max_level}: set max_level before the mesh is adapted"
        )
    sites, count = sites_of(frontend.nd, frontend.block_size), 2**frontend.nd
    slots: list[int] = []
    for slot in draft.slots(parents):
        draft.free.give_back(slot)
        slots += [draft.free.take() for _ in range(count)]
    covering = sites.part_offsets[1:, np.newaxis] + sites.halved
    fields = np.take(draft.fields(parents), covering, axis=1)
    draft.kill(parents)
    draft.append(
        chosen.children(chosen.origins[order]).reshape(-1, frontend.nd),
        np.repeat(levels + 1, count),
        slots,
        fields.reshape(-1, *fields.shape[2:]),
    )


def bring_together(
    draft: Draft, comm: Communicator, partition: Partition, families: Indices
) -> None:
    """Collective: move siblings, [family, child], to where the first of them is."""
    places, owners = partition.places, partition.owners
    children = np.sort(families.ravel())
    targets = owners.copy()
    targets[families] = owners[families[:, :1]]
    moved = places.like(places.origins[children], places.levels[children])
    carry(draft, comm, moved, owners[children], targets[children])


def coarsen(draft: Draft, places: Places, families: Indices) -> None:
    """Let those of the families, [family, child], that are here give way to their parents.

    In the order in which their first blocks stand in the list; a parent takes its slot before its
    children give theirs back.
    """
    children = families.ravel()
    found = draft.find(places.like(places.origins[children], places.levels[children]))
    indices = found.reshape(families.shape)
    here = np.flatnonzero(indices[:, 0] != NOWHERE)
    order = here[np.argsort(indices[here].min(axis=1))]
    slots = []
    for family in draft.slots(indices[order]):
        slots.append(draft.free.take())
        for slot in family:
            draft.free.give_back(slot)
    first = families[order, 0]
    means = _means(draft, indices[order])
    draft.append(places.parents(places.origins[first]), places.levels[first] - 1, slots, means)
    draft.kill(indices[order].ravel())


def _means(draft: Draft, families: Indices) -> Field:
    """The fields of the parents, [family, site, …]."""
    storage, count = draft.arena.storage, families.shape[1]
    means = np.empty((len(families), *storage.shape[1:]), storage.dtype)
    step = max(1, _AT_ONCE // (count * math.prod(storage.shape[1:]) * storage.itemsize))
    for start in range(0, len(families), step):
        fields = draft.fields(families[start : start + step].ravel())
        grouped = fields.reshape(-1, count, *fields.shape[1:])
        means[start : start + step] = restrict_families(grouped, draft.tree.frontend)
    return means
