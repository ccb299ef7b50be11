"""What ranks tell each other before each call: which one it is, so that none takes part in another.

Pure data; `mpi.py` carries it.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from enum import IntEnum
from numbers import Integral
from typing import Final, NamedTuple

HEADER: Final = struct.Struct("<BxxxiQq")
"""The kind, the root, the number of the call, the length of the message that follows."""

REFUSED: Final = -1
"""The length in the header of a rank that was given what it cannot send: no message follows."""

CLOSED: Final = "this communicator was closed: make another one, or close it later"


class Kind(IntEnum):
    """The collective methods of a communicator."""

    GATHER = 1
    BROADCAST = 2
    ALL_GATHER = 3
    EXCHANGE = 4
    DUPLICATE = 5
    CLOSE = 6


class Call(NamedTuple):
    """One call, which must be the same on all ranks."""

    kind: Kind
    root: int
    number: int

    def header(self, length: int) -> bytes:
        """What the other ranks are told of it."""
        return HEADER.pack(self.kind, self.root, self.number, length)

    def __str__(self) -> str:
        root = f"(root={self.root})" if self.kind in (Kind.GATHER, Kind.BROADCAST) else ""
        return f"{self.kind.name.lower()}{root}, its call {self.number}"


def read(header: bytes | bytearray) -> tuple[Call, int]:
    """The call that a rank is in, and the length of its message to this one."""
    kind, root, number, length = HEADER.unpack(header)
    return Call(Kind(kind), root, number), length


def refusal(root: int, messages: Sequence[bytes], size: int) -> str | None:
    """Why a rank cannot take part with what it was given, or None if it can."""
    if not isinstance(root, Integral) or not 0 <= root < size:
        known = "this process is alone, rank 0" if size == 1 else f"they are 0 to {size - 1}"
        return f"there is no rank {root!r} to be the root: {known}"
    if len(messages) != size:
        return f"{len(messages)} messages for {size} ranks: give one to each"
    for message in messages:
        if not isinstance(message, bytes):
            return f"ranks send each other bytes, and this is {type(message).__name__}: encode it"
    return None


def named(error: BaseException) -> str:
    """An error in a line, for other ranks; its class at least, if it cannot say what it is."""
    try:
        text = str(error)
    except Exception:
        text = "(an error that cannot be printed)"
    return f"{type(error).__name__}: {text}" if text else type(error).__name__
