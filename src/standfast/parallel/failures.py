"""Errors on their way to other ranks, and back into errors."""

from __future__ import annotations

import importlib
from collections.abc import Iterator, Sequence
from types import FunctionType
from typing import Any, NoReturn

import msgspec

from standfast.errors import RankFailed, StandfastError
from standfast.parallel.calls import named


class Failure(msgspec.Struct, frozen=True):
    """An error, on its way to the other ranks."""

    module: str
    kind: str
    reason: str
    number: int | None
    """The error number of an OSError."""
    attributes: dict[str, Any]
    """What else an error of ours says, such as the damaged tensors of a DigestMismatch."""


def failure_of(error: BaseException) -> Failure:
    """An error as a message."""
    number = error.errno if isinstance(error, OSError) else None
    return Failure(
        module=_sendable(type(error).__module__),
        kind=_sendable(type(error).__qualname__),
        reason=_sendable(_reason(error)),
        number=number if isinstance(number, int) and abs(number) < 1 << 31 else None,
        attributes=_attributes(error) if isinstance(error, StandfastError) else {},
    )


def raise_failures(failures: Sequence[Failure | None], cause: BaseException | None) -> NoReturn:
    """Raise what went wrong on the first of the ranks, with the reasons of all.

    `failures` has one for each rank that failed, and `cause` is the error of this one.
    """
    if cause is not None and not isinstance(cause, Exception):
        raise cause  # Ctrl-C here: the others are told, and this one does what it was asked to
    reasons: dict[str, list[int]] = {}
    for rank, failure in enumerate(failures):
        if failure is not None:
            reasons.setdefault(failure.reason, []).append(rank)
    text = "; ".join(f"{_ranks(ranks, len(failures))}: {why}" for why, ranks in reasons.items())
    raise _error(next(failure for failure in failures if failure is not None), text) from cause


def _sendable(text: object) -> str:
    """A text without the lone surrogates that a file name may have, and no message can."""
    return str(text).encode(errors="backslashreplace").decode()


def _ranks(ranks: Sequence[int], size: int) -> str:
    if len(ranks) == size:
        return f"all {size} ranks" if size > 1 else "rank 0"
    return f"rank{'s' if len(ranks) > 1 else ''} {', '.join(map(str, ranks))} of {size}"


def _reason(error: BaseException) -> str:
    """An error in a line; one of ours that has a number gets it again when it is made again."""
    if isinstance(error, StandfastError) and isinstance(error, OSError) and error.errno is not None:
        return f"{type(error).__name__}: {error.strerror}"
    return named(error)


def _attributes(error: StandfastError) -> dict[str, Any]:
    """The public attributes of an error that can be sent."""
    found = {}
    for name, value in vars(error).items():
        try:
            msgspec.msgpack.decode(msgspec.msgpack.encode(value))
        except Exception:
            continue  # the other ranks have the text, at least
        if not name.startswith("_"):
            found[name] = value
    return found


def _error(failure: Failure, text: str) -> StandfastError:
    """An error of the class that a failure names, if it is one of ours."""
    kind = _class(failure)
    numbered = issubclass(kind, OSError) and failure.number is not None
    error = _made(kind, (failure.number, text) if numbered else (text,))
    for name, value in failure.attributes.items():
        setattr(error, name, tuple(value) if isinstance(value, list) else value)
    return error


def _made(kind: type[StandfastError], arguments: tuple[Any, ...]) -> StandfastError:
    if not isinstance(kind.__init__, FunctionType):
        return kind(*arguments)
    error = kind.__new__(kind, *arguments)  # a constructor of its own wants something else
    built_in: Any = OSError if issubclass(kind, OSError) else Exception
    built_in.__init__(error, *arguments)
    return error


def _class(failure: Failure) -> type[StandfastError]:
    """The class of an error, on a rank that may not have imported it yet."""
    try:
        if failure.module.partition(".")[0] == "standfast":
            importlib.import_module(failure.module)
    except ImportError:
        return RankFailed
    names = (failure.module, failure.kind)
    known = (
        kind for kind in _classes(StandfastError) if (kind.__module__, kind.__qualname__) == names
    )
    return next(known, RankFailed)


def _classes(base: type[StandfastError]) -> Iterator[type[StandfastError]]:
    yield base
    for each in base.__subclasses__():
        yield from _classes(each)
