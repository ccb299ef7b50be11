"""The helper process, as the training process sees it."""

from __future__ import annotations

import os
import signal
import subprocess
import weakref
from collections.abc import Sequence
from contextlib import suppress
from typing import Final, Self

from standfast.errors import SaveFailed, StandfastError
from standfast.files.staging.layout import Summed
from standfast.store.save.planning import PlannedFile
from standfast.store.save.saving import Commit, Task
from standfast.store.save.shares import Share
from standfast.store.schema.record import Head
from standfast.training.background import messages
from standfast.training.background.channel import Channel, Hangup
from standfast.training.background.messages import Committed, Done, Failure, Job, Message, Ready
from standfast.training.background.starting import how_it_ended, start_module

_TIME_TO_START: Final = 60.0
"""How many seconds it has to be ready: what was started may be no Python, and say nothing ever."""
_PATIENCE: Final = 5.0
"""How many seconds a helper has to end, once nobody needs it any more."""


class HelperProcess:
    """A running helper; the thread that made it must live as long as it does.

    (Linux ends a process with the thread that started it.)
    """

    def __init__(self, process: subprocess.Popen[bytes], channel: Channel) -> None:
        self._process = process
        self._channel = channel
        self.is_ready = False
        """Whether it can be given a job."""
        self._late = False
        self._sent: Sequence[PlannedFile] | None = None
        """The files of the plan whose shape the helper has; the same object, the same shape."""
        _alive.add(self)

    @classmethod
    def start(cls, store: str, run: str, stagings: Sequence[int]) -> Self:
        """Start one for a run of a local store; raises OSError if that cannot be."""
        arguments = (",".join(map(str, stagings)), store, run)
        process, line = start_module("standfast.training.background.helper", arguments, stagings)
        return cls(process, Channel(line.detach()))

    @property
    def number(self) -> int:
        """The number of the process."""
        return self._process.pid

    def is_running(self) -> bool:
        """Whether it has not ended."""
        return self._process.poll() is None

    def wait_until_ready(self) -> bool:
        """Wait until it can be given a job; False if it ended, or was killed as too slow."""
        if not self.is_ready:
            with suppress(Hangup):
                self._late = not self._channel.wait(_TIME_TO_START)
                if self._late:
                    self._kill()
                else:
                    self.is_ready = isinstance(self._channel.receive(), Ready)
        return self.is_ready

    def assemble(self, task: Task, commit: Commit, staging: int = 0, summed: Summed = ()) -> Head:
        """Have it assemble a checkpoint of what is in a staging; `commit` is called here."""
        committed: Head | None = None
        refusal: BaseException | None = None
        sent = settled = False
        try:
            self._channel.send(self._job(task, staging, summed))
            sent, self._sent = True, task.plan.files
            answer = self._channel.receive()
            while isinstance(answer, messages.Commit):
                reply: Message = Committed()
                try:
                    commit(answer.head, answer.record, answer.replace)
                    committed = answer.head
                except BaseException as error:  # the helper waits for an answer, whatever it is
                    refusal, reply = error, messages.failure_of(error)
                answer = self._ask(reply)
            settled = isinstance(answer, Done | Failure)
        except Hangup:
            self.end()
            if committed is not None:  # the rest was tidying
                return committed
            raise SaveFailed(
                f"the helper process that wrote step {task.wanted.step} {self.how_it_ended()}; "
                "the checkpoints before it are untouched, and the next save starts another helper"
            ) from refusal
        finally:
            if sent and not settled:  # it may still read the staging, which is about to be free
                self.end()
        if isinstance(answer, Done):
            return answer.head
        if refusal is not None and not isinstance(refusal, StandfastError):
            raise refusal
        if isinstance(answer, Failure):
            raise messages.error_of(answer) from refusal
        raise SaveFailed(f"the helper process answered with {type(answer).__name__}: save again")

    def write(
        self,
        task: Task,
        staging: int,
        summed: Summed,
        rank: int,
        written: Sequence[int],
    ) -> Share:
        """Have it write a rank's share of what is in a staging: the tensors of these numbers."""
        job = self._job(task, staging, summed)
        try:
            answer = self._ask_or_end(messages.Write(job, rank, [*written]))
        except Hangup:
            raise SaveFailed(
                f"the helper process that wrote step {task.wanted.step} {self.how_it_ended()}; "
                "the checkpoints before it are untouched, and the next save starts another helper"
            ) from None
        self._sent = task.plan.files
        if isinstance(answer, messages.Written):
            return answer.share
        if isinstance(answer, Failure):
            raise messages.error_of(answer)
        raise SaveFailed(f"the helper process answered with {type(answer).__name__}: save again")

    def map(self) -> None:
        """Have it map the stagings as they are now, while there is no job."""
        with suppress(Hangup):  # the next job finds out
            self._channel.send(messages.Map())

    def retain(self) -> list[str]:
        """Have it delete what the run does not keep; returns what went wrong."""
        try:
            answer = self._ask_or_end(messages.Retain())
        except Hangup:
            return [f"the helper process that deletes old checkpoints {self.how_it_ended()}"]
        if isinstance(answer, messages.Retained):
            return answer.problems
        if isinstance(answer, Failure):
            return [str(messages.error_of(answer))]
        return [f"the helper process answered with {type(answer).__name__}"]

    def _ask_or_end(self, message: Message) -> Message:
        """Ask; without an answer there shall be none later, in the place of another."""
        try:
            return self._ask(message)
        except BaseException:
            self.end()
            raise

    def _ask(self, message: Message) -> Message:
        self._channel.send(message)
        return self._channel.receive()

    def _job(self, task: Task, staging: int, summed: Summed) -> Job:
        plan = task.plan
        shape = None if plan.files is self._sent else messages.shape_of(plan)
        return Job(
            staging,
            [list(numbers) for numbers in summed],
            shape,
            plan.tree,
            task.wanted,
            dict(task.identity),
            task.origin,
            dict(task.software),
            task.token,
            task.after,
            task.claim,
        )

    def end(self) -> None:
        """Hang up, and see to it that it ends. May be called several times."""
        self._channel.close()
        try:
            self._process.wait(_PATIENCE)
        except subprocess.TimeoutExpired:
            self._kill()

    def _kill(self) -> None:
        with suppress(OSError):  # what it started has the staging and the line open as well
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.kill()
        self._process.wait()

    def how_it_ended(self) -> str:
        """What became of it, for a message."""
        self.end()
        if self._late:
            return f"was not ready after {_TIME_TO_START:g} seconds"
        return how_it_ended(self._process.returncode)

    def let_go(self) -> None:
        """In a forked child: the line is its parent's."""
        self._channel.close()
        self._process.returncode = 0  # nor is the process a child of this one


_alive: weakref.WeakSet[HelperProcess] = weakref.WeakSet()


def _forget() -> None:
    """In a forked child, which would keep the line open after its parent's death."""
    for helper in list(_alive):
        helper.let_go()


os.register_at_fork(after_in_child=_forget)
