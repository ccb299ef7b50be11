"""Who writes into a run: one process, which holds the run's lock and commits under it."""

from __future__ import annotations

import os
import threading
import weakref
from collections.abc import Callable
from contextlib import suppress
from typing import Final

from standfast.errors import RunBusy, StandfastError
from standfast.store.backends.backend import Backend, Lock
from standfast.store.index.index import Index
from standfast.store.retention.removal import sweep
from standfast.store.save.changing import PATIENCE, change_of
from standfast.store.save.planning import Plan
from standfast.store.save.saving import Assemble, Assembler, Commit, Task, Wanted
from standfast.store.save.writing import new_token
from standfast.store.schema import names
from standfast.store.schema.record import Head
from standfast.store.schema.run_file import RunFile, software

_HURRY: Final = 1.0
"""How many seconds a writer waits for the run: somebody may be cleaning up in it."""


class Writer:
    """The one that writes into a run, in this process and among all; it holds the run's lock."""

    def __init__(self, backend: Backend, index: Index, run: str) -> None:
        self._backend = backend
        self._index = index
        self._run = run
        self._assembler = Assembler(backend, index, run)
        self._guard = threading.Lock()
        self._claiming = threading.Lock()
        self._lock: Lock | None = None
        self._claims = 0
        self._sequence = 0
        self._users = 0
        self.process = os.getpid()

    def is_locking(self) -> bool:
        """Whether it keeps others out of the run."""
        return self._lock is not None and self._lock.is_held()

    def enter(self) -> None:
        """Somebody writes into the run."""
        with _writers_guard:
            self._users += 1

    def leave(self) -> None:
        """Somebody does no more; with the last one, other processes may."""
        lock = None
        with _writers_guard:
            self._users -= 1
            if not self._users:
                lock, self._lock = self._lock, None
        if lock is not None:  # outside: this may ask a server, and others wait for the guard
            lock.release()

    def _release(self) -> None:
        if self._lock is not None:
            self._lock.release()
            self._lock = None

    def save(
        self,
        file: RunFile,
        plan: Plan,
        wanted: Wanted,
        assemble: Assemble | None = None,
        before_commit: Callable[[], None] | None = None,
    ) -> Head:
        """Commit a checkpoint; when this returns, it is durable.

        It is assembled here, or by `assemble`, wherever that has it done.
        """
        with self._guard:
            self.claim()
            task = Task(
                plan,
                wanted,
                file.identity,
                file.parent,
                software(),
                new_token(),
                after=self._sequence,
                claim=self._claims,
            )

            def commit(head: Head, record: bytes, replace: bool) -> None:
                if before_commit is not None:
                    before_commit()
                self._commit(head, record, replace)

            try:
                head = (assemble or self.assemble)(task, commit)
            except StandfastError:  # who assembled it may have died, and cleaned nothing up
                with suppress(StandfastError):
                    self.sweep(patience=0)
                raise
            self._sequence = head.sequence
        return head

    def assemble(self, task: Task, commit: Commit) -> Head:
        """Write all of a checkpoint, and have it committed; in the middle of a `save`."""
        return self._assembler.save(task, commit)

    def _commit(self, head: Head, record: bytes, replace: bool) -> None:
        if not self.is_locking():
            raise RunBusy(f"run {self._run}: its lock was deleted during the save; save again")
        name = names.record_file(self._run, head.step)
        if replace:
            self._backend.replace(name, record)
        else:
            self._backend.create(name, record)

    def claim(self, patience: float = PATIENCE) -> None:
        """Keep other processes out of the run from now on, and clean up after dead ones.

        Somebody who is changing the run is waited for, so many seconds.
        """
        with self._claiming:  # another thread may be about to
            self._claim(patience)

    def _claim(self, patience: float) -> None:
        if self.is_locking():
            return
        self._release()
        self._lock = self._backend.lock(self._run, _HURRY)
        if self._lock is None:
            raise RunBusy(
                f"run {self._run}: {self._backend.holder(self._run)} writes into it; wait for it "
                "to end, or start another run: one with other hyperparameters"
            )
        try:
            self.sweep(patience)
        except BaseException:
            self._release()
            raise
        self._claims += 1

    def sweep(self, patience: float = PATIENCE) -> None:
        """Clean up after those that died in the middle of a save; the run is claimed."""
        with change_of(self._backend, self._run, patience):
            sweep(self._backend, self._index, self._run)


_writers: weakref.WeakValueDictionary[tuple[str, str], Writer] = weakref.WeakValueDictionary()
_writers_guard = threading.RLock()


def writer_of(backend: Backend, index: Index, run: str) -> Writer:
    """The writer of a run: one for all of a process, as long as somebody uses it."""
    with _writers_guard:
        writer = _writers.get((backend.url, run))
        if writer is None or writer.process != os.getpid():
            writer = _writers[backend.url, run] = Writer(backend, index, run)
        return writer


def _forget_parent() -> None:
    """In a forked process: another thread may have held the guard, and the locks are not ours."""
    global _writers_guard
    _writers_guard = threading.RLock()
    _writers.clear()


os.register_at_fork(after_in_child=_forget_parent)
