"""Stretches of files, and what can happen to them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol


@dataclass(frozen=True)
class Place:
    """Some bytes of a file."""

    path: Path
    start: int
    size: int

    @property
    def middle(self) -> int:
        return self.start + self.size // 2

    def read(self) -> bytes:
        return self.path.read_bytes()[self.start : self.start + self.size]

    def replace(self, data: bytes) -> None:
        """Put other bytes there, whatever their length; they must be others."""
        assert data != self.read(), f"this is no damage of {self}"
        before = self.path.read_bytes()
        self.path.write_bytes(before[: self.start] + data + before[self.start + self.size :])


def whole(path: Path) -> Place:
    return Place(path, 0, path.stat().st_size)


def erased(place: Place) -> None:
    """Zeros, as after a block of the disk was lost."""
    place.replace(bytes(place.size))


def truncated(place: Place) -> None:
    """The file ends in the middle of it."""
    place.path.write_bytes(place.path.read_bytes()[: place.middle])


def flipped(place: Place) -> None:
    """A bit is another."""
    data = bytearray(place.read())
    data[len(data) // 2] ^= 1
    place.replace(bytes(data))


def removed(place: Place) -> None:
    """The file is not there."""
    place.path.unlink()


DAMAGES: dict[str, Callable[[Place], None]] = {
    each.__name__: each for each in (erased, truncated, flipped, removed)
}
RANK, STEP = "another rank's", "another step's"
"""What a place gets instead of its own bytes."""
OLD, NEW = 1, 2
"""The steps that are there: the newest is damaged."""


class Saved(Protocol):
    """What two ranks have saved at two steps."""

    def place(self, section: str, rank: int, step: int = NEW) -> Place:
        """Where a section of a rank lies."""
        ...


class Damage:
    """Damage a section of some ranks at the newest step."""

    def __init__(self, saved: Saved, section: str, kind: str, ranks: Sequence[int]) -> None:
        self.places = [saved.place(section, rank) for rank in ranks]
        self._before = {place.path: place.path.read_bytes() for place in self.places}
        if kind == RANK:
            others = [saved.place(section, 1 - rank).read() for rank in ranks]
        elif kind == STEP:
            others = [saved.place(section, rank, OLD).read() for rank in ranks]
        else:
            for place in self.places:
                DAMAGES[kind](place)
            return
        for place, other in zip(self.places, others, strict=True):
            place.replace(other)

    def undo(self) -> None:
        """Put the files back, as a copy of a backup does: in the place of the damaged ones."""
        for path, data in self._before.items():
            copy = path.with_name(f"copy of {path.name}")
            copy.write_bytes(data)
            copy.replace(path)
