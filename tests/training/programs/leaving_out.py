"""What both training programs share: their arguments, and ways to save too little.

They are scripts, which find this module beside them.
"""

import argparse
import os
import random
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch

import standfast
from standfast.tensors import randomness

GENERATORS = ("python", "numpy", "torch")


def arguments_of(given: Sequence[str] | None, parts: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--every", type=int, default=5)
    parser.add_argument("--stop-at", type=int, help="end after this step, as if all were done")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--wait", action="store_true", help="wait for each save")
    parser.add_argument("--leave-out", choices=parts, help="do not save this, or not all of it")
    return parser.parse_args(given)


def begin_exactly(seed: int) -> None:
    """One thread, and a seed for each generator: on a CPU the same numbers come again then."""
    torch.set_num_threads(1)
    random.seed(seed)
    np.random.seed(seed)
    torch.manual_seed(seed)


@contextmanager
def checkpointer(
    arguments: argparse.Namespace, parts: Mapping[str, Any], hp: Any
) -> Iterator[standfast.Checkpointer]:
    """The Checkpointer of a program, with what is to be left out left out."""
    left_out = arguments.leave_out
    state = {name: part for name, part in parts.items() if name != left_out}
    ckpt = standfast.Checkpointer(
        os.devnull,  # the proof says where
        standfast.TrainingState(**state),
        hp=hp,
        every=arguments.every,
        asynchronous=not arguments.wait,
    )
    with _captured_without(left_out), ckpt:
        yield ckpt


@contextmanager
def _captured_without(generator: str | None) -> Iterator[None]:
    """Save the global random states without one of them; it then is what the program made it."""
    capture = randomness.capture

    def some() -> dict[str, Any]:
        return {name: state for name, state in capture().items() if name != generator}

    randomness.capture = some
    try:
        yield
    finally:
        randomness.capture = capture


class WithoutMoments:
    """An optimizer that saves its settings, and nothing of what it remembers of the gradients."""

    def __init__(self, optimizer: torch.optim.Optimizer) -> None:
        self._optimizer = optimizer

    def state_dict(self) -> dict[str, Any]:
        return {**self._optimizer.state_dict(), "state": {}}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._optimizer.load_state_dict(state)
