"""Signals that ask a training program to end."""

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

import pytest

import standfast
from standfast import errors
from tests.kit.seams import Seams
from tests.kit.walk import Walk, checkpointer

PROGRAM = """
import signal, sys
import numpy as np
import standfast

heard = []
if "--handler" in sys.argv:
    signal.signal(signal.SIGTERM, lambda number, frame: heard.append(number))
state, options = standfast.TrainingState(walk={"weights": np.zeros(4)}), {"asynchronous": False}
with standfast.Checkpointer(sys.argv[1], state, name="walk", every=1000, **options) as ckpt:
    for step in ckpt.steps(5):
        state.walk["weights"] += 1
        if step == 3:
            print("ready", flush=True)
            sys.stdin.readline()
        ckpt.step(step)
    print("stopped", ckpt.should_stop, step, heard, flush=True)
    signal.raise_signal(signal.SIGTERM)
print("still here")
"""


@contextmanager
def _program(store: Path, *flags: str) -> Iterator[subprocess.Popen[str]]:
    """The program in its third step, which ends when it is given a line."""
    pipes: Any = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE)
    command = [sys.executable, "-c", PROGRAM, str(store), *flags]
    with subprocess.Popen(command, text=True, **pipes) as process:
        try:
            assert _line(process.stdout) == "ready"
            yield process
        finally:
            process.kill()


def _line(stream: IO[str] | None) -> str:
    assert stream is not None
    return stream.readline().strip()


@pytest.mark.parametrize(
    ("number", "flags"), [(signal.SIGTERM, ("--handler",)), (signal.SIGUSR1, ())]
)
def test_a_signal_makes_the_next_step_save_and_the_loop_end(tmp_path, number, flags):
    with _program(tmp_path, *flags) as process:
        process.send_signal(number)
        out, said = process.communicate("go on\n", timeout=60)
    heard = [signal.SIGTERM.value] if flags else []  # a handler that was there is called too
    assert out.splitlines()[0] == f"stopped True 3 {heard}"
    assert f"{number.name}: step 3 " in said
    run = standfast.Store(tmp_path).runs()[0]
    assert [checkpoint.step for checkpoint in run.checkpoints()] == [3]
    assert run.load()["walk"]["weights"].tolist() == [3.0] * 4


def test_a_signal_that_no_step_obeys_comes_after_the_with(tmp_path):
    with _program(tmp_path) as process:
        out, _ = process.communicate("go on\n", timeout=60)
    assert out == "stopped False 5 []\n"
    assert process.returncode == -signal.SIGTERM
    assert standfast.Store(tmp_path).resolve("latest").step == 5


def test_a_second_signal_ends_the_program_at_once(tmp_path):
    with _program(tmp_path) as process:
        while process.poll() is None:  # one that comes before the first was handled is lost
            process.send_signal(signal.SIGTERM)
            threading.Event().wait(0.05)
    assert process.returncode == -signal.SIGTERM
    assert standfast.Store(tmp_path).runs()[0].checkpoints() == []


def test_a_program_that_does_not_look_is_ended_at_its_next_step(tmp_path):
    with checkpointer(tmp_path, Walk().state, every=100) as ckpt:
        ckpt.step()
        os.kill(os.getpid(), signal.SIGTERM)
        ckpt.step()
        assert ckpt.should_stop
        with pytest.raises(SystemExit) as ended:
            ckpt.step()
        assert ended.value.code == 143
        assert [checkpoint.step for checkpoint in ckpt.run.checkpoints()] == [2]


def test_handlers_are_as_before_after_the_with_and_in_a_forked_child(tmp_path):
    before = signal.signal(signal.SIGUSR1, lambda number, frame: None)
    mine = signal.getsignal(signal.SIGUSR1)
    try:
        with checkpointer(tmp_path, Walk().state):
            assert signal.getsignal(signal.SIGUSR1) is not mine
            heard, tell = os.pipe()
            child = os.fork()
            if child == 0:
                os.write(tell, b"x")
                while True:
                    threading.Event().wait(0.05)
            os.read(heard, 1)
            os.kill(child, signal.SIGTERM)
            _, status = os.waitpid(child, 0)
            assert os.waitstatus_to_exitcode(status) == -signal.SIGTERM
        assert signal.getsignal(signal.SIGUSR1) is mine
    finally:
        signal.signal(signal.SIGUSR1, before)


def _epochs(
    store: Path, total: int, body: Callable[[standfast.Checkpointer, int], None]
) -> standfast.Checkpointer:
    with checkpointer(store, Walk().state, every=1) as ckpt:
        for epoch in ckpt.epochs(total):
            body(ckpt, epoch)
    return ckpt


def test_a_signal_within_an_epoch_that_no_loader_knows_makes_the_resume_inexact(tmp_path):
    seen: list[int] = []

    def body(ckpt: standfast.Checkpointer, epoch: int) -> None:
        for _ in range(4):
            if len(seen) == 5:
                os.kill(os.getpid(), signal.SIGUSR1)
            seen.append(epoch)
            ckpt.step()
            if ckpt.should_stop:
                return

    _epochs(tmp_path, 3, body)
    assert seen == [1, 1, 1, 1, 2, 2]
    checkpoint = standfast.Store(tmp_path).resolve("latest")
    assert (checkpoint.step, checkpoint.epoch) == (6, 1)
    report = _epochs(tmp_path, 3, body).resume_report
    assert seen[6:] == [2, 2, 2, 2, 3, 3, 3, 3]
    assert not report.exact
    assert "epoch 2" in str(report)


@pytest.mark.parametrize(("by_hand", "stop"), [(True, 2), (False, 3)])
def test_a_step_at_the_end_of_each_epoch_is_not_the_middle_of_one(tmp_path, by_hand, stop):
    seen: list[int] = []

    def body(ckpt: standfast.Checkpointer, epoch: int) -> None:
        if epoch == stop and epoch not in seen:
            os.kill(os.getpid(), signal.SIGUSR1)
        seen.append(epoch)
        if by_hand:
            ckpt.step(epoch)

    for _ in range(2):
        assert _epochs(tmp_path, 4, body).resume_report.exact
    assert seen == [1, 2, 3, 4]


def test_an_earlier_failure_does_not_keep_a_signal_from_saving(tmp_path):
    def refuse(create: Any, name: str, data: bytes) -> None:
        raise errors.WriteFailed(28, "no space, for a moment")

    store = standfast.Store(tmp_path)
    with checkpointer(store, Walk().state, every=1, asynchronous=True) as ckpt:
        with Seams.until_end() as seams:
            seams.backend(create=refuse)
            ckpt.step(1)
            while not ckpt._open().is_idle():
                threading.Event().wait(0.01)
        os.kill(os.getpid(), signal.SIGTERM)
        with pytest.raises(errors.WriteFailed) as raised:
            ckpt.step(2)
        assert raised.value.errno == 28
        assert ckpt.should_stop
        assert [checkpoint.step for checkpoint in ckpt.run.checkpoints()] == [2]
