"""The checkpoint system: one for a process, which saves what is watched as training goes on."""

from __future__ import annotations

import os
import threading
from pathlib import Path
from typing import Any, Final

from standfast.errors import BadOption, NotOpen
from standfast.experiments.manager import CheckpointManagerV2
from standfast.experiments.registry import watch, watched
from standfast.experiments.store import as_step

DEFAULT_FREQUENCY: Final = 100

Updated = tuple[str, bool, set[str]]
"""What `CheckpointManagerV2.update_experiment_hash` returns."""


class CheckpointSystem:
    """Saves what is watched every so many steps; `get_checkpoint_system` makes it.

    >>> watch(model=model, optimizer=optimizer, hyperparameters=config)
    >>> system = get_checkpoint_system("experiments", checkpoint_frequency=100)
    >>> system.on_training_step(step)
    """

    def __init__(self, root_log_dir: str | os.PathLike[str], checkpoint_frequency: int) -> None:
        self.checkpoint_frequency: Final = as_step(checkpoint_frequency, "checkpoint_frequency")
        if self.checkpoint_frequency < 1:
            raise BadOption(f"checkpoint_frequency is at least 1, not {checkpoint_frequency}")
        self.manager: Final = CheckpointManagerV2(root_log_dir)
        self.manager.check_writable()  # now, rather than when the first checkpoint is due
        self._step: int | None = None
        self._saved: int | None = None
        self._is_saved = False
        """Whether the step is, as far as it was due."""
        self._events: list[str] = []

    def on_training_step(self, step: int | None = None, force_dump: bool = False) -> Path | None:
        """A step of training is done: write what is pending, and save if the step is due.

        Returns the checkpoint's path once it is committed, None if nothing was due. Without a
        step it is the next, counted on from the latest checkpoint of the experiment. `force_dump`
        writes what the experiment is now, whether it is pending or not.
        """
        step = self._next_step() if step is None else as_step(step)
        if step != self._step:
            self._step, self._is_saved = step, False
        is_due = step % self.checkpoint_frequency == 0 and not self._is_saved
        if is_due and watched.model is None:
            raise NotOpen(
                f"step {step} is to be saved, and no model is watched: call "
                "standfast.experiments.watch(model=…, optimizer=…, hyperparameters=…) first"
            )
        if is_due or force_dump:
            self._look()
        self.manager.dump_pending_changes(force_dump, step=step)
        return self._save(step) if is_due else None

    def on_model_change(self, model: Any = None) -> Updated:
        """The model was changed, or is another from now on."""
        if model is not None:
            watch(model=model)
        return self._look()

    def on_config_change(self, config: Any = None) -> Updated:
        """The hyperparameters were changed, or are others from now on."""
        if config is not None:
            watch(hyperparameters=config)
        return self._look()

    def on_data_change(self, data_state: Any = None) -> Updated:
        """The data state was changed, or is another from now on."""
        if data_state is not None:
            watch(data_state=data_state)
        return self._look()

    def on_model_state_change(self, event: Any) -> Updated:
        """Something happened to the model; the next checkpoint's metadata has it in `events`."""
        self._events.append(str(event))
        return self._look()

    def get_status(self) -> dict[str, Any]:
        """Where the system stands."""
        has_pending, pending = self.manager.has_pending_changes()
        return {
            "root_log_dir": str(self.manager.root_log_dir),
            "checkpoint_frequency": self.checkpoint_frequency,
            "step": self._step,
            "last_saved_step": self._saved,
            "exp_hash": self.manager.current_exp_hash,
            "has_pending_changes": has_pending,
            "pending_components": pending,
            "watched": watched.names(),
        }

    def close(self) -> None:
        """End it, and forget what is watched; the next `get_checkpoint_system` makes another."""
        self.manager.close()
        watched.forget()
        _the_system.forget(self)

    def _next_step(self) -> int:
        if self._step is not None:
            return self._step + 1
        if not watched.names():
            return 1
        self._look()
        return self.manager.get_last_step() + 1

    def _look(self) -> Updated:
        """Tell the manager what is watched, as it is now."""
        return self.manager.update_experiment_hash(
            watched.model, watched.hyperparameters, watched.data_state
        )

    def _save(self, step: int) -> Path:
        path = self.manager.save_model_checkpoint(
            watched.model, step, metadata={"events": self._events} if self._events else None
        )
        self._events = []
        self._saved, self._is_saved = step, True
        return path


class _TheSystem:
    """The one system of this process; a forked process has none."""

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        self._guard = threading.Lock()
        self._system: CheckpointSystem | None = None

    def get(self, root: str | os.PathLike[str], frequency: int | None) -> CheckpointSystem:
        with self._guard:
            if self._system is None:
                every = DEFAULT_FREQUENCY if frequency is None else frequency
                self._system = CheckpointSystem(root, every)
            _check_same(self._system, root, frequency)
            return self._system

    def forget(self, system: CheckpointSystem) -> None:
        with self._guard:
            if self._system is system:
                self._system = None


_the_system: Final = _TheSystem()
os.register_at_fork(after_in_child=_the_system.reset)


def get_checkpoint_system(
    root_log_dir: str | os.PathLike[str], checkpoint_frequency: int | None = None
) -> CheckpointSystem:
    """The checkpoint system of this process, which the first call makes.

    It saves every 100 steps unless a frequency is given. Raises BadOption if the system of this
    process has another root, or another frequency than the one given.
    """
    return _the_system.get(root_log_dir, checkpoint_frequency)


def _check_same(
    system: CheckpointSystem, root: str | os.PathLike[str], frequency: int | None
) -> None:
    there = system.manager.root_log_dir
    if os.path.realpath(root) != os.path.realpath(there):
        raise BadOption(
            f"the checkpoint system of this process saves to {there}, not to {os.fspath(root)}: "
            "close it first, by its close()"
        )
    if frequency not in (None, system.checkpoint_frequency):
        raise BadOption(
            f"the checkpoint system of this process saves every {system.checkpoint_frequency} "
            f"steps, not every {frequency}: close it first, by its close()"
        )
