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
from collections import deque
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

from standfast.errors import NotOpen, SlowSaves
from standfast.files.staging.device_copies import Underway
from standfast.files.staging.staging import SharedStaging, room_for
from standfast.files.threads import Thread
from standfast.parallel import Communicator, SingleRank, together
from standfast.store.retention.budgets import after_save
from standfast.store.run import Run
from standfast.store.save.attempts import Write
from standfast.store.save.held import Planned, plan_for
from standfast.store.save.planning import Plan
from standfast.store.save.ranks import commit_planned, commit_shared
from standfast.store.save.saving import Assemble, Commit, Task, Wanted
from standfast.store.save.shares import Share
from standfast.store.save.sharing import Shared
from standfast.store.schema.record import Head
from standfast.store.tree.per_rank import Rank
from standfast.tensors import Source
from standfast.training.background.helpers import Helpers
from standfast.training.background.overlap import Overlap
from standfast.training.background.process import HelperProcess
from standfast.training.background.stagings import Stagings, Warmth
from standfast.training.background.turns import short_turns
from standfast.training.background.unmixed import Proof

_CLOSED: Final = "saves in the background have been closed: make another Background"


@dataclass(frozen=True)
class Held:
    """What a save cost the caller."""

    waited: float
    """Seconds until the staging was free, but for those before the helper was ready."""
    copied: float
    """Seconds of planning and copying."""


Complete = Callable[[Wanted], Wanted]
"""Says what a checkpoint shall be, once all that it depends on is known."""


@dataclass(frozen=True)
class _Job:
    """A state that is in a staging, or on its way there, to be committed."""

    planned: Planned
    underway: Underway
    staging: SharedStaging
    wanted: Wanted
    complete: Complete | None
    before_commit: Callable[[], None] | None
    committed: Callable[[Head], None] | None


class Background:
    """Saves states into a run that this process has claimed, one after the other.

    While one is written, another one may be copied, if there is memory for it. A failure is
    raised, once, by the next call that can raise it.
    """

    def __init__(
        self, run: Run, limit: int | None = None, comm: Communicator | None = None
    ) -> None:
        """`limit` is how many bytes copies may take; without one there are two if they fit.

        `comm` has the ranks that save with this one, for the thread that does; all of them save
        the same steps in the same order.
        """
        self._run = run
        self._comm = SingleRank() if comm is None else comm
        self._ranks = Rank(self._comm.rank, self._comm.size)
        self._process = os.getpid()
        self._changed = threading.Condition()
        self._stagings = Stagings(self._changed, limit)
        self._jobs: deque[_Job] = deque()
        self._failures: deque[tuple[int | None, BaseException]] = deque()
        self.failed: int | None = None
        """The step of the failure that was raised last."""
        self._retaining = False
        """Whether old checkpoints are being deleted, after a save that is done."""
        self._problems: list[str] = []
        self._closing = False
        self._thread: Thread | None = None
        self._helpers = Helpers(run, self._stagings.all)

    # The caller's side

    def start(self) -> None:
        """Start the thread and the helper process; returns at once."""
        self._check_owner()
        with self._changed:
            if self._closing:
                raise NotOpen(_CLOSED)
            if self._thread is None:
                self._thread = Thread(self._work)
                atexit.register(self.close)  # no save is lost without a word

    def warm(self, plan: Plan) -> None:
        """Make stagings for such a state, in the background, so that the first save is fast too."""
        self.start()
        self._stagings.wish(_sources_of(plan))

    def save(
        self,
        state: Any,
        step: int,
        metrics: Mapping[str, Any] | None = None,
        epoch: int | None = None,
        best: bool = False,
        replace: bool = False,
        complete: Complete | None = None,
        before_commit: Callable[[], None] | None = None,
        committed: Callable[[Head], None] | None = None,
        overlap: Overlap | None = None,
    ) -> Held:
        """Copy a state, to be committed as the checkpoint of a step; see `Run.save`.

        When this returns, the state may change, but for what `overlap` knows to stay. `complete`
        is called when its turn comes, `before_commit` when all of it is on the disk but its
        record, and `committed` once that is too, all in the background; none may change the run.
        """
        self.start()
        self._reclaim()
        if self._ranks.size == 1:  # of several, each hands over the same, whatever it knows
            self.raise_failure()
        wanted = self._run.wanted(step, metrics, epoch, best, replace)
        began = time.perf_counter()
        planned_state = plan_for(state, self._ranks)
        sources = _sources_of(planned_state.plan)
        size = room_for(sources)
        if not self._stagings.can_hold(size):
            return self._save_uncopied(planned_state, wanted, complete, before_commit, committed)
        overlapped = overlap.owned(sources) if overlap else set()
        planned = time.perf_counter()
        if self._stagings.is_outgrown(size):
            self._stagings.wish(sources)
        underway = None
        try:
            staging = self._take(size)
            taken = time.perf_counter()
            copies, underway = staging.begin(sources, overlapped)
            if overlap:
                overlap.begun(underway)
            job = _Job(
                planned_state.of_copies(copies),
                underway,
                staging,
                wanted,
                complete,
                before_commit,
                committed,
            )
            copied = time.perf_counter()
            with self._changed:
                self._jobs.append(job)
                self._changed.notify_all()
        except BaseException:
            if underway is not None:
                underway.drain()
            self._reclaim()
            raise
        waited = max(0.0, taken - max(planned, self._helpers.ready_at))
        return Held(waited, planned - began + copied - taken)

    def _save_uncopied(
        self,
        planned: Planned,
        wanted: Wanted,
        complete: Complete | None,
        before_commit: Callable[[], None] | None,
        committed: Callable[[Head], None] | None,
    ) -> Held:
        """Write a state that may not be copied, while the caller waits."""
        self._stagings.notices.append(
            "a copy of the state takes more memory than it may: the loop waits until each "
            "checkpoint is written"
        )
        began = time.perf_counter()
        self.wait()
        waited = time.perf_counter()
        wanted = together(self._comm, lambda: complete(wanted) if complete else wanted)
        if planned.held is None:
            head = commit_planned(self._run, self._comm, planned, wanted, before_commit)
        else:  # the same calls as a thread makes: that of another rank may be in them
            head = commit_shared(self._run, self._comm, planned.held, wanted, None, before_commit)
            if self._ranks.rank == 0:
                self._run.tidy()
        if committed is not None:
            committed(head)
        return Held(waited - began, time.perf_counter() - waited)

    def is_saving(self, step: int) -> bool:
        """Whether a state of this step was handed over, and is not committed yet."""
        with self._changed:
            return any(job.wanted.step == step for job in self._jobs)

    def is_idle(self) -> bool:
        """Whether everything that was handed over is committed, or has failed."""
        return not self._jobs

    def wait(self, timeout: float | None = None) -> None:
        """Wait until everything that was handed over is committed; raises what went wrong."""
        self._check_owner()
        with self._changed:
            self._changed.wait_for(self.is_idle, timeout)
        self.raise_failure()

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
        self._stagings.close()
        if self._thread is not None:
            self._thread.join()
        atexit.unregister(self.close)
        try:
            self.raise_failure()
        except BaseException as error:
            for _, other in self._failures:  # which nobody else will tell of
                error.add_note(f"besides, a save failed: {other}")
            raise

    def raise_failure(self) -> None:
        """Raise what went wrong so far, the oldest first, once."""
        with self._changed:
            failure = None
            if self._failures:
                self.failed, failure = self._failures.popleft()
            notices = [*self._stagings.notices, *filter(None, [self._helpers.take_notice()])]
            self._stagings.notices.clear()
        try:
            for notice in notices:
                warnings.warn(notice, SlowSaves, stacklevel=3)
        finally:  # a warning may be made an error
            if failure is not None:
                raise failure

    def _check_owner(self) -> None:
        if self._process != os.getpid():
            raise NotOpen(
                f"process {os.getpid()} was forked from the one that saves, {self._process}: only "
                "that one can"
            )

    def _take(self, size: int) -> SharedStaging:
        """Wait for a staging; what went wrong meanwhile is raised first."""
        staging = self._stagings.take(size, or_else=lambda: self._closing)
        if self._ranks.size == 1:
            self.raise_failure()
        if staging is None:
            raise NotOpen(_CLOSED)
        return staging

    def _reclaim(self) -> None:
        """Have back what a save that was interrupted had taken, unless it was handed over."""
        with self._changed:
            self._stagings.reclaim([job.staging for job in self._jobs])

    # The thread's side

    def _work(self) -> None:
        try:
            self._serve()
        except BaseException as error:  # a mistake of ours: nobody shall wait for this thread
            with self._changed:
                self._closing = True
                self._failures.append((None, error))
                self._jobs.clear()
                self._changed.notify_all()

    def _serve(self) -> None:
        if not self._closing:  # by then there may be no staging for it
            self._helpers.start()
            if self._closing:
                self._helpers.take_notice()
        while self._do_next():
            pass
        self._helpers.end()

    def _do_next(self) -> bool:
        work = self._next()
        if isinstance(work, _Job):
            failure = self._save(work)
            with self._changed:
                is_ours = failure is None and self._ranks.rank == 0
                self._retaining = is_ours and self._run.is_limited()
                self._done(failure)
            if self._retaining:
                self._retain()
        elif work is not None:
            self._stagings.warm(work)
            if self._helpers.current is not None and not self._jobs:
                self._helpers.current.map()
        return work is not None

    def _next(self) -> _Job | Warmth | None:
        """Wait for a job, or for a wish for warm stagings; None at the end."""
        with self._changed:
            self._changed.wait_for(
                lambda: self._jobs or self._closing or self._stagings.is_wished()
            )
            if self._jobs:
                return self._jobs[0]
            return None if self._closing else self._stagings.take_wish()

    def _save(self, job: _Job) -> BaseException | None:
        """Commit what is in a staging; returns what went wrong."""

        def prepare() -> tuple[HelperProcess | None, Wanted]:
            job.underway.wait()
            return self._helpers.ready(), job.complete(job.wanted) if job.complete else job.wanted

        try:
            helper, wanted = together(self._comm, prepare)  # who cannot, keeps all from trying
            with short_turns() if helper else nullcontext():
                head = self._commit(job, wanted, helper)
            if (helper is None or job.planned.held) and self._ranks.rank == 0:
                self._run.store.saved()
            if job.committed is not None:
                job.committed(head)
        except BaseException as error:
            return error
        return None

    def _commit(self, job: _Job, wanted: Wanted, helper: HelperProcess | None) -> Head:
        held = job.planned.held
        if held is None:
            assemble = self._assemble(job, helper)
            return self._run.commit(job.planned.plan, wanted, assemble, job.before_commit)
        write = partial(self._writing, job, helper)
        return commit_shared(self._run, self._comm, held, wanted, write, job.before_commit)

    def _writing(self, job: _Job, helper: HelperProcess | None, shared: Shared) -> Write:
        """Who writes this rank's share of a job: the helper, or this thread."""
        underway, plan = job.underway, job.planned.plan

        def by_helper(task: Task) -> Share:
            assert helper is not None
            number = self._stagings.all.index(job.staging)
            whole = dataclasses.replace(task, plan=plan)
            rank, written = self._ranks.rank, shared.written
            return helper.write(whole, number, underway.summed, rank, written)

        def here(task: Task) -> Share:
            with Proof(underway.copies, underway.summed, plan, task.wanted.step) as proof:
                return shared.write(self._run, task, proof.check)

        return by_helper if helper else here

    def _assemble(self, job: _Job, helper: HelperProcess | None) -> Assemble:
        """Who writes a job: the helper, or this thread; neither commits a mix of two steps."""
        underway = job.underway
        if helper is not None:
            number = self._stagings.all.index(job.staging)
            return partial(helper.assemble, staging=number, summed=underway.summed)

        def assemble(task: Task, commit: Commit) -> Head:
            with Proof(underway.copies, underway.summed, task.plan, task.wanted.step) as proof:
                return self._run.assemble(task, proof.then(commit))

        return assemble

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
            job = self._jobs.popleft()
            self._stagings.give_back(job.staging)
            if failure is not None:
                self._failures.append((job.wanted.step, failure))
            self._changed.notify_all()


def _sources_of(plan: Plan) -> list[Source]:
    return [tensor.source for tensor in plan.tensors if tensor.source]
