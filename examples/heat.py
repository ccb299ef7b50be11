"""Heat on a mesh that refines itself: kill it at any moment, and it goes on.

python examples/heat.py
python examples/heat.py --checkpoint runs --resume --picture heat.png
mpiexec -n 4 python -m mpi4py examples/heat.py --checkpoint runs

A flame goes round in a square plate with cold edges, and sparks strike at random. The mesh is fine
where the temperature is steep, and coarse again when the flame has gone by. The temperature at the
end, and its digest, are the same on one rank and on many.
"""

from __future__ import annotations

import argparse
import itertools
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from simulation import Session, options, parsed, session

from standfast.amr import (
    AMRTree,
    FieldArena,
    OpenTopology,
    Patch,
    ScalarFrontend,
    Schedule,
    Snapshot,
    repartition,
)
from standfast.parallel import Communicator

Field = Any
"""An array of temperatures."""

BLOCK = 8
"""Sites of a block along each dimension."""
ACROSS = 4
"""Blocks along each side of the plate, where it is coarsest."""
FINEST = 3
"""The level of the finest blocks; those of a level are twice as fine as those of the one below."""
CONDUCTIVITY = 0.002
COOLING = 6.0
STEP = 0.2 * (1 / (ACROSS * BLOCK * 2**FINEST)) ** 2 / CONDUCTIVITY
"""In time: as long as the finest blocks allow, whether there are any or not."""
STEEP = 25.0
"""The slope from which the mesh gets finer."""
FLAT = 0.4
"""The part of it below which the mesh gets coarser."""

SPARK_EVERY = 20
ADAPT_EVERY = 5
TIDY_EVERY = 50


def main() -> None:
    """Heat the plate, and tell what became of it."""
    parser = options(__doc__, every=100)
    parser.add_argument("--steps", type=int, default=600, help="in all (600)")
    arguments = parsed(parser)
    with session() as ranks:
        simulate(ranks, arguments)


def simulate(ranks: Session, arguments: argparse.Namespace) -> None:
    """All steps that are left, with checkpoints, and what came out."""
    sparks = np.random.default_rng(arguments.seed)  # the same numbers on all ranks
    frontend = ScalarFrontend(2, BLOCK, OpenTopology(2, (1.0, 1.0)))
    run = ranks.open_run(arguments, "heat", {"seed": arguments.seed})
    schedule = Schedule(arguments.every, start=arguments.every)
    last, done = arguments.steps, 0
    found = ranks.resumed(arguments, run, frontend)
    if found is None:
        plate = new_plate(frontend, ranks.comm)
    else:
        plate, done = Plate(found.tree, found.arena, **found.values), found.step
        ranks.restore_random(found, "sparks", sparks)
    ranks.say(f"Heat in a plate: {last} steps of {STEP:.5f} in time")
    with ranks.progress(done, last) as tell:
        for step in range(done + 1, last + 1):
            plate.advance(step, sparks)
            tell(step, str(plate))
            if run is not None and schedule.should_checkpoint(step):
                Snapshot.save(
                    run,
                    step,
                    plate.tree,
                    plate.arena,
                    time=step * STEP,
                    random={"sparks": sparks},
                    values={"refined": plate.refined, "coarsened": plate.coarsened},
                    comm=ranks.comm,
                )
    finish(ranks, arguments, plate)


@dataclass
class Plate:
    """A square of metal, on each rank its blocks, and how often its mesh was changed."""

    tree: AMRTree
    arena: FieldArena
    refined: int = 0
    coarsened: int = 0

    def advance(self, step: int, sparks: np.random.Generator) -> None:
        """One step in time, and what is to be done to the mesh after it; collective."""
        tree, arena = self.tree, self.arena
        tree.apply(heating(step * STEP), arena)
        if step % SPARK_EVERY == 0:
            x, y, heat = sparks.uniform((0.1, 0.1, 1.0), (0.9, 0.9, 5.0))
            tree.apply(lambda patch: patch.field + spot(patch, x, y, 0.08, heat), arena)
        if step % ADAPT_EVERY == 0:
            adapted = tree.adapt_mesh(arena, STEEP, hysteresis=FLAT)
            self.refined += adapted.refined
            self.coarsened += adapted.coarsened
        if step % TIDY_EVERY == 0:
            repartition(tree, arena)  # an equal share for each rank
            tree.reorder()
            arena.defragment(tree)

    def __str__(self) -> str:
        shard = self.tree.shard
        assert shard is not None
        counts = np.bincount(shard.places.levels, minlength=FINEST + 1).tolist()
        return f"{sum(counts)} blocks, by level {' + '.join(map(str, counts))}"


def new_plate(frontend: ScalarFrontend, comm: Communicator) -> Plate:
    """A cold plate of the coarsest blocks, shared out among the ranks; collective."""
    bits = (ACROSS << FINEST).bit_length()
    tree = AMRTree(frontend, 1 / (ACROSS * BLOCK), bits_per_dim=bits, max_level=FINEST)
    arena = FieldArena(frontend, 256)
    for place in itertools.product(range(0, ACROSS * BLOCK, BLOCK), repeat=2):
        tree.insert_block_with_field(place, 0, arena)
    repartition(tree, arena, comm)
    return Plate(tree, arena)


def heating(time: float) -> Callable[[Patch], Field]:
    """The kernel: what conduction, the flame and the air do to the temperature in one step."""
    angle = 4 * math.pi * time
    x, y = 0.5 + 0.28 * math.cos(angle), 0.5 + 0.28 * math.sin(angle)

    def kernel(patch: Patch) -> Field:
        around = sum(patch.shifted(d, way) for d in (0, 1) for way in (1, -1))
        conducted = CONDUCTIVITY * (around - 4 * patch.field) / patch.spacing**2
        flame = spot(patch, x, y, 0.12, 120.0)
        return patch.field + STEP * (conducted + flame - COOLING * patch.field)

    return kernel


def spot(patch: Patch, x: float, y: float, radius: float, height: float) -> Field:
    """A smooth hill on the sites of a patch."""
    away = (patch.positions(0) - x) ** 2 + (patch.positions(1) - y) ** 2
    return height * np.maximum(0.0, 1 - away / radius**2) ** 2


def finish(ranks: Session, arguments: argparse.Namespace, plate: Plate) -> None:
    """What became of the mesh, the picture and the digest."""
    ranks.say(f"{plate.refined} blocks became four, and {plate.coarsened} times four became one")
    parts = ranks.collected(plate.tree, plate.arena)
    if arguments.picture and parts:
        from pictures import draw_mesh

        draw_mesh(arguments.picture, parts, f"Temperature at time {arguments.steps * STEP:.2f}")
        ranks.say(f"drawn into {arguments.picture}")
    ranks.say_digest(parts)


if __name__ == "__main__":
    main()
