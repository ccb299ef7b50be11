"""The `.sunc` files of two ranks at two steps, and where each of their sections lies."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from standfast.amr import GaugeTree
from standfast.amr.sunc.checkpoint import TreeState
from standfast.formats.sunc.file import block_dtype
from standfast.formats.sunc.header import LINK_SIZE, PLACES, SIZE
from standfast.parallel import together
from tests.amr.damage.places import NEW, OLD, Place, whole
from tests.amr.snapshot.step_states import FRONTEND, SLOTS, part
from tests.amr.tree_states import saved
from tests.kit.rank_threads import ThreadRanks, attempt_on_ranks

RANKS = 2
BLOCKS = len(part(0, NEW).tree)
SIZES = {
    "header": SIZE,
    "blocks": BLOCKS * block_dtype(2).itemsize,
    "slots": BLOCKS * 8,
    "storage": SLOTS * FRONTEND.block_volume * FRONTEND.field_bytes,
    "free list": SLOTS * 8,
    "link header": LINK_SIZE,
    "links": part(0, NEW).tree.links.nbytes,
}
"""The sections in the order of the file; digests follow them, where there are any."""
DIGESTS, FILE = "digests", "file"


def build(folder: Path, extras: bool) -> None:
    """What the export of the snapshots gives."""
    folder.mkdir()
    for step in (OLD, NEW):
        for rank in range(RANKS):
            state = part(rank, step)
            path = _path(folder, rank, step)
            state.tree.write_checkpoint_to_file(state.arena, path, extras=extras)


def _path(folder: Path, rank: int, step: int) -> Path:
    return folder / f"lattice_step{step}_rank{rank}.sunc"


@dataclass(frozen=True)
class Files:
    """A folder with them."""

    folder: Path

    def path(self, rank: int) -> Path:
        return _path(self.folder, rank, NEW)

    def place(self, section: str, rank: int, step: int = NEW) -> Place:
        """Where a section of a rank, or a field of its header, lies."""
        path = _path(self.folder, rank, step)
        if section == FILE:
            return whole(path)
        if section in PLACES:
            return Place(path, *PLACES[section])
        end = sum(SIZES.values())
        if section == DIGESTS:
            return Place(path, end, path.stat().st_size - end)
        names = list(SIZES)
        start = sum(SIZES[name] for name in names[: names.index(section)])
        return Place(path, start, SIZES[section])

    def attempt(self) -> list[Any]:
        """What each rank reads, or raises, when all read together."""

        def read(comm: ThreadRanks) -> TreeState[Any]:
            path = self.path(comm.rank)
            return together(
                comm, lambda: GaugeTree.read_checkpoint_from_file(path, frontend=FRONTEND)
            )

        return attempt_on_ranks(RANKS, read)


def contents(outcomes: Sequence[Any]) -> list[bytes]:
    """What all ranks have read, none of which has failed."""
    for each in outcomes:
        if isinstance(each, BaseException):
            raise each
    return [saved(each.tree, each.arena) for each in outcomes]


@functools.cache
def expected() -> list[bytes]:
    """What they must read."""
    ranks = [part(rank, NEW) for rank in range(RANKS)]
    return [saved(each.tree, each.arena) for each in ranks]
