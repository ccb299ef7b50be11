"""What every format's reader is given."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from standfast.errors import TrailingBytes, TruncatedFile

Read = Callable[[int, int], bytes]
"""Takes a start and a length, returns exactly these bytes of the file."""


MAX_SIZE: Final = 1 << 62
"""More bytes than any file has."""


@dataclass(frozen=True, slots=True)
class Options:
    """What the caller asks of a reader; each format looks at what concerns it."""

    verify: bool = True
    """Whether to check what the file says of itself, and to use its digests."""
    names: Sequence[str] | None = None
    """The names of tensors, for a file that holds only their hashes."""
    tensors_only: bool = False
    """Whether to leave out values that no reader here can build, rather than refuse the file."""


class Start:
    """The bytes of a file from its start on, as far as they were asked for.

    `size` is None for a stream, which is never read further than its content reaches.
    """

    def __init__(self, read: Read, size: int | None) -> None:
        self._read = read
        self.size = size

    def take(self, start: int, length: int, what: str) -> bytes:
        """These bytes, which `what` names; raises TruncatedFile if there are fewer."""
        self.check(start, length, what)
        return self._read(start, length)

    def check(self, start: int, length: int, what: str) -> None:
        """Raise TruncatedFile if the file does not have these bytes, as far as that is known."""
        if start + length > (MAX_SIZE if self.size is None else self.size):
            raise TruncatedFile(
                f"{what} (offset {start:,}): {length:,} bytes expected, "
                + (
                    "more than any stream has"
                    if self.size is None
                    else f"but the file ends after {max(0, self.size - start):,}"
                )
            )


def check_end(end: int, size: int | None, last: str) -> None:
    """Raise unless a file of `size` bytes ends at `end`, behind what `last` names."""
    if size is None or end == size:
        return
    if end > size:
        raise TruncatedFile(f"{last} ends at {end:,}, but the file has {size:,} bytes")
    raise TrailingBytes(f"{size - end:,} bytes follow {last}, which ends the file")
