"""The damage matrix of `.sunc` files: what digests find, and what no file without them can tell."""

from __future__ import annotations

import functools
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

import standfast
from standfast.amr import GaugeTree
from standfast.amr.sunc.checkpoint import TreeState
from standfast.errors import (
    BadField,
    BadHeader,
    BadRange,
    DigestMismatch,
    IncompatibleCheckpoint,
    IndexMismatch,
    NothingToVerify,
    SizeMismatch,
    StandfastError,
    TruncatedFile,
)
from standfast.formats.sunc.file import block_dtype
from standfast.formats.sunc.header import LINK_SIZE, PLACES, SIZE
from standfast.parallel import together
from tests.amr.damage.places import NEW, OLD, RANK, STEP, Damage, Place, whole
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


SILENT = "silent"
"""Nobody can tell: another state is read, and no error raised."""
NONE = None
"""There is no such thing, or it is the same for all."""
DIFFERS = None
"""One rank is refused, and the other is not: that is a test of its own."""

COLUMNS = ("erased", "truncated", "flipped", RANK, STEP)
DIGEST = (DigestMismatch, TruncatedFile, DigestMismatch, DigestMismatch, DigestMismatch)
WITH_DIGESTS: dict[str, tuple[Any, ...]] = {
    "header": (BadHeader, TruncatedFile, BadField, IndexMismatch, IndexMismatch),
    "blocks": DIGEST,
    "slots": DIGEST,
    "storage": DIGEST,
    "free list": DIGEST,
    "link header": (IndexMismatch, TruncatedFile, BadField, NONE, NONE),
    "links": (DigestMismatch, SizeMismatch, DigestMismatch, DigestMismatch, DigestMismatch),
    "digests": (SizeMismatch, SizeMismatch, IndexMismatch, IndexMismatch, IndexMismatch),
    # A file does not say whose it is, nor of which step: a whole one of another is sound.
    "file": (BadHeader, TruncatedFile, DigestMismatch, SILENT, SILENT),
}
WITHOUT: dict[str, tuple[Any, ...]] = {
    "header": (BadHeader, TruncatedFile, BadField, DIFFERS, BadRange),
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
    "nd": (BadField, BadField),
    "block_size": (BadField, BadField),
    "block_volume": (BadField, BadField),
    "block_bytes": (BadField, BadField),
    "field_bytes": (TruncatedFile, TruncatedFile),
    "blocks_len": (BadField, BadField),
    "field_slots_len": (BadField, BadField),
    "arena_max_blocks": (TruncatedFile, TruncatedFile),
    "arena_free_count": (BadField, BadField),
    "base_spacing": (IndexMismatch, BadField),
    "bits_per_dim": (IndexMismatch, SILENT),
    "max_level": (IndexMismatch, SILENT),
}
NAMED = {"blocks": "blocks", "slots": "field_slots", "storage": "storage"}
NAMED |= {"free list": "free_slots", "links": "links"}
WHOM = {"rank 0": [0], "rank 1": [1], "all": [0, 1]}


def cases(matrix: dict[str, tuple[Any, ...]], fields: dict[str, Any]) -> list[Any]:
    rows = [
        (section, damage, outcome)
        for section, row in matrix.items()
        for damage, outcome in zip(COLUMNS, row, strict=True)
        if outcome is not NONE
    ]
    rows += [(field, "flipped", outcome) for field, outcome in fields.items()]
    return [
        pytest.param(
            *(section, damage, ranks, outcome),
            id=f"{section}, {damage}, {whom}",
            marks=[] if whom == "rank 1" or section == "storage" else [pytest.mark.long],
        )
        for section, damage, outcome in rows
        for whom, ranks in WHOM.items()
    ]


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("files")
    for extras in (True, False):
        build(folder / str(extras), extras)
    return folder


def copied(built: Path, extras: bool, folder: Path) -> Files:
    return Files(Path(shutil.copytree(built / str(extras), folder / "files")))


def damage(
    files: Files, extras: bool, section: str, kind: str, ranks: list[int], outcome: Any
) -> Any:
    """What must come of a damage to the files of some ranks, and to those of others.

    Returns what they hold once it is undone.
    """
    done = Damage(files, section, kind, ranks)
    if outcome == SILENT:
        check_silent(files, ranks, extras)
    else:
        check_refused(files, section, ranks, outcome)
        for rank in ranks:
            check_verified(files, rank, extras, outcome)
    for rank in {*range(RANKS)} - {*ranks}:
        check_verified(files, rank, extras, None)
    done.undo()
    return contents(files.attempt())


def check_refused(
    files: Files, section: str, ranks: list[int], outcome: type[StandfastError]
) -> None:
    """All ranks raise the same, which names the files and the section."""
    errors = files.attempt()
    assert [type(each) for each in errors] == [outcome] * RANKS
    assert len({str(each) for each in errors}) == 1
    text = str(errors[0])
    for rank in range(RANKS):
        assert (files.path(rank).name in text) == (rank in ranks)
        assert (f"rank {rank} of {RANKS}: " in text) == (rank in ranks)
    if outcome in (DigestMismatch, TruncatedFile):
        assert f"'{NAMED[section]}'" in text if section in NAMED else True


def check_silent(files: Files, ranks: list[int], extras: bool) -> None:
    """The damaged ranks read what was not saved, and nothing says so."""
    for rank, (found, wanted) in enumerate(zip(contents(files.attempt()), expected(), strict=True)):
        assert (found != wanted) == (rank in ranks)
    for rank in ranks:
        check_verified(files, rank, extras, None)


def check_verified(
    files: Files, rank: int, extras: bool, outcome: type[StandfastError] | None
) -> None:
    """`verify` says what a reader does, or that there is nothing to go by."""
    path = files.path(rank)
    if outcome is not None and extras:
        with pytest.raises(outcome, match=path.name):
            standfast.verify(path)
    elif outcome is not None:
        with pytest.raises((outcome, NothingToVerify), match=path.name):
            standfast.verify(path)
    elif extras:
        assert standfast.verify(path).tensors == 5
    else:
        with pytest.raises(NothingToVerify):
            standfast.verify(path)


@pytest.mark.parametrize(
    ("section", "kind", "ranks", "outcome"),
    cases(WITH_DIGESTS, {name: found for name, (found, _) in FIELDS.items()}),
)
def test_with_digests(
    section: str, kind: str, ranks: list[int], outcome: Any, built: Path, tmp_path: Path
) -> None:
    files = copied(built, True, tmp_path)
    assert damage(files, True, section, kind, ranks, outcome) == expected()


@pytest.mark.parametrize(
    ("section", "kind", "ranks", "outcome"),
    cases(WITHOUT, {name: found for name, (_, found) in FIELDS.items()}),
)
def test_without_digests(
    section: str, kind: str, ranks: list[int], outcome: Any, built: Path, tmp_path: Path
) -> None:
    files = copied(built, False, tmp_path)
    assert damage(files, False, section, kind, ranks, outcome) == expected()


def test_a_header_of_another_rank_without_digests(built: Path, tmp_path: Path) -> None:
    """With fewer free slots than there are, one is nobody's; with more, one is somebody's too."""
    files = copied(built, False, tmp_path)
    done = Damage(files, "header", RANK, [0])
    check_silent(files, [0], extras=False)
    done.undo()
    done = Damage(files, "header", RANK, [0, 1])
    check_refused(files, "header", [1], BadRange)
    done.undo()
    assert contents(files.attempt()) == expected()
