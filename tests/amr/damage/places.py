"""Sections of files, and what can happen to them."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

OLD, NEW = 1, 2
"""The steps that two ranks have saved: the newest is damaged."""
COLUMNS = ("erased", "truncated", "flipped", "another rank's", "another step's", "removed")
WHOM = {"rank 0": [0], "rank 1": [1], "all": [0, 1]}


@dataclass(frozen=True)
class Place:
    """Some bytes of a file."""

    path: Path
    start: int
    size: int

    def read(self) -> bytes:
        return self.path.read_bytes()[self.start : self.start + self.size]


def whole(path: Path) -> Place:
    return Place(path, 0, path.stat().st_size)


@contextmanager
def damaged(
    place: Callable[[str, int, int], Place], section: str, kind: str, ranks: Sequence[int]
) -> Iterator[list[Place]]:
    """Damage a section of some ranks at the newest step; afterwards their files are put back."""
    places = [place(section, rank, NEW) for rank in ranks]
    before = {each.path: each.path.read_bytes() for each in places}
    others = {
        "another rank's": [place(section, 1 - rank, NEW) for rank in ranks],
        "another step's": [place(section, rank, OLD) for rank in ranks],
    }
    news = [each.read() for each in others.get(kind, places)]
    for each, data in zip(places, news, strict=True):
        file, end = each.path.read_bytes(), each.start + each.size
        if kind == "removed":
            each.path.unlink()
        elif kind == "truncated":
            each.path.write_bytes(file[: each.start + each.size // 2])
        else:
            half = len(data) // 2
            changed = {
                "erased": bytes(len(data)),
                "flipped": data[:half] + bytes([data[half] ^ 1]) + data[half + 1 :],
            }.get(kind, data)
            assert changed != each.read(), f"{each} is not damaged"
            each.path.write_bytes(file[: each.start] + changed + file[end:])
    yield places
    for path, data in before.items():  # as a copy of a backup does
        copy = path.with_name(f"copy of {path.name}")
        copy.write_bytes(data)
        copy.replace(path)
