"""A run while a Trainer saves into it: everything that is written, in one place."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from standfast.errors import BadField, RunExists
from standfast.policies import Mode, Retention
from standfast.schedule import Cadence
from standfast.store import Checkpoint, Run, Store
from standfast.training.beginning import Settings
from standfast.training.best import Best
from standfast.training.metrics import MetricsLog
from standfast.training.saves import Saves, SaveSettings
from standfast.training.signals import Preemption
from standfast.training.state import TrainingState
from standfast.training.tenure import Tenure


@dataclass(frozen=True)
class Wishes:
    """How a run is saved, and what is kept of it."""

    cadence: Cadence
    monitor: str | None
    mode: Mode
    retention: Retention | None
    saving: SaveSettings


@dataclass(frozen=True)
class Origin:
    """The checkpoint that a training goes on from."""

    checkpoint: Checkpoint
    is_latest: bool
    """Whether it was found as the newest intact one: all that are newer are damaged."""


def steps_of(run: Run) -> list[int]:
    """The steps of a run, also those whose records cannot be read."""
    run.store.index.refresh()
    return run.store.index.steps(run.hash)


def run_for(store: Store, settings: Settings, step: int, origin: Origin | None) -> Run:
    """The run that a training saves into which has done so many steps; raises RunExists.

    One that begins anew, or behind an old checkpoint, is not mixed with what a run has.
    """
    known = settings.known(store, settings.trial)
    steps = steps_of(known) if known else []
    is_own = origin is not None and known is not None and origin.checkpoint.head.run == known.hash
    if is_own and origin is not None:
        in_the_way = [] if origin.is_latest else [each for each in steps if each > step]
    else:
        in_the_way = steps
    if in_the_way:
        raise RunExists(
            f"run {settings.name or 'of these settings'} has checkpoints up to step "
            f"{max(in_the_way)}, and the training begins behind step {step}: continue it with "
            "trainer.train(resume_from_checkpoint=keeper.latest()), or give the callback another "
            "name= or trial="
        )
    parent = None if origin is None or is_own else origin.checkpoint
    return settings.run(store, settings.trial, parent)


class Session:
    """The saves of one call of `train`."""

    def __init__(
        self,
        run: Run,
        state: TrainingState,
        step: int,
        origin: Origin | None,
        wishes: Wishes,
        say: Callable[[str], None],
    ) -> None:
        """Take the run; raises RunBusy, or NotEnoughSpace if a checkpoint would not fit."""
        self.run = run
        self._say = say
        self._wishes = wishes
        self._preemption = Preemption()
        self._stopped = False
        self._tenure = Tenure(run)
        try:
            run.take()
            self._start(state, step, origin)
        except BaseException:
            self._tenure.end()
            raise

    def _start(self, state: TrainingState, step: int, origin: Origin | None) -> None:
        store, wishes = self.run.store, self._wishes
        logs = store.logs
        self._log = MetricsLog(logs / f"{self.run.hash}_metrics.jsonl" if logs else None)
        self._log.prepare()
        try:
            self._log.cut(step)
        except BadField as error:
            self._say(f"{error}; it is not cut back, and the run goes on without its help")
        self._best = Best(wishes.monitor, wishes.mode)
        self._best.recall(self.run, step)
        self._saves = Saves(
            self.run, state, self._log, self._best, wishes.cadence, self._say, wishes.saving
        )
        if wishes.retention is not None:
            self.run.set_retention(wishes.retention)
        if wishes.monitor is not None:
            self.run.set_monitor(wishes.monitor, wishes.mode)
        self._saves.start(store)
        if origin is not None:
            self._tenure.came_from(origin.checkpoint.ref)
            if origin.checkpoint.head.run == self.run.hash:
                self._saves.recall(store.checkpoint(self.run.hash, step))
        wishes.cadence.begin(time.monotonic())

    def watch_signals(self) -> None:
        """From now on, note SIGTERM and SIGUSR1."""
        self._preemption.watch()

    def must_stop(self) -> bool:
        """Whether a signal asked the program to end, which the training then does."""
        self._stopped = self._preemption.signal is not None
        return self._stopped

    @property
    def held(self) -> float:
        """The seconds that saves have held the training up."""
        return self._saves.held

    def is_due(self, step: int) -> bool:
        """Whether it is time to save, by the clock; not as long as a save is being written."""
        cadence = self._wishes.cadence
        return cadence.is_due(step, time.monotonic()) and self._saves.is_idle()

    def step_done(self, is_first: bool) -> bool:
        """Raise what went wrong with a save; says whether one is owed that did not succeed."""
        self._saves.check()
        if is_first:
            self._saves.warm()
        return self._saves.owes_save

    def save(self, step: int, epoch: int) -> None:
        """Copy the state, to be committed in the background; what the step has is replaced."""
        self._saves.save(step, epoch, False)

    def note(self, step: int, epoch: int, metrics: Mapping[str, float]) -> None:
        """Metrics of a step; they go to its checkpoint too, if that was saved before them."""
        if not metrics:
            return
        self._log.add(step, epoch, metrics)
        if self._saves.last != step:
            return
        self._saves.wait_in_the_loop()
        checkpoint = self.run.store.find(self.run.hash, step)
        if checkpoint is not None:
            self._saves.log_metrics()  # no save of the step will write them
            checkpoint.add_metrics(metrics, best=self._best.take(step, metrics))

    def wait(self) -> None:
        """Return when all is committed, and what is not kept is deleted."""
        self._saves.wait()
        self._saves.wait_for_deletions()

    @property
    def best_step(self) -> int | None:
        """The step of the best checkpoint, once all are committed."""
        return self._best.step

    def close(self) -> None:
        """Finish everything and let others have the run; raises what went wrong."""
        try:
            self._saves.close()
            self._tenure.forget_the_past(self._say)
        finally:
            self._tenure.end()
            self._preemption.unwatch(obeyed=self._stopped)
