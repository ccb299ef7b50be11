"""Where a loader is in its epoch."""

from __future__ import annotations

from typing import Any

from standfast.training.state import TrainingState, parts_of


def has_loader(state: TrainingState) -> bool:
    """Whether a loader is part of the state."""
    return any(is_loader(part.value) for part in parts_of(state).values())


def positions(state: TrainingState) -> list[Any]:
    """Where the loaders of the state are: another answer if one of them has moved."""
    values = [part.value for part in parts_of(state).values() if is_loader(part.value)]
    return [
        (value.epoch, value.batch) if hasattr(value, "in_epoch") else repr(value.state_dict())
        for value in values
    ]


def count_in_epoch(state: TrainingState) -> int:
    """How many loaders have begun an epoch and not ended it."""
    return sum(_in_epoch(part.value) for part in parts_of(state).values())


def in_epoch(state: TrainingState) -> bool:
    """Whether some loader of the state has begun an epoch and not ended it.

    One that has handed out its last batch is still in the epoch until its loop has seen the end.
    """
    return count_in_epoch(state) > 0


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
