"""The helper process: writes the checkpoints of a run, so that the training process need not.

    standfast.training.background.helper PARENT SOCKET STAGING,STAGING STORE RUN

It has a socket to the training process, its stagings, and nothing else of it. It commits nothing,
and does not outlive it: on Linux the kernel sees to that, elsewhere the end of the socket.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from queue import SimpleQueue
from typing import Final, Never

from standfast.errors import SaveFailed, StandfastError
from standfast.files.staging.layout import Copy
from standfast.files.staging.staging import Staged
from standfast.files.threads import Thread
from standfast.store.backends.address import reopened
from standfast.store.retention.budgets import after_save
from standfast.store.save.held import divided
from standfast.store.save.saving import Assembler, Task
from standfast.store.save.shares import write_share
from standfast.store.save.sharing import compared_in
from standfast.store.schema.record import Head
from standfast.store.store import Store
from standfast.training.background.channel import STOPS, Channel, Hangup
from standfast.training.background.messages import (
    Commit,
    Committed,
    Done,
    Failure,
    Job,
    Map,
    Message,
    Ready,
    Retain,
    Retained,
    Shape,
    Write,
    Written,
    error_of,
    failure_of,
    plan_of,
    specs_of,
)
from standfast.training.background.unmixed import Proof

_PR_SET_PDEATHSIG: Final = 1


def main(parent: str, socket: str, stagings: str, store: str, run: str) -> None:
    """Serve until the training process hangs up or dies."""
    die_with(int(parent))
    for number in STOPS:
        signal.signal(number, signal.SIG_IGN)
    staged = [Staged(int(staging)) for staging in stagings.split(",")]
    Helper(Channel(int(socket)), staged, Store(reopened(store)), run).serve()


def die_with(parent: int) -> None:
    """End this process when its parent does, or now if that has happened already."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:
        os._exit(1)


class Helper:
    """Does one job after the other."""

    def __init__(self, channel: Channel, staged: Sequence[Staged], store: Store, run: str) -> None:
        self._channel = channel
        self._staged = staged
        self._store = store
        self._run = run
        self._assembler = Assembler(store.backend, store.index, run)
        self._shape: Shape | None = None
        self._inbox: SimpleQueue[Message | None] = SimpleQueue()
        self._busy = False

    def serve(self) -> None:
        """Do jobs until there will be no more."""
        Thread(self._listen)
        with suppress(Hangup):
            self._channel.send(Ready())
            while isinstance(job := self._inbox.get(), Job | Write | Retain | Map):
                if isinstance(job, Map):
                    self._map()
                    continue
                self._busy = True
                self._channel.send(self._done(job))
                self._busy = False
        self._store.index.close()

    def _map(self) -> None:
        with suppress(OSError, ValueError):  # the job that needs it will say so
            for staged in self._staged:
                staged.map()

    def _listen(self) -> None:
        """Take in what the training process says; once it is gone, nobody waits for the rest."""
        with suppress(Hangup):
            while True:
                self._inbox.put(self._channel.receive())
        if self._busy:
            os._exit(1)
        self._inbox.put(None)

    def _done(self, job: Job | Write | Retain) -> Message:
        if isinstance(job, Write):
            return self._write(job)
        return self._answer(job) if isinstance(job, Job) else self._retain()

    def _write(self, wanted: Write) -> Written | Failure:
        """Write one rank's share."""
        try:
            task, copies = self._task(wanted.job)
            whole = task.plan
            part = replace(task, plan=divided(whole, wanted.written, wanted.rank))
            self._store.index.refresh()
            with Proof(copies, wanted.job.summed, whole, task.wanted.step) as proof:
                compared = compared_in(whole, wanted.written)
                share = write_share(self._assembler, part, compared, proof.check)
            return Written(share)
        except BaseException as error:
            return failure_of(error)

    def _answer(self, job: Job) -> Done | Failure:
        try:
            task, copies = self._task(job)
            with Proof(copies, job.summed, task.plan, task.wanted.step) as proof:
                head = self._assembler.save(task, proof.then(self._commit))
            with suppress(StandfastError):  # a view, which the next save writes again
                self._store.saved()
            return Done(head)
        except Hangup:
            raise
        except BaseException as error:
            return failure_of(error)

    def _retain(self) -> Retained | Failure:
        try:
            return Retained(after_save(self._store, self._run).problems)
        except BaseException as error:
            return failure_of(error)

    def _task(self, job: Job) -> tuple[Task, Sequence[Copy]]:
        """What is to be done, and what is in the staging for it."""
        self._shape = shape = job.shape or self._shape
        if shape is None:
            raise SaveFailed("the helper process was given a state without its shape: save again")
        specs = specs_of(shape)
        copies = self._staged[job.staging].copies(specs, job.summed)
        plan = plan_of(shape, job.tree, copies[: len(specs)])
        task = Task(
            plan,
            job.wanted,
            job.identity,
            job.origin,
            job.software,
            job.token,
            job.after,
            job.claim,
        )
        return task, copies

    def _commit(self, head: Head, record: bytes, replace: bool) -> None:
        """Have the training process commit, which alone holds the run's lock."""
        self._channel.send(Commit(head, record, replace))
        answer = self._inbox.get()
        if isinstance(answer, Failure):
            raise error_of(answer)
        if not isinstance(answer, Committed):
            raise Hangup("the training process gave no answer")


def _run() -> Never:
    main(*sys.argv[1:])
    sys.exit()


if __name__ == "__main__":
    _run()
