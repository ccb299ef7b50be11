"""Hybrid Monte Carlo for a lattice gauge theory: kill it at any moment, and it goes on.

python examples/lattice.py
python examples/lattice.py --group su3 --dims 4 --size 4 --beta 5.7 --steps 20 --trajectories 200
python examples/lattice.py --checkpoint runs --resume --picture plaquette.png
mpiexec -n 4 python -m mpi4py examples/lattice.py --checkpoint runs

Each block draws the random numbers of its momenta by itself, and a sum over blocks is rounded
once. So the links at the end, and their digest, are the same on one rank and on many.
"""

from __future__ import annotations

import argparse
import itertools
import math
from dataclasses import dataclass

import numpy as np
from gauge_theory import (
    Matrices,
    Numbers,
    draw_momenta,
    exact_plaquette,
    exponential,
    kinetic_energy,
    leapfrog,
    mean_and_error,
    plaquette_sums,
    unitary,
)
from simulation import Session, options, parsed, session

from standfast.amr import (
    FieldArena,
    GaugeFrontend,
    GaugeTree,
    PeriodicTopology,
    Schedule,
    Snapshot,
    link_halo,
    repartition,
)
from standfast.parallel import Communicator

GROUPS = {"u1": ("U(1)", 1), "su2": ("SU(2)", 2), "su3": ("SU(3)", 3)}
"""Their names, and the size of their matrices."""
BLOCK = 4
"""Sites of a block along each dimension."""
WHAT = ("group", "dims", "size", "beta", "steps", "length", "start", "warm_up", "seed")
"""The options that make it another simulation, and not a longer one."""


def main() -> None:
    """Run trajectories, and compare the plaquette with what it should be."""
    arguments = parse()
    with session() as ranks:
        simulate(ranks, arguments)


def parse() -> argparse.Namespace:
    """What to simulate."""
    parser = options(__doc__, every=100)
    parser.add_argument("--group", choices=GROUPS, default="u1")
    parser.add_argument("--dims", type=int, default=2, help="of space and time together (2)")
    parser.add_argument("--size", type=int, default=16, help="sites along each of them (16)")
    parser.add_argument("--beta", type=float, default=2.0, help="the inverse coupling (2)")
    parser.add_argument("--trajectories", type=int, default=1000, help="in all (1000)")
    parser.add_argument("--steps", type=int, default=10, help="of a trajectory (10)")
    parser.add_argument("--length", type=float, default=1.5, help="of a trajectory in time (1.5)")
    parser.add_argument("--start", choices=["hot", "cold"], default="hot")
    parser.add_argument(
        "--warm-up", type=int, default=50, help="trajectories that are taken and not counted (50)"
    )
    arguments = parsed(parser)
    if arguments.size < BLOCK or arguments.size % BLOCK:
        parser.error(f"--size {arguments.size}: a lattice is a multiple of {BLOCK} sites wide")
    if arguments.dims < 2 or not arguments.beta > 0 or arguments.steps < 1:
        parser.error("--dims is at least 2, --steps at least 1, and --beta above 0")
    if arguments.trajectories <= arguments.warm_up:
        parser.error(f"--trajectories: give more than the {arguments.warm_up} of the warm-up")
    return arguments


def simulate(ranks: Session, arguments: argparse.Namespace) -> None:
    """All trajectories that are left, with checkpoints, and what came out."""
    metropolis = np.random.default_rng(arguments.seed)
    run = ranks.open_run(arguments, "lattice", {name: getattr(arguments, name) for name in WHAT})
    schedule = Schedule(arguments.every, start=arguments.every)
    last, done = arguments.trajectories, 0
    found = ranks.resumed(arguments, run, frontend_of(arguments))
    if found is None:
        lattice = new_lattice(arguments, ranks.comm)
    else:
        history = {name: values.tolist() for name, values in found.values.items()}
        lattice, done = Lattice(found.tree, found.arena, ranks.comm, history), found.step
        ranks.restore_random(found, "metropolis", metropolis)
    ranks.say(f"{titled(arguments)}: {last} trajectories of {arguments.steps} steps")
    with ranks.progress(done, last) as tell:
        for number in range(done + 1, last + 1):
            lattice.update(number, arguments, metropolis)
            plaquette = lattice.history["plaquette"][-1]
            tell(number, f"plaquette {plaquette:.4f}")
            if run is not None and schedule.should_checkpoint(number):
                Snapshot.save(
                    run,
                    number,
                    lattice.tree,
                    lattice.arena,
                    random={"metropolis": metropolis},
                    values={name: np.array(each) for name, each in lattice.history.items()},
                    metrics={"plaquette": plaquette},
                    comm=ranks.comm,
                )
    finish(ranks, arguments, lattice)


@dataclass
class Lattice:
    """The links, on each rank those of its blocks, and what was measured so far."""

    tree: GaugeTree
    arena: FieldArena
    comm: Communicator
    history: dict[str, list[float]]

    @property
    def shape(self) -> tuple[int, ...]:
        """Of the links of this rank: [block, x_(nd-1), …, x_0, dimension, N, N]."""
        nd, size = self.tree.frontend.nd, self.tree.frontend.n_gauge
        return len(self.tree.live), *[BLOCK] * nd, nd, size, size

    @property
    def links(self) -> Matrices:
        """A copy of the links of this rank."""
        return self.tree.links[self.tree.live].reshape(self.shape)

    @links.setter
    def links(self, links: Matrices) -> None:
        self.tree.links[self.tree.live] = links.reshape(-1, *self.tree.frontend.link_shape)

    def update(
        self, number: int, arguments: argparse.Namespace, metropolis: np.random.Generator
    ) -> None:
        """One trajectory, taken or refused by the energy that its steps gained; collective."""
        beta, step = arguments.beta, arguments.length / arguments.steps
        links, momenta = self.links, self.drawn(arguments.seed, number)
        before = self.energy(links, momenta, beta)
        moved, moved_momenta = leapfrog(
            links, momenta, self.surrounded, beta, step, arguments.steps
        )
        violation = self.energy(moved, moved_momenta, beta) - before
        chance = math.exp(min(0.0, -violation)) if number > arguments.warm_up else 1.0
        accepted = metropolis.random() < chance  # the same number on all ranks
        self.links = unitary(moved) if accepted else links
        self.history["plaquette"].append(self.plaquette())
        self.history["violation"].append(violation)
        self.history["accepted"].append(float(accepted))

    def drawn(self, seed: int, number: int) -> Matrices:
        """Momenta that depend on nothing but the seed, the trajectory and the block."""
        momenta = np.empty(self.shape, np.complex128)
        for block, (place, _level) in enumerate(self.tree.keys()):
            stream = np.random.Philox(key=[seed, place], counter=[0, 0, number, 0])
            momenta[block] = draw_momenta(np.random.Generator(stream), self.shape[1:])
        return momenta

    def energy(self, links: Matrices, momenta: Matrices, beta: float) -> float:
        """Of all ranks together, up to a constant; collective."""
        plaquettes = plaquette_sums(self.surrounded(links))
        return self.total(kinetic_energy(momenta) - beta * plaquettes)

    def plaquette(self) -> float:
        """The mean over sites and planes; collective."""
        sites = math.prod(self.tree.frontend.topology.sites(self.tree.base_spacing))
        planes = math.comb(self.tree.frontend.nd, 2)
        return self.total(plaquette_sums(self.surrounded(self.links))) / (sites * planes)

    def surrounded(self, links: Matrices) -> Matrices:
        """Links with those around each block, from its neighbours on any rank; collective."""
        self.links = links
        return link_halo(self.tree)

    def total(self, of_blocks: Numbers) -> float:
        """The sum over the blocks of all ranks; collective."""
        parts = self.comm.all_gather(of_blocks.tobytes())
        return math.fsum(np.frombuffer(b"".join(parts)))  # in any order the same


def new_lattice(arguments: argparse.Namespace, comm: Communicator) -> Lattice:
    """Blocks of links, an equal share for each rank, cold (all identities) or random."""
    frontend = frontend_of(arguments)
    across = arguments.size // BLOCK
    tree = GaugeTree(frontend, 1.0, bits_per_dim=across.bit_length(), max_level=0)
    arena = FieldArena(frontend, 0)  # without matter there is nothing at the sites
    for place in itertools.product(range(0, arguments.size, BLOCK), repeat=arguments.dims):
        tree.insert_block(place, 0)
    repartition(tree, arena, comm)
    tree.reorder()
    lattice = Lattice(tree, arena, comm, {"plaquette": [], "violation": [], "accepted": []})
    if arguments.start == "hot":
        lattice.links = exponential(lattice.drawn(arguments.seed, 0))
    return lattice


def frontend_of(arguments: argparse.Namespace) -> GaugeFrontend:
    """Blocks of links in a periodic box."""
    box = PeriodicTopology(arguments.dims, [float(arguments.size)] * arguments.dims)
    return GaugeFrontend(GROUPS[arguments.group][1], 1, arguments.dims, BLOCK, box)


def titled(arguments: argparse.Namespace) -> str:
    """What is simulated, for people."""
    sites = " × ".join([str(arguments.size)] * arguments.dims)
    return f"{GROUPS[arguments.group][0]} on {sites} sites at β = {arguments.beta:g}"


def finish(ranks: Session, arguments: argparse.Namespace, lattice: Lattice) -> None:
    """The numbers, the picture and the digest."""
    counted = {
        name: np.array(values[arguments.warm_up :]) for name, values in lattice.history.items()
    }
    mean, error = mean_and_error(counted["plaquette"])
    exact = exact_plaquette(arguments.group, arguments.dims, arguments.beta)
    known = "" if exact is None else f"; exact: {exact:.5f}"
    ranks.say(f"plaquette {mean:.5f} ± {error:.5f}{known}")
    weight, weight_error = mean_and_error(np.exp(-counted["violation"]))
    size = np.abs(counted["violation"]).mean()
    ranks.say(f"accepted {counted['accepted'].mean():.1%}, mean |ΔH| {size:.4f}")
    ranks.say(f"mean exp(-ΔH) {weight:.3f} ± {weight_error:.3f}, which should be 1")
    if arguments.picture and ranks.comm.rank == 0:
        from pictures import Result, draw_history

        result = Result(lattice.history["plaquette"], arguments.warm_up, mean, error, exact)
        draw_history(arguments.picture, result, titled(arguments))
        ranks.say(f"drawn into {arguments.picture}")
    ranks.say_digest(ranks.collected(lattice.tree, lattice.arena))


if __name__ == "__main__":
    main()
