#!/usr/bin/env python3
"""Trace a save, a load and a resume: which modules and functions each one runs through.

.venv/bin/python tools/way.py          one line each
.venv/bin/python tools/way.py -v       with the modules, in the order of their first call
.venv/bin/python tools/way.py --json   for scripts; tests/test_house.py reads this
"""

import json
import os
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any, NamedTuple

import torch

import standfast

ROOT = os.path.dirname(os.path.abspath(standfast.__file__)) + os.sep


class Way(NamedTuple):
    """What one operation ran through."""

    modules: list[str]
    """In the order of their first call."""
    functions: int
    hops: int
    """Calls from one module into another."""
    depth: int


def trace(action: Callable[[], object]) -> Way:
    """Run the action, and follow its calls on all threads."""
    modules: dict[str, None] = {}
    functions: set[tuple[str, str]] = set()
    hops = depth = 0
    stacks: dict[int, list[str]] = {}
    lock = threading.Lock()

    def watch(frame: FrameType, event: str, _: Any) -> None:
        nonlocal hops, depth
        path = frame.f_code.co_filename
        if not path.startswith(ROOT):
            return
        module = path[len(ROOT) :]
        stack = stacks.setdefault(threading.get_ident(), [])
        if event == "call":
            with lock:
                modules.setdefault(module)
                functions.add((module, frame.f_code.co_qualname))
                hops += bool(stack) and stack[-1] != module
            stack.append(module)
            depth = max(depth, len(stack))
        elif event == "return" and stack:
            stack.pop()

    threading.setprofile(watch)
    sys.setprofile(watch)
    try:
        action()
    finally:
        sys.setprofile(None)
        threading.setprofile(None)
    return Way(list(modules), len(functions), hops, depth)


def ways(folder: str) -> Iterator[tuple[str, Way]]:
    """Each operation, traced the second time it runs, so that imports are not counted."""
    tensors = {f"layer{i}": torch.randn(64, 64) for i in range(4)}
    state = {"model": tensors, "step": 3}
    run = standfast.Store(f"{folder}/store").run("r", hp={"lr": 1})
    run.save(1, state)
    run.load()
    yield "run.save", trace(lambda: run.save(2, state))
    yield "run.load", trace(lambda: run.load(2))
    standfast.save(f"{folder}/a.safetensors", tensors)
    standfast.load(f"{folder}/a.safetensors")
    yield "save", trace(lambda: standfast.save(f"{folder}/b.safetensors", tensors))
    yield "load", trace(lambda: standfast.load(f"{folder}/b.safetensors"))
    model = torch.nn.Linear(8, 8)
    parts = standfast.TrainingState(model=model, optimizer=torch.optim.Adam(model.parameters()))
    options: dict[str, Any] = {"hp": {"a": 1}, "every": 1, "quiet": True}
    with standfast.Checkpointer(f"{folder}/t", parts, **options) as ckpt:
        ckpt.step(1)
        ckpt.wait()

        def step() -> None:
            ckpt.step(2)
            ckpt.wait()

        yield "ckpt.step, wait", trace(step)
    ckpt = standfast.Checkpointer(f"{folder}/t", parts, **options)
    yield "resume", trace(ckpt.__enter__)
    ckpt.__exit__(None, None, None)


def main() -> None:
    """Print the ways as the arguments ask for."""
    with tempfile.TemporaryDirectory() as folder:
        found = dict(ways(folder))
    if "--json" in sys.argv:
        print(json.dumps({name: [len(way.modules), way.functions] for name, way in found.items()}))
        return
    for name, way in found.items():
        print(
            f"{name:16} {len(way.modules):4} modules {way.functions:5} functions "
            f"{way.hops:6} calls across modules, {way.depth} deep"
        )
        if "-v" in sys.argv:
            print(*("    " + module for module in way.modules), sep="\n")


if __name__ == "__main__":
    main()
