"""Run all checks on the ranks that were started: conformance.py FOLDER

Each rank writes the names of those that it passed, and how others failed, into a file of its own.
"""

from __future__ import annotations

import json
import sys
import traceback
from pathlib import Path

import pytest
from mpi4py import MPI

from standfast.errors import BadOption, NotOpen
from standfast.parallel import MPIRanks, communicator
from tests.parallel import suite
from tests.parallel.programs import mpi_checks, trading_checks


def main(folder: Path) -> None:
    outcomes: dict[str, str] = {}
    for check in (*suite.CHECKS, *trading_checks.CHECKS, *mpi_checks.CHECKS):
        comm = MPIRanks(MPI.COMM_WORLD, timeout=60.0)
        try:
            check(comm)
            comm.close()
            outcomes[check.__name__] = "passed"
        except Exception:
            outcomes[check.__name__] = traceback.format_exc()
    rank = MPI.COMM_WORLD.rank
    comm = MPIRanks(MPI.COMM_WORLD)
    MPI.Finalize()
    nothing_is_said_after_the_end_of_mpi(comm)
    (folder / f"{rank}.json").write_text(json.dumps(outcomes))


def nothing_is_said_after_the_end_of_mpi(comm: MPIRanks) -> None:
    comm.close()
    with pytest.raises(NotOpen):
        comm.all_gather(b"")
    with pytest.raises(BadOption, match="MPI has ended"):
        communicator(MPI.COMM_WORLD)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
