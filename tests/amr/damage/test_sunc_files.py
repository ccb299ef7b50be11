"""The damage matrix of `.sunc` files: what digests find, and what no file without them can tell."""

import functools
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

import standfast
from standfast.amr import GaugeTree
from standfast.errors import (
    BadField,
    BadHeader,
    BadRange,
    DigestMismatch,
    IncompatibleCheckpoint,
    IndexMismatch,
    NothingToVerify,
    SizeMismatch,
    TruncatedFile,
)
from standfast.formats.sunc.file import block_dtype
from standfast.formats.sunc.header import LINK_SIZE, PLACES, SIZE
from standfast.parallel import together
from tests.amr.damage.places import COLUMNS, NEW, OLD, WHOM, Place, damaged, whole
from tests.amr.snapshot.step_states import FRONTEND, SLOTS, part
from tests.amr.tree_states import saved
from tests.kit.rank_threads import attempt_on_ranks

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
SILENT = "silent"
"""No reader can tell: another state is read, and no error raised."""
NONE = None
"""There is no such thing, or it is the same for all."""
DIGEST = (DigestMismatch, TruncatedFile, DigestMismatch, DigestMismatch, DigestMismatch)
WITH_DIGESTS: dict[str, tuple[Any, ...]] = {
    "header": (BadHeader, TruncatedFile, BadField, IndexMismatch, IndexMismatch),
    **dict.fromkeys(("blocks", "slots", "storage", "free list"), DIGEST),
    "link header": (IndexMismatch, TruncatedFile, BadField, NONE, NONE),
    "links": (DigestMismatch, SizeMismatch, DigestMismatch, DigestMismatch, DigestMismatch),
    "digests": (SizeMismatch, SizeMismatch, IndexMismatch, IndexMismatch, IndexMismatch),
    # A file does not say whose it is, nor of which step: a whole one of another is sound.
    "file": (BadHeader, TruncatedFile, DigestMismatch, SILENT, SILENT),
}
WITHOUT: dict[str, tuple[Any, ...]] = {
    # With fewer free slots than there are, one is lost, which no reader can tell; with more, one
    # is free and in use: of the header of another rank see below.
    "header": (BadHeader, TruncatedFile, BadField, NONE, BadRange),
    "blocks": (BadField, TruncatedFile, SILENT, SILENT, BadRange),
    "slots": (BadRange, TruncatedFile, BadRange, BadRange, BadRange),
    "storage": (SILENT, TruncatedFile, SILENT, SILENT, SILENT),
    "free list": (BadRange, TruncatedFile, BadRange, BadRange, BadRange),
    "link header": (IncompatibleCheckpoint, TruncatedFile, BadField, NONE, NONE),
    "links": (SILENT, SizeMismatch, SILENT, SILENT, SILENT),
    "file": (BadHeader, TruncatedFile, SILENT, SILENT, SILENT),
}
FIELDS: dict[str, tuple[Any, Any]] = {
    # field: a flipped bit of it with digests, and without
    **dict.fromkeys(("nd", "block_size", "block_volume", "block_bytes"), (BadField, BadField)),
    **dict.fromkeys(("field_bytes", "arena_max_blocks"), (TruncatedFile, TruncatedFile)),
    **dict.fromkeys(("blocks_len", "field_slots_len", "arena_free_count"), (BadField, BadField)),
    "base_spacing": (IndexMismatch, BadField),
    "bits_per_dim": (IndexMismatch, SILENT),
    "max_level": (IndexMismatch, SILENT),
}
NAMES = {"blocks": "blocks", "slots": "field_slots", "storage": "storage"}
NAMES |= {"free list": "free_slots", "links": "links"}


def columns(row: tuple[Any, ...]) -> Iterator[tuple[str, Any]]:
    return zip(COLUMNS[:-1], row, strict=True)


ROWS = [
    *((True, name, *each) for name, row in WITH_DIGESTS.items() for each in columns(row)),
    *((False, name, *each) for name, row in WITHOUT.items() for each in columns(row)),
    *((True, field, "flipped", outcomes[0]) for field, outcomes in FIELDS.items()),
    *((False, field, "flipped", outcomes[1]) for field, outcomes in FIELDS.items()),
]
CASES = [
    pytest.param(
        *(*row, ranks),
        id=f"{row[1]}, {row[2]}, {whom}, {'with' if row[0] else 'without'} digests",
        marks=[] if whom == "rank 1" or row[1] == "storage" else [pytest.mark.long],
    )
    for row in ROWS
    for whom, ranks in WHOM.items()
    if row[3] is not NONE
]
CASES += [
    pytest.param(False, "header", "another rank's", SILENT, [0]),
    pytest.param(False, "header", "another rank's", BadRange, [1]),
]


@dataclass(frozen=True)
class Files:
    """A folder with a file of each rank and step, as the export of snapshots gives them."""

    folder: Path

    def path(self, rank: int, step: int = NEW) -> Path:
        return self.folder / f"lattice_step{step}_rank{rank}.sunc"

    def place(self, section: str, rank: int, step: int = NEW) -> Place:
        """Where a section of a rank, or a field of its header, lies."""
        path, names = self.path(rank, step), [*SIZES, "digests"]
        if section == "file":
            return whole(path)
        if section in PLACES:
            return Place(path, *PLACES[section])
        start = sum(SIZES[name] for name in names[: names.index(section)])
        return Place(path, start, SIZES.get(section, path.stat().st_size - start))

    def read(self) -> list[Any]:
        """What each rank reads, or raises, when all read together."""

        def read(comm: Any) -> bytes:
            path = self.path(comm.rank)
            state = together(
                comm, lambda: GaugeTree.read_checkpoint_from_file(path, frontend=FRONTEND)
            )
            return saved(state.tree, state.arena)

        return attempt_on_ranks(RANKS, read)


@functools.cache
def expected() -> list[bytes]:
    states = [part(rank, NEW) for rank in range(RANKS)]
    return [saved(state.tree, state.arena) for state in states]


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("files")
    for extras in (True, False):
        (folder / str(extras)).mkdir()
        for step, rank in ((OLD, 0), (OLD, 1), (NEW, 0), (NEW, 1)):
            state, path = part(rank, step), Files(folder / str(extras)).path(rank, step)
            state.tree.write_checkpoint_to_file(state.arena, path, extras=extras)
    return folder


@pytest.mark.parametrize(("extras", "section", "kind", "outcome", "ranks"), CASES)
def test_damage_is_found_by_all_ranks_if_anything_tells_it(
    extras, section, kind, outcome, ranks, built, tmp_path
):
    files = Files(Path(shutil.copytree(built / str(extras), tmp_path / "files")))
    with damaged(files.place, section, kind, ranks):
        found = files.read()
        if outcome == SILENT:
            assert [a != b for a, b in zip(found, expected(), strict=True)] == [
                rank in ranks for rank in range(RANKS)
            ]
        else:
            assert [type(each) for each in found] == [outcome] * RANKS
            assert len({str(each) for each in found}) == 1
            for rank in range(RANKS):
                for told in (files.path(rank).name, f"rank {rank} of {RANKS}"):
                    assert (told in str(found[0])) == (rank in ranks)
            if outcome in (DigestMismatch, TruncatedFile):
                assert NAMES.get(section, "") in str(found[0])
        for rank in range(RANKS):
            check_verified(files.path(rank), extras, outcome if rank in ranks else SILENT)
    assert files.read() == expected()


def check_verified(path: Path, extras: bool, outcome: Any) -> None:
    """`verify` says what a reader does, or that there is nothing to go by."""
    if extras and outcome == SILENT:
        assert standfast.verify(path).tensors == 5
    else:
        errors = [] if outcome == SILENT else [outcome]
        errors += [] if extras else [NothingToVerify]
        with pytest.raises(tuple(errors), match=path.name):
            standfast.verify(path)
