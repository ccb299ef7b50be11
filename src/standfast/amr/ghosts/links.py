"""The links of blocks with those around them, on this rank or another, corners included."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product

import numpy as np

from standfast.amr.ghosts.places import NOWHERE, Indices, Places
from standfast.amr.ghosts.plans import Partition, exchanged, jointly, plan_of
from standfast.amr.ghosts.sites import coordinates
from standfast.amr.mesh.gauge import GaugeTree, LinkExchangeSpec, Links
from standfast.errors import BadBlock, BadOption, RanksDisagree


@dataclass(frozen=True)
class _Plan:
    """Where each site of all halos comes from.

    Sites of blocks are counted through the tree's list, sites of halos through its live blocks.
    """

    blocks: int
    here: Indices
    """[site of a halo]: the site of this tree; any, where it is not of this tree."""
    nothing: Indices
    """The sites of halos that no block has."""
    sent: dict[int, Indices]
    """To each other rank: sites of this tree."""
    received: dict[int, Indices]
    """From each other rank: sites of halos."""


def link_halo(tree: GaugeTree, spec: LinkExchangeSpec | None = None) -> Links:
    """The links of all live blocks and of the sites around them; collective, with a shard.

    [row, x_(nd-1), …, x_0, dimension, N, N], where each x runs over the block and `depth` sites on
    both sides of it. Beyond an open border links are identities, and so they are beyond edges and
    corners if the spec leaves those out. All neighbours must be of the level of their block.
    """
    tree.check_idle()
    chosen = tree.link_exchange_spec if spec is None else spec
    nd, size, group = tree.frontend.nd, tree.frontend.block_size, tree.frontend.n_gauge

    def prepare() -> tuple[_Plan, Links, dict[int, bytes]]:
        if chosen.depth > size:
            raise BadOption(f"depth={chosen.depth}: a block has {size} sites along a dimension")
        plan = plan_of(tree, f"links {chosen}", lambda partition: _plan(partition, chosen))
        links = tree.links.reshape(-1, nd, group, group)
        return plan, links, {to: links[sites].tobytes() for to, sites in plan.sent.items()}

    plan, links, messages = jointly(tree, prepare)
    arrived = exchanged(tree, messages)
    halos = np.empty((len(plan.here), nd, group, group), np.complex128)
    if len(plan.here):
        np.take(links, plan.here, axis=0, out=halos, mode="clip")
    halos[plan.nothing] = np.eye(group)
    for rank, sites in plan.received.items():
        halos[sites] = _unpacked(arrived[rank], (len(sites), *halos.shape[1:]))
    return halos.reshape(plan.blocks, *(size + 2 * chosen.depth,) * nd, nd, group, group)


def _plan(partition: Partition, spec: LinkExchangeSpec) -> _Plan:
    places, me = partition.places, partition.rank
    nd, size, volume = places.frontend.nd, places.frontend.block_size, places.frontend.block_volume
    halo = (size + 2 * spec.depth) ** nd
    here = np.full(len(partition.live) * halo, NOWHERE, np.int64)
    sent: dict[int, list[Indices]] = {rank: [] for rank in range(partition.size) if rank != me}
    received: dict[int, list[Indices]] = {rank: [] for rank in sent}
    indices = np.append(partition.live, NOWHERE)[partition.rows]
    for step in _steps(nd, spec):
        inner, outer = _shared(nd, size, spec.depth, step)
        neighbours = _neighbours(places, step)
        target = np.flatnonzero(neighbours != NOWHERE)
        source = neighbours[target]
        from_sites = indices[source][:, np.newaxis] * volume + inner
        to_sites = partition.rows[target][:, np.newaxis] * halo + outer
        gives, takes = partition.owners[source], partition.owners[target]
        within = (gives == me) & (takes == me)
        here[to_sites[within].ravel()] = from_sites[within].ravel()
        for rank in sent:
            sent[rank].append(from_sites[(gives == me) & (takes == rank)].ravel())
            received[rank].append(to_sites[(gives == rank) & (takes == me)].ravel())
    arriving = {rank: np.concatenate(parts) for rank, parts in received.items()}
    bare = here == NOWHERE
    for sites in arriving.values():
        bare[sites] = False
    leaving = {rank: np.concatenate(parts) for rank, parts in sent.items()}
    here[here == NOWHERE] = 0
    return _Plan(len(partition.live), here, np.flatnonzero(bare), leaving, arriving)


def _steps(nd: int, spec: LinkExchangeSpec) -> Iterator[tuple[int, ...]]:
    """The ways from a block to itself and to its neighbours."""
    for step in product((-1, 0, 1), repeat=nd):
        away = nd - step.count(0)
        if away == 0 or (spec.depth and (spec.corners or away == 1)):
            yield step


def _shared(nd: int, size: int, depth: int, step: tuple[int, ...]) -> tuple[Indices, Indices]:
    """The sites of a neighbour that a halo has, and which sites of the halo they are."""
    width = size + 2 * depth
    x = coordinates(nd, width) - depth
    blocks_away = np.where(x < 0, -1, np.where(x >= size, 1, 0))
    outer = np.flatnonzero(np.all(blocks_away == np.array(step), axis=1))
    inner = (x[outer] - size * np.array(step)) @ size ** np.arange(nd)
    return inner, outer


def _neighbours(places: Places, step: tuple[int, ...]) -> Indices:
    """[place]: the block of the same level that is this step away, or NOWHERE."""
    found = np.full(len(places), NOWHERE, np.int64)
    for level in places.present():
        blocks = places.at(level)
        origins, inside = places.beside(blocks, level, step)
        found[blocks[inside]] = places.find(origins[inside], level)
        missing = blocks[inside & (found[blocks] == NOWHERE)]
        if len(missing) and len(places.present()) > 1:
            raise BadBlock(
                f"the block at {tuple(places.origins[missing[0]].tolist())} of level {level} has "
                "a neighbour of another level: the links around a block must be of its own"
            )
    return found


def _unpacked(message: bytes, shape: tuple[int, ...]) -> Links:
    if len(message) != 16 * int(np.prod(shape)):
        raise RanksDisagree(
            "a rank sent other links than its neighbour expects: the ranks do not have the same "
            "shard, or not the same spec"
        )
    return np.frombuffer(message, np.complex128).reshape(shape)
