"""Run all checks on ranks of MPI, or of torch: conformance.py KIND FOLDER

Each rank writes the names of those that it passed, and how others failed, into a file of its own.
"""

import json
import os
import sys
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from standfast.errors import BadOption, NotOpen
from standfast.parallel import Communicator, MPIRanks, TorchRanks, communicator, program_ranks
from tests.parallel import suite
from tests.parallel.programs import trading_checks


def outcomes(made: Callable[[], Communicator], checks: Sequence[suite.Check]) -> dict[str, str]:
    found: dict[str, str] = {}
    for check in (*suite.CHECKS, *trading_checks.CHECKS, *checks):
        comm = made()
        try:
            check(comm)
            comm.close()
            found[check.__name__] = "passed"
        except Exception:
            found[check.__name__] = traceback.format_exc()
    return found


def on_mpi(folder: Path) -> None:
    from mpi4py import MPI

    from tests.parallel.programs import mpi_checks

    found = outcomes(lambda: MPIRanks(MPI.COMM_WORLD, timeout=60.0), mpi_checks.CHECKS)
    rank, comm = MPI.COMM_WORLD.rank, MPIRanks(MPI.COMM_WORLD)
    MPI.Finalize()
    comm.close()
    with pytest.raises(NotOpen):
        comm.all_gather(b"")
    with pytest.raises(BadOption, match="MPI"):
        communicator(MPI.COMM_WORLD)
    (folder / f"{rank}.json").write_text(json.dumps(found))


def on_torch(folder: Path) -> None:
    from tests.parallel.programs import torch_checks, torch_world

    torch_world.begin()
    # The store of torchrun keeps the keys of a first meeting, which may break torch's second.
    os.environ.setdefault("MEETING", str(folder / "meeting"))
    kept = program_ranks()  # it is not closed: a program may end without
    found = outcomes(lambda: TorchRanks(timeout=60.0), torch_checks.CHECKS)
    (folder / f"{kept.rank}.json").write_text(json.dumps(found))


if __name__ == "__main__":
    {"mpi": on_mpi, "torch": on_torch}[sys.argv[1]](Path(sys.argv[2]))
