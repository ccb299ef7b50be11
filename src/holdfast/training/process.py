"""The helper process, as the training process sees it."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import threading
import weakref
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Final, Self

from holdfast.errors import HoldfastError, SaveFailed
from holdfast.files.staged import Summed
from holdfast.store.planning import PlannedFile
from holdfast.store.record import Head
from holdfast.store.saving import Commit, Task
from holdfast.store.shares import Share
from holdfast.training import messages
from holdfast.training.channel import STOPS, Channel, Hangup
from holdfast.training.messages import Committed, Done, Failure, Job, Message, Ready

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
        self._ready = False
        self._late = False
        self._sent: Sequence[PlannedFile] | None = None
        """The files of the plan whose shape the helper has; the same object, the same shape."""
        _alive.add(self)

    @classmethod
    def start(cls, store: str, run: str, stagings: Sequence[int]) -> Self:
        """Start one for a run of a local store; raises OSError if that cannot be.

        It gets none of this process's streams and is in no group of its, so that nothing that is
        meant for this process reaches it.
        """
        with _no_forks, _blocked(STOPS):
            ours, theirs = socket.socketpair()
            with ours, theirs:
                arguments = (os.getpid(), theirs.fileno(), ",".join(map(str, stagings)), store, run)
                process = subprocess.Popen(
                    [_python(), "-P", "-m", "holdfast.training.helper", *map(str, arguments)],
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.DEVNULL,
                    stderr=subprocess.DEVNULL,
                    pass_fds=(theirs.fileno(), *stagings),
                    start_new_session=True,
                    env={**os.environ, "PYTHONPATH": os.pathsep.join(_paths())},
                )
                return cls(process, Channel(ours.detach()))

    @property
    def number(self) -> int:
        """The number of the process."""
        return self._process.pid

    def is_running(self) -> bool:
        """Whether it has not ended."""
        return self._process.poll() is None

    def wait_until_ready(self) -> bool:
        """Wait until it can be given a job; False if it ended, or was killed as too slow."""
        if not self._ready:
            with suppress(Hangup):
                self._late = not self._channel.wait(_TIME_TO_START)
                if self._late:
                    self._kill()
                else:
                    self._ready = isinstance(self._channel.receive(), Ready)
        return self._ready

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
        if refusal is not None and not isinstance(refusal, HoldfastError):
            raise refusal
        if isinstance(answer, Failure):
            raise messages.error_of(answer) from refusal
        raise SaveFailed(f"the helper process answered with {type(answer).__name__}: save again")

    def write(
        self,
        task: Task,
        token: str,
        staging: int,
        summed: Summed,
        rank: int,
        written: Sequence[int],
    ) -> Share:
        """Have it write a rank's share of what is in a staging: the tensors of these numbers."""
        job = self._job(task, staging, summed)
        try:
            answer = self._ask_or_end(messages.Write(job, token, rank, [*written]))
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
        code = self._process.returncode
        if code >= 0:
            return f"ended with exit code {code}"
        memory = ", as happens when memory runs out" if code == -signal.SIGKILL else ""
        return f"was killed by signal {-code}{memory}"

    def let_go(self) -> None:
        """In a forked child: the line is its parent's."""
        self._channel.close()
        self._process.returncode = 0  # nor is the process a child of this one


@contextmanager
def _blocked(signals: Collection[signal.Signals]) -> Iterator[None]:
    """Keep signals from what is started meanwhile, until it ignores them by itself."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, signals)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _python() -> str:
    if not sys.executable:
        raise FileNotFoundError("nobody knows where the Python interpreter is")
    return sys.executable


def _paths() -> list[str]:
    """Where this process finds modules, so that the helper finds the same Holdfast."""
    paths = [os.path.abspath(path) for path in sys.path if isinstance(path, str)]
    return [path for path in paths if os.pathsep not in path]


_alive: weakref.WeakSet[HelperProcess] = weakref.WeakSet()
_no_forks = threading.Lock()
"""Held while a helper is started: a child with the helper's end of the line would keep it open."""


def _forget() -> None:
    """In a forked child, which would keep the line open after its parent's death."""
    _no_forks.release()
    for helper in list(_alive):
        helper.let_go()


os.register_at_fork(
    before=_no_forks.acquire, after_in_parent=_no_forks.release, after_in_child=_forget
)
