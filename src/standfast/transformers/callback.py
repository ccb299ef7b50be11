"""Hugging Face Transformers: a callback by which a Trainer saves into a store, and resumes from it.

docs/coming-from/transformers.md says how it is used, and what is exact.
"""

from __future__ import annotations

import atexit
import dataclasses
import math
import os
import sys
from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any, Final

import torch.distributed
from transformers import Trainer, TrainerCallback
from transformers.trainer_utils import IntervalStrategy, SaveStrategy

from standfast.conventions import translate
from standfast.errors import BadLabel, BadOption, NotOpen, RefNotFound
from standfast.policies import Mode, Policies, Policy, as_bytes, retention
from standfast.schedule import Schedule, cadence
from standfast.store import Checkpoint, Run, Store
from standfast.store.schema import names
from standfast.tensors.frameworks import unwrapped
from standfast.training.beginning import Settings, program_name, store_of
from standfast.training.checkpointer import VOLATILE
from standfast.training.saves import SaveSettings
from standfast.transformers.folder import Shelter, write_folder
from standfast.transformers.session import Origin, Session, Wishes, run_for, steps_of
from standfast.transformers.state import State, arguments, gathered, of_ranks
from standfast.transformers.trainer import (
    check_fits,
    refuse,
    restore_losses,
    take_over,
    trainer_above,
)

__all__ = ["StandfastCallback"]

_PREFIX: Final = "eval_"
_NUMBERS: Final = (int, float)


@dataclass(frozen=True)
class _Made:
    """A folder that was made of a checkpoint."""

    path: str
    ref: str
    is_latest: bool
    model_only: bool


class StandfastCallback(TrainerCallback):
    """Saves a Trainer's training into a store, in the background, and continues it exactly.

    >>> keeper = StandfastCallback("experiments")
    >>> trainer = Trainer(..., callbacks=[keeper])
    >>> trainer.train(resume_from_checkpoint=keeper.latest())  # None if there is none yet
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
        every: int | str | timedelta | Schedule | None = None,
        monitor: str | None = None,
        mode: Mode | None = None,
        keep: Policy | Policies | None = None,
        budget: int | float | str | None = None,
        asynchronous: bool = True,
        overlap: bool = True,
        staging: int | float | str | None = None,
        quiet: bool = False,
    ) -> None:
        """What is not said here is taken from the TrainingArguments.

        `name`, `hp`, `data` and `trial` say which run it is, as in `Store.run`; without them it
        is called as the last folder of `output_dir`. Without `every`, a save is made whenever the
        Trainer would make one (`save_strategy`, `save_steps`); with it, these do not count. It is
        a number of steps, a time ("10min"), a share of the time ("3%") or a Schedule. `monitor`
        and `mode` stand for `metric_for_best_model` and `greater_is_better`, `keep` for
        `save_total_limit`. All else is as in `Checkpointer`.
        """
        self.store: Final = store_of(store)
        self._name = name
        self._hp = hp
        self._data = data
        self._trial = trial
        self._volatile = volatile
        self._every = every
        self._cadence = cadence(every)
        self._monitor = monitor
        self._mode = mode
        self._keep = keep
        self._budget = budget
        self._saving = SaveSettings(asynchronous, overlap, as_bytes(staging, "staging"))
        self._quiet = quiet
        self._trainer: Trainer | None = None
        self._state: State | None = None
        self._session: Session | None = None
        self._shelter: Shelter | None = None
        self._made: _Made | None = None
        """The folder to resume from that was made last."""
        self._spent: Path | None = None
        """The folder that the training goes on from, until it has."""
        self._epoch_is_over = False
        self._owes_save = False
        """Whether the last step of an epoch waits for what comes at its end."""
        self._is_first = False
        self._held = 0.0

    # Before the training

    def attach(self, trainer: Trainer) -> None:
        """Save this Trainer's training; one that was made with the callback is known already."""
        if self._trainer is trainer:
            return
        if self._session is not None:
            raise NotOpen("this callback saves the training of another Trainer: make another one")
        take_over(trainer, self._save_checkpoint, self._load_best_model)
        self._trainer = trainer

    def latest(self) -> str | None:
        """The newest intact checkpoint as a folder to resume from; None if there is none yet.

        If a newer one is damaged, a FellBack warning says so. The folder is this process's own,
        and goes when the training has gone on from it, or the program ends. Of several ranks, all
        must call it.
        """
        return self._shared(lambda: self._written_if_there("latest"))

    def best(self) -> str | None:
        """The best checkpoint as a folder, as `latest` gives it; None if there is none yet."""
        return self._shared(lambda: self._written_if_there("best"))

    def folder(self, ref: int | str = "latest", *, model_only: bool = False) -> str:
        """Any checkpoint as a folder: of a step, a tag, `latest` or `best`, or "RUN@STEP".

        Every byte is verified while it is read. One of another run makes a training that goes on
        from it a branch. With `model_only` it has what `from_pretrained` reads, and no more.
        """
        path = self._shared(lambda: self._written(ref, model_only))
        assert path is not None
        return path

    def _shared(self, write: Callable[[], _Made | None]) -> str | None:
        """What the first rank of a machine has written, on all of its ranks; collective."""
        made = write() if _local_rank() == 0 else None
        if _ranks() > 1:
            made = gathered(made, _ranks())[_rank() - _local_rank()]
        if made is not None and not made.model_only:
            self._made = made
        return None if made is None else made.path

    def _written_if_there(self, ref: str) -> _Made | None:
        known = self._known()
        if known is None or not steps_of(known):
            return None
        with suppress(RefNotFound):  # none is the best
            return self._written(ref, False)
        return None

    def _written(self, ref: int | str, model_only: bool) -> _Made:
        if self._shelter is None:
            self._shelter = Shelter(self.store)
            atexit.register(self._shelter.close)
        shelter = self._shelter.path

        def write(checkpoint: Checkpoint) -> tuple[Path, Checkpoint]:
            if self._trainer is not None:
                check_fits(self._trainer, checkpoint)
            return write_folder(checkpoint, shelter, model_only=model_only), checkpoint

        known = self._known()
        if isinstance(ref, str) and "@" in ref:
            path, checkpoint = write(self.store.resolve(ref))
        elif known is None:
            raise RefNotFound(f"{self.store.url}: no run has this identity yet")
        else:
            path, checkpoint = known.with_checkpoint(ref, write)
        return _Made(str(path), checkpoint.ref, ref == "latest", model_only)

    def _known(self) -> Run | None:
        return self._settings().known(self.store, self._trial)

    def _settings(self) -> Settings:
        name = self._name
        if name is None and self._hp is None and self._data is None:
            if self._trainer is None:
                raise NotOpen(
                    "which run it is, is known once the Trainer has this callback: make the "
                    "Trainer first, or give the callback a name"
                )
            name = _label(self._trainer.args.output_dir)
        return Settings(name, self._hp, None, self._data, self._trial, self._volatile)

    # While it is saved

    @property
    def run(self) -> Run:
        """The run that is saved into, or was; raises NotOpen before the training has begun."""
        known = self._known() if self._session is None else self._session.run
        if known is None:
            raise NotOpen("the run is there once the training has begun")
        return known

    @property
    def held(self) -> float:
        """The seconds that saves have held the training up so far, or did the last one."""
        return self._held if self._session is None else self._session.held

    def wait(self) -> None:
        """Return when everything that was saved is committed; raises what went wrong."""
        if self._session is not None:
            self._session.wait()

    def close(self) -> None:
        """Finish all saves, let others have the run, and remove the folders that were made."""
        session, self._session = self._session, None
        try:
            if session is not None:
                session.close()
        finally:
            if self._shelter is not None:
                self._shelter.close()
                self._shelter = None

    # The events

    def on_init_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """A Trainer has this callback."""
        trainer = trainer_above(self)
        if trainer is not None:
            self.attach(trainer)

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Take the run, and give the Trainer back what its folder does not have."""
        trainer = trainer_above(self) or self._trainer
        if trainer is None:
            raise NotOpen("no Trainer was found: call keeper.attach(trainer) before train()")
        self.attach(trainer)
        refuse(trainer)
        self._check_schedule(args)
        made, self._made, origin = self._made, None, None
        if made is not None and made.ref.endswith(f"@{state.global_step}"):
            self._spent = Path(made.path)
            origin = Origin(self.store.resolve(made.ref), made.is_latest)
            restore_losses(trainer, self._spent)
        self._owes_save = self._epoch_is_over = False
        self._is_first = True
        if state.is_world_process_zero:
            self._begin(trainer, origin)
        if args.load_best_model_at_end and state.best_global_step:
            state.best_model_checkpoint = self._reference(state.best_global_step)

    def _begin(self, trainer: Trainer, origin: Origin | None) -> None:
        if self._session is not None:  # the training before ended by an exception
            session, self._session = self._session, None
            session.close()
        wishes = self._wishes(trainer.args)
        settings, step = self._settings(), trainer.state.global_step
        run = run_for(self.store, settings, step, origin)
        self._state = State(trainer)
        self._session = Session(run, self._state.parts, step, origin, wishes, self._say)
        run.describe(arguments(trainer.args) if self._hp is None else self._hp)
        if trainer.args.world_size == 1:
            self._session.watch_signals()

    def _check_schedule(self, args: Any) -> None:
        if self._every is None:
            return
        if args.save_strategy == SaveStrategy.BEST:
            raise BadOption(f"every={self._every!r} and save_strategy='best': give one of them")
        if args.world_size > 1 and not self._cadence.by_steps:
            raise BadOption(
                f"every={self._every!r}: the clocks of several ranks differ; give a number of steps"
            )

    def _wishes(self, args: Any) -> Wishes:
        """What the arguments of the callback and those of the training come to."""
        told = {"save_total_limit": args.save_total_limit}
        if self._monitor is None and args.metric_for_best_model is not None:
            metric = args.metric_for_best_model
            told["metric_for_best_model"] = (
                metric if metric.startswith(_PREFIX) else _PREFIX + metric
            )
            if self._mode is None:
                told["greater_is_better"] = args.greater_is_better
        meant = translate(told, self._monitor, self._mode, self._keep)
        mode = meant.mode or "min"
        kept = retention(meant.keep, self._budget, meant.monitor, mode)
        # A save that has to be made up for would be known to one of several ranks alone.
        overlap = self._saving.overlap and args.world_size == 1
        saving = dataclasses.replace(self._saving, overlap=overlap)
        return Wishes(self._cadence, meant.monitor, mode, kept, saving)

    def on_epoch_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Saves within it are made at once."""
        self._epoch_is_over = False

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> Any:
        """Say whether this step is saved, where that is for us to say."""
        self._forget_folder()
        if self._every is not None:
            is_last = state.global_step >= state.max_steps
            control.should_save = is_last or self._is_due(state.global_step)
        if self._session is not None:
            if self._session.step_done(self._is_first):
                control.should_save = True
            if self._session.must_stop():
                self._say("a signal asks the training to stop: this step is saved first")
                control.should_save = control.should_training_stop = True
        self._is_first = False
        return control

    def _is_due(self, step: int) -> bool:
        if self._cadence.by_steps:  # as every rank knows
            return self._cadence.is_due(step, 0.0)
        return self._session is not None and self._session.is_due(step)

    def on_epoch_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> Any:
        """Save the last step of an epoch now, so that what came at the end of it is in."""
        self._epoch_is_over = True
        if self._owes_save:
            control.should_save = True
        elif self._session is not None and self._session.must_stop():
            # It is not its end, and what was saved goes on without an evaluation here.
            control.should_log = control.should_evaluate = control.should_save = False
        return control

    def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **kwargs: Any) -> None:
        """Note the metrics of the step."""
        if self._session is not None and isinstance(logs, Mapping):
            metrics = {
                name: value
                for name, value in logs.items()
                if isinstance(value, _NUMBERS) and name != "epoch"
            }
            self._session.note(state.global_step, _epoch(state), metrics)

    def on_train_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Finish everything; raises what went wrong with a save."""
        self._forget_folder()
        session, self._session = self._session, None
        if session is not None:
            session.close()
            self._held = session.held
            if session.best_step is not None:
                state.best_model_checkpoint = f"{session.run.hash}@{session.best_step}"

    # In the place of the Trainer's own methods

    def _save_checkpoint(self, model: Any, trial: Any) -> None:
        """Save, on rank 0; the others hand over their random states."""
        trainer = self._trainer
        assert trainer is not None
        state, args = trainer.state, trainer.args
        if float(state.epoch).is_integer() and not self._epoch_is_over and _has_epoch_ends(args):
            self._owes_save = True
            return
        self._owes_save = False
        trainer.store_flos()
        ranks = of_ranks(trainer)
        if args.load_best_model_at_end and state.best_global_step:
            state.best_model_checkpoint = self._reference(state.best_global_step)
        if self._session is not None and self._state is not None:
            self._state.take(ranks)
            self._session.save(state.global_step, _epoch(state))

    def _load_best_model(self) -> None:
        """Put the weights of the best checkpoint into the model, on every rank."""
        trainer = self._trainer
        assert trainer is not None
        self.wait()
        if _ranks() > 1:
            torch.distributed.barrier()
        known = self._known()
        try:
            if known is None:
                raise RefNotFound(f"{self.store.url}: the run is gone")
            weights = known.load("best", part="model")
        except RefNotFound as error:
            self._say(f"the best model is not loaded, the last one stays: {error}")
        else:
            unwrapped(trainer.model).load_state_dict(weights)
        trainer.state.best_model_checkpoint = None  # the Trainer would look for a folder there

    def _reference(self, step: int) -> str:
        known = self._known()
        return f"{known.hash if known else ''}@{step}"

    def _forget_folder(self) -> None:
        """Remove the folder that the training went on from: it has read all of it."""
        if self._spent is not None and self._shelter is not None:
            self._shelter.remove(self._spent)
        self._spent = None

    def _say(self, text: str) -> None:
        if not self._quiet and _rank() == 0:
            print(text, file=sys.stderr, flush=True)


def _has_epoch_ends(args: Any) -> bool:
    """Whether something is logged or evaluated at the end of an epoch, after its last step."""
    return IntervalStrategy.EPOCH in (args.eval_strategy, args.logging_strategy)


def _epoch(state: Any) -> int:
    """The epoch that a step is of, counted from 1."""
    return max(1, math.ceil(state.epoch or 0))


def _label(output_dir: Any) -> str:
    """What a run is called by default: as the folder of its output."""
    with suppress(BadLabel):
        return names.check_label(Path(os.path.abspath(output_dir)).name, "output_dir")
    return program_name()


def _ranks() -> int:
    is_there = torch.distributed.is_available() and torch.distributed.is_initialized()
    return torch.distributed.get_world_size() if is_there else 1


def _rank() -> int:
    return torch.distributed.get_rank() if _ranks() > 1 else 0


def _local_rank() -> int:
    """Its number among the ranks of this machine, as torchrun gives it."""
    return int(os.environ.get("LOCAL_RANK", "0")) if _ranks() > 1 else 0
