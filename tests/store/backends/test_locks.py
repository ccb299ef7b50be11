"""Locks between processes: who has them, when they die, and what cannot hurt them."""

import errno
import fcntl
import os
import shutil
import signal
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from standfast.errors import WriteFailed
from standfast.store.backends import locks
from standfast.store.backends.locks import holder, take
from tests.kit.process import open_files
from tests.store.backends.backend_suite import refusing


class Holder:
    """Another process that takes the lock and keeps it until it is told or killed."""

    def __init__(self, path: Path, with_a_worker: bool = False) -> None:
        (heard, self._tell), (self._hear, told) = os.pipe(), os.pipe()
        self.process = os.fork()
        if self.process == 0:
            try:
                os.close(self._tell)
                os.close(self._hear)
                self._run(path, with_a_worker, heard, told)
            finally:
                os._exit(1)
        os.close(heard)
        os.close(told)
        said, worker = os.read(self._hear, 100).split()
        self.took_it, self.worker = said == b"taken", int(worker)

    @staticmethod
    def _run(path: Path, with_a_worker: bool, heard: int, told: int) -> None:
        lock = take(path)
        worker = os.fork() if with_a_worker else -1
        if worker == 0:
            signal.pause()
        os.write(told, b"%s %d" % (b"taken" if lock else b"refused", worker))
        os.read(heard, 1)
        os.write(told, b"held" if lock and lock.is_held() else b"lost")
        os._exit(0)

    def end(self) -> str:
        """Let it go, after it has looked whether it still holds the lock."""
        os.write(self._tell, b"x")
        said = os.read(self._hear, 100).decode()
        self._wait()
        return said

    def kill(self) -> None:
        os.kill(self.process, signal.SIGKILL)
        self._wait()

    def _wait(self) -> None:
        os.waitpid(self.process, 0)
        os.close(self._tell)
        os.close(self._hear)


def is_refused(path: Path) -> bool:
    """Whether another process cannot take the lock."""
    other = Holder(path)
    other.end()
    return not other.took_it


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "run.lock"


@pytest.fixture(autouse=True)
def _nothing_stays_held() -> Iterator[None]:
    yield
    for lock in list(locks._held.values()):
        lock.release()


@pytest.mark.guarantee("G3")
def test_two_processes_do_not_hold_it_at_once(path):
    lock = take(path)
    assert is_refused(path)
    lock.release()
    other = Holder(path)
    assert other.took_it
    assert take(path) is None
    assert other.end() == "held"
    again = take(path)
    assert again.is_held()


def test_a_killed_holder_loses_it_though_its_worker_lives(path):
    other = Holder(path, with_a_worker=True)
    try:
        assert other.took_it
        assert take(path) is None
        other.kill()
        os.kill(other.worker, 0)  # it lives
        lock = take(path)
        assert lock.is_held()
    finally:
        os.kill(other.worker, signal.SIGKILL)


def test_a_forked_child_holds_nothing_and_releases_nothing(path):
    lock = take(path)
    child = os.fork()
    if child == 0:
        code = 1
        try:
            assert not lock.is_held()
            assert take(path) is None
            assert take(path, wait=0.05) is None
            assert holder(path) == f"process {os.getppid()} on {os.uname().nodename}"
            lock.release()
            code = 0
        finally:
            os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert lock.is_held()
    assert is_refused(path)


def test_a_child_takes_it_when_its_parent_has_released_it(path):
    lock = take(path)
    told, tell = os.pipe()
    child = os.fork()
    if child == 0:
        os.read(told, 1)
        mine = take(path)
        lock.release()  # its parent's, which it had when it was forked
        os._exit(0 if mine is not None and mine.is_held() and Holder(path).took_it is False else 1)
    lock.release()
    os.write(tell, b"x")
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    os.close(told)
    os.close(tell)


def test_a_lock_whose_file_was_deleted_is_not_held(tmp_path):
    path = tmp_path / "locks" / "run.lock"
    path.parent.mkdir()
    lock = take(path)
    shutil.rmtree(path.parent)
    assert not lock.is_held()
    assert not path.exists(), "to look is not to make it"
    path.parent.mkdir()
    other = Holder(path)
    assert other.took_it
    assert not lock.is_held()
    lock.release()
    assert other.end() == "held"


def test_a_file_that_is_deleted_while_it_is_locked_is_locked_anew(path, seams):
    opened = []

    def late(open_lock: Callable[[Path], int], path: Path) -> int:
        opened.append(open_lock(path))
        if len(opened) == 1:
            path.unlink()
        return opened[-1]

    seams.disk(open_lock=late)
    lock = take(path)
    assert len(opened) == 2
    assert lock.is_held()
    assert is_refused(path)


def test_two_paths_to_one_file_are_one_lock_even_on_a_full_disk(path, tmp_path, seams):
    seams.disk(write=refusing(errno.ENOSPC))
    lock = take(path)
    (tmp_path / "way").symlink_to(tmp_path)
    assert take(tmp_path / "way" / path.name) is None
    assert is_refused(path), "the second look dropped it"
    lock.release()
    assert not lock.is_held()


def test_a_lock_that_a_backup_dropped_is_taken_again_or_found_lost(path, tmp_path):
    lock = take(path)
    shutil.copy(path, tmp_path / "backup")  # POSIX: whoever closes the file drops its locks
    assert lock.is_held()
    assert is_refused(path)
    shutil.copy(path, tmp_path / "backup")
    other = Holder(path)
    assert other.took_it
    assert not lock.is_held()
    other.kill()
    assert not lock.is_held(), "somebody was in there meanwhile"


def test_the_holder_is_named(path):
    assert holder(path) is None
    with take(path) as lock:
        assert holder(path) == f"process {os.getpid()} on {os.uname().nodename}"
        assert is_refused(path), "to ask dropped it"
        assert lock.is_held()
    assert holder(path) is None
    other = Holder(path)
    assert holder(path) == f"process {other.process} on {os.uname().nodename}"
    assert other.end() == "held"
    path.write_bytes(b"\x1b[31m" + bytes(300) + b"\xff")
    assert (holder(path) or "").isprintable()


def test_where_there_can_be_no_lock_it_is_an_error(path, tmp_path, seams):
    (tmp_path / "folder.lock").mkdir()
    for place, number in (
        (tmp_path / "no" / "run.lock", errno.ENOENT),
        (tmp_path / "folder.lock", errno.EISDIR),
    ):
        with pytest.raises(WriteFailed, match=place.name) as caught:
            take(place)
        assert caught.value.errno == number
    seams.system(fcntl, lockf=refusing(errno.ENOLCK))
    with pytest.raises(WriteFailed):
        take(path)
    assert open_files(path) == []


def test_waiting_ends_when_another_process_lets_go(path):
    other = Holder(path)
    order: list[str] = []
    timer = threading.Timer(0.1, lambda: (order.append("let go"), other.end()))
    timer.start()
    with take(path, wait=60):
        assert order == ["let go"]
    timer.join()


def test_no_descriptor_is_left_open(path):
    for _ in range(3):
        with take(path):
            assert open_files(path) == [str(path)]
            assert take(path) is None
            holder(path)
    other = Holder(path)
    assert take(path) is None
    holder(path)
    other.end()
    assert open_files(path) == []
