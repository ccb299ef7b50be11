"""Save two snapshots on the ranks of MPI, and kill in the second: `on_mpi.py FOLDER RANK AT WHO`.

It happens at the AT-th file operation of that rank, from 1; WHO is killed: `itself`, or `all`. With
`silently` it is the rank itself, and the others are left to find out: see `apart.py`. FOLDER gets
the store, and from each rank that outlives the save a file `{rank}.json`: how it ended, after how
many seconds, and how many file operations it made.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from mpi4py import MPI

from standfast.errors import RankLost
from standfast.files import disk, ring
from standfast.parallel import MPIRanks
from standfast.store.index.manifest import Manifest
from standfast.store.save import planning
from tests.amr.snapshot.step_states import save
from tests.kit.disk_faults import kill
from tests.kit.fault_states import SMALL_BLOCK, SMALL_PART, Faulty, UnsyncedDisk

PATIENCE = 2.0
"""How many seconds a rank waits for one that is silent."""


def killing(processes: Sequence[int]) -> Callable[[], None]:
    """What ends all ranks, this one last."""

    def strike() -> None:
        for process in sorted(processes, key=lambda each: each == os.getpid()):
            os.kill(process, signal.SIGKILL)

    return strike


def main(folder: Path, rank: int, at: int, who: str) -> None:
    is_silent = who == "silently"
    comm = MPIRanks(MPI.COMM_WORLD, timeout=PATIENCE if is_silent else 20)
    processes = [int(each) for each in comm.all_gather(str(os.getpid()).encode())]
    save(folder / "store", comm, 1)
    faulty = Faulty(at if comm.rank == rank else 0, killing(processes) if who == "all" else kill)
    disk.LOCAL = faulty  # type: ignore[misc]
    start = time.monotonic()
    try:
        save(folder / "store", comm, 2)
        outcome = "saved"
    except RankLost:
        outcome = "lost"
    report = [outcome, time.monotonic() - start, faulty.count]
    partial = folder / f"{comm.rank}.partial"
    partial.write_text(json.dumps(report))
    partial.rename(partial.with_suffix(".json"))
    if is_silent:
        os._exit(0)  # MPI's own end would wait for the dead


if __name__ == "__main__":
    ring.BLOCK, planning.TOGETHER = SMALL_BLOCK, SMALL_PART  # type: ignore[misc]
    disk.LOCAL = UnsyncedDisk()  # type: ignore[misc]
    Manifest.refresh = Manifest.mark  # type: ignore[method-assign]
    main(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]), sys.argv[4])
