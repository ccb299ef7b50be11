"""Reads past the page cache give the same bytes, and the same errors, as all others."""

from __future__ import annotations

import errno
import mmap
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from standfast import errors
from standfast.files.input.direct import LARGE
from standfast.files.input.file import SourceFile
from standfast.files.ring import BLOCK
from tests.files.states import cached
from tests.kit.descriptors import open_files
from tests.kit.seams import Seams

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
def test_a_stretch_of_a_cold_file_is_read(
    cold: Path, content: bytes, skip: int, seams: Seams
) -> None:
    cached(seams, False)
    for start, length in (
        (92, SIZE - 92),
        (4096, LARGE),
        (4095, LARGE + 2),
        (1, BLOCK),
        (SIZE - LARGE, LARGE),
        (SIZE - LARGE - 7, LARGE + 7),
    ):
        file = SourceFile(cold)
        assert _read(file, start, length, skip) == content[start : start + length]
        assert open_files(cold) == [str(cold)] * 2, "the direct way was taken"
        file.close()
        assert open_files(cold) == []


def test_whole_pages_are_read_without_a_copy(cold: Path, content: bytes, seams: Seams) -> None:
    reads = cached(seams, False)
    file = SourceFile(cold)
    assert _read(file, 4096, BLOCK, 0) == content[4096 : 4096 + BLOCK]
    assert reads == [BLOCK]
    reads.clear()
    assert _read(file, 4096, BLOCK, 512) == content[4096 : 4096 + BLOCK]
    assert max(reads) == LARGE, "it is copied, piece by piece"
    file.close()


def test_a_file_in_the_cache_or_without_a_direct_way_is_read_from_the_cache(
    cold: Path, content: bytes, seams: Seams
) -> None:
    def opened(call: Any, path: Any, flags: int, *more: Any, **options: Any) -> int:
        if flags & os.O_DIRECT:
            raise OSError(errno.EINVAL, "Invalid argument")
        return int(call(path, flags, *more, **options))

    for is_cached in (True, False):
        cached(seams, is_cached)
        file = SourceFile(cold)
        assert _read(file, 92, 2 * LARGE) == content[92 : 92 + 2 * LARGE]
        assert open_files(cold) == [str(cold)]
        file.close()
        seams.system(os, open=opened)


@pytest.mark.parametrize("skip", [0, 512])
@pytest.mark.parametrize("is_cached", [True, False])
def test_a_file_that_was_cut_is_told_of(
    cold: Path, is_cached: bool, skip: int, seams: Seams
) -> None:
    cached(seams, is_cached)
    file = SourceFile(cold)
    os.truncate(cold, 2 * LARGE)
    with pytest.raises(errors.ChangedFile, match=f"{SIZE:,}"):
        _read(file, LARGE, 2 * LARGE, skip)
    file.close()
