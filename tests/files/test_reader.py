"""What is read, what is verified, and when; past the page cache too."""

import errno
import mmap
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import standfast
from standfast import errors
from standfast.files import mapping
from standfast.files.digests import CHUNK
from standfast.files.input.direct import LARGE
from standfast.files.input.file import SourceFile
from standfast.files.ring import BLOCK
from tests.files.states import cached, failing, flip_in, refusing
from tests.kit.process import open_files
from tests.kit.stores import overwrite

MAPPED = pytest.mark.parametrize("mapped", [True, False], ids=["mapped", "read"])
ROWS = 5
"""Rows of one chunk each."""


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A file with a tensor of several chunks and a small one."""
    path = tmp_path / "state.safetensors"
    big = np.repeat(np.arange(ROWS, dtype=np.uint8), CHUNK).reshape(ROWS, CHUNK)
    standfast.save(path, {"small": np.arange(4.0), "big": big, "last": np.ones(3, np.uint8)})
    return path


@MAPPED
def test_a_damaged_tensor_is_named_and_the_others_still_load(path, mapped):
    flip_in(path, "big", 3 * CHUNK + 17)
    for act in (standfast.verify, lambda p: standfast.load(p, mapped=mapped)):
        with pytest.raises(errors.DigestMismatch, match="'big'") as caught:
            act(path)
        assert caught.value.tensors == ("big",)
    with standfast.open(path, mapped=mapped) as file:
        assert file["small"].tolist() == [0, 1, 2, 3]
        assert file["last"].tolist() == [1, 1, 1]
        for _ in range(2):  # a damaged chunk is not taken for a checked one the second time
            with pytest.raises(errors.DigestMismatch):
                file["big"]
    assert standfast.load(path, verify=False, mapped=mapped)["big"][3, 17] == 3 ^ 1
    for name in ("small", "last"):
        flip_in(path, name, 1)
    with pytest.raises(errors.DigestMismatch) as caught:
        standfast.load(path, mapped=mapped)
    assert set(caught.value.tensors) == {"small", "last", "big"}


@MAPPED
def test_a_slice_verifies_the_chunks_it_touches_and_no_others(path, mapped):
    flip_in(path, "big", 3 * CHUNK + 17)
    with standfast.open(path, mapped=mapped) as file:
        big = file.slice("big")
        assert (big[:3] == np.arange(3)[:, None]).all()
        assert big[4, 5] == 4
        assert big[::2, 99].tolist() == [0, 2, 4]
        assert big[4:1:-2, 0].tolist() == [4, 2]
        for index in (3, np.s_[2:4], np.s_[:, 0], np.s_[-2, -1], ..., np.s_[3:, 0]):
            with pytest.raises(errors.DigestMismatch):
                big[index]


def test_a_slice_that_is_read_reads_no_more_than_it_must(path, seams):
    reads = cached(seams, True)
    headers: list[int] = []
    seams.system(os, pread=lambda read, *a: headers.append(a[1]) or read(*a))
    with standfast.open(path, mapped=False) as file:
        assert file.spec("big") == standfast.TensorSpec("uint8", (ROWS, CHUNK))
        assert sum(headers) < 3 * 4096
        assert reads == []
        assert file.slice("big")[2, 10:20].tolist() == [2] * 10
        assert sum(reads) == CHUNK
    with standfast.open(path, mapped=False, verify=False) as file:
        reads.clear()
        assert file.slice("big")[1:4:2, 10:20].tolist() == [[1] * 10, [3] * 10]
        assert sum(reads) == 20


def test_an_index_that_does_not_fit_is_refused(path):
    with standfast.open(path) as file:
        for index in (5, (0, 0, 0), "x", [0, 1], np.array([True] * 5), True, 1.5, (..., ...)):
            with pytest.raises(errors.BadIndex, match="16777216"):
                file.slice("big")[index]
        assert "bigger" not in file
        assert file.get("bigger") is None
        with pytest.raises(errors.TensorNotFound, match=r"state\.safetensors.*'bigger'"):
            file["bigger"]


@MAPPED
@pytest.mark.parametrize("verify", [True, False])
def test_a_file_that_changes_while_open_is_an_error(path, mapped, verify):
    with standfast.open(path, mapped=mapped, verify=verify) as file:
        os.utime(path, ns=(0, 1))
        with pytest.raises(errors.ChangedFile):
            file["small"]
    with standfast.open(path, mapped=mapped, verify=verify) as file:
        os.truncate(path, 8192)
        for act in (lambda: file["big"], lambda: file.slice("big")[0], lambda: file["small"]):
            with pytest.raises(errors.ChangedFile):
                act()


def test_a_read_that_comes_up_short_is_an_error(path):
    file = SourceFile(path)
    os.truncate(path, 100)
    with pytest.raises(errors.ChangedFile, match="100"):
        file.read(50, 100)
    with pytest.raises(errors.ChangedFile, match="100"):
        file.read_into(np.empty(100, np.uint8), 50)
    file.close()


def test_what_is_missing_or_unreadable_is_said(tmp_path):
    with pytest.raises(errors.MissingFile, match="nothing"):
        standfast.open(tmp_path / "nothing.safetensors")
    os.mkfifo(tmp_path / "pipe.safetensors")
    for odd in (tmp_path, tmp_path / "pipe.safetensors", "with\0null", 3, None, 1.5, ["x"]):
        with pytest.raises(errors.UnreadableFile):
            standfast.load(odd)


def test_a_file_without_digests_loads_and_says_so(tmp_path):
    path = tmp_path / "foreign.safetensors"
    header = b'{"x":{"dtype":"F64","shape":[1],"data_offsets":[0,8]}}'
    path.write_bytes(len(header).to_bytes(8, "little") + header + np.float64(7).tobytes())
    with pytest.warns(errors.NotVerified):
        assert standfast.load(path)["x"].tolist() == [7]
    assert standfast.load(path, verify=False)["x"].tolist() == [7]  # without a warning
    with standfast.open(path) as file:
        assert not file.has_digests
    with pytest.raises(errors.NothingToVerify):
        standfast.verify(path)


def test_a_header_that_was_damaged_opens_only_unverified(path):
    overwrite(path, path.read_bytes().replace(b'"F64"', b'"I64"', 1))
    with pytest.raises(errors.IndexMismatch):
        standfast.open(path)
    with standfast.open(path, verify=False) as file:
        assert file["small"].dtype == np.int64


def test_files_on_a_network_file_system_are_read_not_mapped(path, seams):
    with standfast.open(path) as file:
        assert file.is_mapped
    seams.bound("network file systems", {_file_system_of(path)})
    with standfast.open(path) as file:
        assert not file.is_mapped
        assert file["small"].tolist() == [0, 1, 2, 3]
    with standfast.open(path, mapped=True) as file:
        assert file.is_mapped


def _file_system_of(path: Path) -> str:
    device = os.stat(path).st_dev
    number = f"{os.major(device)}:{os.minor(device)}"
    lines = Path("/proc/self/mountinfo").read_text().splitlines()
    return next(line.split(" - ")[1].split()[0] for line in lines if f" {number} " in line)


def test_without_the_kernels_help_the_pages_come_by_themselves(path, seams):
    seams.system(mapping._libc, madvise=refusing(errno.EFAULT))
    with pytest.raises(errors.UnreadableFile, match=path.name):
        standfast.verify(path)
    seams.system(mapping._libc, madvise=refusing(errno.EINVAL))
    assert standfast.load(path)["big"][4, 0] == 4
    flip_in(path, "big", 0)
    with pytest.raises(errors.DigestMismatch):
        standfast.load(path)


def test_a_file_that_is_cut_while_it_is_verified_is_an_error(path, seams):
    def cut_first(madvise: Any, *arguments: Any) -> int:
        os.truncate(path, 8192)
        return int(madvise(*arguments))

    seams.system(mapping._libc, madvise=cut_first)
    with pytest.raises(errors.ChangedFile):
        standfast.verify(path)


def test_a_file_that_cannot_be_mapped_says_what_to_do(path, seams):
    seams.system(mmap, mmap=failing(errno.ENOMEM))
    with pytest.raises(errors.UnreadableFile, match=r"state\.safetensors.*mapped=False"):
        standfast.load(path)


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
def test_a_part_of_a_cold_file_is_read(cold, content, skip, seams):
    cached(seams, False)
    ends = ((SIZE - LARGE, LARGE), (SIZE - LARGE - 7, LARGE + 7))
    for start, length in ((92, SIZE - 92), (4096, LARGE), (4095, LARGE + 2), (1, BLOCK), *ends):
        file = SourceFile(cold)
        assert _read(file, start, length, skip) == content[start : start + length]
        assert open_files(cold) == [str(cold)] * 2, "the direct way was taken"
        file.close()
        assert open_files(cold) == []


def test_whole_pages_are_read_without_a_copy(cold, content, seams):
    reads = cached(seams, False)
    file = SourceFile(cold)
    assert _read(file, 4096, BLOCK, 0) == content[4096 : 4096 + BLOCK]
    assert reads == [BLOCK]
    reads.clear()
    assert _read(file, 4096, BLOCK, 512) == content[4096 : 4096 + BLOCK]
    assert max(reads) == LARGE, "it is copied, piece by piece"
    file.close()


def test_other_files_are_read_through_the_cache(cold, content, seams):
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
def test_a_cut_file_is_an_error(cold, is_cached, skip, seams):
    cached(seams, is_cached)
    file = SourceFile(cold)
    os.truncate(cold, 2 * LARGE)
    with pytest.raises(errors.ChangedFile, match=f"{SIZE:,}"):
        _read(file, LARGE, 2 * LARGE, skip)
    file.close()
