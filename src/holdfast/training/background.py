"""Saves in the background: the caller waits for one copy of the state, and for nothing else.

docs/saving.md says who does what, and what a kill at each point leaves.
"""

from __future__ import annotations

import atexit
import dataclasses
import os
import threading
import time
import warnings
from collections.abc import Callable, Mapping
from contextlib import nullcontext, suppress
from dataclasses import dataclass
from typing import Any, Final

from holdfast.errors import HoldfastError, NotOpen, SlowSaves
from holdfast.files.staging import SharedStaging
from holdfast.store.budgets import after_save
from holdfast.store.planning import Plan, plan_state
from holdfast.store.record import Head
from holdfast.store.run import Run
from holdfast.store.saving import Wanted
from holdfast.training.helpers import Helpers
from holdfast.training.turns import short_turns

_SLACK: Final = 1 << 20
"""What is warmed beyond a state's size: its tensors are aligned, and a little may be added."""


@dataclass(frozen=True)
class Held:
    """What a save cost the caller."""

    waited: float
    """Seconds until the staging was free."""
    copied: float
    """Seconds of planning and copying."""


@dataclass(frozen=True)
class _Job:
    """A state that is in the staging, to be committed."""

    plan: Plan
    wanted: Wanted
    before_commit: Callable[[], None] | None
    committed: Callable[[Head], None] | None


class Background:
    """Saves states into a run that this process has claimed, one after the other.

    A failure is raised, once, by the next call that can raise it.
    """

    def __init__(self, run: Run) -> None:
        self._run = run
        self._process = os.getpid()
        self._staging = SharedStaging()
        self._changed = threading.Condition()
        self._user: object = None
        """Who uses the staging: a plan, from its copy to its commit, or the thread."""
        self._job: _Job | None = None
        self._room = 0
        """How large the staging shall be."""
        self._failure: BaseException | None = None
        self._retaining = False
        """Whether old checkpoints are being deleted, after a save that is done."""
        self._problems: list[str] = []
        self._closing = False
        self._thread: threading.Thread | None = None
        self._helpers = Helpers(run, self._staging)

    # The caller's side

    def start(self) -> None:
        """Start the thread and the helper process; returns at once."""
        self._check_owner()
        with self._changed:
            if self._closing:
                raise NotOpen("saves in the background have been closed: make another Background")
            if self._thread is None:
                self._thread = threading.Thread(
                    target=self._work, name="holdfast-save", daemon=True
                )
                self._thread.start()
                atexit.register(self.close)  # no save is lost without a word

    def warm(self, size: int) -> None:
        """Make the staging that large, in the background, so that the first save is fast too."""
        self.start()
        with self._changed:
            self._room = max(self._room, size + size // 100 + _SLACK)
            self._changed.notify_all()

    def save(
        self,
        state: Any,
        step: int,
        metrics: Mapping[str, Any] | None = None,
        epoch: int | None = None,
        best: bool = False,
        replace: bool = False,
        before_commit: Callable[[], None] | None = None,
        committed: Callable[[Head], None] | None = None,
    ) -> Held:
        """Copy a state, to be committed as the checkpoint of a step; see `Run.save`.

        When this returns, the state may change. `before_commit` is called when all of it is on
        the disk but its record, and `committed` once that is too, both in the background; neither
        may change the run.
        """
        self.start()
        self._raise_failure()
        wanted = self._run.wanted(step, metrics, epoch, best, replace)
        began = time.perf_counter()
        plan = plan_state(state)
        planned = time.perf_counter()
        try:
            self._take(plan)
            taken = time.perf_counter()
            job = _Job(self._staged(plan), wanted, before_commit, committed)
            copied = time.perf_counter()
            with self._changed:
                self._job = job
                self._changed.notify_all()
        except BaseException:
            self._give_back(plan)
            raise
        return Held(taken - planned, planned - began + copied - taken)

    def _staged(self, plan: Plan) -> Plan:
        """The same plan, of copies; it keeps nothing of the state alive."""
        staged = iter(
            self._staging.stage([tensor.source for tensor in plan.tensors if tensor.source])
        )
        tensors = [
            tensor._replace(source=next(staged)) if tensor.source else tensor
            for tensor in plan.tensors
        ]
        return dataclasses.replace(plan, tensors=tensors)

    def is_idle(self) -> bool:
        """Whether everything that was handed over is committed, or has failed."""
        return self._job is None

    def wait(self, timeout: float | None = None) -> None:
        """Wait until everything that was handed over is committed; raises what went wrong."""
        self._check_owner()
        with self._changed:
            self._changed.wait_for(self.is_idle, timeout)
        self._raise_failure()

    def wait_for_deletions(self) -> list[str]:
        """Wait until what is not kept any more is deleted; returns what could not be, once."""
        with self._changed:
            self._changed.wait_for(lambda: not self._retaining)
            return self.problems()

    def problems(self) -> list[str]:
        """What could not be deleted so far, once."""
        with self._changed:
            problems, self._problems = self._problems, []
        return problems

    def close(self) -> None:
        """Wait, then end the thread and the helper and give the memory back.

        May be called several times; interrupted, it can be called again.
        """
        if self._process != os.getpid():
            return
        with self._changed:
            self._changed.wait_for(self.is_idle)
            self._closing = True
            self._changed.notify_all()
        self._staging.close()
        if self._thread is not None:
            self._thread.join()
        atexit.unregister(self.close)
        self._raise_failure()

    def _check_owner(self) -> None:
        if self._process != os.getpid():
            raise NotOpen(
                f"process {os.getpid()} was forked from the one that saves, {self._process}: only "
                "that one can"
            )

    def _raise_failure(self) -> None:
        with self._changed:
            failure, self._failure = self._failure, None
            notice = self._helpers.take_notice()
        try:
            if notice is not None:
                warnings.warn(notice, SlowSaves, stacklevel=3)
        finally:  # a warning may be made an error
            if failure is not None:
                raise failure

    def _take(self, plan: Plan) -> None:
        """Wait for the staging; what went wrong with the save before is raised first."""
        with self._changed:
            self._changed.wait_for(lambda: self._user is None)
            self._raise_failure()
            if self._closing:
                raise NotOpen("saves in the background have been closed: make another Background")
            self._user = plan

    def _give_back(self, user: object) -> None:
        """The staging is free, if it was this one who had it, and has not handed it over."""
        with self._changed:
            if self._user is user and self._job is None:
                self._user = None
            self._changed.notify_all()

    # The thread's side

    def _work(self) -> None:
        try:
            self._serve()
        except BaseException as error:  # a mistake of ours: nobody shall wait for this thread
            self._closing = True
            self._done(error)

    def _serve(self) -> None:
        self._helpers.start()
        while self._do_next():
            pass
        self._helpers.end()

    def _do_next(self) -> bool:
        work = self._next()
        if isinstance(work, _Job):
            failure = self._save(work)
            with self._changed:
                self._retaining = failure is None and self._run.is_limited()
                self._done(failure)
            if self._retaining:
                self._retain()
        elif work is not None:
            with suppress(HoldfastError):  # the save that needs it will say so
                self._staging.reserve(work)
            self._give_back(self)
        return work is not None

    def _next(self) -> _Job | int | None:
        """Wait for a job, or for a wish for more staging, which is taken; None at the end."""
        with self._changed:
            self._changed.wait_for(
                lambda: self._job or self._closing or (self._room and self._user is None)
            )
            if self._job is not None or self._closing:
                return self._job
            self._user = self
            room, self._room = self._room, 0
            return room

    def _save(self, job: _Job) -> BaseException | None:
        """Commit what is in the staging; returns what went wrong."""
        try:
            helper = self._helpers.ready()
            assemble = helper.assemble if helper else None
            with short_turns() if helper else nullcontext():
                head = self._run.commit(job.plan, job.wanted, assemble, job.before_commit)
            if helper is None:
                self._run.store.saved()
            if job.committed is not None:
                job.committed(head)
        except BaseException as error:
            return error
        return None

    def _retain(self) -> None:
        """Delete what is not kept any more; the next state may be copied meanwhile."""
        helper = self._helpers.current
        try:
            with short_turns():
                problems = (
                    helper.retain()
                    if helper
                    else after_save(self._run.store, self._run.hash).problems
                )
        except BaseException as error:
            problems = [f"old checkpoints could not be deleted: {error}"]
        with self._changed:
            self._problems += problems
            self._retaining = False
            self._changed.notify_all()

    def _done(self, failure: BaseException | None) -> None:
        with self._changed:
            self._job, self._failure, self._user = None, failure, None
            self._changed.notify_all()
