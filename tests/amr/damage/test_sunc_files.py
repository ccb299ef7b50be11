"""The damage matrix of `.sunc` files: what digests find, and what no file without them can tell."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

import standfast
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
from tests.amr.damage.places import RANK, STEP, Damage
from tests.amr.damage.sunc_files import RANKS, Files, build, contents, expected

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
        with pytest.raises(NothingToVerify, match="no digests"):
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
