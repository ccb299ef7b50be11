"""Several processes in one store: one writes into a run, and nobody sees half of anything."""

from __future__ import annotations

import errno
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from standfast.errors import RunBusy, StepExists, WriteFailed
from standfast.files import disk
from standfast.store import Checkpoint, Store
from tests.kit.fault_states import UnsyncedDisk, leftovers, state
from tests.kit.stores import same

BEHIND = 10
"""How many checkpoints are kept: no reader is slower than so many saves."""


class Worker:
    """Another process, ready to go."""

    def __init__(self, what: str, path: Path, name: str, number: int) -> None:
        command = [sys.executable, "-m", "tests.store.faults.worker", what, str(path), name]
        self.process = subprocess.Popen(
            [*command, str(number)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def until_ready(self) -> list[str]:
        """What it said before it was."""
        assert self.process.stdout is not None
        said = []
        while (line := self.process.stdout.readline().strip()) != "ready":
            assert line, self.process.communicate()[1]
            said.append(line)
        return said

    def go(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write("\n")
        self.process.stdin.flush()

    def finish(self) -> str:
        out, errors = self.process.communicate(timeout=120)
        assert self.process.returncode == 0, errors
        return out.strip()


@pytest.fixture
def workers() -> Iterator[list[Worker]]:
    started: list[Worker] = []
    yield started
    for worker in started:
        if worker.process.poll() is None:
            worker.process.kill()
        worker.process.__exit__(None, None, None)


@pytest.mark.guarantee("G3")
def test_into_one_run_one_process_writes(folder: Path, workers: list[Worker]) -> None:
    workers += [Worker("hold", folder, "first", 1)]
    workers[0].until_ready()
    run = Store(folder).run("first")
    with pytest.raises(RunBusy, match=f"process {workers[0].process.pid} on .* writes into it"):
        run.save(2, state(2))
    assert same(run.load(), state(1))
    Store(folder).run("second").save(1, state(3))
    workers[0].go()
    workers[0].finish()
    run.save(2, state(2))
    assert same(run.load(), state(2))
    assert leftovers(Store(folder)) == []


@pytest.mark.guarantee("G3")
def test_of_two_that_begin_at_once_one_is_refused(folder: Path, workers: list[Worker]) -> None:
    run = Store(folder).run("first")
    workers += [Worker("save_if_free", folder, "first", step) for step in (1, 2)]
    for worker in workers:
        worker.until_ready()
    run.save(0, state(0))
    for worker in workers:
        worker.go()
    for worker in workers:
        assert f"process {os.getpid()} on" in worker.finish()
    assert [each.step for each in run.checkpoints()] == [0]


@pytest.mark.parametrize("names", [("first", "second"), ("first", "second", "third")])
def test_processes_save_into_runs_of_one_store_at_once(
    names: tuple[str, ...], folder: Path, workers: list[Worker]
) -> None:
    count = 20
    workers += [Worker("save", folder, name, count) for name in names]
    for worker in workers:
        worker.until_ready()
    for worker in workers:
        worker.go()
    for worker in workers:
        worker.finish()
    store = Store(folder)
    for name in names:
        checkpoints = store.run(name).checkpoints()
        assert [each.step for each in checkpoints] == list(range(count))
        sequences = [each.sequence for each in checkpoints]
        assert sequences == sorted(set(sequences))
        for each in checkpoints:
            assert same(each.state(), state(each.step, weight=7))
    everything = [each for name in names for each in store.run(name).checkpoints()]
    last = max(everything, key=lambda each: (each.sequence, each.run.hash))
    assert store.resolve("latest") == last
    assert leftovers(store) == []


@pytest.mark.guarantee("G8")
def test_a_reader_never_sees_half_a_state(folder: Path, workers: list[Worker]) -> None:
    count = 40
    run = Store(folder).run("first")
    run.save(0, state(0, weight=7))
    workers += [Worker("read", folder, "first", count)]
    workers[0].until_ready()
    workers[0].go()
    for step in range(1, count + 1):
        run.save(step, state(step, weight=7), replace=step % 5 == 0)
        if step >= BEHIND:
            run.delete(step - BEHIND)
    (folder / "stop").touch()
    assert int(workers[0].finish()) > 3
    assert same(run.load(), state(count, weight=7))


@pytest.mark.guarantee("G7")
def test_a_reader_that_is_overtaken_sees_the_newest(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(disk, "LOCAL", UnsyncedDisk())
    store, writer = Store(folder), Store(folder).run("first")
    for step in (1, 2, 3):
        writer.save(step, state(step))

    def overtaken(checkpoint: Checkpoint) -> object:
        if checkpoint.step == 3:
            for step in (4, 5):
                writer.save(step, state(step))
            writer.delete(2, 3)
        return checkpoint.state()

    loaded = store.with_latest(overtaken, writer.hash)
    assert same(loaded, state(5)), "an old one was taken, and nobody was told"


def test_a_killed_writers_run_is_taken_over_though_its_child_lives(
    folder: Path, workers: list[Worker]
) -> None:
    workers += [Worker("fork", folder, "first", 1)]
    child = int(workers[0].until_ready()[0])
    try:
        run = Store(folder).run("first")
        with pytest.raises(RunBusy):
            run.save(2, state(2))
        workers[0].process.kill()
        workers[0].process.wait()
        os.kill(child, 0)  # it lives
        run.save(2, state(2))
        assert same(run.load(), state(2))
        assert same(run.load(1), state(1))
    finally:
        os.kill(child, signal.SIGKILL)


def test_a_run_that_was_closed_is_free_though_an_error_of_it_is_kept(
    folder: Path, workers: list[Worker], monkeypatch: pytest.MonkeyPatch
) -> None:
    class Failing(UnsyncedDisk):
        def sync(self, fd: int) -> None:
            raise OSError(errno.EIO, "Input/output error")

    run = Store(folder).run("first")
    with monkeypatch.context() as patch:
        patch.setattr(disk, "LOCAL", Failing())
        with pytest.raises(WriteFailed) as kept:
            run.save(1, state(1))
    run.close()
    workers += [Worker("save_if_free", folder, "first", 2)]
    workers[0].until_ready()
    workers[0].go()
    assert workers[0].finish() == "saved"
    assert kept.value.errno == errno.EIO


def test_two_objects_of_one_process_are_one_writer(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(disk, "LOCAL", UnsyncedDisk())
    first, second = Store(folder).run("first"), Store(folder).run("first")
    for step in range(0, 10, 2):
        first.save(step, state(step))
        second.save(step + 1, state(step + 1))
        with pytest.raises(StepExists):
            second.save(step, state(99))
    assert [each.sequence for each in first.checkpoints()] == list(range(1, 11))
    assert [each.step for each in second.checkpoints()] == list(range(10))
