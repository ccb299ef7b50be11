"""Saves in the background when something goes wrong: nothing is lost, and nobody waits forever."""

from __future__ import annotations

import ctypes
import errno
import os
import random
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from standfast import Run, Store
from standfast.errors import RunBusy, SaveFailed, SlowSaves, WriteFailed
from standfast.store.schema import names
from standfast.training.background.background import Background
from standfast.training.background.helper import die_with
from standfast.training.background.messages import Message
from tests.kit.stores import folder, same
from tests.training.background.saver import MIB, is_sound
from tests.training.background.saver import state as sized

SIZE = 2 * MIB


@pytest.fixture
def run(tmp_path: Path) -> Iterator[Run]:
    with Store(tmp_path).run("gpt") as run:
        yield run


@pytest.fixture
def background(run: Run) -> Iterator[Background]:
    """One with a running helper and a checkpoint of step 1."""
    background = Background(run)
    background.save(sized(1, SIZE), 1)
    background.wait()
    yield background
    background.close()


def helper(background: Background) -> int:
    assert background._helpers.current is not None
    return background._helpers.current.number


def unplaced(run: Run) -> list[str]:
    return [name for name in os.listdir(folder(run)) if name.endswith(".standfast")]


def test_a_helper_killed_in_the_middle_fails_its_save_and_no_other(
    run: Run, background: Background, monkeypatch: pytest.MonkeyPatch
) -> None:
    killed = helper(background)
    assert background._helpers.current is not None
    channel = background._helpers.current._channel
    send = channel.send

    def send_and_kill(message: Message) -> None:
        os.kill(killed, signal.SIGSTOP)
        send(message)
        os.kill(killed, signal.SIGKILL)

    monkeypatch.setattr(channel, "send", send_and_kill)
    background.save(sized(2, SIZE), 2)
    with pytest.raises(SaveFailed, match="wrote step 2 was killed by signal 9"):
        background.save(sized(3, SIZE), 3)
    background.save(sized(4, SIZE), 4)
    background.wait()
    assert helper(background) != killed
    assert [checkpoint.step for checkpoint in run.checkpoints()] == [1, 4]
    assert is_sound(run, SIZE) == 4


def test_what_a_killed_helper_has_written_is_deleted(run: Run, background: Background) -> None:
    def kill() -> None:
        os.kill(helper(background), signal.SIGKILL)
        raise ValueError("no commit")

    before = sorted(os.listdir(folder(run)))
    background.save(sized(2, SIZE), 2, before_commit=kill)
    with pytest.raises(SaveFailed, match="killed by signal 9"):
        background.wait()
    assert sorted(os.listdir(folder(run))) == before


def test_a_helper_killed_after_the_commit_has_not_failed(run: Run, background: Background) -> None:
    background.save(
        sized(2, SIZE), 2, before_commit=lambda: os.kill(helper(background), signal.SIGKILL)
    )
    background.wait()
    assert is_sound(run, SIZE) == 2
    background.save(sized(3, SIZE), 3)
    background.wait()
    assert is_sound(run, SIZE) == 3


def test_a_helper_killed_while_it_is_idle_is_replaced_without_a_word(
    run: Run, background: Background
) -> None:
    os.kill(helper(background), signal.SIGKILL)
    time.sleep(0.05)
    background.save(sized(2, SIZE), 2)
    background.wait()
    assert is_sound(run, SIZE) == 2


def test_what_was_started_and_is_no_helper_is_killed_and_done_without(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program, processes = tmp_path / "program", tmp_path / "processes"
    program.write_text(f"#!/bin/sh\nsleep 600 &\necho $$ $! > {processes}\nwait\n")
    program.chmod(0o700)
    monkeypatch.setattr("sys.executable", str(program))
    monkeypatch.setattr("standfast.training.background.process._TIME_TO_START", 0.5)
    background = Background(run)
    background.save(sized(1, SIZE), 1)
    with pytest.warns(SlowSaves, match=r"\(it was not ready after 0\.5 seconds\)"):
        background.wait()
    assert background._helpers.current is None
    started = [*map(int, processes.read_text().split())]
    assert len(started) == 2
    assert all(map(ends, started))
    background.save(sized(2, SIZE), 2)
    background.close()
    assert [checkpoint.step for checkpoint in run.checkpoints()] == [1, 2]
    assert is_sound(run, SIZE) == 2


def test_a_helper_that_was_never_sent_a_shape_is_sent_it_with_the_next_job(
    run: Run, background: Background, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert background._helpers.current is not None
    number, channel = helper(background), background._helpers.current._channel
    other = SIZE + MIB  # another shape than that of step 1

    def refuse(message: Message) -> None:
        raise MemoryError("no room for the message")

    with monkeypatch.context() as patch:
        patch.setattr(channel, "send", refuse)
        background.save(sized(2, other), 2)
        with pytest.raises(MemoryError):
            background.wait()
    background.save(sized(3, other), 3)
    background.wait()
    assert helper(background) == number
    assert same(run.load(3), sized(3, other))


def test_an_error_of_the_callback_is_raised_as_it_is_and_nothing_committed(
    run: Run, background: Background
) -> None:
    error = ValueError("the metrics could not be written")

    def refuse() -> None:
        raise error

    before = sorted(os.listdir(folder(run)))
    background.save(sized(2, SIZE), 2, before_commit=refuse)
    with pytest.raises(ValueError) as caught:
        background.wait()
    assert caught.value is error
    assert sorted(os.listdir(folder(run))) == before


@pytest.mark.guarantee("G5")
def test_a_disk_that_takes_no_more_is_reported_at_the_next_call(
    run: Run, background: Background
) -> None:
    resource.prlimit(helper(background), resource.RLIMIT_FSIZE, (SIZE // 2, SIZE // 2))
    background.save(sized(2, SIZE), 2)
    with pytest.raises(WriteFailed) as caught:
        background.save(sized(3, SIZE), 3)
    assert caught.value.errno == errno.EFBIG
    assert names.run_folder(run.hash) in str(caught.value)
    assert not unplaced(run)
    assert is_sound(run, SIZE) == 1


def test_a_failure_that_nobody_asked_for_is_raised_at_the_end(run: Run) -> None:
    background = Background(run)
    background.save(sized(1, SIZE), 1)
    background.wait()
    resource.prlimit(helper(background), resource.RLIMIT_FSIZE, (SIZE // 2, SIZE // 2))
    background.save(sized(2, SIZE), 2)
    with pytest.raises(WriteFailed):
        background.close()
    background.close()
    assert is_sound(run, SIZE) == 1


def test_a_run_whose_lock_was_deleted_is_not_committed_into(
    run: Run, background: Background
) -> None:
    def lose() -> None:
        for lock in Path(run.store.url, ".standfast", "locks").glob(f"{run.hash}.lock"):
            lock.unlink()

    background.save(sized(2, SIZE), 2, before_commit=lose)
    with pytest.raises(RunBusy, match="lock was deleted"):
        background.wait()
    background.save(sized(3, SIZE), 3)
    background.wait()
    assert is_sound(run, SIZE) == 3


def test_a_helper_that_nobody_listens_to_ends(run: Run, background: Background) -> None:
    assert background._helpers.current is not None
    process, channel = background._helpers.current._process, background._helpers.current._channel
    background.save(sized(2, SIZE), 2, before_commit=channel.close)
    background.wait()
    assert process.returncode == 1  # by itself: nobody had to kill it
    assert is_sound(run, SIZE) == 2


@pytest.mark.parametrize("parent", ["this", "another"])
def test_a_helper_dies_with_its_parent(parent: str) -> None:
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
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)


def line(child: subprocess.Popen[str]) -> str:
    assert child.stdout is not None
    return child.stdout.readline().strip()


def kill(child: subprocess.Popen[str]) -> None:
    child.kill()
    assert child.wait() == -signal.SIGKILL
    assert child.stdout is not None
    child.stdout.close()


def ends(process: int, within: float = 60.0) -> bool:
    deadline = time.monotonic() + within
    while time.monotonic() < deadline:
        try:
            text = Path("/proc", str(process), "stat").read_text()
        except (FileNotFoundError, ProcessLookupError):
            return True
        if text.rsplit(")", 1)[1].split()[0] == "Z":  # init has not come by yet
            return True
        time.sleep(0.002)
    return False


@pytest.mark.guarantee("G16")
def test_a_kill_during_a_large_save_leaves_no_process_no_lock_and_no_file(tmp_path: Path) -> None:
    size = 200 * MIB
    child = start(tmp_path, "once", size)
    helper = int(line(child))
    assert line(child) == "saving"
    time.sleep(0.03)
    kill(child)
    with Store(tmp_path).run("killed") as run:  # at once
        assert is_sound(run, size) == 1
        assert not unplaced(run)
        assert len(list(folder(run).glob("*.safetensors"))) == 1
    assert ends(helper)


@pytest.mark.long
@pytest.mark.guarantee("G1")
def test_a_kill_at_any_moment_leaves_a_sound_store(tmp_path: Path) -> None:
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
                step = is_sound(run, SIZE)
                assert step > steps[store]
                steps[store] = step
                for checkpoint in run.checkpoints()[-3:]:
                    checkpoint.verify()
                assert not unplaced(run)
        assert all(map(ends, helpers))


def test_a_program_that_ends_without_closing_has_saved(tmp_path: Path) -> None:
    child = start(tmp_path, "forget", SIZE)
    line(child)
    assert child.wait() == 0
    assert child.stdout is not None
    child.stdout.close()
    assert is_sound(Store(tmp_path).run("killed"), SIZE) == 2


def test_states_of_the_program_tell_their_steps() -> None:
    assert same(sized(1, SIZE), sized(1, SIZE))
    assert (
        sized(1, SIZE)["model"]["weight"].tobytes() != sized(2, SIZE)["model"]["weight"].tobytes()
    )
