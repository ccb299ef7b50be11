"""The learning rate as a function of the step alone, so that a resumed run has the same."""

from __future__ import annotations

import math

from standfast.tenzor.config import TrainerConfig


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
