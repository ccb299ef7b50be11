"""Who may write where, with which permissions, and what is cleaned up."""

import errno
import fcntl
import os
import threading
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import standfast
from standfast import errors
from standfast.files.disk import DIRECT
from tests.files.states import NEW, OLD, failing, is_state, leftovers


@pytest.mark.parametrize("umask", [0o022, 0o027, 0o000])
def test_a_file_has_the_mode_of_umask_or_keeps_its_own(umask, tmp_path):
    path = tmp_path / "state.safetensors"
    before = os.umask(umask)
    try:
        standfast.save(path, NEW)
        assert path.stat().st_mode & 0o7777 == 0o666 & ~umask
        path.chmod(0o640)
        standfast.save(path, NEW)
    finally:
        os.umask(before)
    assert path.stat().st_mode & 0o7777 == 0o640


def test_a_link_stays_and_what_it_points_to_is_replaced(tmp_path):
    (tmp_path / "runs").mkdir()
    real = tmp_path / "runs" / ("x" * (255 - len(".safetensors")) + ".safetensors")
    standfast.save(real, OLD)
    link = tmp_path / "latest.safetensors"
    link.symlink_to(real)
    standfast.save(link, NEW)
    assert link.is_symlink()
    assert is_state(real, NEW)


def test_a_save_does_not_remove_the_file_of_another(tmp_path, seams):
    path = tmp_path / "state.safetensors"
    inside, go_on = threading.Event(), threading.Event()

    def slow_sync(sync: Any, fd: int) -> None:
        if threading.current_thread() is slow:
            inside.set()
            assert go_on.wait(60)
        sync(fd)

    seams.disk(sync=slow_sync)
    slow = threading.Thread(target=standfast.save, args=(path, OLD))
    slow.start()
    assert inside.wait(60)
    standfast.save(path, NEW)
    assert is_state(path, NEW)
    go_on.set()
    slow.join()
    assert is_state(path, OLD)  # the last one to finish
    assert leftovers(path) == []


def test_processes_that_save_to_one_path_at_once_leave_one_whole_file(tmp_path):
    path = tmp_path / "state.safetensors"
    children = []
    for number in range(2):
        if not (child := os.fork()):
            code = 1
            try:
                for _ in range(15):
                    standfast.save(path, {"x": np.full(50_000, number)})
                code = 0
            finally:
                os._exit(code)
        children.append(child)
    while children:
        if path.exists():
            x = standfast.load(path)["x"]
            assert (x == x[0]).all()
        pid, status = os.waitpid(children[0], os.WNOHANG)
        if pid:
            assert status == 0
            del children[0]
    assert leftovers(path) == []


def test_only_our_own_leftovers_of_this_path_are_removed(tmp_path):
    path = tmp_path / "state.safetensors"
    others = [".state.safetensors.tmp", ".0123456789abcdef.01234567.standfast", "x.standfast"]
    for name in others:
        (tmp_path / name).write_bytes(b"not ours")
    standfast.save(path, NEW)
    assert sorted(leftovers(path)) == sorted(others)


@pytest.mark.skipif(not DIRECT, reason="no direct writes here")
def test_where_direct_writes_are_refused_buffered_ones_do(tmp_path, seams):
    """A file system that takes the flag and then refuses the writes, on both threads at once."""
    refused = []
    both = threading.Barrier(2)

    def pwrite(write: Any, fd: int, view: memoryview, offset: int) -> int:
        if fcntl.fcntl(fd, fcntl.F_GETFL) & os.O_DIRECT:
            refused.append(offset)
            with suppress(threading.BrokenBarrierError):
                both.wait(10)
            raise OSError(errno.EINVAL, "Invalid argument")
        return int(write(fd, view[: 1 << 20], offset))  # and writes less than it was given

    seams.system(os, pwrite=pwrite)
    standfast.save(tmp_path / "state.safetensors", {"x": np.arange(4 << 20)})
    assert len(refused) == 2
    assert (standfast.load(tmp_path / "state.safetensors")["x"] == np.arange(4 << 20)).all()


@pytest.mark.skipif(not Path("/dev/shm").is_dir(), reason="there is no /dev/shm")
def test_saving_in_memory_file_systems_works():
    path = Path("/dev/shm", f"standfast-test-{os.getpid()}.safetensors")
    try:
        standfast.save(path, NEW)
        assert is_state(path, NEW)
    finally:
        path.unlink(missing_ok=True)


def test_a_file_that_a_cleaner_takes_away_is_made_again(tmp_path, seams):
    path = tmp_path / "state.safetensors"
    taken = []

    def flock(lock: Any, fd: int, operation: int) -> None:
        if not taken:
            taken.append(next(file for file in tmp_path.iterdir() if file.name.startswith(".")))
            taken[0].unlink()
        lock(fd, operation)

    seams.system(fcntl, flock=flock)
    standfast.save(path, NEW)
    assert taken
    assert is_state(path, NEW)
    assert leftovers(path) == []


def test_a_leftover_that_is_not_ours_to_remove_is_left(tmp_path, seams):
    def abandoned(find: Any, folder: Path, prefix: str, suffix: str) -> list[Path]:
        return [folder / f"{prefix}00000000{suffix}"]

    seams.disk(abandoned=abandoned, remove=failing(errno.EPERM))
    standfast.save(tmp_path / "state.safetensors", NEW)
    assert is_state(tmp_path / "state.safetensors", NEW)


def test_a_folder_that_is_missing_or_not_a_folder_is_named(tmp_path):
    with pytest.raises(errors.MissingFile, match="/nowhere"):
        standfast.save(tmp_path / "nowhere" / "state.safetensors", NEW)
    (tmp_path / "folder.safetensors").mkdir()
    with pytest.raises(errors.WriteFailed, match=r"folder\.safetensors"):
        standfast.save(tmp_path / "folder.safetensors", NEW)
