"""Ranks that succeed or fail together: a failure on one is raised on all, and nobody waits for it.

All functions here are collective.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

import msgspec

from standfast.errors import BadOption, RankError, RanksDisagree, shortened
from standfast.parallel.communicator import Communicator
from standfast.parallel.failures import Failure, failure_of, raise_failures

Result = TypeVar("Result")

Message = tuple[Failure | None, bytes]
"""What a rank has to say: what went wrong, or what it wants the others to have."""


def together(comm: Communicator, action: Callable[[], Result]) -> Result:
    """Collective: do something on each rank, and return when all have done it.

    The action must not be collective itself. If it raises on some ranks, all of them raise: the
    class of the first rank's error, if it is one of ours, with the reason of each. A rank that was
    interrupted raises just that.
    """
    results: list[Result] = []  # of this rank: it stays here

    def act() -> bytes:
        results.append(action())
        return b""

    _all_told(comm, act)
    return results[0]


def on_root(comm: Communicator, action: Callable[[], Any], root: int = 0) -> Any:
    """Collective: do something on one rank; returns, or raises, what it does on all of them.

    What it returns must be of JSON's types or bytes. Each rank gets a copy, the root too, so that
    all have the same: lists where the action had tuples.
    """

    def act() -> bytes:
        return _encoded("what `on_root` does returns a value that cannot be sent", action())

    if comm.size == 1:  # its own errors, as they are
        return msgspec.msgpack.decode(comm.broadcast(act(), root))
    failure, data, cause = _attempt(act) if comm.rank == root else (None, b"", None)
    message = _sent(lambda: comm.broadcast(_packed(failure, data), root), cause)
    failed, value = _unpacked(message)
    if failed is not None:
        raise_failures([failed if rank == root else None for rank in range(comm.size)], cause)
    return msgspec.msgpack.decode(value)


def agree(comm: Communicator, what: str, value: Any) -> None:
    """Collective: raise RanksDisagree on all ranks unless all gave the same, of JSON's types."""
    agree_all(comm, {what: value})


def agree_all(comm: Communicator, values: Mapping[str, Any]) -> None:
    """Collective: the same for several values by their names, in one exchange.

    The error names the first value that differs, and what each rank has.
    """

    def encode() -> bytes:
        each = [_encoded(f"ranks cannot agree on {what}", value) for what, value in values.items()]
        return msgspec.msgpack.encode(each)

    told = [msgspec.msgpack.decode(each, type=list[bytes]) for each in _all_told(comm, encode)]
    for what, column in zip(values, zip(*told, strict=True), strict=True):
        if len(set(column)) > 1:
            raise RanksDisagree(
                f"the ranks do not agree on {what}: {_by_rank(column)}; give all the same"
            )


def _all_told(comm: Communicator, action: Callable[[], bytes]) -> list[bytes]:
    """What an action gave on each rank; a failure on one of them is raised on all."""
    if comm.size == 1:  # its own errors, as they are
        return comm.all_gather(action())
    failure, data, cause = _attempt(action)
    messages = _sent(lambda: comm.all_gather(_packed(failure, data)), cause)
    told = [_unpacked(message) for message in messages]
    if any(failed for failed, _ in told):
        raise_failures([failed for failed, _ in told], cause)
    return [data for _, data in told]


def _attempt(action: Callable[[], bytes]) -> tuple[Failure | None, bytes, BaseException | None]:
    try:
        return None, action(), None
    except BaseException as error:  # whatever it is: the others must not wait for this rank
        return failure_of(error), b"", error


def _sent(call: Callable[[], Result], cause: BaseException | None) -> Result:
    """Make the call that tells the others; where they are lost, this rank's own error stays."""
    try:
        return call()
    except RankError as error:
        if cause is None:
            raise
        if not isinstance(cause, Exception):
            raise cause from error
        raise error from cause


def _packed(failure: Failure | None, data: bytes) -> bytes:
    return msgspec.msgpack.encode((failure, data))


def _unpacked(message: bytes) -> Message:
    told: Message = msgspec.msgpack.decode(message, type=Message)
    return told


def _encoded(why: str, value: Any) -> bytes:
    """A value as bytes, equal for equal values, that can be read again."""
    try:
        data = msgspec.msgpack.encode(value, order="deterministic")
        msgspec.msgpack.decode(data)  # a mapping with a list as its key, for one, can not
    except Exception as error:
        raise BadOption(f"{why}: {error}; it must be of JSON's types or bytes") from error
    return data


def _by_rank(column: Sequence[bytes]) -> str:
    """Each value with the ranks that have it."""
    holders: dict[bytes, list[str]] = {}
    for rank, value in enumerate(column):
        holders.setdefault(value, []).append(str(rank))
    return ", and ".join(
        f"ranks {shortened(', '.join(ranks))} have {_shown(value)}"
        if len(ranks) > 1
        else f"rank {ranks[0]} has {_shown(value)}"
        for value, ranks in holders.items()
    )


def _shown(data: bytes) -> str:
    return shortened(repr(msgspec.msgpack.decode(data)))
