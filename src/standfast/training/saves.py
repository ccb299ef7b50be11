"""The saves of a run, one after the other: each is copied by the loop and written beside it."""

from __future__ import annotations

import dataclasses
import errno
import re
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Final

from standfast.errors import DamagedFile, NotEnoughSpace, StandfastError, StateChanged
from standfast.parallel import Communicator, SingleRank
from standfast.schedule import Cadence
from standfast.store import Checkpoint, Run, Store
from standfast.store.retention.trash import Trash
from standfast.store.save.held import Planned, plan_for
from standfast.store.save.ranks import commit_planned
from standfast.store.save.saving import Wanted
from standfast.store.schema.metrics import checked_metrics
from standfast.store.schema.record import Head
from standfast.store.tree.per_rank import Rank
from standfast.training.background.background import Background, Held
from standfast.training.background.overlap import Overlap
from standfast.training.best import Best
from standfast.training.metrics import Line, MetricsLog
from standfast.training.resuming import MIDWAY
from standfast.training.state import TrainingState, parts_of, tree_of

_SLOW: Final = 0.5
"""A wait of more seconds than these for the save before is worth a word."""


@dataclass(frozen=True)
class SaveSettings:
    """How states are saved."""

    asynchronous: bool = True
    overlap: bool = True
    """Whether copies may go on beside the next step."""
    staging: int | None = None
    """How many bytes copies of the state may take."""


class Saves:
    """Everything that is saved of a run: its state, and its metrics beside it."""

    def __init__(
        self,
        run: Run,
        state: TrainingState,
        log: MetricsLog,
        best: Best,
        cadence: Cadence,
        say: Callable[[str], None],
        settings: SaveSettings,
        comm: Communicator | None = None,
    ) -> None:
        """`comm` has the ranks that save with this one."""
        self._run = run
        self._comm = SingleRank() if comm is None else comm
        self._ranks = Rank(self._comm.rank, self._comm.size)
        self._state = state
        self._log = log
        self._best = best
        self._cadence = cadence
        self._say = say
        self._background = (
            Background(run, settings.staging, self._comm) if settings.asynchronous else None
        )
        overlaps = settings.asynchronous and settings.overlap
        self._overlap = Overlap(p.value for p in parts_of(state).values()) if overlaps else None
        self._unwritten: list[Line] = []
        """The metrics that are known and not in the log yet."""
        self._metrics: dict[str, Any] = {}
        """The metrics of the newest step that has any."""
        self._metrics_step = 0
        self._saved_any = False
        self._saving: dict[str, Any] = {}
        """The metrics of the step that is being written."""
        self.owes_save = False
        """Whether a step could not be saved that the next one shall be saved for."""
        self._reported: set[str] = set()
        self.committed: int | None = None
        """The step that was committed last."""
        self.last: int | None = None
        """The step that was handed over last, unless its save is known to have failed."""
        self.held = 0.0
        """The seconds that the loop was held up so far."""

    def start(self, store: Store) -> None:
        """Get everything ready; raises NotEnoughSpace if a checkpoint would not fit now."""
        planned, free = self._plan(), store.backend.free()
        needed = planned.plan.most
        if free is not None and free + Trash(store.backend).nbytes() < needed:
            raise NotEnoughSpace(
                errno.ENOSPC,
                f"{store.url}: a checkpoint needs {needed:,} bytes, and {free:,} are free; free "
                "some before the training starts",
            )
        if self._background:
            self._background.start()
            self._background.warm(planned.plan)

    def recall(self, checkpoint: Checkpoint) -> None:
        """Go on from a checkpoint of this run: that of its step may be saved once more."""
        self.last = self.committed = self._metrics_step = checkpoint.step
        with suppress(DamagedFile):  # sealed by somebody, and no metrics
            self._metrics = checkpoint.metrics

    def warm(self) -> None:
        """Have memory for the state as it is now; an optimizer's grows with its first step."""
        if self._background:
            self._background.warm(self._plan().plan)

    def _plan(self) -> Planned:
        return plan_for(tree_of(self._state, self._ranks), self._ranks)

    def save(self, step: int, epoch: int | None, midway: bool) -> Held:
        """Save the state as that of a step; returns when it may change again.

        `midway` says that it is somewhere in the middle of the epoch, which is noted with it. A
        checkpoint of the step is replaced. Raises what went wrong with the saves before.
        """
        begun = time.monotonic()
        if self._ranks.size == 1:
            self.check()
        if self._background:
            self._report(self._background.problems())
        held = self._save_unless_changed(step, epoch, midway)
        if held.waited > _SLOW:
            self._say(
                f"step {step} waited {held.waited:.1f} s for the saves before it to end; if that "
                "goes on, save less often"
            )
        done = time.monotonic()
        self.last = step
        self._saved_any = True
        self.owes_save = False
        self.held += done - begun
        self._cadence.saved(step, done, done - begun)
        return held

    def _save_unless_changed(self, step: int, epoch: int | None, midway: bool) -> Held:
        """Save; if it turns out meanwhile that another state changed, save this one instead."""
        while True:
            try:
                return self._save(step, epoch, midway)
            except StateChanged as error:
                self._make_up_for(error)

    def _save(self, step: int, epoch: int | None, midway: bool) -> Held:
        replace = step in (self.last, self.committed)
        tree = tree_of(self._state, self._ranks)
        if midway and epoch is not None:
            tree[MIDWAY], epoch = epoch, epoch - 1
        if self._background is None:
            begun = time.monotonic()
            wanted = self._complete(self._run.wanted(step, None, epoch, False, replace))
            planned = plan_for(tree, self._ranks)
            head = commit_planned(self._run, self._comm, planned, wanted, self.write_metrics)
            self._take(head)
            return Held(0.0, time.monotonic() - begun)
        replace |= self._background.is_saving(step)
        return self._background.save(
            tree,
            step,
            None,
            epoch,
            False,
            replace,
            complete=self._complete,
            before_commit=self.write_metrics,
            committed=self._take,
            overlap=self._overlap,
        )

    def _complete(self, wanted: Wanted) -> Wanted:
        """Add the metrics of the step, and whether it is the best; all before it are known."""
        self._settle(wanted.step)
        metrics = self._metrics if self._metrics_step == wanted.step else {}
        self._saving = metrics
        best = self._best.is_beaten(metrics) or self._best.step == wanted.step
        return dataclasses.replace(wanted, metrics=checked_metrics(metrics), best=best)

    def _take(self, head: Head) -> None:
        self.committed = head.step
        if self._ranks.rank != 0:  # rank 0 writes the log
            self._unwritten.clear()
        self._best.take(head.step, self._saving)

    def _settle(self, up_to: int | None = None) -> None:
        for line in self._log.settle(up_to):
            self._unwritten.append(line)
            if line.step > self._metrics_step:
                self._metrics_step, self._metrics = line.step, {}
            if line.step == self._metrics_step:
                self._metrics = {**self._metrics, **line.metrics}

    def log_metrics(self) -> None:
        """Write all metrics into the log now; no save may be under way."""
        self._settle()
        self.write_metrics()

    def write_metrics(self) -> None:
        """Write the metrics that are known into the log."""
        lines = [*self._unwritten]
        self._log.append(lines)
        del self._unwritten[: len(lines)]

    def check(self) -> None:
        """Raise what went wrong with a save, if it is known by now.

        But for a state that changed: the next one is saved instead.
        """
        if not self._background:
            return
        try:
            self._background.raise_failure()
        except StateChanged as error:
            self._make_up_for(error)
        except StandfastError:
            self._forget_failed()
            raise

    def _make_up_for(self, error: StateChanged) -> None:
        """Say that a step was not saved, owe a save for it, and let no other one end like it."""
        self._forget_failed()
        self.owes_save = True
        if self._overlap is not None:
            self._overlap.end()
            self._overlap = None
        self._say(
            f"{error}; the next step is saved instead, and the loop waits for the copies from "
            "now on: see overlap=False"
        )

    def _forget_failed(self) -> None:
        """The step that was handed over last may be the one that failed."""
        if self._background and self._background.failed in (self.last, None):
            self.last = None

    def is_idle(self) -> bool:
        """Whether no save is under way."""
        return self._background is None or self._background.is_idle()

    def wait(self) -> None:
        """Return when all saves are committed; raises what went wrong."""
        if self._background:
            try:
                self._background.wait()
            except StateChanged as error:
                self._make_up_for(error)
                raise
            except StandfastError:
                self._forget_failed()
                raise

    def wait_in_the_loop(self) -> None:
        """The same, but a state that changed is nothing to be raised: the next one is saved."""
        while True:
            try:
                return self.wait()
            except StateChanged:
                continue

    def settle(self) -> None:
        """Return when the state may change in any way."""
        if self._overlap is not None:
            self._overlap.settle()

    def wait_for_deletions(self) -> None:
        """Return when all that is not kept any more is deleted."""
        if self._background:
            self._report(self._background.wait_for_deletions())

    def _report(self, problems: list[str]) -> None:
        for problem in problems:
            gist = re.sub(r"[\d,.]+", "", problem)  # the same with other figures is no news
            if gist not in self._reported:
                self._reported.add(gist)
                self._say(f"old checkpoints: {problem}")

    def failure(self) -> StandfastError | None:
        """What `wait` raises, but for a state that changed, which is about to be saved again."""
        first = None
        while True:
            try:
                self.wait()
                return first
            except StateChanged:
                continue
            except StandfastError as error:
                first = first or error

    def close(self) -> None:
        """Finish everything; raises what went wrong. May be called several times."""
        try:
            if self._background:
                self._background.close()
                self.wait_for_deletions()
        finally:
            if self._overlap is not None:
                self._overlap.end()
            self.log_metrics()
        # Only now are the metrics of all saves known.
        if self._best.monitor is not None and self._saved_any and not self._best.is_known:
            self._say(
                f"no step that was saved came with {self._best.monitor!r}, the metric that decides "
                "on the best: give it to ckpt.step or ckpt.report for such steps"
            )
