"""A program that is alone."""

from __future__ import annotations

import subprocess
import sys

import pytest

from standfast.errors import BadOption
from standfast.parallel import SingleRank, communicator
from tests.parallel.suite import CHECKS, Check


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
def test_a_rank_alone_is_a_communicator(check: Check) -> None:
    comm = SingleRank(timeout=5.0)
    check(comm)
    assert (comm.rank, comm.size) == (0, 1)


def test_nothing_stands_for_a_rank_alone() -> None:
    comm = communicator(None)
    assert isinstance(comm, SingleRank)
    assert comm is not communicator()


@pytest.mark.parametrize("wrong", [3, "world", object, [None]], ids=repr)
def test_what_is_no_communicator_is_refused(wrong: object) -> None:
    with pytest.raises(BadOption, match="intracommunicator of mpi4py, or None"):
        communicator(wrong)  # type: ignore[arg-type]


def test_mpi4py_need_not_be_there_and_is_not_imported() -> None:
    program = """if True:
        import sys
        sys.modules["mpi4py"] = None
        from standfast.errors import BadOption
        from standfast.parallel import MPIRanks, communicator
        assert communicator().size == 1
        try:
            MPIRanks("world")
        except BadOption:
            print([name for name in sys.modules if name.startswith("mpi4py.")])
    """
    command = [sys.executable, "-c", program]
    assert subprocess.run(command, capture_output=True, text=True, check=True).stdout == "[]\n"
