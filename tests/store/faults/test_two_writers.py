"""Several processes in one store: one writes into a run, and none sees half of a state."""

import errno
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from standfast.errors import RunBusy, StepExists, WriteFailed
from standfast.store import Checkpoint, Store
from tests.kit.fault_states import leftovers, state
from tests.kit.seams import Seams
from tests.kit.stores import same

BEHIND = 10
"""How many checkpoints are kept: no reader is slower than so many saves."""


class Worker:
    """Another process, ready to go."""

    def __init__(self, what: str, path: Path, name: str, number: int) -> None:
        command = [sys.executable, "-m", "tests.store.faults.worker", what, str(path), name]
        pipe = subprocess.PIPE
        self.process = subprocess.Popen(
            [*command, str(number)], stdin=pipe, stdout=pipe, stderr=pipe, text=True
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
        with worker.process:
            worker.process.kill()


@pytest.mark.guarantee("G3")
def test_into_one_run_one_process_writes(folder, workers):
    workers += [Worker("hold", folder, "first", 1), Worker("save_if_free", folder, "first", 2)]
    holding, other = workers
    holding.until_ready()
    other.until_ready()
    run = Store(folder).run("first")
    with pytest.raises(RunBusy, match=f"{holding.process.pid}"):
        run.save(2, state(2))
    other.go()
    assert other.finish() == "busy"
    assert same(run.load(), state(1))
    Store(folder).run("second").save(1, state(3))
    holding.go()
    holding.finish()
    run.save(2, state(2))
    assert same(run.load(), state(2))
    assert leftovers(Store(folder)) == []


def test_processes_save_into_runs_of_one_store_at_once(folder, workers):
    count, names = 20, ("first", "second")
    workers += [Worker("save", folder, name, count) for name in names]
    for worker in workers:
        worker.until_ready()
    for worker in workers:
        worker.go()
    for worker in workers:
        worker.finish()
    store = Store(folder)
    everything = []
    for name in names:
        checkpoints = store.run(name).checkpoints()
        assert [each.step for each in checkpoints] == list(range(count))
        sequences = [each.sequence for each in checkpoints]
        assert sequences == sorted(set(sequences))
        for each in checkpoints:
            assert same(each.state(), state(each.step, weight=7))
        everything += checkpoints
    last = max(everything, key=lambda each: (each.sequence, each.run.hash))
    assert store.resolve("latest") == last
    assert leftovers(store) == []


@pytest.mark.guarantee("G8")
def test_a_reader_never_sees_half_a_state(folder, workers):
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
    assert int(workers[0].finish()) > 3  # it ends when it has seen the last one
    assert same(run.load(), state(count, weight=7))


@pytest.mark.guarantee("G7")
def test_a_reader_that_is_overtaken_sees_the_newest(folder):
    store, writer = Store(folder), Store(folder).run("first")
    for step in (1, 2, 3):
        writer.save(step, state(step))

    def overtaken(checkpoint: Checkpoint) -> object:
        if checkpoint.step == 3:
            for step in (4, 5):
                writer.save(step, state(step))
            writer.delete(2, 3)
        return checkpoint.state()

    assert same(store.with_latest(overtaken, writer.hash), state(5))


def test_a_killed_writers_run_is_taken_over_though_its_child_lives(folder, workers):
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


def test_a_run_that_was_closed_is_free_though_an_error_of_it_is_kept(folder, workers):
    def failing(sync: Callable[[int], None], fd: int) -> None:
        raise OSError(errno.EIO, "Input/output error")

    run = Store(folder).run("first")
    with Seams.until_end() as seams:
        seams.disk(sync=failing)
        with pytest.raises(WriteFailed) as kept:
            run.save(1, state(1))
    run.close()
    workers += [Worker("save_if_free", folder, "first", 2)]
    workers[0].until_ready()
    workers[0].go()
    assert workers[0].finish() == "saved"
    assert kept.value.errno == errno.EIO


def test_two_objects_of_one_process_are_one_writer(folder):
    first, second = Store(folder).run("first"), Store(folder).run("first")
    for step in range(0, 10, 2):
        first.save(step, state(step))
        second.save(step + 1, state(step + 1))
        with pytest.raises(StepExists):
            second.save(step, state(99))
    assert [each.sequence for each in first.checkpoints()] == list(range(1, 11))
    assert [each.step for each in second.checkpoints()] == list(range(10))
