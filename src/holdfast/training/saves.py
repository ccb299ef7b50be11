"""The saves of a run, one after the other: each is copied by the loop and written beside it."""

from __future__ import annotations

import errno
import re
import time
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Any, Final

from holdfast.errors import DamagedFile, HoldfastError, NotEnoughSpace
from holdfast.schedule import Cadence
from holdfast.store import Checkpoint, Run, Store
from holdfast.store.planning import plan_state
from holdfast.store.record import Head
from holdfast.store.trash import Trash
from holdfast.training.background import Background, Held
from holdfast.training.best import Best
from holdfast.training.metrics import Line, MetricsLog
from holdfast.training.resuming import MIDWAY
from holdfast.training.state import TrainingState, tree_of

_SLOW: Final = 0.5
"""A wait of more seconds than these for the save before is worth a word."""


class Saves:
    """Everything that is saved of a run: its state, and its metrics beside it."""

    def __init__(
        self,
        run: Run,
        state: TrainingState,
        log: MetricsLog,
        best: Best,
        cadence: Cadence,
        asynchronous: bool,
        say: Callable[[str], None],
    ) -> None:
        self._run = run
        self._state = state
        self._log = log
        self._best = best
        self._cadence = cadence
        self._say = say
        self._background = Background(run) if asynchronous else None
        self._unwritten: list[Line] = []
        """The metrics that are known and not in the log yet."""
        self._metrics: dict[str, Any] = {}
        """The metrics of the newest step that has any."""
        self._metrics_step = 0
        self._monitored = False
        """Whether the metric that decides on the best has come with a step that was saved."""
        self._saved_any = False
        self._reported: set[str] = set()
        self.last: int | None = None
        """The step that was handed over last, unless its save is known to have failed."""
        self.held = 0.0
        """The seconds that the loop was held up so far."""

    def start(self, store: Store) -> None:
        """Get everything ready; raises NotEnoughSpace if a checkpoint would not fit now."""
        needed, free = self._size(), store.backend.free()
        if free is not None and free + Trash(store.backend).nbytes() < needed:
            raise NotEnoughSpace(
                errno.ENOSPC,
                f"{store.url}: a checkpoint needs {needed:,} bytes, and {free:,} are free; free "
                "some before the training starts",
            )
        if self._background:
            self._background.start()
            self._background.warm(needed)

    def recall(self, checkpoint: Checkpoint) -> None:
        """Go on from a checkpoint of this run: that of its step may be saved once more."""
        self.last = self._metrics_step = checkpoint.step
        with suppress(DamagedFile):  # sealed by somebody, and no metrics
            self._metrics = checkpoint.metrics

    def warm(self) -> None:
        """Have memory for the state as it is now; an optimizer's grows with its first step."""
        if self._background:
            self._background.warm(self._size())

    def _size(self) -> int:
        return plan_state(tree_of(self._state)).most

    def save(self, step: int, epoch: int | None, midway: bool) -> Held:
        """Save the state as that of a step; returns when it may change again.

        `midway` says that it is somewhere in the middle of the epoch, which is noted with it. A
        checkpoint of the step is replaced. Raises what went wrong with the save before.
        """
        begun = time.monotonic()
        self.wait()
        waited = time.monotonic() - begun
        if waited > _SLOW:
            self._say(
                f"step {step} waited {waited:.1f} s for the save of step {self.last} to end; if "
                "that goes on, save less often"
            )
        if self._background:
            self._report(self._background.problems())
        self._save(step, epoch, midway)
        done = time.monotonic()
        self.last = step
        self._saved_any = True
        self.held += done - begun
        self._cadence.saved(step, done, done - begun)
        return Held(waited, done - begun - waited)

    def _save(self, step: int, epoch: int | None, midway: bool) -> None:
        self._settle()
        metrics = self._metrics if self._metrics_step == step else {}
        self._monitored |= self._best.monitor in metrics
        # The best is known: the save before was waited for.
        best = self._best.is_beaten(metrics) or self._best.step == step
        replace = self.last == step
        tree = tree_of(self._state)
        if midway and epoch is not None:
            tree[MIDWAY], epoch = epoch, epoch - 1
        if self._background is None:
            self.write_metrics()
            self._run.save(step, tree, metrics, epoch, best, replace)
            self._best.take(step, metrics)
            return
        self._background.save(
            tree,
            step,
            metrics,
            epoch,
            best,
            replace,
            before_commit=self.write_metrics,
            committed=partial(self._take, metrics),
        )

    def _take(self, metrics: dict[str, Any], head: Head) -> None:
        self._best.take(head.step, metrics)

    def _settle(self) -> None:
        for line in self._log.settle():
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
        """Raise what went wrong with a save, if it is known by now."""
        if self.is_idle():
            self.wait()

    def is_idle(self) -> bool:
        """Whether no save is under way."""
        return self._background is None or self._background.is_idle()

    def wait(self) -> None:
        """Return when all saves are committed; raises what went wrong."""
        if self._background:
            try:
                self._background.wait()
            except HoldfastError:
                self.last = None
                raise

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

    def failure(self) -> HoldfastError | None:
        """What `wait` raises."""
        try:
            self.wait()
        except HoldfastError as error:
            return error
        return None

    def close(self) -> None:
        """Finish everything; raises what went wrong. May be called several times."""
        if self._best.monitor is not None and self._saved_any and not self._monitored:
            self._say(
                f"no step that was saved came with {self._best.monitor!r}, the metric that decides "
                "on the best: give it to ckpt.step or ckpt.report for such steps"
            )
        try:
            if self._background:
                self._background.close()
                self.wait_for_deletions()
        finally:
            self.log_metrics()
