"""Two states, an old and a new one, of several blocks each when blocks are small."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np

import standfast

SMALL_BLOCK = 8192


def _state(seed: int) -> dict[str, np.ndarray[Any, Any]]:
    random = np.random.default_rng(seed)
    return {
        "weight": random.standard_normal((50, 100)).astype(np.float32),
        "bias": random.standard_normal(333),
        "mask": random.integers(0, 2, 777).astype(bool),
    }


OLD = _state(1)
NEW = _state(2)


def is_state(path: Path, state: dict[str, np.ndarray[Any, Any]]) -> bool:
    loaded = standfast.load(path)
    return list(loaded) == list(state) and all(
        np.array_equal(loaded[name], state[name]) for name in state
    )


def leftovers(path: Path) -> list[str]:
    return [name for name in os.listdir(path.parent) if name != path.name]
