"""Tasks run once, by a thread or by their caller, and keep nothing alive afterwards."""

from __future__ import annotations

import _thread
import gc
import weakref
from collections.abc import Iterator
from typing import Any

import pytest

from standfast.files.threads import Task, Threads


class Buffer:
    """Memory that a task uses, and that refers to the task, as a reader to its reads."""

    task: Task[Any]

    def size(self, other: Buffer) -> int:
        return 7

    def fail(self, other: Buffer) -> int:
        raise OSError("no such device")


@pytest.fixture
def no_gc() -> Iterator[None]:
    gc.disable()
    yield
    gc.enable()


@pytest.mark.usefixtures("no_gc")
@pytest.mark.parametrize("end", ["run", "cancel"])
def test_a_task_that_ended_keeps_its_arguments_alive_no_longer(end: str) -> None:
    buffer = Buffer()
    buffer.task = Task(buffer.size, buffer)
    if end == "run":
        assert buffer.task.result() == 7
    else:
        assert buffer.task.cancel()
    alive = weakref.ref(buffer)
    del buffer
    assert alive() is None


def test_a_task_runs_once_and_keeps_its_result() -> None:
    calls: list[int] = []
    task = Task(calls.append, 1)
    task.attempt()
    task.attempt()
    assert task.result() is None
    assert calls == [1]
    assert not task.cancel()


def test_the_caller_gets_what_the_task_raised() -> None:
    buffer = Buffer()
    with Threads(1) as threads:
        task = threads.submit(buffer.fail, buffer)
        with pytest.raises(OSError, match="no such device"):
            task.result()


def test_the_caller_runs_the_tasks_if_no_thread_can_be_started(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def refused(*_: Any) -> int:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(_thread, "start_new_thread", refused)
    with Threads(2) as threads:
        assert list(threads.map(str, [1, 2, 3])) == ["1", "2", "3"]
