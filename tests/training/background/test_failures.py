"""Saves in the background when something goes wrong: nothing is lost, and nobody waits forever."""

import ctypes
import errno
import os
import random
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import pytest

from standfast import Run, Store
from standfast.errors import RunBusy, SaveFailed, SlowSaves, WriteFailed
from standfast.store.schema import names
from standfast.training.background.background import Background
from standfast.training.background.helper import die_with
from tests.kit.seams import Seams
from tests.kit.stores import folder, same
from tests.training.background.saver import MIB, helper, sound_step
from tests.training.background.saver import state as sized

SIZE = 2 * MIB


@pytest.fixture
def saved(background: Background) -> Background:
    """One with a running helper and a checkpoint of step 1."""
    background.save(sized(1, SIZE), 1)
    background.wait()
    return background


def unplaced(run: Run) -> list[str]:
    return [name for name in os.listdir(folder(run)) if name.endswith(".standfast")]


def ends(process: int) -> bool:
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        try:
            text = Path("/proc", str(process), "stat").read_text()
        except (FileNotFoundError, ProcessLookupError):
            return True
        if text.rsplit(")", 1)[1].split()[0] == "Z":  # init has not come by yet
            return True
        time.sleep(0.002)
    return False


def test_a_killed_helper_fails_its_save_and_no_other(run, saved):
    killed, before = helper(saved), sorted(os.listdir(folder(run)))

    def send_and_kill(send: Any, data: bytes) -> None:
        os.kill(killed, signal.SIGSTOP)
        send(data)
        os.kill(killed, signal.SIGKILL)

    with Seams.until_end() as seams:
        seams.system(Connection, send_bytes=send_and_kill)
        saved.save(sized(2, SIZE), 2)
        with pytest.raises(SaveFailed, match="9"):
            saved.save(sized(3, SIZE), 3)
    assert sorted(os.listdir(folder(run))) == before
    saved.save(sized(4, SIZE), 4)
    saved.wait()
    assert helper(saved) != killed

    os.kill(helper(saved), signal.SIGKILL)  # while it is idle: it is replaced without a word
    assert saved._helpers.current is not None
    saved._helpers.current._process.wait(60)
    saved.save(sized(5, SIZE), 5)
    saved.wait()
    assert [checkpoint.step for checkpoint in run.checkpoints()] == [1, 4, 5]
    assert sound_step(run, SIZE) == 5


@pytest.mark.parametrize("is_killed", [True, False])
def test_what_was_written_without_a_commit_is_deleted(run, saved, is_killed):
    error = ValueError("the metrics could not be written")

    def refuse() -> None:
        if is_killed:
            os.kill(helper(saved), signal.SIGKILL)
        raise error

    before = sorted(os.listdir(folder(run)))
    saved.save(sized(2, SIZE), 2, before_commit=refuse)
    with pytest.raises(SaveFailed if is_killed else ValueError) as caught:
        saved.wait()
    assert error in (caught.value, caught.value.__cause__)
    assert sorted(os.listdir(folder(run))) == before


def test_a_helper_that_ends_after_the_commit_has_not_failed(run, saved):
    saved.save(sized(2, SIZE), 2, before_commit=lambda: os.kill(helper(saved), signal.SIGKILL))
    saved.wait()
    assert sound_step(run, SIZE) == 2
    saved.save(sized(3, SIZE), 3)
    saved.wait()
    assert sound_step(run, SIZE) == 3
    assert saved._helpers.current is not None
    process, channel = saved._helpers.current._process, saved._helpers.current._channel
    saved.save(sized(4, SIZE), 4, before_commit=channel.close)
    saved.wait()
    assert process.returncode == 1  # by itself, as nobody listens to it: it was not killed
    assert sound_step(run, SIZE) == 4


def test_what_was_started_and_is_no_helper_is_killed_and_done_without(run, tmp_path, seams):
    program, processes = tmp_path / "program", tmp_path / "processes"
    program.write_text(f"#!/bin/sh\nsleep 600 &\necho $$ $! > {processes}\nwait\n")
    program.chmod(0o700)
    seams.system(sys, executable=str(program))
    seams.bound("time for a helper to start", 0.5)
    background = Background(run)
    background.save(sized(1, SIZE), 1)
    with pytest.warns(SlowSaves):
        background.wait()
    assert background._helpers.current is None
    started = [*map(int, processes.read_text().split())]
    assert len(started) == 2
    assert all(map(ends, started))
    background.save(sized(2, SIZE), 2)
    background.close()
    assert [checkpoint.step for checkpoint in run.checkpoints()] == [1, 2]
    assert sound_step(run, SIZE) == 2


def test_a_helper_that_was_never_sent_a_shape_is_sent_it_with_the_next_job(run, saved):
    number, other = helper(saved), SIZE + MIB  # another shape than that of step 1

    def refuse(*_: Any) -> None:
        raise MemoryError("no room for the message")

    with Seams.until_end() as seams:
        seams.system(Connection, send_bytes=refuse)
        saved.save(sized(2, other), 2)
        with pytest.raises(MemoryError):
            saved.wait()
    saved.save(sized(3, other), 3)
    saved.wait()
    assert helper(saved) == number
    assert same(run.load(3), sized(3, other))


def limit_files(background: Background) -> None:
    resource.prlimit(helper(background), resource.RLIMIT_FSIZE, (SIZE // 2, SIZE // 2))


@pytest.mark.guarantee("G5")
def test_a_disk_that_takes_no_more_is_reported_at_the_next_call(run, saved):
    limit_files(saved)
    saved.save(sized(2, SIZE), 2)
    with pytest.raises(WriteFailed, match=names.run_folder(run.hash)) as caught:
        saved.save(sized(3, SIZE), 3)
    assert caught.value.errno == errno.EFBIG
    assert not unplaced(run)
    assert sound_step(run, SIZE) == 1
    saved.save(sized(4, SIZE), 4)
    with pytest.raises(WriteFailed):  # which nobody asked for until the end
        saved.close()
    saved.close()
    assert sound_step(run, SIZE) == 1


def test_a_run_whose_lock_was_deleted_is_not_committed_into(run, saved):
    (lock,) = Path(run.store.url, ".standfast", "locks").glob(f"{run.hash}.lock")
    saved.save(sized(2, SIZE), 2, before_commit=lock.unlink)
    with pytest.raises(RunBusy):
        saved.wait()
    saved.save(sized(3, SIZE), 3)
    saved.wait()
    assert sound_step(run, SIZE) == 3


@pytest.mark.parametrize("parent", ["this", "another"])
def test_a_helper_dies_with_its_parent(parent):
    pid = os.getpid()
    child = os.fork()
    if not child:
        die_with(pid if parent == "this" else pid + 1)
        signalled = ctypes.c_int(0)
        ctypes.CDLL(None).prctl(2, ctypes.byref(signalled), 0, 0, 0)  # PR_GET_PDEATHSIG
        os._exit(signalled.value)
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    assert code == (signal.SIGKILL if parent == "this" else 1)


def start(store: Path, how: str, size: int) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "tests.training.background.saver", str(store), how, str(size)]
    pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    return subprocess.Popen(command, **pipes)


def line(child: subprocess.Popen[str]) -> str:
    assert child.stdout is not None
    return child.stdout.readline().strip()


def kill(child: subprocess.Popen[str]) -> None:
    child.kill()
    child.communicate()
    assert child.returncode == -signal.SIGKILL


def wait_until(found: Callable[[], Any]) -> None:
    deadline = time.monotonic() + 60
    while not found():
        assert time.monotonic() < deadline
        time.sleep(0.002)


@pytest.mark.guarantee("G16")
def test_a_kill_during_a_large_save_leaves_no_process_no_lock_and_no_file(tmp_path):
    size = 64 * MIB
    child = start(tmp_path, "once", size)
    number = int(line(child))
    assert line(child) == "saving"
    wait_until(lambda: [*tmp_path.rglob("*step_000002*")] or [*tmp_path.rglob("*.standfast")])
    kill(child)
    with Store(tmp_path).run("killed") as run:  # at once
        step = sound_step(run, size)
        assert not unplaced(run)
        assert len([*folder(run).glob("*.safetensors")]) == step
    assert ends(number)


@pytest.mark.long
@pytest.mark.guarantee("G1")
def test_a_kill_at_any_moment_leaves_a_sound_store(tmp_path):
    moments = random.Random(0)
    stores = [tmp_path / str(number) for number in range(5)]
    steps = dict.fromkeys(stores, 0)
    for _ in range(2):
        children = {store: start(store, "many", SIZE) for store in stores}
        helpers = [int(line(child)) for child in children.values()]
        for child in children.values():
            time.sleep(moments.uniform(0, 0.08))
            kill(child)
        for store in stores:
            with Store(store).run("killed") as run:
                step = sound_step(run, SIZE)
                assert step > steps[store]
                steps[store] = step
                for checkpoint in run.checkpoints()[-3:]:
                    checkpoint.verify()
                assert not unplaced(run)
        assert all(map(ends, helpers))


def test_a_program_that_ends_without_closing_has_saved(tmp_path):
    child = start(tmp_path, "forget", SIZE)
    child.communicate()
    assert child.returncode == 0
    assert sound_step(Store(tmp_path).run("killed"), SIZE) == 2
