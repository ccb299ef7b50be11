"""Steps: what may be one, and which is the nearest."""

from __future__ import annotations

import operator
from collections.abc import Iterable
from typing import Any

from standfast.errors import BadOption


def as_step(value: Any, what: str = "a step") -> int:
    """A whole number as Python has it, which a file can keep; raises BadOption."""
    try:
        if not isinstance(value, bool):
            return operator.index(value)
    except TypeError:
        pass
    raise BadOption(f"{what} is a whole number, not a {type(value).__name__}")


def closest_step(steps: Iterable[int], target: int) -> int:
    """The step nearest to a target; of two that are equally near, the higher."""
    return min(steps, key=lambda step: (abs(step - target), -step))
