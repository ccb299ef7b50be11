"""What the ranks of MPI must do besides."""

from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from mpi4py import MPI

from standfast.errors import BadOption
from standfast.parallel import (
    Communicator,
    MPIRanks,
    communicator,
    may_run_in_thread,
    program_ranks,
)
from tests.parallel.suite import Check, in_step

CHECKS: list[Check] = []


def check(function: Check) -> Check:
    CHECKS.append(function)
    return function


@contextmanager
def world_again() -> Iterator[MPI.Intracomm]:
    """A duplicate of all ranks, as a program would make one."""
    again = MPI.COMM_WORLD.Dup()
    yield again
    again.Free()


@check
def one_duplicate_is_made_of_a_communicator(comm: Communicator) -> None:
    first = communicator(MPI.COMM_WORLD)
    assert all(communicator(MPI.COMM_WORLD) is first for _ in range(1000))
    assert in_step(first)
    with world_again() as other:
        assert communicator(other) is not first
        assert in_step(communicator(other))


@check
def what_was_closed_is_made_again(comm: Communicator) -> None:
    with world_again() as own:
        first = communicator(own)
        first.close()
        second = communicator(own)
        assert second is not first
        assert in_step(second)


@check
def the_communicator_it_was_made_of_may_be_freed(comm: Communicator) -> None:
    own = MPI.COMM_WORLD.Dup()
    ranks = communicator(own)
    own.Free()
    assert in_step(ranks)
    ranks.close()
    with pytest.raises(BadOption, match="freed"):
        communicator(own)


@check
def duplicates_that_are_closed_cost_nothing(comm: Communicator) -> None:
    if comm.size > 1:
        return  # one rank gets to the 2048 that MPICH has room for soonest
    for _ in range(2100):
        comm.duplicate().close()


@check
def messages_of_the_program_do_not_meet_ours(comm: Communicator) -> None:
    world = MPI.COMM_WORLD
    following, previous = (world.rank + 1) % world.size, (world.rank - 1) % world.size
    request = world.Isend([bytes([world.rank]), MPI.BYTE], following, tag=1)
    assert in_step(communicator(world))
    received = bytearray(1)
    world.Recv([received, MPI.BYTE], previous, tag=1)
    request.Wait()
    assert received == bytes([previous])


@check
def only_an_intracommunicator_is_taken(comm: Communicator) -> None:
    with pytest.raises(BadOption, match="COMM_NULL"):
        MPIRanks(MPI.Intracomm(MPI.COMM_NULL))
    with pytest.raises(BadOption, match="COMM_NULL"):
        communicator(MPI.COMM_NULL)
    if comm.size > 1:
        upper = comm.rank > 0
        half = MPI.Intracomm(MPI.COMM_WORLD.Split(upper))
        between = half.Create_intercomm(0, MPI.COMM_WORLD, 0 if upper else 1)
        with pytest.raises(BadOption, match="merge"):
            communicator(between)
        between.Free()
        half.Free()


@check
def some_of_the_ranks_can_be_a_communicator(comm: Communicator) -> None:
    half = MPI.COMM_WORLD.Split(comm.rank % 2)
    expected = [bytes([rank]) for rank in range(comm.rank % 2, comm.size, 2)]
    assert communicator(half).all_gather(bytes([comm.rank])) == expected
    half.Free()


@check
def the_ranks_of_the_program_are_found(comm: Communicator) -> None:
    ranks = program_ranks()
    assert ranks is program_ranks()
    assert ranks.size == comm.size
    if comm.size > 1:
        assert ranks is communicator(MPI.COMM_WORLD)
    assert in_step(ranks)


@check
def threads_may_use_it_if_mpi_was_started_for_them(comm: Communicator) -> None:
    assert may_run_in_thread(comm) == (MPI.Query_thread() == MPI.THREAD_MULTIPLE)
