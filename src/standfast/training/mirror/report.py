"""What the process that uploads says to the training process, a line of JSON each time.

training process                 process that uploads
                                 a Report, whenever something has changed
a byte: look once more       →
                             ←   a Report that counts it, once it has looked
"""

from __future__ import annotations

import msgspec


class Report(msgspec.Struct, frozen=True):
    """All that there is to know."""

    asked: int = -1
    """So many times it was asked to look, and has; -1 before the first time."""
    step: int | None = None
    """The newest step that is in the mirror."""
    waiting: int = 0
    """How many checkpoints the mirror lacks."""
    moved: int = 0
    """The bytes that were copied so far, in this process."""
    failures: int = 0
    """How many times in a row it did not work."""
    is_refused: bool = False
    """Whether the mirror has another run of the same hash, so that none is copied."""
    problem: str | None = None
    """What went wrong last, if it still is."""


encode = msgspec.json.Encoder().encode
decode = msgspec.json.Decoder(Report).decode
