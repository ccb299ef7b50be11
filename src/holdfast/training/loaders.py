"""Where a loader is in its epoch."""

from __future__ import annotations

from typing import Any

from holdfast.training.state import TrainingState, parts_of


def has_position(state: TrainingState) -> bool:
    """Whether an epoch can be continued in its middle: a loader is part of the state."""
    return any(is_loader(part.value) for part in parts_of(state).values())


def in_epoch(state: TrainingState) -> bool:
    """Whether some loader of the state has begun an epoch and not ended it.

    One that has handed out its last batch is still in the epoch until its loop has seen the end.
    """
    return any(_in_epoch(part.value) for part in parts_of(state).values())


def is_loader(value: Any) -> bool:
    """Whether this hands out batches, and knows how far it is."""
    return hasattr(value, "state_dict") and hasattr(value, "__iter__") and hasattr(value, "dataset")


def _in_epoch(value: Any) -> bool:
    if hasattr(value, "in_epoch"):
        return bool(value.in_epoch)
    if not is_loader(value):
        return False
    # That of torchdata keeps these in its state.
    state = value.state_dict()
    return bool(state.get("_num_yielded")) and not state.get("_iterator_finished", True)
