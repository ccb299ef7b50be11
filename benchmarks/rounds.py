"""Interleaved rounds: every contender runs once a round, and ratios are taken within rounds."""

from __future__ import annotations

import random
import statistics
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

Contender = tuple[Callable[[], object], Callable[[], object]]
"""What to do before, off the clock, and what to measure."""


@dataclass(frozen=True)
class Rounds:
    """The seconds that each contender took, round by round."""

    seconds: Mapping[str, list[float]]

    def median(self, name: str) -> float:
        return statistics.median(self.seconds[name])

    def speed_ratio(self, name: str, base: str) -> float:
        """How many times as fast as `base`: the median of the ratios within the rounds."""
        pairs = zip(self.seconds[name], self.seconds[base], strict=True)
        return statistics.median(b / a for a, b in pairs)

    def fastest(self, names: list[str]) -> str:
        return min(names, key=self.median)


def run_rounds(contenders: Mapping[str, Contender], rounds: int) -> Rounds:
    """Let all run, each round in another order: what one leaves behind, another one finds."""
    seconds: dict[str, list[float]] = {name: [] for name in contenders}
    order = random.Random(0)
    for _ in range(rounds):
        for name in order.sample(list(contenders), len(contenders)):
            before, measured = contenders[name]
            before()
            start = time.perf_counter()
            result = measured()
            seconds[name].append(time.perf_counter() - start)
            del result
    return Rounds(seconds)
