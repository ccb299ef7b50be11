"""Two simulations whose meshes change by a script, for restarts in the middle of it.

All arithmetic is on real numbers, one operation at a time: it is exactly rounded, and so its
result does not depend on where in memory a number lies.
"""

import random
from collections.abc import Mapping, Sequence
from itertools import product
from typing import Any, ClassVar, Self

import numpy as np

from standfast import Run
from standfast.amr import (
    INVALID,
    AMRTree,
    FieldArena,
    GaugeFrontend,
    GaugeTree,
    OpenTopology,
    PeriodicTopology,
    ScalarFrontend,
    ShardContext,
    Snapshot,
    link_halo,
    repartition,
)

Change = tuple[Any, ...]
"""A method of the simulation, by its name, and its arguments."""
ACROSS = 4
"""Blocks along each side, of 4 sites and the spacing 1."""


class Simulation:
    """A mesh, its fields, and a generator whose kicks the fields get in the order of their slots.

    With `by_place` the kicks depend on the step and on the place of a block alone, so that it does
    not matter who has it. Every method is collective, if there is a communicator.
    """

    frontend: ClassVar[Any]
    last: ClassVar[int]
    """The last step."""
    holes: ClassVar[Sequence[tuple[int, int]]]
    """Places that no block is at to begin with."""
    script: ClassVar[Mapping[int, Sequence[Change]]]
    """What is done at the end of a step."""

    def __init__(self, tree: Any, arena: FieldArena, comm: Any, by_place: bool) -> None:
        self.tree, self.arena, self.comm, self.by_place = tree, arena, comm, by_place
        rank = 0 if comm is None else comm.rank
        self.kicks = np.random.default_rng([1, rank])
        random.seed(2 + rank)
        np.random.seed(3 + rank)
        self.step = 0
        self.time = 0.0
        self.history: list[float] = []
        self.changes = 0

    @classmethod
    def begun(cls, comm: Any = None, by_place: bool = False) -> Self:
        """The state before the first step."""
        arena = FieldArena(cls.frontend, 20)
        kind = GaugeTree if isinstance(cls.frontend, GaugeFrontend) else AMRTree
        tree = kind(cls.frontend, base_spacing=1.0, bits_per_dim=6, max_level=2)
        for y, x in product(range(0, 4 * ACROSS, 4), repeat=2):
            if (x, y) not in cls.holes:
                tree.insert_block_with_field((x, y), 0, arena)
        begun = cls(tree, arena, comm, by_place)
        slots = tree.field_slots[tree.live]
        arena.storage[slots] = begun._noise(arena.storage.shape[1:], tree.live)
        if comm is not None:
            repartition(tree, arena, comm)
        return begun

    @classmethod
    def resumed(cls, run: Run, ref: int | str, comm: Any = None, *, by_place: bool = False) -> Self:
        """The state out of a snapshot; with `by_place` on any number of ranks."""
        found = Snapshot.load(run, ref, frontend=cls.frontend, comm=comm, reshard=by_place)
        resumed = cls(found.tree, found.arena, comm, by_place)
        resumed.step, resumed.time = found.step, found.time
        resumed.history = found.values["history"].tolist()
        resumed.changes = found.values["changes"]
        if not by_place:
            found.restore_random(kicks=resumed.kicks)
        return resumed

    def save(self, run: Run, step: int | None = None) -> Snapshot:
        return Snapshot.save(
            run,
            self.step if step is None else step,
            self.tree,
            self.arena,
            time=self.time,
            random={"kicks": self.kicks},
            values={"history": np.array(self.history), "changes": self.changes},
            comm=self.comm,
        )

    def advance(self) -> None:
        """One step, and what the script says."""
        self.step += 1
        self.time += 0.1
        self.evolve()
        self._kick()
        for name, *arguments in self.script.get(self.step, ()):
            getattr(self, name)(*arguments)
            self.changes += 1
        self.history.append(self.time * self.changes)

    def evolve(self) -> None:
        """What the equations do."""
        raise NotImplementedError

    # What a script may do

    def insert(self, origin: tuple[int, int], level: int) -> None:
        """Append a block; it begins with half of what lay in its slot."""
        if self.comm is None or self.comm.rank == self.step % self.comm.size:
            self._have_slots(1)
            index = self.tree.insert_block_with_field(origin, level, self.arena)
            slot = int(self.tree.field_slots[index])
            self.arena.storage[slot] *= 0.5
            if self.by_place:
                self.arena.storage[slot] = 0.5
        self._changed()

    def refine(self, origin: tuple[int, int], level: int) -> None:
        """Put children in the place of a block, which keeps its slot."""
        index = self.tree.find(origin, level)
        if index is not None:
            self._have_slots(4)
            field = self.arena.storage[int(self.tree.field_slots[index])].copy()
            for child in self.tree.refine_block(index):
                slot = self.tree.field_slots[child] = self.arena.alloc()
                self.arena.storage[slot] = field
        self._changed()

    def coarsen(self, origin: tuple[int, int], level: int) -> None:
        """Put a block in the place of its children, which are all on one rank."""
        places = self.tree.child_origins(origin)
        found = [self.tree.find(place, level + 1) for place in places]
        if None not in found:
            self.tree.coarsen_blocks(found, self.arena)
        self._changed()

    def invalidate(self, origin: tuple[int, int], level: int) -> None:
        """Let a block die, which keeps its slot."""
        index = self.tree.find(origin, level)
        if index is not None:
            self.tree.invalidate_block(index)
        self._changed()

    def recycle(self) -> None:
        """Give back the slots that dead blocks name and nobody uses; they go on naming them."""
        slots, live = self.tree.field_slots, set(self.tree.live.tolist())
        used = {int(slots[index]) for index in live} | {INVALID}
        used |= set(self.arena.free_slots[: self.arena.free_count].tolist())
        for index in range(len(self.tree)):
            if index not in live and int(slots[index]) not in used:
                self.arena.free(int(slots[index]))
                used.add(int(slots[index]))

    def adapt(self, threshold: float) -> None:
        self.tree.adapt_mesh(self.arena, threshold)

    def tidy(self) -> None:
        """Put blocks, and so fields, in the order of their places."""
        self.tree.reorder()
        self.arena.defragment(self.tree)

    def reorder(self) -> None:
        self.tree.reorder()

    def grow(self) -> None:
        self.arena.grow(self.arena.max_blocks + 3)

    def repartition(self) -> None:
        """Share the blocks out by weights that favour the last ranks."""
        if self.comm is not None:
            weights = 1.0 + self.tree.blocks["origin"][self.tree.live].sum(axis=1)
            repartition(self.tree, self.arena, self.comm, weights)

    # Within

    def _have_slots(self, count: int) -> None:
        while self.arena.free_count < count:
            self.arena.grow()

    def _changed(self) -> None:
        if self.comm is not None:
            self.tree.attach_shard(ShardContext.from_tree(self.tree, self.comm, "manual"))

    def _kick(self) -> None:
        """Add noise to the fields, slot by slot; how much is up to the global generators."""
        slots = self.tree.field_slots[self.tree.live]
        order = np.argsort(slots)
        noise = self._noise(self.arena.storage.shape[1:], self.tree.live[order])
        if not self.by_place:
            noise = noise * (random.random() + np.random.random())
        self.arena.storage[slots[order]] += noise

    def _noise(self, shape: tuple[int, ...], blocks: Any) -> Any:
        """Random numbers for each of some blocks."""
        if not self.by_place:
            return self.kicks.standard_normal((len(blocks), *shape))
        noise = np.empty((len(blocks), *shape))
        for row, block in enumerate(self.tree.blocks[blocks]):
            place = [self.step, int(block["level"]), *block["origin"].tolist()]
            noise[row] = np.random.default_rng(place).standard_normal(shape)
        return noise


class Heat(Simulation):
    """A temperature that spreads."""

    last = 17
    frontend = ScalarFrontend(2, 4, OpenTopology(2, (16.0, 16.0)))
    holes = ((12, 12), (12, 8))
    script: ClassVar[Mapping[int, Sequence[Change]]] = {
        1: [("insert", (12, 12), 0)],
        2: [("refine", (0, 0), 0)],
        3: [("invalidate", (8, 4), 0)],
        4: [("coarsen", (0, 0), 0)],
        5: [("recycle",)],
        6: [("insert", (8, 4), 0)],
        7: [("grow",), ("refine", (4, 4), 0)],
        8: [("repartition",)],
        9: [("reorder",)],
        10: [("adapt", 5.0)],
        11: [("insert", (12, 8), 0)],
        12: [("adapt", 30.0)],
        13: [("recycle",), ("repartition",)],
        14: [("adapt", 5.0)],
        15: [("tidy",)],
        16: [("adapt", 60.0)],
    }

    def evolve(self) -> None:
        self.tree.apply(_spread, self.arena, outside=0.25)


def _spread(patch: Any) -> Any:
    around = patch.shifted(0, 1) + patch.shifted(0, -1) + patch.shifted(1, 1)
    return patch.field + 0.125 * (around + patch.shifted(1, -1) - 4.0 * patch.field)


class Links(Simulation):
    """Links that are drawn to those around them, and kicked."""

    last = 13
    frontend = GaugeFrontend(1, 1, 2, 4, PeriodicTopology(2, (16.0, 16.0)))
    holes = ((12, 12),)
    script: ClassVar[Mapping[int, Sequence[Change]]] = {
        1: [("insert", (12, 12), 0)],
        2: [("invalidate", (4, 4), 0)],
        3: [("invalidate", (8, 12), 0)],
        4: [("recycle",)],
        5: [("insert", (4, 4), 0)],
        6: [("repartition",)],
        7: [("reorder",)],
        8: [("grow",), ("insert", (8, 12), 0)],
        9: [("invalidate", (0, 8), 0)],
        10: [("tidy",)],
        11: [("insert", (0, 8), 0)],
    }

    def evolve(self) -> None:
        halo = link_halo(self.tree)
        around = halo[:, 2:, 1:-1] + halo[:, :-2, 1:-1] + halo[:, 1:-1, 2:] + halo[:, 1:-1, :-2]
        live, shape = self.tree.live, self.tree.links.shape[1:]
        noise = self._noise(shape, live)
        links = self.tree.links[live]
        self.tree.links[live] = 0.5 * links + 0.125 * around.reshape(links.shape) + noise


SIMULATIONS: Mapping[str, type[Simulation]] = {"heat": Heat, "links": Links}
LAST = {name: kind.last for name, kind in SIMULATIONS.items()}
