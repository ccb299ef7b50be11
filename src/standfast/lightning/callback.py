"""The callback that takes ModelCheckpoint's place."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Collection
from datetime import timedelta
from typing import Any, Final

from standfast.conventions import translate
from standfast.errors import BadOption, NotOpen, StandfastError
from standfast.lightning.library import Checkpoint, check_strategy, check_trainer, library
from standfast.lightning.progress import (
    EPOCH,
    EXCEPTION,
    STEP,
    complete_epoch,
    ends_epoch,
    is_accumulating,
    loader_states,
    plateau_steps,
    validates_next,
    validates_within_epochs,
)
from standfast.lightning.ranks import gathered, on_root
from standfast.lightning.references import SCHEME, ReferenceIO, folder_of, reference
from standfast.lightning.resume import EXTRA, Extra, Resumed
from standfast.lightning.run import TrainerRun, load_state
from standfast.policies import Mode, Policies, Policy, as_bytes, retention
from standfast.store import Store
from standfast.tensors import randomness
from standfast.training.beginning import MODES, Settings, program_name, store_of
from standfast.training.best import Best
from standfast.training.report import ResumeReport

VOLATILE: Final = ("max_steps", "max_epochs", "epochs", "num_workers")
"""Hyperparameters that say how long or with what, and do not make another run."""


class StandfastCheckpoint(Checkpoint):
    """Saves the checkpoints of a trainer into a store, beside the training, and continues a run.

    >>> trainer = Trainer(callbacks=[StandfastCheckpoint("experiments", every_n_train_steps=100)])
    >>> trainer.fit(model)  # started again, it goes on behind its last checkpoint
    """

    def __init__(
        self,
        store: str | os.PathLike[str] | Store,
        *,
        name: str | None = None,
        hp: Any = None,
        data: Any = None,
        trial: Any = None,
        volatile: Collection[str] = VOLATILE,
        resume: str = "auto",
        monitor: str | None = None,
        mode: Mode = "min",
        save_top_k: int | None = None,
        save_last: bool | str | None = None,
        keep: Policy | Policies | None = None,
        budget: int | float | str | None = None,
        every_n_train_steps: int | None = None,
        every_n_epochs: int | None = None,
        train_time_interval: timedelta | None = None,
        save_on_train_epoch_end: bool | None = None,
        save_on_exception: bool = False,
        save_weights_only: bool = False,
        asynchronous: bool = True,
        staging: int | float | str | None = None,
        quiet: bool = False,
    ) -> None:
        """The run is found or made, and the trainer restored, when `trainer.fit` begins.

        `name`, `hp`, `data`, `trial` and the module say which run it is, as in `Store.run`; `hp`
        are the module's own hparams unless given, and the keys in `volatile` do not count. `resume`
        is "auto" (continue this run, or begin it), "must" (or raise), "never" (begin another trial
        of it), or a reference to a checkpoint to branch from. `monitor`, `mode`, `save_top_k`,
        `save_last`, `every_n_train_steps`, `every_n_epochs`, `train_time_interval`,
        `save_on_train_epoch_end`, `save_on_exception` and `save_weights_only` are those of
        ModelCheckpoint; instead of `save_top_k` and `save_last`, `keep` takes policies such as
        `KeepLast(3) | KeepBest(2)`, and `budget` is what the run may take on the disk ("50GB").
        `asynchronous=False` waits for each save, `staging` is how much memory copies of the state
        may take, and `quiet` keeps it from writing to standard error.
        """
        super().__init__()
        if not isinstance(resume, str):
            raise BadOption(f"resume is one of {', '.join(MODES)} or a reference, not {resume!r}")
        self.store: Final = store_of(store)
        self._given = (name, hp, data, trial, volatile)
        self._resume = resume
        self.monitor = monitor
        self.mode = mode
        self._best = Best(monitor, mode)
        if save_top_k is None and keep is None:
            save_top_k = 1
        last = True if save_last == "link" else save_last
        told = translate({"save_top_k": save_top_k, "save_last": last}, monitor, mode, keep)
        self._retention = retention(told.keep, budget, monitor, mode)
        self._steps, self._epochs = _triggers(
            every_n_train_steps, every_n_epochs, train_time_interval
        )
        self._interval = train_time_interval
        self._on_epoch_end = save_on_train_epoch_end
        self._on_exception = save_on_exception
        self._weights_only = save_weights_only
        self._asynchronous = asynchronous
        self._staging = as_bytes(staging, "staging")
        self._quiet = quiet
        self._run: TrainerRun | None = None
        """On rank 0 alone."""
        self._resumed: Resumed | None = None
        self._report: ResumeReport | None = None
        self._is_due = False
        """Whether a save waits for the end of the validation, or of the epoch."""
        self._saved: int | None = None
        """The step that was saved last, or resumed from."""
        self._checked_at = 0.0
        self._loaders: list[Any] = []
        """Where the loaders stood after the last batch that is done."""

    # Beginning

    def setup(self, trainer: Any, pl_module: Any, stage: str) -> None:
        """Find the run, and hand Lightning its last checkpoint to restore."""
        check_trainer(trainer)
        io = trainer.strategy.checkpoint_io
        if not isinstance(io, ReferenceIO):
            trainer.strategy.checkpoint_io = ReferenceIO(io)
        if stage != "fit" or trainer.fast_dev_run:
            return
        check_strategy(trainer)
        self._best = Best(self.monitor, self.mode)
        self._resumed, self._report, self._saved, self._is_due = None, None, None, False
        place = on_root(trainer, lambda: self._begin(pl_module))
        if place is not None:
            run, step = place
            found = self._resumed.state if self._resumed else load_state(self.store, run, step)
            self._resumed = Resumed(f"{run}@{step}", found)
            try:
                self._resumed.hand_over(trainer)
            except StandfastError:
                self._close()
                raise

    def _begin(self, module: Any) -> tuple[str, int] | None:
        """On rank 0: take the run; returns the checkpoint that it goes on from."""
        self._close()
        self._run = TrainerRun(
            self.store, self._settings(module), self._best, self._retention, self._say
        )
        found = self._run.begin(self._resume, self._asynchronous, self._staging)
        if found is None:
            return None
        self._resumed = Resumed(found.checkpoint.ref, found.state)
        return found.checkpoint.head.run, found.checkpoint.step

    def _settings(self, module: Any) -> Settings:
        name, hp, data, trial, volatile = self._given
        if hp is None and module.hparams:
            hp = dict(module.hparams)
        label = program_name() if hp is None and data is None else None
        return Settings(name, hp, module, data, trial, volatile, label)

    def on_load_checkpoint(self, trainer: Any, pl_module: Any, checkpoint: dict[str, Any]) -> None:
        """See which checkpoint is restored: it is another one if `ckpt_path` was given."""
        if trainer.state.fn != library.trainer.states.TrainerFn.FITTING:
            return
        if self._resumed is None or checkpoint is not self._resumed.state:
            self._resumed = Resumed(str(trainer.ckpt_path), checkpoint, is_given=True)
        self._resumed.is_restored = True

    def on_fit_start(self, trainer: Any, pl_module: Any) -> None:
        """See that Lightning has restored what it was handed."""
        if self._resumed is not None and not self._resumed.is_restored:
            self._close()
            path = f"{SCHEME}{folder_of(self.store)}#{self._resumed.ref}"
            raise NotOpen(
                f"Lightning {library.__version__} did not restore {self._resumed.ref}, which it "
                f"was handed: call trainer.fit(…, ckpt_path={path!r})"
            )

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        """Put back what Lightning does not: positions of loaders, and last the random states."""
        self._checked_at = time.monotonic()
        if trainer.fast_dev_run:
            return
        inexact: list[str] = []
        resumed, self._resumed = self._resumed, None
        if resumed is not None:
            self._saved = None if resumed.is_given else trainer.global_step
            inexact = resumed.finish(trainer)
        self._loaders = loader_states(trainer, STEP)
        if self._run is not None:
            self._report = _report(self._run, resumed, trainer, inexact)
            self._say(str(self._report))

    # When

    def on_train_batch_end(
        self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """Save if a step or a time is due; behind a validation or an epoch that ends, after it."""
        if trainer.fast_dev_run:
            return
        self._loaders = loader_states(trainer, STEP)
        if self._run is not None:
            self._run.check()
        if self._is_due_now(trainer):
            self._is_due = True
        if is_accumulating(trainer) or ends_epoch(trainer) or validates_next(trainer):
            return
        self._save_if_due(trainer, STEP)

    def _is_due_now(self, trainer: Any) -> bool:
        step = trainer.global_step
        if step == self._saved:
            return False
        if self._steps and step % self._steps == 0:
            return True
        if step == trainer.max_steps and not self._weights_only:
            return True  # the last one; after an epoch that is cut short it could not be continued
        if trainer.world_size == 1 and trainer.received_sigterm:
            return True
        if self._interval is None:
            return False
        late = time.monotonic() - self._checked_at >= self._interval.total_seconds()
        if on_root(trainer, lambda: late):
            self._checked_at = time.monotonic()
            return True
        return False

    def on_validation_end(self, trainer: Any, pl_module: Any) -> None:
        """Save if it is due, with the metrics of the validation."""
        fitting = trainer.state.fn == library.trainer.states.TrainerFn.FITTING
        if not fitting or trainer.sanity_checking or trainer.fast_dev_run:
            return
        if self._follows_validation(trainer) and self._is_epoch_due(trainer):
            self._is_due = True
        if not ends_epoch(trainer) and not is_accumulating(trainer):
            self._save_if_due(trainer, STEP)

    def on_train_epoch_end(self, trainer: Any, pl_module: Any) -> None:
        """Save if it is due; all of the epoch is in it, what Lightning does after this hook too."""
        if trainer.fast_dev_run:
            return
        if not self._follows_validation(trainer) and self._is_epoch_due(trainer):
            self._is_due = True
        self._save_if_due(trainer, EPOCH)

    def on_train_end(self, trainer: Any, pl_module: Any) -> None:
        """Save the last state, if it is not saved."""
        if not trainer.fast_dev_run and trainer.global_step:
            self._is_due = True
            self._save_if_due(trainer, EPOCH, ended=True)

    def on_exception(self, trainer: Any, pl_module: Any, exception: BaseException) -> None:
        """Save if it is asked for, or if the program was told to end; commit what was saved."""
        if self._run is None:
            return
        told_to_end = type(exception).__name__ == "SIGTERMException"
        try:
            if (
                (self._on_exception or told_to_end)
                and not trainer.sanity_checking
                and trainer.fit_loop._combined_loader is not None
                and trainer.global_step
                and trainer.global_step != self._saved
            ):
                self._save(trainer, EXCEPTION)
        except StandfastError as error:
            exception.add_note(f"besides, the state could not be saved: {error}")
        try:
            self._close()
        except StandfastError as error:
            exception.add_note(f"besides, a save failed: {error}")

    def teardown(self, trainer: Any, pl_module: Any, stage: str) -> None:
        """Return when all is committed, and let others have the run."""
        if stage != "fit":
            return
        if self._run is not None and self._resumed is not None:
            self._say(f"nothing is left to do after {self._resumed.ref}")
        self._resumed = None
        self._close()

    def _follows_validation(self, trainer: Any) -> bool:
        if self._on_epoch_end is not None:
            return not self._on_epoch_end
        return validates_within_epochs(trainer)

    def _is_epoch_due(self, trainer: Any) -> bool:
        return bool(self._epochs) and (trainer.current_epoch + 1) % self._epochs == 0

    # Saving

    def _save_if_due(self, trainer: Any, kind: str, ended: bool = False) -> None:
        if self._is_due and trainer.global_step != self._saved:
            self._save(trainer, kind, ended)
        self._is_due = False

    def _save(self, trainer: Any, kind: str, ended: bool = False) -> None:
        """Save the state of the trainer; all ranks call it, but after an exception."""
        plateaus = plateau_steps(trainer) if kind == EPOCH and not ended else []
        checkpoint = trainer._checkpoint_connector.dump_checkpoint(self._weights_only)
        # After that: hooks of the program may have drawn.
        loaders = self._loaders if kind == EXCEPTION else loader_states(trainer, kind)
        own = {"random": randomness.capture(), "loaders": loaders}
        ranks = [own] if kind == EXCEPTION else gathered(trainer, own)
        step = self._saved = trainer.global_step
        if self._run is None:
            return
        if kind == EPOCH:
            complete_epoch(checkpoint)
        logged = dict(trainer.callback_metrics)
        extra = Extra(kind, ranks, trainer.world_size, plateaus, logged)
        checkpoint[EXTRA] = extra.tree()
        numbers = {name: value.item() for name, value in logged.items()}
        self._run.save(step, checkpoint, numbers, trainer.current_epoch)

    def wait(self) -> None:
        """Return when everything that was saved is committed; raises what went wrong."""
        if self._run is not None:
            self._run.wait()

    def _close(self) -> None:
        if self._run is not None:
            self._run.close()

    def _say(self, text: str) -> None:
        if not self._quiet:
            print(text, file=sys.stderr, flush=True)

    # What is known

    @property
    def resume_report(self) -> ResumeReport | None:
        """How the run began, and whether it continues exactly; None before, and on other ranks."""
        return self._report

    @property
    def last_model_path(self) -> str:
        """A reference to the checkpoint that was committed last, which Lightning takes as a path.

        Empty if there is none, and on other ranks than 0.
        """
        return self._reference(self._run.last if self._run else None)

    @property
    def best_model_path(self) -> str:
        """The same to the best by `monitor`, or without one to the last."""
        return self._reference(self._best.step) if self.monitor else self.last_model_path

    @property
    def best_model_score(self) -> float | None:
        """The metric of the best."""
        return self._best.value

    def _reference(self, step: int | None) -> str:
        found = self._run.checkpoint(step) if self._run else None
        return "" if found is None else reference(found, self.store)


def _triggers(
    every_n_train_steps: int | None,
    every_n_epochs: int | None,
    train_time_interval: timedelta | None,
) -> tuple[int, int]:
    """After how many steps, and after how many epochs, a save is due; 0 for never."""
    given = {
        "every_n_train_steps": every_n_train_steps,
        "every_n_epochs": every_n_epochs,
        "train_time_interval": train_time_interval,
    }
    for name in ("every_n_train_steps", "every_n_epochs"):
        value = given[name]
        if value is not None and (type(value) is not int or value < 0):
            raise BadOption(f"{name} is a whole number from 0, not {value!r}")
    if train_time_interval is not None and not isinstance(train_time_interval, timedelta):
        raise BadOption(f"train_time_interval is a timedelta, not {train_time_interval!r}")
    said = [name for name, value in given.items() if value is not None and value != 0]
    if len(said) > 1:
        raise BadOption(f"{' and '.join(said)} cannot go together: make two callbacks")
    if all(value is None for value in given.values()):
        return 0, 1
    return every_n_train_steps or 0, every_n_epochs or 0


def _report(
    run: TrainerRun, resumed: Resumed | None, trainer: Any, inexact: list[str]
) -> ResumeReport:
    assert run.run is not None
    notes = run.beginning.notes if run.beginning else ()
    if resumed is None:
        return ResumeReport(run.run.hash, run.run.name, notes=notes)
    return ResumeReport(
        run=run.run.hash,
        name=run.run.name,
        step=trainer.global_step,
        epoch=trainer.current_epoch,
        ref=resumed.ref,
        branched=resumed.is_given or resumed.ref.partition("@")[0] != run.run.hash,
        inexact=inexact,
        notes=notes,
    )
