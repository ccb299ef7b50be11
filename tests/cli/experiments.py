"""A store whose runs came from each other, for the commands that compare and list them."""

from pathlib import Path
from typing import Any

import numpy as np

import standfast
from standfast import Store

HP = {"lr": 0.1, "optimizer": {"name": "adam", "betas": [0.9, 0.99]}, "version": "1.0"}
DATA = {"uids": list(range(20)), "discarded": [3], "tags": {5: ["hard"]}}


def model(width: int) -> dict[str, Any]:
    return {"layer": {"weight": np.zeros((width, 4), np.float32)}, "bias": np.zeros(2)}


def make_run(
    store: Store,
    name: str,
    steps: range,
    hp: Any = HP,
    *,
    width: int = 3,
    data: Any = DATA,
    parent: standfast.Checkpoint | None = None,
) -> standfast.Run:
    """A run with a loss that falls, and an accuracy that rises, from step to step."""
    run = store.run(name, hp=hp, model=model(width), data=data, parent=parent)
    with run:
        for step in steps:
            state = {"model": model(width), "step": step}
            metrics = {"loss": 100 / step, "accuracy": 1 - 10 / step}
            run.save(step, state, metrics, best=step == steps[-1])
    return run


def make_experiments(path: Path) -> Store:
    """`base`, its branches `low` and `wide`, the branch `less` of `low`, two runs `sweep`."""
    store = Store(path)
    base = make_run(store, "base", range(100, 500, 100))
    slow, middle = {**HP, "lr": 0.01}, base.checkpoint(200)
    low = make_run(store, "low", range(300, 500, 100), slow, parent=middle)
    make_run(store, "wide", range(300, 400, 100), width=5, parent=middle)
    fewer = {"uids": list(range(5, 22)), "discarded": [3, 9], "tags": {5: ["hard", "dog"]}}
    last = low.checkpoint(400)
    make_run(store, "less", range(500, 600, 100), slow, data=fewer, parent=last)
    for lr in (0.3, 1):
        make_run(store, "sweep", range(10, 40, 10), {**HP, "lr": lr, "warm": {"up": True}})
    store.run("empty", hp={"lr": 5})
    return store
