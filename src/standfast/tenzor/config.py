"""The settings of a trainer, by the original's names, and the learning rate that follows."""

from __future__ import annotations

import math
import os
from dataclasses import dataclass
from typing import Final, Literal

from standfast.files.paths import check_local
from standfast.tenzor.errors import BadConfig
from standfast.tenzor.metadata import check_text

SCHEDULERS: Final = ("constant", "step", "cosine")


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainerConfig:
    """How long to train, at which learning rates, and where and when to save."""

    epochs: int = 10
    batch_size: int = 64
    learning_rate: float | None = None
    """None leaves each of the optimizer's groups its own, or is 0.01 without an optimizer."""
    scheduler: Literal["constant", "step", "cosine"] = "cosine"
    warmup_steps: int = 0
    """Over so many steps the learning rate rises from almost nothing."""
    min_lr: float = 0.0001
    """Where the cosine ends."""
    total_steps: int = 0
    """Over how many the cosine falls; 0 for all of this training's."""
    step_size: int = 1000
    """After so many steps each `step` multiplies the learning rate by `gamma`."""
    gamma: float = 0.1
    checkpoint_dir: str | os.PathLike[str] | None = None
    """None saves nothing."""
    checkpoint_every: int = 1
    """Every so many epochs, and after the last one; 0 saves only the best."""
    best_by: Literal["accuracy", "loss"] = "accuracy"
    """The best epoch has the highest accuracy in validation, or the lowest loss."""
    early_stopping_patience: int = 0
    """Stop after so many epochs without a new best; 0 never does."""
    seed: int = 42
    model_name: str = "model"

    def __post_init__(self) -> None:
        """Refuse what no training can run with."""
        if self.checkpoint_dir is not None:
            check_local(self.checkpoint_dir)
        if self.scheduler not in SCHEDULERS:
            known = ", ".join(SCHEDULERS)
            raise BadConfig(f"scheduler: expected one of {known}, found {self.scheduler!r}")
        if self.best_by not in ("accuracy", "loss"):
            raise BadConfig(f"best_by: expected accuracy or loss, found {self.best_by!r}")
        check_text("model_name", self.model_name)
        for name in ("epochs", "batch_size", "step_size"):
            _check(name, getattr(self, name), least=1)
        for name in (
            *("warmup_steps", "total_steps", "checkpoint_every"),
            *("early_stopping_patience", "seed"),
        ):
            _check(name, getattr(self, name), least=0)
        if self.learning_rate is not None:
            check_rate("learning_rate", self.learning_rate)
        for name in ("min_lr", "gamma"):
            value = getattr(self, name)
            if not (isinstance(value, int | float) and 0 <= value < math.inf):
                raise BadConfig(f"{name}: expected 0 or more, found {value!r}")


def _check(name: str, value: object, least: int) -> None:
    if type(value) is not int or value < least:
        raise BadConfig(f"{name}: expected a whole number of {least} or more, found {value!r}")


def check_rate(name: str, value: object) -> None:
    """Refuse a learning rate that is not above zero, or not finite."""
    if not isinstance(value, int | float) or not 0 < value < math.inf:
        raise BadConfig(f"{name}: expected a number above 0, found {value!r}")


def learning_rate(config: TrainerConfig, base: float, step: int, fraction: float) -> float:
    """The rate of the step that comes after `step` others.

    `fraction` is how much of the training's steps behind the warm-up is done, for the cosine.

    >>> learning_rate(TrainerConfig(scheduler="constant", warmup_steps=4), 0.1, 1, 0.0)
    0.05
    """
    if step < config.warmup_steps:
        return base * (step + 1) / config.warmup_steps
    if config.scheduler == "step":
        falls = (step - config.warmup_steps) // config.step_size
        return float(base * config.gamma**falls)
    if config.scheduler == "cosine":
        floor = min(config.min_lr, base)
        height = 0.5 * (1 + math.cos(math.pi * min(1.0, fraction)))
        return floor + (base - floor) * height
    return base
