"""Parts of simulations in processes of their own: `program.py RANKS WHAT STORE OUT …`.

Every rank writes what it has seen into files of its own in OUT.

    straight NAME:K…    all steps of both simulations, with a snapshot of each step K
    resume NAME:K…      from the snapshot of each step K of a simulation, which is saved again
                        as step 100 + K, to its last step
    on LAST             from the latest snapshot, or from the beginning, to LAST
    share               all steps of both, by place, with a snapshot of one step
    reshard COUNT       from such snapshots, of so many ranks, to the last step
    control WHAT K      four steps of the first from the snapshot of step K, without something
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from standfast import Run, Store
from standfast.errors import RefNotFound
from tests.amr.restart.simulation import Simulation
from tests.amr.restart.simulations import LAST, SIMULATIONS, Heat
from tests.amr.restart.states import blocks_by_place, whole_state

AGAIN = 100
"""Added to a step, for what was loaded and saved again."""
SHARED = {"heat": 11, "links": 9}
"""The step whose snapshot is loaded by other numbers of ranks: there are tombstones, and levels."""


def shared_run(name: str, *counts: int) -> str:
    """The run for snapshots of a number of ranks, which another may have loaded and saved again."""
    return "_".join([name, *map(str, counts)])


class Program:
    """The same on all ranks."""

    def __init__(self, comm: Any, store: Store, out: Path) -> None:
        self.comm, self.store, self.out = comm, store, out
        self.rank: int = 0 if comm is None else comm.rank
        self.size: int = 1 if comm is None else comm.size

    def straight(self, *names_and_steps: str) -> None:
        for name, kind in SIMULATIONS.items():
            run, simulation = self.store.run(name), kind.begun(self.comm)

            def save(simulation: Simulation = simulation, name: str = name, run: Run = run) -> None:
                if f"{name}:{simulation.step}" in names_and_steps:
                    simulation.save(run)

            self.tell(f"straight-{name}", self._followed(simulation, LAST[name], save))

    def resume(self, *names_and_steps: str) -> None:
        for each in names_and_steps:
            name, step = each.split(":")
            run = self.store.run(name)
            simulation = SIMULATIONS[name].resumed(run, int(step), self.comm)
            simulation.save(run, AGAIN + simulation.step)
            self.tell(f"resumed-{name}-{step}", self._followed(simulation, LAST[name]))

    def on(self, last: str) -> None:
        for name, kind in SIMULATIONS.items():
            run = self.store.run(name)
            try:
                simulation = kind.resumed(run, "latest", self.comm)
            except RefNotFound:
                simulation = kind.begun(self.comm)
            self.tell(f"on-{name}-{last}", self._followed(simulation, min(int(last), LAST[name])))
            simulation.save(run)

    def share(self) -> None:
        for name, kind in SIMULATIONS.items():
            simulation = kind.begun(self.comm, by_place=True)
            while simulation.step < SHARED[name]:
                simulation.advance()
            simulation.save(self.store.run(shared_run(name, self.size)))
            self._tell_blocks(name, simulation)

    def reshard(self, count: str) -> None:
        for name, kind in SIMULATIONS.items():
            run = self.store.run(shared_run(name, int(count)))
            step = SHARED[name]
            simulation = kind.resumed(
                run, step, self.comm, by_place=True, reshard=True, with_random=False
            )
            simulation.save(self.store.run(shared_run(name, int(count), self.size)))
            self._tell_blocks(name, simulation)

    def _tell_blocks(self, name: str, simulation: Simulation) -> None:
        """The blocks now and after each step up to the last, with all bits of the arithmetic."""
        states = {simulation.step: blocks_by_place(simulation)}
        while simulation.step < LAST[name]:
            simulation.advance()
            states[simulation.step] = blocks_by_place(simulation)
        self.tell(f"blocks-{name}", states)

    def control(self, what: str, step: str) -> None:
        run = self.store.run("heat")
        simulation = Heat.resumed(run, int(step), self.comm, with_random=what != "random")
        WITHOUT[what](simulation)
        self.tell(f"control-{what}", self._followed(simulation, simulation.step + 4))

    def _followed(
        self, simulation: Simulation, last: int, save: Callable[[], None] = lambda: None
    ) -> dict[int, dict[str, str]]:
        """The whole state now and after each step up to the last; all of them may be saved."""
        states = {simulation.step: whole_state(simulation)}
        save()
        while simulation.step < last:
            simulation.advance()
            states[simulation.step] = whole_state(simulation)
            save()
        return states

    def tell(self, name: str, value: Any) -> None:
        (self.out / f"{name}-{self.rank}.json").write_text(json.dumps(value))


def _nothing(simulation: Simulation) -> None:
    """What is left out was left out before."""


def _sort_free_list(simulation: Simulation) -> None:
    arena = simulation.arena
    arena.free_slots[: arena.free_count].sort()


def _drop_dead_blocks(simulation: Simulation) -> None:
    tree = simulation.tree
    blocks, slots = tree.blocks[tree.live].copy(), tree.field_slots[tree.live].copy()
    blocks["block_index"] = np.arange(len(blocks))
    geometry = tree.base_spacing, tree.bits_per_dim, tree.max_level
    simulation.tree = type(tree).restored(tree.frontend, *geometry, blocks, slots)


WITHOUT: dict[str, Callable[[Simulation], None]] = {
    "random": _nothing,
    "free order": _sort_free_list,
    "tombstones": _drop_dead_blocks,
}


@contextmanager
def ranks(count: int) -> Iterator[Any]:
    """The ranks that MPI started; None for a process alone."""
    if count == 1:
        yield None
        return
    from mpi4py import MPI

    from standfast.parallel import MPIRanks

    with MPIRanks(MPI.COMM_WORLD, timeout=60) as comm:
        assert comm.size == count
        yield comm


def main(count: str, what: str, store: str, out: str, *arguments: str) -> None:
    with ranks(int(count)) as comm, Store(Path(store)) as opened:
        getattr(Program(comm, opened, Path(out)), what)(*arguments)


if __name__ == "__main__":
    main(*sys.argv[1:])
