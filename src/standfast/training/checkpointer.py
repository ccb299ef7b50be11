"""The Checkpointer: what a training loop calls."""

from __future__ import annotations

import dataclasses
import os
import signal
import sys
import time
import warnings
from collections.abc import Collection, Iterator
from contextlib import ExitStack
from datetime import timedelta
from types import TracebackType
from typing import Any, Final, Self

import numpy as np

from standfast.conventions import translate
from standfast.errors import BadField, BadLabel, BadOption, NotOpen, SlowSaves, StandfastError
from standfast.policies import Mode, Policies, Policy, as_bytes, retention
from standfast.schedule import Schedule, cadence
from standfast.store import Run, Store
from standfast.training.background.background import Held
from standfast.training.beginning import (
    MODES,
    Beginning,
    Settings,
    begin,
    is_named,
    program_name,
    store_of,
)
from standfast.training.best import Best
from standfast.training.epoch import Epoch
from standfast.training.metrics import MetricsLog
from standfast.training.mirror.mirror import Mirror, Mirrored, MirrorSettings, start_mirror
from standfast.training.mirror.recovery import Elsewhere
from standfast.training.ranks import Crew, Decision, crew_of
from standfast.training.report import ResumeReport
from standfast.training.resuming import Resumption
from standfast.training.saves import Saves, SaveSettings
from standfast.training.signals import Preemption
from standfast.training.state import TrainingState, model_of
from standfast.training.tenure import Tenure

VOLATILE: Final = ("max_steps", "max_epochs", "epochs", "num_workers")
"""Hyperparameters that say how long or with what, and do not make another run."""
EVERY: Final = "10min"
_NO_THREADS: Final = (
    "MPI was not started with MPI_THREAD_MULTIPLE, so that no thread may talk to the other ranks: "
    "the loop waits until each checkpoint is written"
)
_MANY: Final = 4096
"""So many steps' metrics wait for a save; more are written without one."""


class Checkpointer:
    """Saves the state of a training loop as it goes, and continues where the last run stopped.

    >>> state = standfast.TrainingState(model=model, optimizer=optimizer, loader=loader)
    >>> with standfast.Checkpointer("experiments", state, hp=config, every=100) as ckpt:
    ...     for step in ckpt.steps(10_000):
    ...         loss = train_step()
    ...         ckpt.step(step, loss=loss)
    """

    def __init__(
        self,
        store: str | os.PathLike[str] | Store,
        state: TrainingState,
        *,
        name: str | None = None,
        hp: Any = None,
        data: Any = None,
        trial: Any = None,
        volatile: Collection[str] = VOLATILE,
        resume: str = "auto",
        every: int | str | timedelta | Schedule | None = EVERY,
        monitor: str | None = None,
        mode: Mode | None = None,
        keep: Policy | Policies | None = None,
        budget: int | float | str | None = None,
        mirror: str | os.PathLike[str] | Store | None = None,
        mirror_keep: Policy | Policies | None = None,
        mirror_wait: float | None = None,
        strict: bool = True,
        asynchronous: bool = True,
        overlap: bool = True,
        staging: int | float | str | None = None,
        quiet: bool = False,
        comm: Any = None,
        **conventions: Any,
    ) -> None:
        """The run is found or made, and the state restored, on entering the `with`.

        `name`, `hp`, `data`, `trial` and the models in the state say which run it is, as in
        `Store.run`; the keys in `volatile` do not count. `resume` is "auto" (continue this run, or
        begin it), "must" (or raise), "never" (begin another trial of it), or a reference to a
        checkpoint to branch from. `every` is a number of steps, a time ("10min"), a share of the
        time ("3%"), a Schedule, or None. `monitor` names the metric whose best checkpoint is
        remembered, `mode` says whether "min" or "max" is best. `keep` is a policy, such as
        `KeepLast(3) | KeepBest(2)`, and `budget` what the run may take on the disk ("50GB"): see
        `Run.retain`; without them a run keeps what it, or the one it branches from, was told to.
        The names of Lightning and Transformers (`save_top_k`, …) are taken too. `mirror` is a URL
        or a folder that another process copies each checkpoint to, beside the loop; it keeps all,
        or what `mirror_keep` says, and the end of the `with` waits for it as long as it goes on,
        or `mirror_wait` seconds: see docs/mirror.md. `strict=False`
        restores what fits, `asynchronous=False` waits for each save, and `quiet` keeps it from
        writing to standard error. Of a state on a GPU, what an optimizer owns is copied beside the
        next step unless `overlap=False`; `staging` is how much memory copies may take ("40GB"), by
        default that of two if it is there: see docs/gpu.md.

        In a program of many ranks (torchrun, mpiexec) all of them make one, enter it, and call the
        same methods: see docs/ranks.md. `comm` says which ranks, if not all; `SingleRank()` is
        this process alone.
        """
        if not isinstance(state, TrainingState):
            raise BadOption(
                f"the state is a {type(state).__name__}: pass TrainingState(model=…, optimizer=…)"
            )
        if not isinstance(resume, str):
            raise BadOption(f"resume is one of {', '.join(MODES)} or a reference, not {resume!r}")
        self.store: Final = store_of(store)
        self.state: Final = state
        model = model_of(state)
        if name is None and hp is None and model is None and data is None:
            name = program_name()
        self._settings = Settings(name, hp, model, data, trial, volatile)
        self._resume = resume
        told = translate(conventions, monitor, mode, keep)
        if told.every is not None and every is not EVERY:
            raise BadOption(f"every={every!r} and one of {', '.join(conventions)}: give one")
        self._cadence = cadence(every if told.every is None else told.every)
        self._best = Best(told.monitor, told.mode or "min")
        self._retention = retention(told.keep, budget, told.monitor, told.mode or "min")
        self._mirror: Mirror | None = None
        self._mirror_settings = MirrorSettings.of(
            self.store, is_named(store, self.store), mirror, mirror_keep, mirror_wait, self._best
        )
        self._strict = strict
        self._save_settings = SaveSettings(asynchronous, overlap, as_bytes(staging, "staging"))
        self._quiet = quiet
        self._given_comm = comm
        self._crew: Crew | None = None
        self._preemption = Preemption()
        self._run: Run | None = None
        self._report: ResumeReport | None = None
        self._resumption: Resumption | None = None
        self._saves: Saves | None = None
        self._held = 0.0
        self._log = MetricsLog(None)
        self._process = os.getpid()
        self._step = 0
        self._epoch = Epoch(state)
        self._owes_save = False
        """Whether a save fell due that waits for the end of the epoch."""
        self._stopped = False
        self._tenure: Tenure | None = None

    # Beginning and ending

    def __enter__(self) -> Self:
        if self._run is not None:
            raise NotOpen("this Checkpointer was entered before: make another one")
        crew = self._crew = crew_of(self._given_comm)
        with ExitStack() as undo:
            undo.push(lambda kind, error, at: crew.close(error))
            crew.agree("every, asynchronous, strict and resume", self._agreed())
            beginning = crew.begin(
                self.store,
                self._settings.hp,
                self._begin,
            )
            run = self._run = beginning.run
            tenure = self._tenure = Tenure(run, crew.is_first, beginning.is_new)
            undo.push(tenure.abandon)
            crew.together(tenure.take)
            self._resumption = Resumption(self.store, self.state, beginning, self._strict, crew)
            report = self._report = self._resumption.restore()
            self._step, self._epoch.next = report.step, report.epoch or 1
            self._saves = crew.together(lambda: self._prepared(report, crew, undo))
            undo.pop_all()
        self._say(str(report))
        self._preemption.watch()
        self._cadence.begin(time.monotonic())
        return self

    def _begin(self) -> Beginning:
        told, mirror = self._mirror_settings, None
        if told is not None and told.is_used:
            mirror = Elsewhere(self.store, told.place, self._say)
        return begin(self.store, self._settings, self._resume, mirror)

    def _agreed(self) -> list[Any]:
        """What must be the same on all ranks."""
        asynchronous = self._save_settings.asynchronous
        return [str(self._cadence), asynchronous, self._strict, self._resume]

    def _prepared(self, report: ResumeReport, crew: Crew, undo: ExitStack) -> Saves:
        """Everything that a save needs, once it is known what the run goes on from."""
        run, tenure = self.run, self._tenure
        assert tenure is not None
        if report.ref is not None:
            tenure.came_from(report.ref)
        if crew.is_first:
            logs = self.store.logs
            self._log = MetricsLog(logs / f"{run.hash}_metrics.jsonl" if logs else None)
            self._log.prepare()
            try:
                self._log.cut(self._step)
            except BadField as error:
                self._say(f"{error}; it is not cut back, and the run goes on without its help")
            self._best.recall(run, self._step)
            if self._retention is not None:
                run.set_retention(self._retention)
            if self._best.monitor is not None:
                run.set_monitor(self._best.monitor, self._best.mode)
        settings = self._save_settings
        if settings.asynchronous and not crew.may_save_in_thread():
            settings = dataclasses.replace(settings, asynchronous=False)
            warnings.warn(_NO_THREADS, SlowSaves, stacklevel=3)
        saves = Saves(
            run, self.state, self._log, self._best, self._cadence, self._say, settings, crew.saving
        )
        undo.callback(saves.close)
        saves.start(self.store)
        if report.ref is not None and not report.branched:
            saves.recall(self.store.checkpoint(run.hash, report.step))
        if self._settings.hp is not None and crew.is_first:
            run.describe(self._settings.hp)
        if self._mirror_settings is not None and crew.is_first:
            self._mirror = start_mirror(run, self._mirror_settings, self._say, undo)
        return saves

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        at: TracebackType | None,
    ) -> None:
        saves, self._saves, tenure, crew = self._open(), None, self._tenure, self._crew
        self._held = saves.held
        assert tenure is not None
        assert crew is not None
        if self._process != os.getpid():  # a forked child that leaves it: all is its parent's
            return
        try:
            saves.close()
            tenure.forget_the_past(self._say)
        except StandfastError as failure:
            if error is None:
                raise
            error.add_note(f"besides, a save failed: {failure}")  # what the program raised counts
        except BaseException as interruption:  # a save may be under way
            crew.close(interruption)
            raise
        finally:
            tenure.end()
            crew.close(error)
            if self._mirror is not None:
                self._mirror.end(lambda: self._preemption.signal is not None)
            if error is not None and saves.committed is not None and not self._stopped:
                self._say(
                    f"the training ended by {type(error).__name__}; its last checkpoint is that of "
                    f"step {saves.committed}: start the program again to continue from there"
                )
            self._preemption.unwatch(obeyed=self._stopped)

    # The loop

    def steps(self, total: int) -> Iterator[int]:
        """The steps that are left of 1 to `total`, one after the other.

        When all are done, the last one is saved. The iteration ends early if `should_stop`.
        """
        for step in self._left(self.next_step, total, "step"):
            self._hand_out()
            yield step
            if self._step < step:  # the body did not call `step`
                self.step(step)
            if self.should_stop:
                return
        self._finish()

    def epochs(self, total: int) -> Iterator[int]:
        """The epochs that are left of 1 to `total`, one after the other.

        A run that stopped in the middle of an epoch is handed that epoch again, and a loader in
        its state the batches that are left of it. Without such a loader, saves that fall due
        within an epoch are made at its end, where they are exact.
        """
        for epoch in self._left(self._epoch.next, total, "epoch"):
            self._hand_out()
            before = self._step
            is_rest = self._epoch.begin(epoch)  # which may be no batch at all
            yield epoch
            self._epoch.end()
            if self._step == before and not is_rest:  # the body did not call `step`
                self.step()
            if self.should_stop:
                return
            if self._owes_save:
                self._save()
        self._finish()

    def _left(self, first: int, total: int, what: str) -> range:
        self._open()
        if isinstance(total, bool) or not isinstance(total, int | np.integer):
            raise BadOption(f"the number of {what}s is an integer, not a {type(total).__name__}")
        if first > total and self.resume_report.ref is not None:
            self._say(f"nothing is left to do: {what} {first - 1} of {total} is done")
        return range(first, int(total) + 1)

    def _hand_out(self) -> None:
        """Put the random states back once more: what was built since may have drawn from them."""
        self._open()
        if self._resumption is not None:
            self._resumption.restore_random()
            self._resumption = None

    def _finish(self) -> None:
        """All is done: save the last step, unless it is saved or nothing was left to do."""
        self._open().settle()
        if self._crew is not None and not self._crew.is_alone:
            self._open().wait_in_the_loop()  # then all ranks know the same
        self._open().check()
        if self._step > self.resume_report.step and self._open().last != self._step:
            self._save()

    def step(self, step: int | None = None, **metrics: Any) -> None:
        """A step is done: note its metrics, and save if it is time to.

        Call it last in the body of the loop. Without a number it is the step after the last one.
        Metrics are numbers, tensors of one element, or None, which is left out. Raises what went
        wrong with an earlier save; after a signal, a program that goes on in spite of `should_stop`
        is ended here.
        """
        saves = self._open()
        if self._stopped:
            raise SystemExit(self._preemption.exit_code or 128 + signal.SIGTERM)
        alone = self._crew is None or self._crew.is_alone
        if alone and self._preemption.signal is None:
            saves.check()
        is_first = self._step == self.resume_report.step
        self._step = self._checked(step)
        self._resumption = None
        given = {name: value for name, value in metrics.items() if value is not None}
        self._log.add(self._step, self._epoch.number, given)
        decision = self._decide(saves)
        if decision.stop:
            self._stop()
        elif decision.save:
            self._save_or_owe()
        elif is_first:
            saves.warm()
        elif self._log.waiting > _MANY and saves.is_idle():
            saves.log_metrics()
        if decision.talked and not decision.stop:
            saves.check()  # only now: all ranks hand over the same saves, whatever each knows

    def _decide(self, saves: Saves) -> Decision:
        """What to do after a step: of many ranks, all do the same."""
        crew = self._crew
        assert crew is not None
        decision = crew.decide(
            self._step,
            self._preemption.signal is not None,
            lambda: saves.owes_save or self.is_due(self._step),
        )
        if not crew.is_alone and self._cadence.by_steps and self.is_due(self._step):
            decision = decision._replace(save=True)  # they need not talk to know that
        return decision

    def _checked(self, step: int | None) -> int:
        if step is None:
            return self._step + 1
        step = _whole(step)
        if step <= self._step:
            done = f"step {self._step} is done" if self._step else "steps count from 1"
            raise BadLabel(
                f"step {step} cannot be next: {done}; begin at ckpt.next_step, as ckpt.steps does"
            )
        return step

    def is_due(self, step: int) -> bool:
        """Whether a call of `step` with this number, now, would save."""
        return self._cadence.is_due(step, time.monotonic()) and (
            self._cadence.by_steps or self._open().is_idle()
        )

    def save(self) -> Held:
        """Save the state now, as that of the last step, whatever the schedule says.

        A checkpoint that the step has is replaced. Within an epoch that no loader in the state
        knows the middle of, it is made at the end of the epoch.
        """
        return self._save_or_owe()

    def _save_or_owe(self) -> Held:
        if self._epoch.is_midway():
            self._owes_save = True
            return Held(0.0, 0.0)
        return self._save()

    def _save(self, midway: bool = False) -> Held:
        self._owes_save = False
        return self._open().save(self._step, self._epoch.number, midway)

    def _stop(self) -> None:
        """Save, wait until it is committed, and let the loop end."""
        saves = self._open()
        failure = saves.failure()  # of an earlier save, which shall not keep this one from trying
        # With as many steps as epochs, `step` is called once an epoch, at its end.
        once = self._step == self._epoch.number and self._step > 1
        self._save(midway=self._epoch.is_midway() and not once)
        self.wait()
        checkpoint = self.run.checkpoint(self._step)
        self._stopped = True
        self._say(
            f"{self._preemption.signal or 'another rank is asked to end'}: step {self._step} is "
            f"saved as {checkpoint.ref}, and the training stops; start the program again to "
            "continue"
        )
        if failure is not None:
            raise failure

    def report(self, step: int | None = None, **metrics: Any) -> None:
        """Metrics of the last step, or an earlier one, that became known only now.

        They go into the log, and to the checkpoint of that step if there is one, or will be, which
        may become the best by them.
        """
        saves = self._open()
        step = self._step if step is None else _whole(step)
        if not 0 <= step <= self._step:
            raise BadLabel(f"step {step} is not done yet: the last one is {self._step}")
        given = {name: value for name, value in metrics.items() if value is not None}
        self._log.add(step, self._epoch.number if step == self._step else None, given)
        if self._crew is not None and not self._crew.is_first:
            return  # rank 0 adds what it was given
        if saves.last == step:
            saves.wait_in_the_loop()
        checkpoint = self.store.find(self.run.hash, step)
        if checkpoint is not None and given:
            saves.wait_in_the_loop()
            saves.log_metrics()  # no save of the step will write them
            numbers = {name: _number(value) for name, value in given.items()}
            checkpoint.add_metrics(numbers, best=self._best.take(step, numbers))

    def wait(self) -> None:
        """Return when everything that was saved is committed; raises what went wrong.

        What is not kept any more is deleted by then.
        """
        self._open().wait()
        self._open().wait_for_deletions()

    # What is known

    @property
    def run(self) -> Run:
        """The run that is saved into."""
        if self._run is None:
            raise NotOpen("the run is known inside the `with`")
        return self._run

    @property
    def resume_report(self) -> ResumeReport:
        """How the run began: what was restored, and whether it continues exactly."""
        if self._report is None:
            raise NotOpen("the report is there inside the `with`")
        return self._report

    @property
    def next_step(self) -> int:
        """The step to be done next."""
        return self._step + 1

    @property
    def should_stop(self) -> bool:
        """Whether a signal asked the program to end, and all that was done is saved."""
        return self._stopped

    @property
    def mirrored(self) -> Mirrored | None:
        """How far the mirror is, as was heard of it last; None if there is none here."""
        return None if self._mirror is None else self._mirror.mirrored

    @property
    def held(self) -> float:
        """The seconds that saves have held the loop up so far; known after the `with` as well."""
        return self._held if self._saves is None else self._saves.held

    def _open(self) -> Saves:
        if self._saves is None:
            raise NotOpen("a Checkpointer is used inside its `with`")
        return self._saves

    def _say(self, text: str) -> None:
        if not self._quiet and (self._crew is None or self._crew.is_first):
            print(text, file=sys.stderr, flush=True)

    def __repr__(self) -> str:
        at = f"at step {self._step}" if self._saves else "closed"
        return f"<checkpointer of {self._run!r}, {at}>" if self._run else "<checkpointer, not open>"


def _whole(step: Any) -> int:
    if isinstance(step, bool) or not isinstance(step, int | np.integer):
        raise BadLabel(f"a step is an integer, not a {type(step).__name__}")
    return int(step)


def _number(value: Any) -> Any:
    return value.item() if hasattr(value, "item") else value
