"""Where a loader is in its epoch."""

from __future__ import annotations

from typing import Any

from standfast.training.state import TrainingState, parts_of


def has_loader(state: TrainingState) -> bool:
    """Whether a loader is part of the state."""
    return any(is_loader(part.value) for part in parts_of(state).values())


def positions(state: TrainingState) -> list[Any]:
    """Where the loaders of the state are: another answer if one of them has moved."""
    return [
        (value.epoch, value.batch) if hasattr(value, "in_epoch") else repr(value.state_dict())
        for value in filter(is_loader, (part.value for part in parts_of(state).values()))
    ]


def count_in_epoch(state: TrainingState) -> int:
    """How many loaders have begun an epoch and not ended it."""
    return sum(is_in_epoch(part.value) for part in parts_of(state).values())


def in_epoch(state: TrainingState) -> bool:
    """Whether some loader of the state has begun an epoch and not ended it.

    One that has handed out its last batch is still in the epoch until its loop has seen the end.
    """
    return count_in_epoch(state) > 0


def is_loader(value: Any) -> bool:
    """Whether this hands out batches, and knows how far it is."""
    return hasattr(value, "state_dict") and hasattr(value, "__iter__") and hasattr(value, "dataset")


def is_in_epoch(value: Any) -> bool:
    """Whether this is a loader that has begun an epoch and not ended it."""
    if hasattr(value, "in_epoch"):
        return bool(value.in_epoch)
    # That of torchdata keeps these in its state; with workers, the steps up to a snapshot and on.
    state = value.state_dict() if is_loader(value) else {}
    steps = [state.get("_num_yielded"), state.get("_steps_since_snapshot")]
    steps.append(state.get("_snapshot", {}).get("_snapshot_step"))
    return any(steps) and not state.get("_iterator_finished", True)
