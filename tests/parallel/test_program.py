"""The ranks of a program that says nothing of them: one that MPI has started must say which."""

import os
import subprocess
import sys
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import pytest

from standfast.errors import BadOption
from standfast.parallel import SingleRank, communicator, may_run_in_thread, program_ranks
from standfast.parallel.program import is_first_of_program
from standfast.parallel.select import given_ranks
from tests.parallel.suite import CHECKS

TORCHRUN = {"RANK": "1", "WORLD_SIZE": "3", "MASTER_ADDR": "localhost"}


@pytest.fixture(autouse=True)
def started_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("RANK", "WORLD_SIZE", "MASTER_ADDR", "TORCHELASTIC_RUN_ID"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.delitem(sys.modules, "mpi4py.MPI", raising=False)


def test_a_program_that_was_not_started_on_ranks_is_alone():
    comm = program_ranks()
    assert isinstance(comm, SingleRank)
    assert program_ranks() is comm
    assert may_run_in_thread(comm)
    comm.close()
    assert program_ranks().all_gather(b"x") == [b"x"], "it is made again"


@pytest.mark.parametrize(
    "environment",
    [TORCHRUN, {"RANK": "1", "WORLD_SIZE": "3", "TORCHELASTIC_RUN_ID": "none"}],
    ids=["address", "elastic"],
)
def test_ranks_of_torchrun_must_have_met(environment):
    with (
        patch.dict(os.environ, environment),
        pytest.raises(BadOption, match=r"init_process_group.*SingleRank\(\)"),
    ):
        program_ranks()


@pytest.mark.parametrize(
    "environment",
    [
        {**TORCHRUN, "WORLD_SIZE": "1"},
        {**TORCHRUN, "WORLD_SIZE": "many"},
        {"RANK": "1", "WORLD_SIZE": "3"},
        {"WORLD_SIZE": "3", "MASTER_ADDR": "localhost"},
    ],
    ids=["one", "no number", "no address", "no rank"],
)
def test_an_environment_of_something_else_is_let_be(environment):
    with patch.dict(os.environ, environment):
        assert program_ranks().size == 1


def test_a_world_of_one_rank_has_met():
    with (
        patch.dict(os.environ, TORCHRUN),
        patch.dict(sys.modules, {"torch.distributed": _torch(1)}),
    ):
        assert program_ranks().size == 1


def test_a_worker_of_a_data_loader_is_alone():
    data = SimpleNamespace(get_worker_info=lambda: object())
    with patch.dict(os.environ, TORCHRUN), patch.dict(sys.modules, {"torch.utils.data": data}):
        assert isinstance(program_ranks(), SingleRank)


def test_those_of_torch_count_before_those_of_mpi():
    with patch.dict(sys.modules, {"mpi4py.MPI": stand_in_for_mpi(3)}):
        assert not is_first_of_program()  # its rank is 1
        with patch.dict(sys.modules, {"torch.distributed": _torch(2)}):
            assert is_first_of_program()


def test_a_process_forked_from_a_rank_of_mpi_is_alone():
    with (
        patch.dict(sys.modules, {"mpi4py.MPI": stand_in_for_mpi(3)}),
        patch.dict(os.environ, TORCHRUN),
    ):
        child = os.fork()
        if child == 0:
            os._exit(17 if isinstance(program_ranks(), SingleRank) else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 17


def test_an_unknown_communicator_may_run_in_a_thread_unless_it_says_no():
    comm: Any = SimpleNamespace()
    assert may_run_in_thread(comm)
    comm.is_thread_safe = False
    assert not may_run_in_thread(comm)


def _torch(size: int) -> Any:
    return SimpleNamespace(
        is_available=lambda: True,
        is_initialized=lambda: True,
        get_world_size=lambda: size,
        group=SimpleNamespace(WORLD=SimpleNamespace(rank=lambda: 0)),
    )


# Which may be left out


def stand_in_for_mpi(size: int, initialized: bool = True, finalized: bool = False) -> Any:
    world = SimpleNamespace(Get_size=lambda: size, Get_rank=lambda: 1, rank=1)
    return SimpleNamespace(
        COMM_WORLD=world,
        Is_initialized=lambda: initialized,
        Is_finalized=lambda: finalized,
        Comm=type("Comm", (), {}),
    )


def test_ranks_that_mpi_has_started_must_be_given():
    with patch.dict(sys.modules, {"mpi4py.MPI": stand_in_for_mpi(3)}):
        with pytest.raises(BadOption, match="MPI"):
            given_ranks(None)
        alone = SingleRank()
        assert given_ranks(alone) is alone


@pytest.mark.parametrize(
    "mpi",
    [
        stand_in_for_mpi(1),
        stand_in_for_mpi(3, initialized=False),
        stand_in_for_mpi(3, finalized=True),
    ],
    ids=["1", "not", "over"],
)
def test_a_process_alone_need_say_nothing(mpi):
    with patch.dict(sys.modules, {"mpi4py.MPI": mpi}):
        assert given_ranks(None).size == 1


# A rank that is alone


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
def test_a_rank_alone_is_a_communicator(check):
    comm = SingleRank(timeout=5.0)
    check(comm)
    assert (comm.rank, comm.size) == (0, 1)


def test_nothing_stands_for_a_rank_alone():
    comm = communicator(None)
    assert isinstance(comm, SingleRank)
    assert comm is not communicator()


@pytest.mark.parametrize("wrong", [3, "world", object, [None]], ids=repr)
def test_what_is_no_communicator_is_refused(wrong):
    with pytest.raises(BadOption):
        communicator(wrong)  # type: ignore[arg-type]


def test_mpi4py_need_not_be_there_and_is_not_imported():
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
