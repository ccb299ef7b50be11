"""What every communicator must do, on any number of ranks.

Each check is called on all ranks at once, with a communicator of its own that waits for a few
seconds at most. To test another communicator, run `CHECKS` with it on 1, 2, 3 and 4 ranks.
"""

import errno
import math
from collections.abc import Callable
from typing import Any, NoReturn

import pytest

from standfast.errors import (
    BadOption,
    DigestMismatch,
    NotOpen,
    RankFailed,
    RanksDisagree,
    StandfastError,
    StepExists,
    UnreadableFile,
)
from standfast.oxck import InvalidMagic
from standfast.parallel import Communicator, agree, communicator, on_root, together
from standfast.parallel.agreement import agree_all

Check = Callable[[Communicator], None]

CHECKS: list[Check] = []


def check(function: Check) -> Check:
    CHECKS.append(function)
    return function


def said(rank: int, to: int = 0) -> bytes:
    """A message that no other rank sends, of another length, and sometimes empty."""
    return bytes([rank, to]) * ((3 * rank + to) % 5)


def in_step(comm: Communicator) -> bool:
    """Whether the ranks still understand each other."""
    return comm.all_gather(said(comm.rank)) == [said(rank) for rank in range(comm.size)]


def fails(error: BaseException) -> Callable[[], NoReturn]:
    def action() -> NoReturn:
        raise error

    return action


def gives(value: object) -> Callable[[], object]:
    return lambda: value


@check
def ranks_have_numbers(comm: Communicator) -> None:
    assert 0 <= comm.rank < comm.size
    assert comm.all_gather(bytes([comm.rank])) == [bytes([rank]) for rank in range(comm.size)]
    assert comm.timeout > 0
    assert communicator(comm) is comm


@check
def messages_arrive_at_their_ranks_in_order(comm: Communicator) -> None:
    ranks = range(comm.size)
    for root in ranks:
        expected = [said(rank) for rank in ranks] if comm.rank == root else []
        assert comm.gather(said(comm.rank), root) == expected
        assert comm.broadcast(said(comm.rank, 1), root) == said(root, 1)
    assert comm.all_gather(said(comm.rank, 2)) == [said(rank, 2) for rank in ranks]
    sent = [said(comm.rank, rank) for rank in ranks]
    assert comm.exchange(sent) == [said(rank, comm.rank) for rank in ranks]
    large = [bytes(range(rank, rank + 200)) * 5000 for rank in ranks]
    assert comm.all_gather(large[comm.rank]) == large
    received = [comm.broadcast(b"a"), *comm.all_gather(b"b"), *comm.exchange([b""] * comm.size)]
    assert {type(each) for each in received} == {bytes}


@check
def what_cannot_be_sent_is_refused_on_all(comm: Communicator) -> None:
    wrong: list[Any] = [comm.size, -1, "0", None]
    for root in wrong:
        with pytest.raises(BadOption):
            comm.broadcast(b"", root)
        with pytest.raises(BadOption):
            comm.gather(b"", root)
    for count in (comm.size - 1, comm.size + 1):
        with pytest.raises(BadOption, match=f"{count}"):
            comm.exchange([b""] * count)
    wrong = ["text", bytearray(b"x"), 3, None]
    for data in wrong:
        with pytest.raises(BadOption):
            comm.all_gather(data)
    assert in_step(comm)


@check
def a_duplicate_is_apart(comm: Communicator) -> None:
    with comm.duplicate() as other:
        assert other is not comm
        assert (other.rank, other.size, other.timeout) == (comm.rank, comm.size, comm.timeout)
        for turn in range(3):
            assert other.broadcast(said(turn, 1)) == said(turn, 1)
            assert comm.broadcast(said(turn, 2)) == said(turn, 2)
    assert in_step(comm)


@check
def a_duplicate_may_have_another_timeout(comm: Communicator) -> None:
    with comm.duplicate(timeout=45.0) as other:
        assert other.timeout == 45.0
        assert in_step(other)
    wrong: list[Any] = [0, -1.0, math.nan, "1"]
    for timeout in wrong:
        with pytest.raises(BadOption):
            comm.duplicate(timeout)
    assert in_step(comm)


@check
def a_closed_one_is_not_used(comm: Communicator) -> None:
    other = comm.duplicate()
    other.close()
    other.close()
    with pytest.raises(NotOpen):
        other.all_gather(b"")
    with pytest.raises(NotOpen):
        other.duplicate()
    assert in_step(comm)


@check
def leaving_by_an_error_closes_it_and_waits_for_nobody(comm: Communicator) -> None:
    other = comm.duplicate()
    with pytest.raises(ZeroDivisionError), other:
        raise ZeroDivisionError
    with pytest.raises(StandfastError):
        other.all_gather(b"")
    assert in_step(comm)


@check
def together_returns_what_each_did(comm: Communicator) -> None:
    result = object()  # nothing that could be sent
    assert together(comm, lambda: result) is result


@check
def a_failure_on_one_rank_is_raised_on_all(comm: Communicator) -> None:
    for failing in range(comm.size):
        error = UnreadableFile(errno.EIO, "disk-7")
        action = fails(error) if comm.rank == failing else int
        with pytest.raises(UnreadableFile) as raised:
            together(comm, action)
        assert raised.value.errno == errno.EIO
        assert "disk-7" in str(raised.value)
        if comm.size == 1:
            assert raised.value is error
            continue
        assert f"rank {failing}" in str(raised.value)
        assert raised.value.__cause__ is (error if comm.rank == failing else None)
    assert in_step(comm)


@check
def failures_on_several_ranks_are_all_told_and_equal_ones_once(comm: Communicator) -> None:
    error = StepExists(f"step-{comm.rank}") if comm.rank % 2 == 0 else ValueError("odd")
    with pytest.raises(StepExists) as raised:
        together(comm, fails(error))
    for rank in range(comm.size):
        assert (f"step-{rank}" if rank % 2 == 0 else "ValueError: odd") in str(raised.value)
    with pytest.raises(StepExists) as raised:
        together(comm, fails(StepExists("step-7")))
    assert str(raised.value).count("step-7") == 1


@check
def an_error_that_is_not_ours_is_a_failed_rank(comm: Communicator) -> None:
    last = comm.size - 1
    alone = ZeroDivisionError, "^zero$"  # a rank alone has its own errors, as they are
    kind, text = alone if comm.size == 1 else (RankFailed, f"{last}.*ZeroDivisionError: zero")
    with pytest.raises(kind, match=text):
        together(comm, fails(ZeroDivisionError("zero")) if comm.rank == last else int)


@check
def an_interrupt_is_raised_where_it_came_and_told_to_the_others(comm: Communicator) -> None:
    last = comm.size - 1
    for kind in (KeyboardInterrupt, SystemExit):
        expected = kind if comm.rank == last else RankFailed
        with pytest.raises(expected, match=None if comm.rank == last else kind.__name__):
            together(comm, fails(kind()) if comm.rank == last else int)
    assert in_step(comm)


@check
def an_error_with_a_constructor_of_its_own_keeps_its_class(comm: Communicator) -> None:
    action = fails(InvalidMagic(b"\xff\x00")) if comm.rank == 0 else int
    with pytest.raises(InvalidMagic, match="OXCK") as raised:
        together(comm, action)
    assert raised.value.got == b"\xff\x00"
    assert str(raised.value).startswith("rank 0") == (comm.size > 1)


@check
def damaged_tensors_are_named_on_all(comm: Communicator) -> None:
    last = comm.size - 1
    action = fails(DigestMismatch("damage", ("w", "b"))) if comm.rank == last else int
    with pytest.raises(DigestMismatch) as raised:
        together(comm, action)
    assert raised.value.tensors == ("w", "b")


class Unprintable(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no words")


@check
def an_error_that_cannot_be_printed_or_sent_still_arrives(comm: Communicator) -> None:
    for error in (Unprintable(), ValueError("\udcff"), OSError("a", "b"), OSError(1 << 80, "big")):
        told = RankFailed if comm.size > 1 else type(error)
        with pytest.raises(told) as raised:
            together(comm, fails(error) if comm.rank == 0 else int)
        assert comm.size == 1 or type(error).__name__ in str(raised.value)
    assert in_step(comm)


@check
def the_value_of_the_root_is_the_same_on_all(comm: Communicator) -> None:
    for root in range(comm.size):
        value = {"step": 3, "list": (1, None, 2.5), "bytes": b"\xff", "text": "ü"}
        got = on_root(comm, gives(value if comm.rank == root else None), root)
        assert got == {"step": 3, "list": [1, None, 2.5], "bytes": b"\xff", "text": "ü"}


@check
def only_the_root_acts_and_its_failure_is_raised_on_all(comm: Communicator) -> None:
    acted = []
    on_root(comm, lambda: acted.append(1))
    assert len(acted) == (1 if comm.rank == 0 else 0)
    root = comm.size - 1
    text = f"{root}.*: StepExists: step-3" if comm.size > 1 else "^step-3$"
    with pytest.raises(StepExists, match=text):
        on_root(comm, fails(StepExists("step-3")), root)
    assert in_step(comm)


@check
def a_value_that_cannot_be_sent_fails_on_all(comm: Communicator) -> None:
    endless: list[Any] = []
    endless.append(endless)
    for value in (object(), 1 << 80, "\udcff", {(1, 2): 3}, endless):
        with pytest.raises(BadOption, match="JSON"):
            on_root(comm, gives(value))
        with pytest.raises(BadOption, match="JSON"):
            agree(comm, "it", value if comm.rank == comm.size - 1 else 0)
    assert in_step(comm)


@check
def ranks_agree_on_equal_values(comm: Communicator) -> None:
    pairs = [("a", 1), ("b", [None, 2.5])]
    agree(comm, "mappings", dict(pairs if comm.rank % 2 else reversed(pairs)))
    agree(comm, "what is no number", math.nan)
    assert in_step(comm)


@check
def values_that_differ_are_told_on_all(comm: Communicator) -> None:
    last = comm.size - 1
    for first, other in [(1, 2), (1, 1.0), (1, True), (None, math.nan), (0.0, -0.0), ("1", 1)]:
        if comm.size == 1:
            agree(comm, "it", first)
            continue
        with pytest.raises(RanksDisagree, match=rf"(?s)it.*{first!r}.*{last}.*{other!r}"):
            agree(comm, "it", other if comm.rank == last else first)
    agree_all(comm, {"run": "heat", "step": 100})
    assert in_step(comm)


@check
def every_rank_is_named_with_its_value(comm: Communicator) -> None:
    """The AMR seed: "To coordinate snapshot steps across ranks"."""
    if comm.size == 1:
        return
    given = {"run": "heat", "step": 100 * comm.rank, "time": comm.rank / 4}
    with pytest.raises(RanksDisagree) as raised:
        agree_all(comm, given)
    told = str(raised.value)
    assert "step" in told
    assert "heat" not in told
    for rank in range(comm.size):
        assert f"rank {rank} has {100 * rank}" in told
