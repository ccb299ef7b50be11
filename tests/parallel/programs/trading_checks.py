"""What ranks must do besides that send each other messages: those of MPI, and of torch."""

import os
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest

from standfast.errors import BadOption, NotOpen, RankFailed, RankLost, RanksDisagree
from standfast.parallel import Communicator, together
from tests.parallel.suite import Check, in_step

CHECKS: list[Check] = []


def check(function: Check) -> Check:
    CHECKS.append(function)
    return function


@check
def large_messages_travel_in_pieces(comm: Communicator) -> None:
    carrier: Any = sys.modules[type(comm).__module__]
    whole, carrier.PIECE = carrier.PIECE, 30
    try:
        for length in (0, 14, 15, 16, 30, 1000):
            sent = [bytes([comm.rank, to]) * length for to in range(comm.size)]
            received = comm.exchange(sent)
            assert received == [bytes([at, comm.rank]) * length for at in range(comm.size)]
    finally:
        carrier.PIECE = whole


@check
def what_one_rank_cannot_send_fails_on_all_and_leaves_them_in_step(comm: Communicator) -> None:
    last = comm.size - 1
    calls: list[Callable[[], object]] = [
        lambda: comm.exchange([b""] * (comm.size - (comm.rank == last))),
        lambda: comm.all_gather("text" if comm.rank == last else b""),  # type: ignore[arg-type]
        lambda: comm.broadcast(b"", -5 if comm.rank == last else 0),
        lambda: comm.duplicate(timeout=0 if comm.rank == last else None),
    ]
    for call in calls:
        with pytest.raises(BadOption if comm.rank == last else RankFailed):
            call()
        assert in_step(comm)


@check
def who_comes_late_is_waited_for(comm: Communicator) -> None:
    for late in range(comm.size):
        if comm.rank == late:
            time.sleep(0.3)
        assert in_step(comm)


@check
def another_thread_may_make_the_calls(comm: Communicator) -> None:
    came: list[bool] = []
    thread = threading.Thread(target=lambda: came.append(in_step(comm)))
    thread.start()
    thread.join(60)
    assert came == [True]
    assert in_step(comm)


def out_of_step(comm: Communicator, call: Callable[[Communicator], object]) -> None:
    """A call that is not the same on all ranks: they see it at once, and part."""
    ranks = comm.duplicate()
    with pytest.raises(RanksDisagree, match="1"):
        call(ranks)
    with pytest.raises(RankLost, match="parted"):
        ranks.all_gather(b"")
    with pytest.raises(RankLost, match="parted"):
        ranks.duplicate()
    ranks.close()
    with pytest.raises(NotOpen):
        ranks.all_gather(b"")
    assert in_step(comm)


@check
def another_call_on_one_rank_is_seen_on_all(comm: Communicator) -> None:
    if comm.size > 1:
        last = comm.size - 1
        out_of_step(
            comm, lambda ranks: (ranks.gather if ranks.rank == last else ranks.broadcast)(b"x")
        )
        out_of_step(
            comm, lambda ranks: ranks.close() if ranks.rank == last else ranks.all_gather(b"x")
        )
        out_of_step(comm, lambda ranks: ranks.broadcast(b"x", root=int(ranks.rank == last)))


@check
def who_hears_that_ranks_are_out_of_step_says_so_too(comm: Communicator) -> None:
    ranks: Any = comm.duplicate()
    if comm.rank == comm.size - 1:
        ranks._part("it saw another call", disagreeing=True)
    else:
        with pytest.raises(RanksDisagree, match=f"{comm.size - 1}"):
            ranks.all_gather(b"")
    assert in_step(comm)


@check
def who_leaves_by_an_error_keeps_nobody_waiting(comm: Communicator) -> None:
    if comm.size > 1:
        expected = ZeroDivisionError if comm.rank == 0 else RankLost
        match = None if comm.rank == 0 else "ZeroDivisionError"
        with pytest.raises(expected, match=match), comm.duplicate() as ranks:
            ranks.all_gather(bytes(1 // ranks.rank))


@check
def a_rank_that_fails_while_others_are_lost_says_why_it_failed(comm: Communicator) -> None:
    if comm.size > 1:
        ranks = comm.duplicate()
        if ranks.rank > 0:
            with pytest.raises(ValueError, match="gone"), ranks:
                raise ValueError("gone")
        else:
            with pytest.raises(RankLost) as raised:
                together(ranks, lambda: 1 // 0)
            assert isinstance(raised.value.__cause__, ZeroDivisionError)


@check
def a_process_forked_from_a_rank_is_none(comm: Communicator) -> None:
    child = os.fork()
    if child == 0:
        with pytest.raises(NotOpen, match="forked"):
            comm.all_gather(b"")
        os._exit(17)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 17
    assert in_step(comm)
