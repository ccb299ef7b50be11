"""Threads for work beside the caller. A process that cannot start one never hangs.

`threading` and `concurrent.futures` wait forever for a thread that ran out of memory before its
first line. `Thread` raises an error instead, and a task that no thread has begun is run by the
caller who wants its result. No thread keeps the process from ending.
"""

from __future__ import annotations

import _thread
import sys
import threading
import weakref
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import Any, Final, Generic, Self, TypeVar

from standfast.errors import within_memory

_PAUSE: Final = 0.05
"""The seconds between two looks at whether a thread that has not begun is still there."""

T = TypeVar("T")
Item = TypeVar("Item")


class Thread:
    """A thread that has begun when the constructor returns.

    Raises OutOfMemory if it cannot be started.
    """

    def __init__(self, call: Callable[..., object], *arguments: Any) -> None:
        with within_memory():
            self._running = threading.Lock()
            begun = threading.Lock()
            begun.acquire()
            run = partial(self._run, begun, call, arguments)
            there = weakref.ref(run)
            _thread.start_new_thread(run, ())
            del run  # the thread alone holds it, until it ends
            while True:
                has_ended = there() is None
                if begun.acquire(timeout=_PAUSE):
                    return
                if has_ended:
                    raise MemoryError("a new thread ended before its first line")

    def join(self, timeout: float | None = None) -> bool:
        """Wait until it has ended; returns whether it has. Not for a forked child."""
        has_ended = self._running.acquire(timeout=-1 if timeout is None else max(0.0, timeout))
        if has_ended:
            self._running.release()
        return has_ended

    def _run(
        self, begun: threading.Lock, call: Callable[..., object], arguments: tuple[Any, ...]
    ) -> None:
        with self._running:
            begun.release()
            # As in threads of `threading`: debuggers and profilers see it, and its error is shown.
            sys.settrace(threading.gettrace())
            sys.setprofile(threading.getprofile())
            try:
                call(*arguments)
            except BaseException as error:
                shown = (type(error), error, error.__traceback__, None)
                threading.excepthook(threading.ExceptHookArgs(shown))


class Task(Generic[T]):
    """A call that is made once, by a thread or by the caller."""

    def __init__(self, call: Callable[..., T], *arguments: Any) -> None:
        self._call: tuple[Callable[..., T], tuple[Any, ...]] = call, arguments
        self._claimed = threading.Lock()
        self._done = threading.Lock()
        self._done.acquire()
        self._value: T
        self._error: BaseException | None = None

    def attempt(self) -> None:
        """Run it, unless that was begun already or it was cancelled; raises nothing."""
        if not self._claimed.acquire(blocking=False):
            return
        call, arguments = self._call
        del self._call  # a finished task keeps no buffer or mapping of its arguments alive
        try:
            self._value = call(*arguments)
        except BaseException as error:
            self._error = error
        finally:
            self._done.release()

    def cancel(self) -> bool:
        """Keep it from being begun; returns whether it was not begun before."""
        if not self._claimed.acquire(blocking=False):
            return False
        del self._call
        self._done.release()
        return True

    def done(self) -> bool:
        """Whether it has ended."""
        return not self._done.locked()

    def wait(self) -> None:
        """Return when it has ended; not for a task that was cancelled."""
        self.attempt()
        with self._done:
            pass
        if self._error is not None and not isinstance(self._error, Exception):
            raise self._error  # an interrupt, which is for the caller

    def result(self) -> T:
        """What it returned; raises what it raised."""
        self.wait()
        if self._error is not None:
            raise self._error
        return self._value


class Threads:
    """A number of threads at most; each ends when nothing is left to do."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._guard = threading.Lock()
        self._active = 0
        self._waiting: deque[Task[Any]] = deque()
        self._running: set[Task[Any]] = set()

    def submit(self, call: Callable[..., T], *arguments: Any) -> Task[T]:
        """Have it called soon, by a thread if one can be started."""
        task = Task(call, *arguments)
        with self._guard:
            self._waiting.append(task)
            starts = self._active < self._most
            self._active += starts
        if starts:
            try:
                _thread.start_new_thread(self._work, ())
            except (RuntimeError, MemoryError):
                with self._guard:
                    self._active -= 1
        return task

    def map(self, call: Callable[[Item], T], items: Iterable[Item]) -> Iterator[T]:
        """The results for all items, in their order; all are submitted at once."""
        tasks = [self.submit(call, item) for item in items]

        def results() -> Iterator[T]:
            try:
                for task in tasks:
                    yield task.result()
            finally:
                for task in tasks:
                    task.cancel()

        return results()

    def _work(self) -> None:
        try:
            while True:
                with self._guard:
                    if not self._waiting:
                        self._active -= 1
                        return
                    task = self._waiting[0]
                    self._running.add(task)
                    self._waiting.popleft()
                task.attempt()
                with self._guard:
                    self._running.discard(task)
        except MemoryError:
            pass  # the caller that wants the results does the work

    def shutdown(self, cancel: bool = False) -> None:
        """Return when all tasks have ended; those that were not begun may be cancelled instead."""
        while task := self._left():
            if not (cancel and task.cancel()):
                task.wait()
            with self._guard:
                self._running.discard(task)

    def drain(self) -> None:
        """Return when no task runs any more, however often the user presses Ctrl-C.

        Those that were not begun are cancelled; an interrupt is raised at the end.
        """
        interrupt: BaseException | None = None
        while True:
            try:
                self.shutdown(cancel=True)
                break
            except BaseException as error:  # also what a handler of signals raises
                interrupt = error
        if interrupt:
            raise interrupt

    def _left(self) -> Task[Any] | None:
        with self._guard:
            return self._waiting.popleft() if self._waiting else next(iter(self._running), None)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.shutdown()
