"""Small training programs that tests run in their own process."""

from pathlib import Path
from typing import Any

import numpy as np

import standfast


class Walk:
    """A model of NumPy: its weights take random steps, so that every draw shows."""

    def __init__(self, size: int = 4) -> None:
        self.weights = np.zeros(size)
        self.state = standfast.TrainingState(walk={"weights": self.weights, "steps": 0})

    def train(self) -> float:
        self.weights += np.random.standard_normal(self.weights.size)
        self.state.walk["steps"] += 1
        return float(self.weights.sum())


def checkpointer(
    store: Path | standfast.Store, state: Any, **options: Any
) -> standfast.Checkpointer:
    """A quiet one that waits for each save, unless told otherwise."""
    options = {"asynchronous": False, "quiet": True, "every": 10, **options}
    return standfast.Checkpointer(store, state, **options)


def walk(store: Path | standfast.Store, steps: int, **options: Any) -> Walk:
    """A whole run of the program, which is the same whenever it is started."""
    np.random.seed(0)
    program = Walk()
    with checkpointer(store, program.state, **options) as ckpt:
        for step in ckpt.steps(steps):
            ckpt.step(step, value=program.train())
    return program
