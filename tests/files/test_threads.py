"""Threads start or raise an error; tasks run once, and keep nothing alive afterwards."""

from __future__ import annotations

import _thread
import gc
import threading
import time
import weakref
from collections.abc import Iterator
from typing import Any

import pytest

from standfast import errors
from standfast.files.threads import Task, Thread, Threads
from tests.kit.source_code import SOURCE, paths


class Buffer:
    """Memory that a task uses, and that refers to the task, as a reader to its reads."""

    task: Task[Any]

    def size(self, other: Buffer) -> int:
        return 7

    def fail(self, other: Buffer) -> int:
        raise OSError("no such device")


def refused(*_: Any) -> int:
    raise RuntimeError("can't start new thread")


def start_without_memory(start: Any, call: Any, arguments: Any) -> int:
    """Start a thread that ends before the first line of the call, as Python does."""
    return int(start(lambda: None, ()))


@pytest.fixture
def no_gc() -> Iterator[None]:
    gc.disable()
    yield
    gc.enable()


@pytest.mark.usefixtures("no_gc")
@pytest.mark.parametrize("end", ["run", "cancel", "thread"])
def test_what_ended_keeps_its_arguments_alive_no_longer(end):
    buffer = Buffer()
    alive = weakref.ref(buffer)
    if end == "thread":
        thread = Thread(buffer.size, buffer)
        thread.join()
    else:
        buffer.task = Task(buffer.size, buffer)
        assert buffer.task.result() == 7 if end == "run" else buffer.task.cancel()
    del buffer
    limit = time.monotonic() + (60 if end == "thread" else 0)
    while alive() is not None and time.monotonic() < limit:
        time.sleep(0.001)  # a thread lets go of them just after its end
    assert alive() is None


def test_the_caller_runs_the_tasks_if_no_thread_can_be_started(seams):
    seams.system(_thread, start_new_thread=refused)
    with Threads(2) as threads:
        assert list(threads.map(str, [1, 2, 3])) == ["1", "2", "3"]


def test_other_modules_start_no_threads_of_their_own():
    """`threading` and `concurrent.futures` wait forever for a thread without memory."""
    starts = ("threading.Thread", "ThreadPoolExecutor", "_thread.start_new_thread")
    found = {path for path in paths() if any(each in path.read_text() for each in starts)}
    assert found == {SOURCE / "files/threads.py"}


@pytest.mark.parametrize("start", [refused, start_without_memory])
def test_a_thread_that_cannot_be_started_raises_an_error(start, seams):
    calls: list[int] = []
    seams.system(_thread, start_new_thread=start)
    with pytest.raises(errors.OutOfMemory):
        Thread(calls.append, 1)
    assert calls == []


def test_a_thread_can_be_waited_for():
    released, calls = threading.Event(), list[int]()

    def call(number: int) -> None:
        assert released.wait(60)
        calls.append(number)

    thread = Thread(call, 7)
    assert not thread.join(0)
    released.set()
    assert thread.join()
    assert calls == [7]
    assert thread.join()


def test_what_a_thread_raises_is_shown_as_by_other_threads(seams):
    shown: list[Any] = []
    seams.system(threading, excepthook=lambda hook, raised: shown.append(raised))
    Thread(Buffer().fail, Buffer()).join()
    assert [(each.exc_type, str(each.exc_value)) for each in shown] == [(OSError, "no such device")]


@pytest.mark.usefixtures("no_gc")
def test_tasks_are_waited_for_however_often_that_is_interrupted():
    interrupts = [KeyboardInterrupt] * 2

    class Interrupted(Threads):
        def shutdown(self, cancel: bool = False) -> None:
            if interrupts:
                raise interrupts.pop()
            super().shutdown(cancel)

    begun, released, calls = threading.Event(), threading.Event(), list[int]()

    def call() -> None:
        begun.set()
        released.wait(60)
        calls.append(1)

    threads = Interrupted(1)
    threads.submit(call)
    begun.wait(60)
    dropped = threads.submit(calls.append, 2)

    def release() -> None:
        while not dropped.done():  # it is cancelled before the other one is waited for
            time.sleep(0.001)
        released.set()

    Thread(release)
    with pytest.raises(KeyboardInterrupt):
        threads.drain()
    assert calls == [1]


def test_a_task_runs_once_and_the_caller_gets_its_result_or_error():
    calls: list[int] = []
    task = Task(calls.append, 1)
    task.attempt()
    task.attempt()
    assert task.result() is None
    assert calls == [1]
    assert not task.cancel()
    buffer = Buffer()
    with Threads(1) as threads:
        failed = threads.submit(buffer.fail, buffer)
        with pytest.raises(OSError, match="device"):
            failed.result()
