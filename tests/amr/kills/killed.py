"""Save a snapshot again and again, killed at its operations:

    killed.py FOLDER COUNT WHOSE WHO STRIDE

The operations are those of the disk of rank WHOSE of COUNT, from the first on each STRIDE-th; WHO
is killed at them: `itself`, or `all`. FOLDER gets a store for each operation, which had the
snapshot of step 1 and gets that of step 2. How each rank ended is printed.
"""

import itertools
import json
import os
import signal
import sys
from pathlib import Path
from typing import Any

from standfast.parallel import SingleRank
from tests.amr.kills.forked_ranks import KILLED, SAVED, on_forked_ranks
from tests.amr.snapshot.step_states import save
from tests.kit.disk_faults import kill
from tests.kit.fault_states import SMALL_BLOCK, SMALL_PART, Faulty, UnsyncedDisk, copy_store
from tests.kit.seams import Seams

STRIKES = {"itself": kill, "all": lambda: os.killpg(0, signal.SIGKILL)}


def main(folder: Path, count: int, whose: int, who: str, stride: int, seams: Seams) -> Any:
    """How the ranks ended, for each operation, and at last without a kill."""
    save(folder / "alone", SingleRank(), 1)  # so that no rank has to import anything
    prepared, ends = folder / "prepared", []
    assert on_forked_ranks(count, lambda comm: save(prepared, comm, 1)) == [SAVED] * count
    for at in itertools.count(1, stride):
        path = folder / str(at)
        copy_store(prepared, path)

        def program(comm: Any, at: int = at, path: Path = path) -> None:
            if comm.rank == whose:
                seams.disk(Faulty(at, STRIKES[who]))
            save(path, comm, 2)

        ends.append(on_forked_ranks(count, program))
        if ends[-1][whose] != KILLED:
            break
    return ends


if __name__ == "__main__":
    with Seams.until_end() as seams:
        seams.bound("blocks of the ring", SMALL_BLOCK)
        seams.bound("part of its own file", SMALL_PART)
        seams.disk(UnsyncedDisk())
        seams.no_manifest()
        folder, count, whose, who, stride = sys.argv[1:]
        print(json.dumps(main(Path(folder), int(count), int(whose), who, int(stride), seams)))
