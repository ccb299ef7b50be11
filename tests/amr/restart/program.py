"""Parts of simulations in processes of their own: `program.py RANKS WHAT STORE OUT …`.

Every rank writes what it has seen into files of its own in OUT.

    straight NAME:K…    all steps of both simulations, with a snapshot of each step K
    resume NAME:K…      from the snapshot of each step K of a simulation, which is saved again
                        as step 100 + K, to its last step
    on LAST             from the latest snapshot, or from the beginning, to LAST
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from standfast import Store
from standfast.errors import RefNotFound
from tests.amr.restart.simulations import LAST, SIMULATIONS
from tests.amr.restart.states import followed, whole_state

AGAIN = 100
"""Added to a step, for what was loaded and saved again."""


class Program:
    """The same on all ranks."""

    def __init__(self, comm: Any, store: Store, out: Path) -> None:
        self.comm, self.store, self.out = comm, store, out
        self.rank: int = 0 if comm is None else comm.rank

    def straight(self, *names_and_steps: str) -> None:
        for name, kind in SIMULATIONS.items():
            run, simulation = self.store.run(name), kind.begun(self.comm)

            def save(simulation: Any = simulation, name: str = name, run: Any = run) -> None:
                if f"{name}:{simulation.step}" in names_and_steps:
                    simulation.save(run)

            self.tell(f"straight-{name}", followed(simulation, LAST[name], whole_state, save))

    def resume(self, *names_and_steps: str) -> None:
        for each in names_and_steps:
            name, step = each.split(":")
            run = self.store.run(name)
            simulation = SIMULATIONS[name].resumed(run, int(step), self.comm)
            simulation.save(run, AGAIN + simulation.step)
            self.tell(f"resumed-{name}-{step}", followed(simulation, LAST[name], whole_state))

    def on(self, last: str) -> None:
        for name, kind in SIMULATIONS.items():
            run = self.store.run(name)
            try:
                simulation = kind.resumed(run, "latest", self.comm)
            except RefNotFound:
                simulation = kind.begun(self.comm)
            states = followed(simulation, min(int(last), LAST[name]), whole_state)
            self.tell(f"on-{name}-{last}", states)
            simulation.save(run)

    def tell(self, name: str, value: Any) -> None:
        (self.out / f"{name}-{self.rank}.json").write_text(json.dumps(value))


def main(count: int, what: str, store: str, out: str, *arguments: str) -> None:
    with Store(Path(store)) as opened:
        if count == 1:
            getattr(Program(None, opened, Path(out)), what)(*arguments)
            return
        from mpi4py import MPI

        from standfast.parallel import MPIRanks

        with MPIRanks(MPI.COMM_WORLD, timeout=60) as comm:
            assert comm.size == count
            getattr(Program(comm, opened, Path(out)), what)(*arguments)


if __name__ == "__main__":
    main(int(sys.argv[1]), *sys.argv[2:])
