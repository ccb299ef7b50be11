"""Reads past the page cache give the same bytes, and the same errors, as all others."""

from __future__ import annotations

import mmap
import os
from pathlib import Path
from unittest.mock import patch

import numpy as np
import pytest

from standfast.errors import ChangedFile
from standfast.files.input import direct
from standfast.files.input.direct import LARGE, DirectReads
from standfast.files.input.file import SourceFile
from standfast.files.ring import BLOCK
from tests.kit.descriptors import open_files

SIZE = BLOCK + 3 * LARGE + 1234


@pytest.fixture(scope="module")
def content() -> bytes:
    return np.random.default_rng(0).bytes(SIZE)


@pytest.fixture
def cold(tmp_path: Path, content: bytes) -> Path:
    path = tmp_path / "cold"
    path.write_bytes(content)
    fd = os.open(path, os.O_RDONLY)
    os.fsync(fd)
    os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
    os.close(fd)
    return path


def _read(file: SourceFile, start: int, length: int, skip: int = 1) -> bytes:
    """Read a stretch into memory that begins so many bytes after that of a page."""
    out = np.frombuffer(mmap.mmap(-1, length + skip), np.uint8)[skip:]
    file.read_into(out, start)
    return out.tobytes()


@pytest.mark.parametrize("skip", [0, 512])
@pytest.mark.parametrize(
    ("start", "length"),
    [
        (0, SIZE),
        (92, SIZE - 92),
        (4096, LARGE),
        (4095, LARGE + 2),
        (1, BLOCK),
        (SIZE - LARGE, LARGE),
        (SIZE - LARGE - 7, LARGE + 7),
    ],
)
def test_a_stretch_of_a_cold_file_is_read(
    cold: Path, content: bytes, start: int, length: int, skip: int
) -> None:
    file = SourceFile(cold)
    with patch.object(DirectReads, "_is_cached", return_value=False):
        assert _read(file, start, length, skip) == content[start : start + length]
        assert file._direct is not None
        assert (file._direct._fd or 0) >= 0, "the direct way was taken"
    file.close()


def test_whole_pages_are_read_without_a_copy(cold: Path, content: bytes) -> None:
    file = SourceFile(cold)
    with (
        patch.object(DirectReads, "_is_cached", return_value=False),
        patch.object(DirectReads, "_block", side_effect=AssertionError("it is copied")),
    ):
        assert _read(file, 4096, BLOCK, 0) == content[4096 : 4096 + BLOCK]
        with pytest.raises(AssertionError, match="copied"):
            _read(file, 4096, BLOCK, 512)
    file.close()


def test_a_file_in_the_cache_is_read_from_there(cold: Path, content: bytes) -> None:
    cold.read_bytes()
    file = SourceFile(cold)
    assert _read(file, 5, LARGE) == content[5 : 5 + LARGE]
    assert file._direct is not None
    assert file._direct._fd == -1
    file.close()


def test_where_there_is_no_direct_way_the_plain_one_is_taken(cold: Path, content: bytes) -> None:
    file = SourceFile(cold)
    with (
        patch.object(DirectReads, "_is_cached", return_value=False),
        patch.object(direct, "DIRECT", 0),
    ):
        assert _read(file, 92, 2 * LARGE) == content[92 : 92 + 2 * LARGE]
    file.close()


@pytest.mark.parametrize("skip", [0, 512])
@pytest.mark.parametrize("is_cached", [True, False])
def test_a_file_that_was_cut_is_told_of(cold: Path, is_cached: bool, skip: int) -> None:
    file = SourceFile(cold)
    with patch.object(DirectReads, "_is_cached", return_value=is_cached):
        os.truncate(cold, 2 * LARGE)
        with pytest.raises(ChangedFile, match=f"{SIZE:,} bytes"):
            _read(file, LARGE, 2 * LARGE, skip)
    file.close()


def test_nothing_stays_open(cold: Path) -> None:
    file = SourceFile(cold)
    with patch.object(DirectReads, "_is_cached", return_value=False):
        _read(file, 0, LARGE)
    assert open_files(cold) == [str(cold)] * 2
    file.close()
    assert open_files(cold) == []
