"""Save some steps on all ranks: `save_together.py STORE STEPS [RANK AT]`.

With the last two, that rank is killed in the last save: at the AT-th of its file operations there,
from 1. A rank that gets through a save prints its number, the step and the commit's number.
"""

import sys
from pathlib import Path

from mpi4py import MPI

from standfast import Store
from standfast.files import disk
from standfast.parallel import MPIRanks
from standfast.store.save.ranks import save_together
from tests.kit.disk_faults import FaultyDisk, kill
from tests.store.save.rank_states import part


def main(path: str, steps: str, rank: str = "-1", at: str = "0") -> None:
    with MPIRanks(MPI.COMM_WORLD, timeout=60) as comm, Store(Path(path)) as store:
        run = store.run("heat")
        last = int(steps)
        for step in range(1, last + 1):
            state = part(comm.rank, step)
            if step == last and comm.rank == int(rank):
                disk.LOCAL = FaultyDisk(int(at), kill)
            saved = save_together(run, comm, step, state)
            print(f"{comm.rank} {step} {saved.sequence}\n", end="", flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
