"""The run that a trainer saves into, on rank 0: what it goes on from, and its saves.

All that is saved of a trainer, or loaded for one, passes through here.
"""

from __future__ import annotations

import dataclasses
import warnings
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from typing import Any

from standfast.errors import NotDeleted, RefusedState
from standfast.lightning.references import loaded
from standfast.lightning.values import explained, plain
from standfast.parallel import SingleRank
from standfast.policies import Retention
from standfast.store import Checkpoint, Run, Store
from standfast.store.save.planning import plan_state
from standfast.store.save.saving import Wanted
from standfast.store.schema.record import Head
from standfast.training.background.background import Background
from standfast.training.beginning import Beginning, Settings, begin
from standfast.training.best import Best
from standfast.training.tenure import Tenure


def save_state(
    run: Run,
    step: int,
    state: dict[str, Any],
    metrics: Mapping[str, Any] | None = None,
    epoch: int | None = None,
) -> Checkpoint:
    """Save a checkpoint of Lightning into a run; it is durable when this returns."""
    try:
        # Lightning calls this on rank 0 alone.
        return run.save(step, plain(state), metrics, epoch, comm=SingleRank())
    except RefusedState as error:
        raise explained(error) from error


@dataclass(frozen=True)
class Found:
    """A checkpoint that a training goes on from, and what is in it."""

    checkpoint: Checkpoint
    state: dict[str, Any]


def _loaded(checkpoint: Checkpoint) -> Found:
    return Found(checkpoint, loaded(checkpoint))


class TrainerRun:
    """A run while a trainer saves into it."""

    def __init__(
        self,
        store: Store,
        settings: Settings,
        best: Best,
        retention: Retention | None,
        say: Callable[[str], None],
    ) -> None:
        self._store = store
        self._settings = settings
        self._best = best
        self._retention = retention
        self._say = say
        self._tenure: Tenure | None = None
        self._background: Background | None = None
        self._taken: set[int] = set()
        """The steps that have a checkpoint already, which is replaced if they come again."""
        self.run: Run | None = None
        self.beginning: Beginning | None = None
        self.last: int | None = None
        """The step that was committed last."""

    def begin(self, resume: str, asynchronous: bool, staging: int | None) -> Found | None:
        """Find or make the run and take it; returns what it goes on from, verified."""
        beginning = self.beginning = begin(self._store, self._settings, resume)
        run = self.run = beginning.run
        with ExitStack() as undo:
            self._tenure = Tenure(run, is_new=beginning.is_new)
            undo.push(self._tenure.abandon)
            self._tenure.take()
            found = self._found(beginning)
            origin = found.checkpoint if found is not None else None
            if origin is not None:
                self._tenure.came_from(origin.ref)
                self.last = origin.step if origin.head.run == run.hash else None
            self._best.recall(run, origin.step if origin is not None else 0)
            self._taken = set(self._store.index.steps(run.hash))
            if self._retention is not None:
                run.set_retention(self._retention)
            if self._best.monitor is not None:
                run.set_monitor(self._best.monitor, self._best.mode)
            if self._settings.hp is not None:
                run.describe(self._settings.hp)
            if asynchronous:
                self._background = Background(run, staging)
                self._background.start()
            undo.pop_all()
        return found

    def _found(self, beginning: Beginning) -> Found | None:
        """The newest intact checkpoint; one that is damaged is passed over, with a warning."""
        if beginning.parent is not None:
            return _loaded(beginning.parent)
        if not self._store.index.count(beginning.run.hash):
            return None
        return self._store.with_latest(_loaded, beginning.run.hash)

    def save(
        self, step: int, state: dict[str, Any], metrics: Mapping[str, Any], epoch: int
    ) -> None:
        """Save a state as that of a step; when this returns it may change.

        Raises what went wrong with a save before.
        """
        assert self.run is not None
        replace = step in self._taken
        complete, committed = partial(self._complete, metrics), partial(self._committed, metrics)
        try:
            if self._background is not None:
                self._report(self._background.problems())
                self._background.save(
                    plain(state),
                    step,
                    metrics,
                    epoch,
                    replace=replace,
                    complete=complete,
                    committed=committed,
                )
            else:
                wanted = self.run.wanted(step, metrics, epoch, replace=replace)
                head = self.run.commit(plan_state(plain(state)), complete(wanted))
                self.run.tidy()
                committed(head)
        except RefusedState as error:
            raise explained(error) from error
        self._taken.add(step)

    def _complete(self, metrics: Mapping[str, Any], wanted: Wanted) -> Wanted:
        """Whether it is the best; all before it are known by now."""
        best = self._best.is_beaten(metrics) or self._best.step == wanted.step
        return dataclasses.replace(wanted, best=best)

    def _committed(self, metrics: Mapping[str, Any], head: Head) -> None:
        self.last = head.step
        self._best.take(head.step, metrics)

    def check(self) -> None:
        """Raise what went wrong with a save, if it is known by now."""
        if self._background is not None:
            self._background.raise_failure()

    def wait(self) -> None:
        """Return when all is committed, and all deleted that is not kept."""
        if self._background is not None:
            self._background.wait()
            self._report(self._background.wait_for_deletions())

    def close(self) -> None:
        """Finish everything, and let others have the run; raises what went wrong."""
        tenure, self._tenure = self._tenure, None
        if tenure is None:
            return
        try:
            if self._background is not None:
                self._background.close()
                self._report(self._background.wait_for_deletions())
            tenure.forget_the_past(self._say)
        finally:
            self._background = None
            tenure.end()

    def _report(self, problems: list[str]) -> None:
        for problem in problems:
            warnings.warn(f"old checkpoints: {problem}", NotDeleted, stacklevel=3)

    def checkpoint(self, step: int | None) -> Checkpoint | None:
        """The checkpoint of a step, if there is one."""
        if step is None or self.run is None:
            return None
        return self._store.find(self.run.hash, step)


def load_state(store: Store, run: str, step: int) -> dict[str, Any]:
    """A checkpoint of Lightning, verified; every rank loads it for itself."""
    return loaded(store.checkpoint(run, step))
