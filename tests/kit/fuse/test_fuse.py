"""The file systems that other tests mount are what they claim to be, and leave nothing behind."""

import errno
import mmap
import os
import select
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

import pytest

import tests.kit.fuse
from tests.kit.cases import kept
from tests.kit.fuse.server import _libc, called

PARENT = """
import os, signal, sys
from pathlib import Path
from tests.kit.fuse import mounted

with mounted(Path(sys.argv[1]), sys.argv[2], size=8 << 20) as folder:
    (folder / "file").touch()
    print("mounted", flush=True)
    signal.pause()
"""


def rename_exclusively(old: Path, new: Path) -> None:
    called(_libc.renameat2(-100, os.fsencode(old), -100, os.fsencode(new), 1))


def allocate(file: Path) -> None:
    fd = os.open(file, os.O_RDWR)
    try:
        called(_libc.fallocate(fd, 0, 0, 1 << 20))
    finally:
        os.close(fd)


def test_a_file_keeps_its_bytes_names_and_links(mount: Callable[..., Path]) -> None:
    folder = mount()
    block = mmap.mmap(-1, 8 << 20)
    block.write(os.urandom(len(block)))
    fd = os.open(folder / "file", os.O_RDWR | os.O_CREAT | os.O_DIRECT)
    assert os.pwrite(fd, block, 4096) == len(block)
    os.fsync(fd)
    with mmap.mmap(fd, 0, access=mmap.ACCESS_READ) as mapped:
        assert mapped[4096:] == block[:]
    os.link(folder / "file", folder / "other")
    assert os.path.samefile(folder / "file", folder / "other")
    (folder / "taken").touch()
    with pytest.raises(FileExistsError):
        rename_exclusively(folder / "file", folder / "taken")
    rename_exclusively(folder / "file", folder / "new")
    allocate(folder / "taken")
    assert (folder / "taken").stat().st_size == 1 << 20
    (folder / "new").unlink()
    (folder / "other").unlink()
    assert os.fstat(fd).st_nlink == 0
    assert os.pread(fd, 10, 4096) == block[:10]
    os.close(fd)
    (folder / "many").mkdir()
    for number in range(300):
        (folder / "many" / str(number)).symlink_to("..")
    assert len(os.listdir(folder / "many")) == 300
    assert os.readlink(folder / "many" / "299") == ".."
    assert sorted(os.listdir(folder)) == ["many", "taken"]


def test_a_call_that_is_switched_off_is_refused(mount: Callable[..., Path]) -> None:
    folder = mount(links=False, rename2=False, fallocate=False)
    (folder / "file").touch()
    for call, code in (
        (lambda: os.link(folder / "file", folder / "other"), errno.EPERM),
        (lambda: rename_exclusively(folder / "file", folder / "other"), errno.EINVAL),
        (lambda: allocate(folder / "file"), errno.EOPNOTSUPP),
    ):
        with pytest.raises(OSError) as raised:
            call()  # type: ignore[no-untyped-call]
        assert raised.value.errno == code
    assert os.listdir(folder) == ["file"]


@pytest.mark.parametrize("kind", ["fuse", "tmpfs", "ext4"])
def test_a_file_system_of_a_given_size_becomes_full(kind: str, mount: Callable[..., Path]) -> None:
    folder = mount(kind, size=8 << 20)
    with pytest.raises(OSError) as raised:
        (folder / "file").write_bytes(bytes(9 << 20))
    assert raised.value.errno == errno.ENOSPC
    (folder / "file").unlink()
    for _ in range(6000):  # FUSE hears of the end of a file after whoever closed it
        if shutil.disk_usage(folder).free > 4 << 20:
            break
        time.sleep(0.01)
    (folder / "file").write_bytes(bytes(4 << 20))


@pytest.mark.parametrize("kind", kept(["fuse", "tmpfs", "ext4"], "fuse"))
def test_no_mount_outlives_a_parent_that_is_killed(kind: str, tmp_path: Path) -> None:
    if reason := tests.kit.fuse.why_not(kind):
        pytest.skip(f"not run: {reason}")
    place = tmp_path / "place"
    program = [sys.executable, "-c", PARENT, str(place), kind]
    with subprocess.Popen(program, stdout=subprocess.PIPE) as parent:
        assert parent.stdout is not None
        assert parent.stdout.readline() == b"mounted\n"
        [keeper] = Path(f"/proc/{parent.pid}/task/{parent.pid}/children").read_text().split()
        ended = os.pidfd_open(int(keeper))
        parent.kill()
    select.select([ended], [], [])
    os.close(ended)
    assert str(tmp_path) not in Path("/proc/mounts").read_text()


def test_a_keeper_that_is_killed_is_an_error_and_leaves_no_mount(tmp_path: Path) -> None:
    if reason := tests.kit.fuse.why_not("fuse"):
        pytest.skip(f"not run: {reason}")
    with ExitStack() as stack:
        stack.enter_context(tests.kit.fuse.mounted(tmp_path / "place"))
        [keeper] = [
            child
            for task in os.listdir("/proc/self/task")
            for child in Path(f"/proc/self/task/{task}/children").read_text().split()
            if str(tmp_path) in Path(f"/proc/{child}/cmdline").read_text()
        ]
        os.kill(int(keeper), signal.SIGKILL)
        with pytest.raises(RuntimeError):
            stack.close()
    assert str(tmp_path) not in Path("/proc/mounts").read_text()
