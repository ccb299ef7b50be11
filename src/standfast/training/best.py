"""The best checkpoint of a run, by one of its metrics."""

from __future__ import annotations

import math
from collections.abc import Mapping
from contextlib import suppress
from typing import Any, Final

from standfast.errors import BadOption, StandfastError
from standfast.policies import Mode
from standfast.store import Run

_MODES: Final = ("min", "max")


class Best:
    """The value to beat: only a strictly better one does, and NaN never."""

    def __init__(self, monitor: str | None, mode: Mode) -> None:
        if mode not in _MODES:
            raise BadOption(f"mode is 'min' or 'max', not {mode!r}")
        self.monitor: Final = monitor
        self.mode: Final = mode
        self._sign = 1 if mode == "min" else -1
        self.value: float | None = None
        self.step: int | None = None
        self.is_known = False
        """Whether any checkpoint has the metric."""

    def is_beaten(self, metrics: Mapping[str, Any]) -> bool:
        """Whether a checkpoint with these metrics would be the best."""
        value = metrics.get(self.monitor) if self.monitor else None
        self.is_known |= value is not None
        if value is None or math.isnan(value):
            return False
        return self.value is None or self._sign * value < self._sign * self.value

    def take(self, step: int, metrics: Mapping[str, Any]) -> bool:
        """Let a committed checkpoint be the best, if it is."""
        beaten = self.is_beaten(metrics)
        if beaten and self.monitor:
            self.value, self.step = metrics[self.monitor], step
        return beaten

    def recall(self, run: Run, step: int) -> None:
        """Take in what a run has that goes on after a step; its best is marked by this metric."""
        if self.monitor is None:
            return
        checkpoints = {each.step: each for each in run.checkpoints() if each.step <= step}
        for checkpoint in checkpoints.values():
            with suppress(StandfastError, TypeError):  # sealed by somebody, and no number
                self.take(checkpoint.step, checkpoint.metrics)
        marked = run.store.index.best(run.hash)
        if self.step is not None and (marked is None or marked.step != self.step):
            checkpoints[self.step].add_metrics({}, best=True)  # another metric decided before
