"""A program, run with `-m`, that saves in the background until it is killed."""

import itertools
import sys
import time
from typing import Any

import numpy as np

from standfast import Run, Store
from standfast.training.background.background import Background

MIB = 1 << 20


def state(step: int, size: int) -> dict[str, Any]:
    """What is saved at a step: everything in it depends on the step."""
    values = np.arange(size // 8, dtype=np.int64) * (step + 1)
    return {"model": {"weight": values, "bias": np.full(5, step)}, "step": step}


def sound_step(run: Run, size: int) -> int:
    """The latest step, every bit of which was compared with what was saved."""
    found = run.load("latest")
    step: int = found["step"]
    for name, values in state(step, size)["model"].items():
        assert found["model"][name].tobytes() == values.tobytes()
    return step


def helper(background: Background) -> int:
    """The number of the helper process, once there is one."""
    deadline = time.monotonic() + 60
    while background._helpers.current is None:
        assert time.monotonic() < deadline
        time.sleep(0.001)
    return background._helpers.current.number


def main(folder: str, how: str, size: int) -> None:
    with Store(folder).run("killed") as run:
        background = Background(run)
        first = 1 + max([0, *run.store.index.steps(run.hash)])
        background.save(state(first, size), first)
        background.wait()
        print(helper(background), flush=True)
        for step in itertools.count(first + 1):
            background.save(state(step, size), step)
            if how == "forget":
                return
            if how == "once":
                print("saving", flush=True)
                sys.stdin.read()


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]))
