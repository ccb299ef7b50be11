"""A process that works on a store beside others: `worker.py WHAT STORE RUN [COUNT]`.

It says `ready` when it is, and goes on when it gets a line.
"""

import os
import signal
import sys
from pathlib import Path

from standfast.errors import RunBusy
from standfast.store import Store
from tests.kit.fault_states import state
from tests.kit.stores import same


def wait() -> None:
    print("ready", flush=True)
    sys.stdin.readline()


def hold(path: Path, name: str, step: int) -> None:
    """Save, and keep the run."""
    run = Store(path).run(name)
    run.save(step, state(step))
    wait()
    run.close()


def save(path: Path, name: str, count: int) -> None:
    """Save many times; every state has the same weight."""
    run = Store(path).run(name)
    wait()
    for step in range(count):
        run.save(step, state(step, weight=7))


def save_if_free(path: Path, name: str, step: int) -> None:
    """Save once, or say which process has the run."""
    run = Store(path).run(name)
    wait()
    try:
        run.save(step, state(step))
    except RunBusy:
        print("busy")
    else:
        print("saved")


def read(path: Path, name: str, count: int) -> None:
    """Load the latest state until it is the last one."""
    kept = Store(path)
    loads, seen = 0, -1
    wait()
    while seen < count:
        store = kept if loads % 2 else Store(path)
        loaded = store.run(name).load()
        assert same(loaded, state(loaded["seed"], weight=7)), "half a state"
        assert loaded["seed"] >= seen, f"{loaded['seed']} after {seen}"
        seen = loaded["seed"]
        loads += 1
    print(loads)


def fork(path: Path, name: str, step: int) -> None:
    """Save, and have a child that outlives this process, as a data loader's worker may."""
    run = Store(path).run(name)
    run.save(step, state(step))
    child = os.fork()
    if child == 0:
        signal.pause()
    print(child)
    wait()


WORK = {each.__name__: each for each in (hold, save, save_if_free, read, fork)}

if __name__ == "__main__":
    what, store, name, number = sys.argv[1:]
    WORK[what](Path(store), name, int(number))
