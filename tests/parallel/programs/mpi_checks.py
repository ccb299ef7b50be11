"""What the ranks of MPI must do besides."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest
from mpi4py import MPI

from holdfast.errors import BadOption, NotOpen, RankFailed, RankLost, RanksDisagree
from holdfast.parallel import Communicator, MPIRanks, communicator, mpi, together
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
def large_messages_travel_in_pieces(comm: Communicator) -> None:
    whole, mpi.PIECE = mpi.PIECE, 7
    try:
        for length in (0, 6, 7, 8, 14, 1000):
            sent = [bytes([comm.rank, to]) * length for to in range(comm.size)]
            received = comm.exchange(sent)
            assert received == [bytes([at, comm.rank]) * length for at in range(comm.size)]
    finally:
        mpi.PIECE = whole


@check
def what_one_rank_cannot_send_fails_on_all_and_leaves_them_in_step(comm: Communicator) -> None:
    last = comm.size - 1
    calls: list[Callable[[], object]] = [
        lambda: comm.exchange([b""] * (comm.size - (comm.rank == last))),
        lambda: comm.all_gather("text" if comm.rank == last else b""),  # type: ignore[arg-type]
        lambda: comm.broadcast(b"", -5 if comm.rank == last else 0),
    ]
    for call in calls:
        match = None if comm.rank == last else f"rank {last} of {comm.size} cannot send"
        with pytest.raises(BadOption if comm.rank == last else RankFailed, match=match):
            call()
        assert in_step(comm)


def out_of_step(call: Callable[[MPIRanks], object]) -> None:
    """A call that is not the same on all ranks: they see it at once, and part."""
    comm = MPIRanks(MPI.COMM_WORLD, timeout=60.0)
    start = time.monotonic()
    with pytest.raises(RanksDisagree, match=r"out of step.*, its call 1"):
        call(comm)
    with pytest.raises(RankLost, match="parted"):
        comm.all_gather(b"")
    with pytest.raises(RankLost, match="parted"):
        comm.duplicate()
    comm.close()
    with pytest.raises(NotOpen):
        comm.all_gather(b"")
    assert time.monotonic() - start < 20


@check
def another_call_on_one_rank_is_seen_on_all(comm: Communicator) -> None:
    if comm.size > 1:
        last = comm.size - 1
        out_of_step(lambda ranks: (ranks.gather if ranks.rank == last else ranks.broadcast)(b"x"))
        out_of_step(lambda ranks: ranks.close() if ranks.rank == last else ranks.all_gather(b"x"))
        out_of_step(lambda ranks: ranks.broadcast(b"x", root=int(ranks.rank == last)))


@check
def who_leaves_by_an_error_keeps_nobody_waiting(comm: Communicator) -> None:
    if comm.size > 1:
        start = time.monotonic()
        expected = ZeroDivisionError if comm.rank == 0 else RankLost
        match = None if comm.rank == 0 else "rank 0 gave up: ZeroDivisionError"
        with pytest.raises(expected, match=match), MPIRanks(MPI.COMM_WORLD, timeout=60.0) as ranks:
            ranks.all_gather(bytes(1 // ranks.rank))
        assert time.monotonic() - start < 20


@check
def a_rank_that_fails_while_others_are_lost_says_why_it_failed(comm: Communicator) -> None:
    if comm.size > 1:
        ranks = MPIRanks(MPI.COMM_WORLD, timeout=60.0)
        if ranks.rank > 0:
            with pytest.raises(ValueError, match="gone"), ranks:
                raise ValueError("gone")
        else:
            with pytest.raises(RankLost) as raised:
                together(ranks, lambda: 1 // 0)
            assert isinstance(raised.value.__cause__, ZeroDivisionError)
