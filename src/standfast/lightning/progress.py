"""Where a trainer stands between two batches or two epochs, and how one is put there again.

Lightning's own loops go on from a checkpoint that was made after a batch, or after a validation
within an epoch. At the end of an epoch some of what belongs to it comes after the last hook of a
callback, and is lost on resume, and so is the position of a loader: both are made up for here.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

from standfast.errors import BadField

STEP: Final = "step"
"""A batch is done, and its validation if it has one; more of the epoch are to come."""
EPOCH: Final = "epoch"
"""An epoch is done."""
EXCEPTION: Final = "exception"
"""Somewhere: what raised may have been in the middle of a step."""
KINDS: Final = (STEP, EPOCH, EXCEPTION)

_EPOCH_PROGRESS: Final = "epoch_progress"
_POSITION: Final = ("batch", "samples")
"""The fields of a loader's state that say how far it is in its epoch."""


def ends_epoch(trainer: Any) -> bool:
    """Whether the batch that is done is the last of its epoch."""
    return bool(trainer.fit_loop.epoch_loop._num_ready_batches_reached())


def validates_next(trainer: Any) -> bool:
    """Whether a validation comes before the next batch."""
    loop = trainer.fit_loop
    return bool(loop.epoch_loop._should_check_val_fx(loop._data_fetcher))


def is_accumulating(trainer: Any) -> bool:
    """Whether there are gradients that no optimizer has used yet; they are in no checkpoint."""
    automatic = trainer.lightning_module.automatic_optimization
    return automatic and bool(trainer.fit_loop._should_accumulate())


def validates_within_epochs(trainer: Any) -> bool:
    """Whether what is saved once an epoch follows the validations rather than the epochs.

    As in ModelCheckpoint: if there are validations, but not one at the end of each epoch.
    """
    if getattr(trainer, "_val_check_time_interval", None) is not None:
        return True
    if trainer.check_val_every_n_epoch != 1:
        return True
    batches = trainer.num_val_batches
    if not (sum(batches) if isinstance(batches, list) else batches):
        return False
    return bool(trainer.val_check_interval != 1.0)


# Out


def complete_epoch(checkpoint: dict[str, Any]) -> None:
    """Let a checkpoint say that the epoch is over, which Lightning counts after its last hook."""
    progress = checkpoint["loops"]["fit_loop"][_EPOCH_PROGRESS]
    for counts in (progress["total"], progress["current"]):
        counts["completed"] = counts["processed"]


def plateau_steps(trainer: Any) -> list[list[Any]]:
    """The steps of schedulers that wait for a metric, to be made after the last hook of an epoch.

    Each is the number of the scheduler, and the metric.
    """
    loop = trainer.fit_loop.epoch_loop
    if not trainer.lightning_module.automatic_optimization or not ends_epoch(trainer):
        return []
    return [
        [number, loop._get_monitor_value(config.monitor)]
        for number, config in enumerate(trainer.lr_scheduler_configs)
        if config.reduce_on_plateau
        and config.interval == "epoch"
        and (trainer.current_epoch + 1) % config.frequency == 0
        and loop._get_monitor_value(config.monitor) is not None
    ]


def loader_states(trainer: Any, kind: str) -> list[Any]:
    """Where the training's loaders stand; None for those that do not know."""
    return [_position(loader, kind) if _counts(loader) else None for loader in _loaders(trainer)]


def _position(loader: Any, kind: str) -> dict[str, Any]:
    state: dict[str, Any] = loader.state_dict()
    if kind == EPOCH and loader.in_epoch:  # its iterator has not seen the end
        start: dict[str, Any] = {name: 0 for name in _POSITION if name in state}
        return {**state, "epoch": state["epoch"] + 1, **start}
    return state


def is_resumable(trainer: Any) -> bool:
    """Whether all loaders of the training can go on in the middle of an epoch."""
    return all(
        hasattr(each, "state_dict") and hasattr(each, "load_state_dict")
        for each in _loaders(trainer)
    )


def _loaders(trainer: Any) -> Iterator[Any]:
    combined = trainer.fit_loop._combined_loader
    return iter(() if combined is None else combined.flattened)


def _counts(loader: Any) -> bool:
    """Whether it is a ResumableLoader, which follows its position from the next batch on."""
    return hasattr(loader, "in_epoch") and hasattr(loader, "load_state_dict")


# Back


def go_on(trainer: Any, kind: str) -> None:
    """Let the loops of a trainer, which Lightning has restored, begin with what comes next."""
    loop = trainer.fit_loop
    # Else Lightning would take the rest of the epoch for one in which no metric is known.
    loop._restarting = False
    if kind == EPOCH:
        loop.epoch_loop.restarting = False
        loop.reset_restart_stage()
        loop.epoch_loop.reset_restart_stage()


def begin_data(trainer: Any, kind: str, states: Any) -> None:
    """Put the loaders where they were; at the beginning of an epoch, let them begin it again.

    The latter after the random states are put back: what shuffles draws from them.
    """
    loaders = list(_loaders(trainer))
    if states is not None:
        if not isinstance(states, list) or len(states) != len(loaders):
            found = len(states) if isinstance(states, list) else 0
            raise BadField(
                f"the checkpoint has the positions of {found} loaders, and the training has "
                f"{len(loaders)}"
            )
        for loader, state in zip(loaders, states, strict=True):
            if state is not None and _counts(loader):
                loader.load_state_dict(state)
    if kind == EPOCH and trainer.fit_loop._data_fetcher is not None:
        iter(trainer.fit_loop._data_fetcher)


def step_plateaus(trainer: Any, steps: Any) -> None:
    """Make the steps that `plateau_steps` told of."""
    configs = trainer.lr_scheduler_configs
    for step in steps:
        if not isinstance(step, list) or len(step) != 2 or step[0] not in range(len(configs)):
            raise BadField("the checkpoint has steps of schedulers that the training has not")
        progress = trainer.fit_loop.epoch_loop.scheduler_progress
        progress.increment_ready()
        trainer.lightning_module.lr_scheduler_step(configs[step[0]].scheduler, step[1])
        progress.increment_completed()
