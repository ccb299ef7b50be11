"""A program, run with `-m`, that saves in the background until it is killed."""

from __future__ import annotations

import sys
import time
from typing import Any

import numpy as np

from standfast import Run, Store
from standfast.training.background.background import Background

MIB = 1 << 20


def state(step: int, size: int) -> dict[str, Any]:
    """What is saved at a step: everything in it tells which."""
    values = np.arange(size // 8, dtype=np.int64) * (step + 1)
    return {"model": {"weight": values, "bias": np.full(5, step)}, "step": step}


def is_sound(run: Run, size: int) -> int:
    """The latest step, every bit of which was compared with what was saved."""
    found = run.load("latest")
    step: int = found["step"]
    expected = state(step, size)
    assert found["model"]["weight"].tobytes() == expected["model"]["weight"].tobytes()
    assert found["model"]["bias"].tobytes() == expected["model"]["bias"].tobytes()
    return step


def main(folder: str, how: str, size: int) -> None:
    run = Store(folder).run("killed")
    with run:
        background = Background(run)
        first = 1 + max([0, *run.store.index.steps(run.hash)])
        background.save(state(first, size), first)
        background.wait()
        assert background._helpers.current is not None
        print(background._helpers.current.number, flush=True)
        if how == "forget":
            background.save(state(first + 1, size), first + 1)
            return
        for step in range(first + 1, first + 1000):
            background.save(state(step, size), step)
            if how == "once":
                print("saving", flush=True)
                time.sleep(60)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]))
