"""A job of torchrun, one of whose ranks may fail: torch_job.py HOW FOLDER"""

import os
import signal
import sys
from pathlib import Path

import pytest

from standfast.errors import BadOption
from standfast.parallel import SingleRank, program_ranks
from tests.parallel.programs import torch_world
from tests.parallel.suite import in_step


def main(how: str, folder: Path) -> None:
    with pytest.raises(BadOption, match="init_process_group"):
        program_ranks()
    torch_world.begin()
    comm = program_ranks()
    assert (comm.rank, comm.size) == (int(os.environ["RANK"]), 2)
    assert not isinstance(comm, SingleRank)
    assert in_step(comm)
    if comm.rank == 1 and how == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    if comm.rank == 1 and how == "raise":
        raise ZeroDivisionError
    assert in_step(comm)
    (folder / str(comm.rank)).touch()


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
