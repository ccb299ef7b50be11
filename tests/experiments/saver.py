"""A program that saves until it is killed: `python -m tests.experiments.saver ROOT LR FIRST`.

Its model is a dict of arrays: to import torch would take longer than all its saves.
"""

import sys

import numpy as np

from standfast.experiments import get_checkpoint_system, watch

SIZE = 1 << 18
"""Numbers; a kill shall often come in the middle of a save."""


def main(root: str, lr: float, first: int) -> None:
    model = {"weight": np.zeros(SIZE)}
    watch(model=model, hyperparameters={"lr": lr})
    system = get_checkpoint_system(root, checkpoint_frequency=1)
    for step in range(first, first + 10_000):
        model["weight"][:] = step
        system.on_training_step(step)
        print(step, flush=True)


if __name__ == "__main__":
    main(sys.argv[1], float(sys.argv[2]), int(sys.argv[3]))
