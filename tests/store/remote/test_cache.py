"""The cache: it gives back what it was given or nothing, keeps its limit, and never fails."""

import ctypes
import errno
import mmap
import os
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from standfast.errors import BadOption
from standfast.files import mapping
from standfast.store.remote.cache import Cache
from standfast.tensors.sources import Bytes
from tests.kit.stores import flip

BIG = 4 << 20
"""Of a size that is mapped."""


def _data(size: int, seed: int = 0) -> Bytes:
    return np.random.default_rng(seed).integers(0, 256, size, np.uint8)


def _refuse(number: int) -> Callable[..., None]:
    def refuse(*_: Any, **__: Any) -> None:
        raise OSError(number, os.strerror(number))

    return refuse


def _files(folder: Path) -> list[Path]:
    return sorted(path for path in folder.rglob("*") if path.is_file())


def _total(folder: Path) -> int:
    return sum(path.stat().st_size for path in _files(folder))


def _is_mapped(data: Bytes) -> bool:
    base: Any = data
    while isinstance(base, np.ndarray):
        base = base.base
    return isinstance(getattr(base, "obj", base), mmap.mmap)


def _file(cache: Cache, folder: Path, key: str, data: Bytes) -> Path:
    """Where it keeps this."""
    before = set(_files(folder))
    cache.put(key, data)
    (path,) = set(_files(folder)) - before
    return path


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "above" / "cache"


@pytest.fixture
def cache(folder: Path) -> Cache:
    return Cache(folder, 64 << 20)


@pytest.mark.parametrize("size", [0, 1, 4096, 1_000_003, (1 << 20) - 32, BIG, BIG + 1])
def test_what_was_put_comes_back(cache, size):
    assert cache.get("key") is None
    data = _data(size)
    cache.put("key", data.tobytes())
    found = cache.get("key")
    assert found is not None
    assert found.dtype == np.uint8
    assert found.tobytes() == data.tobytes()
    assert not found.flags.writeable
    assert _is_mapped(found) == (size + 32 >= 1 << 20)


def test_another_key_is_another_entry_for_every_process(cache, folder):
    cache.put("object etag-1 0 10", b"first")
    cache.put("object etag-2 0 10", b"second")
    other = Cache(folder, 1)
    first, second = other.get("object etag-1 0 10"), other.get("object etag-2 0 10")
    assert first is not None
    assert second is not None
    assert (first.tobytes(), second.tobytes()) == (b"first", b"second")
    assert other.get("object etag-1 0 1") is None


def _truncated(length: int) -> Callable[[Path], None]:
    return lambda path: os.truncate(path, length)


def _flipped(offset: int) -> Callable[[Path], None]:
    return lambda path: flip(path, offset)


DAMAGE = {
    **{f"flipped at {at}": _flipped(at) for at in (0, BIG // 2, BIG - 1, BIG, BIG + 31)},
    **{f"{length} bytes": _truncated(length) for length in (0, 31, 32, BIG + 31, BIG + 33)},
}


@pytest.mark.parametrize("how", DAMAGE)
def test_a_damaged_file_is_a_miss_and_deleted(cache, folder, how):
    path = _file(cache, folder, "key", _data(BIG))
    DAMAGE[how](path)
    assert cache.get("key") is None
    assert not path.exists()
    cache.put("key", b"again")
    assert cache.get("key") is not None


def test_a_file_under_the_name_of_another_is_a_miss(cache, folder):
    path = _file(cache, folder, "key", _data(100))
    other = _file(cache, folder, "other", _data(100, 1))
    path.replace(other)
    assert cache.get("other") is None
    assert not other.exists()


def test_what_is_no_file_is_a_miss(cache, folder, tmp_path):
    path = _file(cache, folder, "key", _data(100))
    path.rename(tmp_path / "kept")
    path.symlink_to(tmp_path / "kept")
    assert cache.get("key") is None
    path.unlink()
    os.mkfifo(path)
    assert cache.get("key") is None
    path.unlink(missing_ok=True)
    path.mkdir()
    assert cache.get("key") is None


def test_data_outlives_its_file(cache, folder):
    data = _data(BIG)
    path = _file(cache, folder, "key", data)
    found = cache.get("key")
    path.unlink()
    assert found is not None
    assert np.array_equal(found, data)


def test_only_the_owner_may_look(cache, folder):
    path = _file(cache, folder, "key", _data(100))
    assert path.stat().st_mode & 0o777 == 0o600
    assert path.parent.stat().st_mode & 0o777 == 0o700
    assert folder.stat().st_mode & 0o777 == 0o700


def test_the_limit_holds_and_the_least_recently_used_go_first(folder):
    entry = 1000
    cache = Cache(folder, 10 * (entry + 32))
    for i in range(10):
        cache.put(f"{i}", _data(entry, i))
    assert len(_files(folder)) == 10
    for i in (0, 2, 4):
        assert cache.get(f"{i}") is not None
    cache.put("10", _data(entry, 10))
    cache.put("11", _data(entry, 11))
    kept = {i for i in range(12) if cache.get(f"{i}") is not None}
    assert {0, 2, 4, 10, 11} <= kept
    gone = sorted(set(range(12)) - kept)
    assert gone == [1, 3, 5, 6, 7][: len(gone)]
    assert len(gone) >= 2
    assert _total(folder) <= 10 * (entry + 32)


def test_an_entry_above_the_limit_is_not_kept_and_pushes_nothing_out(folder):
    cache = Cache(folder, 1000)
    cache.put("small", b"small")
    cache.put("exactly", _data(1000 - 32))
    assert cache.get("exactly") is not None
    cache.put("big", _data(1000 - 31))
    assert cache.get("big") is None
    assert cache.get("exactly") is not None
    Cache(folder / "none", 0).put("key", b"")
    assert not (folder / "none").exists()


def test_what_was_there_before_counts(folder):
    first = Cache(folder, 10_000)
    for i in range(9):
        first.put(f"{i}", _data(1000, i))
    Cache(folder, 5_000).put("new", _data(1000))
    assert _total(folder) <= 5_000
    assert first.get("new") is not None
    with pytest.raises(BadOption):
        Cache(folder, -1)


def test_what_is_not_ours_is_let_be(folder):
    cache = Cache(folder, 5_000)
    cache.put("key", _data(1000))
    foreign = [folder / "notes", folder / "ab" / "notes", folder / "letters" / "letters"]
    for path in foreign:
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(b"x" * 10_000)
        os.utime(path, (0, 0))
    for i in range(20):
        cache.put(f"{i}", _data(1000, i))
    assert all(path.exists() for path in foreign)
    assert cache.get("19") is not None


@pytest.mark.parametrize("age", [10, 7200])
def test_what_a_killed_process_left_is_deleted_when_it_is_old(cache, folder, age, seams):
    pid = os.fork()
    if pid == 0:
        seams.disk(rename=lambda *_: os._exit(9))
        cache.put("key", _data(1000))
        os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 9
    (left,) = _files(folder)
    assert cache.get("key") is None
    then = time.time() - age
    os.utime(left, (then, then))
    cache.put("other", b"data")
    assert left.exists() == (age == 10)
    cache.put("key", b"data")
    assert cache.get("key") is not None


def test_processes_and_threads_share_one_cache(folder):
    limit = 40 * 10_032

    def use(seed: int) -> None:
        cache = Cache(folder, limit)
        for i in np.random.default_rng(seed).integers(0, 60, 100):
            found = cache.get(f"{i}")
            if found is None:
                cache.put(f"{i}", _data(10_000, i))
            else:
                assert np.array_equal(found, _data(10_000, i))

    children = []
    for seed in (10, 20):
        pid = os.fork()
        if pid == 0:
            status = 99
            try:
                with ThreadPoolExecutor(2) as pool:
                    list(pool.map(use, (seed, seed + 1)))
                status = 0
            finally:
                os._exit(status)
        children.append(pid)
    assert [_exit_code(pid) for pid in children] == [0, 0]
    assert 0 < _total(folder) <= limit * (1 + 4 / 8)
    assert all(len(path.name) == 64 for path in _files(folder)), "a file on its way is left"


def test_a_forked_child_does_not_wait_for_the_threads_of_its_parent(cache, seams):
    inside, forked = threading.Event(), threading.Event()

    def slow(scandir: Callable[..., Any], *given: Any) -> Any:
        if threading.current_thread() is thread:
            inside.set()
            forked.wait()
        return scandir(*given)

    seams.system(os, scandir=slow)
    thread = threading.Thread(target=cache.put, args=("key", b"data"))
    thread.start()
    inside.wait()
    pid = os.fork()
    if pid == 0:
        cache.put("of the child", b"data")
        os._exit(0 if cache.get("of the child") is not None else 1)
    forked.set()
    thread.join()
    assert _exit_code(pid) == 0


def _exit_code(pid: int) -> int:
    """How a child ended; one that hangs is killed."""
    timer = threading.Timer(60, os.kill, (pid, 9))
    timer.start()
    status = os.waitpid(pid, 0)[1]
    timer.cancel()
    return os.waitstatus_to_exitcode(status)


@pytest.mark.parametrize("name", ["create", "set_mode", "reserve", "write", "rename"])
@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EROFS])
def test_a_disk_that_refuses_is_no_error(cache, folder, name, number, seams):
    cache.put("old", b"data")
    seams.disk(**{name: _refuse(number)})
    cache.put("key", b"data")
    assert cache.get("key") is None
    assert cache.get("old") is not None
    assert len(_files(folder)) == 1, "a file on its way is left"


def test_a_cache_that_can_only_be_read_is_read(cache, folder, seams):
    path = _file(cache, folder, "key", _data(100))
    refuse = _refuse(errno.EROFS)
    seams.system(os, mkdir=refuse, utime=refuse)
    seams.disk(create=refuse, remove=refuse)
    assert cache.get("key") is not None
    cache.put("other", b"data")
    assert cache.get("other") is None
    path.write_bytes(b"damaged")
    assert cache.get("key") is None


def test_files_that_cannot_be_deleted_do_not_let_the_cache_grow(folder, seams):
    cache = Cache(folder, 10_000)
    seams.disk(remove=_refuse(errno.EPERM))
    for i in range(30):
        cache.put(f"{i}", _data(1000, i))
    assert 0 < _total(folder) <= 10_000


def test_a_folder_that_is_a_file_is_no_error(folder):
    folder.parent.mkdir()
    folder.write_text("not a folder")
    cache = Cache(folder, 1000)
    cache.put("key", b"data")
    assert cache.get("key") is None
    assert folder.read_text() == "not a folder"


def test_a_cache_may_be_deleted_under_us(cache, folder):
    path = _file(cache, folder, "key", _data(100))
    path.unlink()
    path.parent.rmdir()
    folder.rmdir()
    assert cache.get("key") is None
    cache.put("key", b"data")
    assert cache.get("key") is not None


@pytest.mark.parametrize("why", ["network", "mapping"])
def test_what_cannot_be_mapped_is_read(cache, why, seams):
    data = _data(BIG)
    cache.put("key", data)
    if why == "network":
        mounts = Path("/proc/self/mountinfo").read_text().splitlines()
        seams.bound("network file systems", {each.split(" - ")[1].split()[0] for each in mounts})
    else:
        seams.system(mapping._libc, madvise=lambda *_: ctypes.set_errno(errno.EIO) or -1)
    found = cache.get("key")
    assert found is not None
    assert np.array_equal(found, data)
    assert not _is_mapped(found)
