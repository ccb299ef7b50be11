"""Save a snapshot again and again, killed at its operations:

    killed.py FOLDER COUNT WHOSE WHO STRIDE

The operations are those of the rank WHOSE of COUNT, from the first on each STRIDE-th; WHO is killed
at them: `itself`, or `all`. FOLDER gets a store for each operation, which had the snapshot of
step 1 and gets that of step 2. How each rank ended is printed. One process is started and prepared,
and forks all ranks.
"""

from __future__ import annotations

import itertools
import json
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path

from standfast.files import disk, ring
from standfast.parallel import SingleRank
from standfast.store.index.manifest import Manifest
from standfast.store.save import planning
from tests.amr.kills.forked_ranks import KILLED, SAVED, ForkedRanks, kill_all, on_forked_ranks
from tests.amr.snapshot.step_states import save
from tests.kit.disk_faults import kill
from tests.kit.fault_states import SMALL_BLOCK, SMALL_PART, Faulty, UnsyncedDisk, copy_store

Strike = Callable[[], None]
Program = Callable[[int, Strike, bool, ForkedRanks], object]
"""Called with the number of the operation, what happens at it, and whether on this rank."""
STRIKES = {"itself": kill, "all": kill_all}


def saving(folder: Path, count: int) -> Program:
    """Each rank saves; the operations are those of its disk."""
    save(folder / "alone", SingleRank(), 1)  # so that no rank has to import anything
    prepared = folder / "prepared"
    assert on_forked_ranks(count, lambda comm: save(prepared, comm, 1)) == [SAVED] * count

    def program(at: int, strike: Strike, is_struck: bool, comm: ForkedRanks) -> None:
        path = folder / str(at)
        if comm.rank == 0:
            copy_store(prepared, path)
        comm.all_gather(b"")
        if is_struck:
            disk.LOCAL = Faulty(at, strike)  # type: ignore[misc]
        save(path, comm, 2)

    return program


def killed_at_each(
    program: Program, count: int, whose: int, strike: Strike, stride: int
) -> list[list[int]]:
    """How the ranks ended, for each operation, and at last without a kill."""
    ends: list[list[int]] = []
    for at in itertools.count(1, stride):
        ends.append(on_forked_ranks(count, partial(_struck, program, at, strike, whose)))
        if ends[-1][whose] != KILLED:
            break
    return ends


def _struck(program: Program, at: int, strike: Strike, whose: int, comm: ForkedRanks) -> None:
    program(at, strike, comm.rank == whose, comm)


if __name__ == "__main__":
    ring.BLOCK, planning.TOGETHER = SMALL_BLOCK, SMALL_PART  # type: ignore[misc]
    disk.LOCAL = UnsyncedDisk()  # type: ignore[misc]
    Manifest.refresh = Manifest.mark  # type: ignore[method-assign]
    folder, count, whose, who, stride = sys.argv[1:]
    program = saving(Path(folder), int(count))
    strike = STRIKES[who]
    print(json.dumps(killed_at_each(program, int(count), int(whose), strike, int(stride))))
