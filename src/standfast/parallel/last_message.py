"""The last message of a rank that gives up, with its reason. Pure data, as `calls.py`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Self

FAREWELL_BYTES: Final = 2000

LOST: Final = b"L"
DISAGREEING: Final = b"D"


@dataclass(frozen=True)
class Farewell:
    """Why a rank gave up."""

    text: str

    disagreeing: bool
    """Whether it saw that the ranks are in different calls: then this one is out of step too."""

    def encoded(self) -> bytes:
        """A message of this length, whatever it says: some receive into memory they have ready."""
        kind = DISAGREEING if self.disagreeing else LOST
        text = self.text.encode(errors="replace")[: FAREWELL_BYTES - 1]
        return (kind + text).ljust(FAREWELL_BYTES, b"\0")

    @classmethod
    def read(cls, message: bytes | bytearray) -> Self:
        """What another rank said."""
        text = bytes(message[1:]).rstrip(b"\0").decode(errors="replace")
        return cls(text, message[:1] == DISAGREEING)
