"""What the ranks of torch must do besides."""

import os
import threading
from typing import Any

import pytest
import torch
import torch.distributed as dist

from standfast.errors import BadOption, RankLost
from standfast.parallel import (
    Communicator,
    SingleRank,
    TorchRanks,
    communicator,
    may_run_in_thread,
    program_ranks,
)
from standfast.parallel.select import given_ranks
from tests.parallel.programs import torch_world
from tests.parallel.suite import Check, in_step

CHECKS: list[Check] = []


def check(function: Check) -> Check:
    CHECKS.append(function)
    return function


def world() -> Any:
    return dist.group.WORLD


@check
def one_communicator_is_made_of_a_group(comm: Communicator) -> None:
    first = communicator(world())
    assert isinstance(first, TorchRanks)
    assert communicator(world()) is first
    assert in_step(first)
    other: Any = dist.new_group(list(range(comm.size)))
    assert communicator(other) is not first
    assert in_step(communicator(other))
    assert in_step(first)


@check
def what_was_closed_is_made_again(comm: Communicator) -> None:
    own: Any = dist.new_group(list(range(comm.size)))
    first = communicator(own)
    first.close()
    second = communicator(own)
    assert second is not first
    assert in_step(second)


@check
def some_of_the_ranks_can_be_a_communicator(comm: Communicator) -> None:
    if comm.size == 1:
        return  # torch makes no group of none
    halves: list[Any] = [dist.new_group(list(range(half, comm.size, 2))) for half in (0, 1)]
    mine, other = halves[comm.rank % 2], halves[1 - comm.rank % 2]
    expected = [bytes([rank]) for rank in range(comm.rank % 2, comm.size, 2)]
    assert communicator(mine).all_gather(bytes([comm.rank])) == expected
    with pytest.raises(BadOption):
        communicator(other)
    with pytest.raises(BadOption):
        TorchRanks(other)


@check
def what_is_no_group_is_refused(comm: Communicator) -> None:
    wrong: list[Any] = ["world", 3, dist.group]
    for group in wrong:
        with pytest.raises(BadOption):
            TorchRanks(group)
    assert in_step(comm)


@check
def messages_of_the_program_do_not_meet_ours(comm: Communicator) -> None:
    if comm.size > 1:
        following, previous = (comm.rank + 1) % comm.size, (comm.rank - 1) % comm.size
        request: Any = dist.isend(torch.tensor([comm.rank]), following, tag=1)
        assert in_step(communicator(world()))
        received = torch.tensor([-1])
        dist.recv(received, previous, tag=1)
        request.wait()
        assert received.tolist() == [previous]


@check
def a_thread_may_use_it_beside_the_groups_of_the_program(comm: Communicator) -> None:
    assert may_run_in_thread(comm)
    came: list[bool] = []
    thread = threading.Thread(target=lambda: came.extend(in_step(comm) for _ in range(50)))
    thread.start()
    for _ in range(50):
        total = torch.ones(1000)
        dist.all_reduce(total)
        assert total.unique().tolist() == [comm.size]
    thread.join(60)
    assert came == [True] * 50


@check
def duplicates_that_are_closed_leave_nothing_behind(comm: Communicator) -> None:
    comm.duplicate().close()
    before = _held()
    for _ in range(5):
        comm.duplicate().close()
    assert _held() == before


@check
def ranks_that_have_parted_leave_no_connections_behind(comm: Communicator) -> None:
    if comm.size == 1:
        return
    before = _held()
    for _ in range(5):
        ranks = comm.duplicate()
        with pytest.raises(ZeroDivisionError), ranks:
            raise ZeroDivisionError
        del ranks
    assert in_step(comm)
    assert _held() == before


@check
def who_leaves_at_once_breaks_it_for_nobody_who_still_connects(comm: Communicator) -> None:
    for turn in range(10):
        ranks = comm.duplicate()
        if comm.rank == turn % comm.size:
            del ranks
        elif comm.size > 1:
            with pytest.raises(RankLost):
                ranks.all_gather(b"x")
    assert in_step(comm)


def _held() -> tuple[int, int]:
    """How many files and threads this process has."""
    return len(os.listdir("/proc/self/fd")), len(os.listdir("/proc/self/task"))


@check
def the_ranks_of_the_program_are_found(comm: Communicator) -> None:
    ranks = program_ranks()
    assert ranks is program_ranks()
    assert ranks.size == comm.size
    assert in_step(ranks)
    if comm.size > 1:
        assert ranks is communicator(world())
        with pytest.raises(BadOption, match=f"{comm.rank}.*{comm.size}"):
            given_ranks(None)


@check
def a_process_forked_from_a_rank_is_alone(comm: Communicator) -> None:
    child = os.fork()
    if child == 0:
        alone = program_ranks()
        os._exit(17 if isinstance(alone, SingleRank) and in_step(alone) else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 17
    assert program_ranks().size == comm.size


@check
def groups_that_are_destroyed_leave_it_as_it_is(comm: Communicator) -> None:
    before, old = program_ranks(), world()
    dist.destroy_process_group()
    assert in_step(comm)
    assert in_step(before)
    with pytest.raises(BadOption, match="init_process_group"):
        comm.duplicate()
    with pytest.raises(BadOption, match="init_process_group"):
        TorchRanks()
    assert in_step(comm)
    assert communicator(old).size == comm.size
    torch_world.begin(again="-again")
    after = program_ranks()
    assert in_step(after)
    assert in_step(before)
    if comm.size > 1:
        assert after is not before
    with comm.duplicate() as another:
        assert in_step(another)
