"""Who may write where, with which permissions, and what is cleaned up."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

import standfast
from standfast import errors
from standfast.files import disk
from standfast.files.disk import Disk
from tests.files.states import NEW, OLD, is_state, leftovers


def _mode(path: Path) -> str:
    return oct(path.stat().st_mode & 0o7777)


@pytest.mark.parametrize("umask", [0o022, 0o027, 0o000])
def test_a_new_file_has_the_mode_that_umask_gives(umask: int, tmp_path: Path) -> None:
    before = os.umask(umask)
    try:
        standfast.save(tmp_path / "state.safetensors", NEW)
    finally:
        os.umask(before)
    assert _mode(tmp_path / "state.safetensors") == oct(0o666 & ~umask)


def test_a_replaced_file_keeps_its_mode(tmp_path: Path) -> None:
    path = tmp_path / "state.safetensors"
    standfast.save(path, OLD)
    path.chmod(0o640)
    standfast.save(path, NEW)
    assert _mode(path) == "0o640"


def test_a_link_stays_and_what_it_points_to_is_replaced(tmp_path: Path) -> None:
    (tmp_path / "runs").mkdir()
    real = tmp_path / "runs" / "step_100.safetensors"
    standfast.save(real, OLD)
    link = tmp_path / "latest.safetensors"
    link.symlink_to(real)
    standfast.save(link, NEW)
    assert link.is_symlink()
    assert is_state(real, NEW)


def test_a_name_as_long_as_the_file_system_allows_can_be_saved(tmp_path: Path) -> None:
    path = tmp_path / ("x" * (255 - len(".safetensors")) + ".safetensors")
    standfast.save(path, NEW)
    assert is_state(path, NEW)


def test_a_folder_that_is_missing_or_no_folder_is_named(tmp_path: Path) -> None:
    with pytest.raises(errors.MissingFile, match=r"folder .*/nowhere does not exist"):
        standfast.save(tmp_path / "nowhere" / "state.safetensors", NEW)
    (tmp_path / "folder.safetensors").mkdir()
    with pytest.raises(errors.WriteFailed, match="exists and is not a file"):
        standfast.save(tmp_path / "folder.safetensors", NEW)


def test_a_save_beside_another_to_the_same_path_does_not_remove_its_file(tmp_path: Path) -> None:
    path = tmp_path / "state.safetensors"
    inside, go_on = threading.Event(), threading.Event()

    class SlowDisk(Disk):
        def sync(self, fd: int) -> None:
            inside.set()
            assert go_on.wait(60)
            super().sync(fd)

    def slow_save() -> None:
        from standfast.files.writer import write_file
        from standfast.formats.safetensors import file as safetensors
        from standfast.tensors import source_of

        sources = [(name, source_of(array)) for name, array in OLD.items()]
        layout = safetensors.layout([(n, s.spec) for n, s in sources], {}, True)
        write_file(path, layout, [source for _, source in sources], SlowDisk())

    slow = threading.Thread(target=slow_save)
    slow.start()
    assert inside.wait(60)
    standfast.save(path, NEW)
    assert is_state(path, NEW)
    go_on.set()
    slow.join()
    assert is_state(path, OLD)  # the last one to finish
    assert leftovers(path) == []


def test_processes_that_save_to_one_path_at_once_leave_one_whole_file(tmp_path: Path) -> None:
    path = tmp_path / "state.safetensors"
    code = (
        "import sys, numpy, standfast\n"
        "x = numpy.full(50_000, int(sys.argv[2]))\n"
        "for i in range(15): standfast.save(sys.argv[1], {'x': x})"
    )
    children = [subprocess.Popen([sys.executable, "-c", code, str(path), str(i)]) for i in range(3)]
    seen = 0
    while any(child.poll() is None for child in children):
        if path.exists():
            x = standfast.load(path)["x"]
            assert (x == x[0]).all()
            seen += 1
        time.sleep(0.01)
    assert [child.returncode for child in children] == [0, 0, 0]
    assert seen > 5
    assert leftovers(path) == []


def test_only_our_own_leftovers_of_this_path_are_removed(tmp_path: Path) -> None:
    path = tmp_path / "state.safetensors"
    others = [".state.safetensors.tmp", ".0123456789abcdef.01234567.standfast", "x.standfast"]
    for name in others:
        (tmp_path / name).write_bytes(b"not ours")
    standfast.save(path, NEW)
    assert sorted(leftovers(path)) == sorted(others)


class _PageCacheDisk(Disk):
    """A file system that takes the flag for direct writes and then refuses the writes."""

    def __init__(self) -> None:
        self.refused = 0
        self.one_at_a_time = threading.Lock()
        self.real = os.pwrite

    def write(self, fd: int, data: np.ndarray, offset: int) -> None:  # type: ignore[type-arg]
        real = self.real

        def pwrite(fd: int, view: memoryview, offset: int) -> int:
            import fcntl

            if fcntl.fcntl(fd, fcntl.F_GETFL) & os.O_DIRECT:
                self.refused += 1
                raise OSError(errno.EINVAL, "Invalid argument")
            return real(fd, view[:1000], offset)  # and writes less than it was given

        with self.one_at_a_time, pytest.MonkeyPatch.context() as patch:
            patch.setattr(os, "pwrite", pwrite)
            super().write(fd, data, offset)


def test_where_direct_writes_are_refused_buffered_ones_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stubborn = _PageCacheDisk()
    monkeypatch.setattr(disk, "LOCAL", stubborn)
    standfast.save(tmp_path / "state.safetensors", NEW)
    assert stubborn.refused == 1
    assert is_state(tmp_path / "state.safetensors", NEW)


def test_saving_in_memory_file_systems_works() -> None:
    shared = Path("/dev/shm")
    if not shared.is_dir():
        pytest.skip("not run: there is no /dev/shm")
    path = shared / f"standfast-test-{os.getpid()}.safetensors"
    try:
        standfast.save(path, NEW)
        assert is_state(path, NEW)
    finally:
        path.unlink(missing_ok=True)


def test_a_file_that_a_cleaner_takes_away_before_it_is_locked_is_made_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "state.safetensors"
    real = Disk._lock
    taken = []

    def lock_late(fd: int, unsupported: bool = True) -> bool:
        if not taken:
            taken.append(next(file for file in tmp_path.iterdir() if file.name.startswith(".")))
            taken[0].unlink()
        return real(fd, unsupported)

    monkeypatch.setattr(Disk, "_lock", staticmethod(lock_late))
    standfast.save(path, NEW)
    assert taken
    assert is_state(path, NEW)
    assert leftovers(path) == []


def test_both_write_threads_may_meet_a_refusal_of_direct_writes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import fcntl

    real = os.pwrite

    def refusing(fd: int, data: memoryview, offset: int) -> int:
        if fcntl.fcntl(fd, fcntl.F_GETFL) & os.O_DIRECT:
            time.sleep(0.05)  # so that the other one is refused too, before the flag is gone
            raise OSError(errno.EINVAL, "Invalid argument")
        return real(fd, data, offset)

    monkeypatch.setattr(os, "pwrite", refusing)
    standfast.save(tmp_path / "state.safetensors", {"x": np.arange(8 << 20)})
    assert standfast.load(tmp_path / "state.safetensors")["x"][-1] == (8 << 20) - 1


def test_a_leftover_that_is_not_ours_to_remove_is_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Sticky(Disk):
        def abandoned(self, folder: Path, prefix: str, suffix: str) -> Iterator[Path]:
            yield folder / f"{prefix}00000000{suffix}"

        def remove(self, path: Path) -> None:
            raise PermissionError(errno.EPERM, "Operation not permitted")

    monkeypatch.setattr(disk, "LOCAL", Sticky())
    standfast.save(tmp_path / "state.safetensors", NEW)
    assert is_state(tmp_path / "state.safetensors", NEW)
