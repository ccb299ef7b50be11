"""Signals that ask a training program to end."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

import pytest

import standfast
from standfast import errors
from standfast.store.backends.local import LocalBackend
from tests.kit.walk import Walk, checkpointer

PROGRAM = """
import signal, sys, time
import numpy as np
import standfast
from standfast import errors
from standfast.store.backends.local import LocalBackend

heard = []
if "--handler" in sys.argv:
    signal.signal(signal.SIGTERM, lambda number, frame: heard.append(number))
state = standfast.TrainingState(walk={"weights": np.zeros(4)})
with standfast.Checkpointer(sys.argv[1], state, name="walk", every=1000) as ckpt:
    print("ready", flush=True)
    for step in ckpt.steps(100_000):
        state.walk["weights"] += 1
        if "--stuck" in sys.argv and step == 2:
            print("stuck", flush=True)
            while ckpt._preemption.signal is None:
                time.sleep(0.01)
            print("asked", flush=True)
            while True:
                time.sleep(0.01)
        time.sleep(0.01)
        ckpt.step(step)
    print("stopped", ckpt.should_stop, step, heard, flush=True)
"""


@contextmanager
def _program(store: Path, *flags: str) -> Iterator[subprocess.Popen[str]]:
    with subprocess.Popen(
        [sys.executable, "-c", PROGRAM, str(store), *flags],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        try:
            assert _line(process.stdout) == "ready"
            yield process
        finally:
            process.kill()


def _line(stream: IO[str] | None) -> str:
    assert stream is not None
    return stream.readline().strip()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGUSR1])
def test_a_signal_makes_the_next_step_save_and_the_loop_end(
    tmp_path: Path, number: signal.Signals
) -> None:
    with _program(tmp_path) as process:
        time.sleep(0.2)
        process.send_signal(number)
        words = _line(process.stdout).split()
        assert process.wait(60) == 0
        assert process.stderr is not None
        said = process.stderr.read()
    assert words[:2] == ["stopped", "True"]
    step = int(words[2])
    assert f"{number.name}: step {step} is saved as" in said
    run = standfast.Store(tmp_path).runs()[0]
    assert [checkpoint.step for checkpoint in run.checkpoints()] == [step]
    assert run.load()["walk"]["weights"].tolist() == [float(step)] * 4


def test_a_handler_that_was_there_is_called_too(tmp_path: Path) -> None:
    with _program(tmp_path, "--handler") as process:
        process.send_signal(signal.SIGTERM)
        words = _line(process.stdout).split()
        assert process.wait(60) == 0
    assert words[0] == "stopped"
    assert words[3:] == [f"[{signal.SIGTERM.value}]"]


def test_a_second_signal_ends_the_program_at_once(tmp_path: Path) -> None:
    with _program(tmp_path, "--stuck") as process:
        assert _line(process.stdout) == "stuck"
        process.send_signal(signal.SIGTERM)
        assert _line(process.stdout) == "asked"
        assert process.poll() is None
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == -signal.SIGTERM
    assert standfast.Store(tmp_path).runs()[0].checkpoints() == []


def test_a_program_that_does_not_look_is_ended_at_its_next_step(tmp_path: Path) -> None:
    with checkpointer(tmp_path, Walk().state, every=100) as ckpt:
        ckpt.step()
        os.kill(os.getpid(), signal.SIGTERM)
        ckpt.step()
        assert ckpt.should_stop
        with pytest.raises(SystemExit) as ended:
            ckpt.step()
        assert ended.value.code == 143
        assert [checkpoint.step for checkpoint in ckpt.run.checkpoints()] == [2]


def test_the_handlers_are_put_back(tmp_path: Path) -> None:
    def handler(number: int, frame: Any) -> None:
        pass

    before = signal.signal(signal.SIGUSR1, handler)
    try:
        with checkpointer(tmp_path, Walk().state):
            assert signal.getsignal(signal.SIGUSR1) is not handler
        assert signal.getsignal(signal.SIGUSR1) is handler
    finally:
        signal.signal(signal.SIGUSR1, before)


def test_a_signal_within_an_epoch_that_no_loader_knows_says_so(tmp_path: Path) -> None:
    def run(stop: int | None) -> list[int]:
        program, seen = Walk(), []
        with checkpointer(tmp_path, program.state, every=1) as ckpt:
            for epoch in ckpt.epochs(3):
                for _ in range(4):
                    program.train()
                    if len(seen) == stop:
                        os.kill(os.getpid(), signal.SIGUSR1)
                    seen.append(epoch)
                    ckpt.step()
                    if ckpt.should_stop:
                        break
            reports.append(ckpt.resume_report)
        return seen

    reports: list[Any] = []
    assert run(stop=5) == [1, 1, 1, 1, 2, 2]
    checkpoint = standfast.Store(tmp_path).resolve("latest")
    assert (checkpoint.step, checkpoint.epoch) == (6, 1)
    assert run(stop=None) == [2, 2, 2, 2, 3, 3, 3, 3]
    assert not reports[1].exact
    assert "it was saved in the middle of epoch 2" in str(reports[1])


@pytest.mark.parametrize(("by_hand", "stop"), [(True, 2), (False, 3)])
def test_a_step_at_the_end_of_each_epoch_is_not_the_middle_of_one(
    tmp_path: Path, by_hand: bool, stop: int
) -> None:
    def run(signal_at: int | None) -> list[int]:
        program, seen = Walk(), []
        with checkpointer(tmp_path, program.state, every=1) as ckpt:
            for epoch in ckpt.epochs(4):
                program.train()
                seen.append(epoch)
                if epoch == signal_at:
                    os.kill(os.getpid(), signal.SIGUSR1)
                if by_hand:
                    ckpt.step(epoch)
            assert ckpt.resume_report.exact
        return seen

    assert run(stop) + run(None) == [1, 2, 3, 4]


def test_a_forked_child_ends_at_a_signal(tmp_path: Path) -> None:
    with checkpointer(tmp_path, Walk().state):
        heard, tell = os.pipe()
        child = os.fork()
        if child == 0:
            os.write(tell, b"x")
            time.sleep(600)
            os._exit(0)
        os.read(heard, 1)
        os.kill(child, signal.SIGTERM)
        _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) == -signal.SIGTERM


def test_a_signal_that_no_step_obeys_comes_after_the_with(tmp_path: Path) -> None:
    code = (
        "import os, signal, sys, numpy as np, standfast\n"
        "state = standfast.TrainingState(walk={'w': np.zeros(2)})\n"
        "with standfast.Checkpointer(sys.argv[1], state, quiet=True) as ckpt:\n"
        "    for step in ckpt.steps(3): pass\n"
        "    os.kill(os.getpid(), signal.SIGTERM)\n"
        "print('still here')\n"
    )
    command = [sys.executable, "-c", code, str(tmp_path)]
    done = subprocess.run(command, check=False, capture_output=True, text=True)
    assert done.stdout == ""
    assert done.returncode == -signal.SIGTERM
    assert standfast.Store(tmp_path).resolve("latest").step == 3


def test_an_earlier_failure_does_not_keep_a_signal_from_saving(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*arguments: Any, **options: Any) -> None:
        raise errors.WriteFailed(28, "no space, for a moment")

    with checkpointer(tmp_path, Walk().state, every=1, asynchronous=True) as ckpt:
        with monkeypatch.context() as patched:
            patched.setattr(LocalBackend, "create", refuse)
            ckpt.step(1)
            while not ckpt._open().is_idle():
                time.sleep(0.01)
        os.kill(os.getpid(), signal.SIGTERM)
        with pytest.raises(errors.WriteFailed, match="for a moment"):
            ckpt.step(2)
        assert ckpt.should_stop
        assert [checkpoint.step for checkpoint in ckpt.run.checkpoints()] == [2]
