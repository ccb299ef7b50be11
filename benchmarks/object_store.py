"""A store in an object store, beside obstore alone: a real server on the loopback address.

`python -m benchmarks --only object_store`. The server shares the processors with its clients.
"""

from __future__ import annotations

import itertools
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import obstore

import standfast
from benchmarks.report import Figure, Section
from benchmarks.rounds import run_rounds
from standfast.cli.stores import find_store
from standfast.store.query.filters import Filter, chosen_runs
from standfast.store.query.listing import checkpoints

sys.path.insert(0, str(Path(__file__).parents[1] / "examples"))
from object_store import Server

from tests.kit.object_store.proxy import Proxy

ROUNDS = 5
MIB = 1 << 20
SIZE = 256 * MIB
LARGE = 2048 * MIB
TENSOR = 4 * MIB
PART = 16 * MIB
THREADS = 14
"""As many as a load of a checkpoint has here."""
ALONE = "obstore.put, the same bytes"
STREAM, RANGES = "obstore.get", f"obstore.get_range, {THREADS} threads"
SAVE, PUSH = "run.save", "checkpoint.copy_to (push), verified"
LOAD, PULL = "run.load, verified", "checkpoint.copy_to (pull), verified"
MANY, RUNS = 1000, 10

State = dict[str, dict[str, np.ndarray[Any, Any]]]


def sections(folder: Path) -> Iterator[Section]:
    folder = folder.resolve()  # a cache is in no relative one
    server = Server(folder / "server")
    server.start()
    saved = {name: os.environ.get(name) for name in (*server.environment, "XDG_CACHE_HOME")}
    os.environ |= {**server.environment, "XDG_CACHE_HOME": str(folder / "cache")}
    try:
        state = random_state(SIZE)
        yield upload(server, folder, state)
        yield download(server, folder, state)
        yield traffic(server, folder)
        yield listing(server, folder)
    finally:
        server.stop()
        for name, value in saved.items():
            os.environ.pop(name) if value is None else os.environ.update({name: value})


def random_state(size: int) -> State:
    """Two parts of tensors of 4 MiB each, of random bytes: a server may compress others."""
    generator = np.random.default_rng(0)
    names = [f"layer.{n}.weight" for n in range(size // TENSOR // 2)]
    return {
        part: {name: generator.integers(0, 255, TENSOR, np.uint8) for name in names}
        for part in ("model", "optimizer")
    }


def change(state: State) -> None:
    """Let all tensors be other ones."""
    for part in state.values():
        for tensor in part.values():
            tensor[:64] = np.frombuffer(os.urandom(64), np.uint8)
            tensor += 1


def upload(server: Server, folder: Path, state: State) -> Section:
    """All bytes are other ones each time, so that nothing is held already."""
    client = server.client()
    remote = standfast.Store("s3://standfast/upload")
    local = standfast.Store(folder / "local")
    run, home = remote.run("saved"), local.run("pushed")
    steps = itertools.count(1)
    whole = np.concatenate([tensor for part in state.values() for tensor in part.values()])

    def alone() -> None:
        obstore.put(client, "alone", whole, chunk_size=PART, max_concurrency=8)

    def save_locally() -> None:
        change(state)
        home.save(next(steps), state)

    def push() -> None:
        home.checkpoint("latest").copy_to(remote)

    def new() -> None:
        change(state)
        whole[:: 1 << 12] += 1

    contenders: dict[str, tuple[Callable[[], object], Callable[[], object]]] = {
        ALONE: (new, alone),
        SAVE: (new, lambda: run.save(next(steps), state)),
        PUSH: (save_locally, push),
    }
    for before, measured in contenders.values():
        before()
        measured()
    rounds = run_rounds(contenders, ROUNDS)
    shutil.rmtree(folder / "local")
    return Section(
        "upload to an object store on loopback",
        rounds,
        SIZE,
        [
            Figure(f"{name} of obstore", rounds.speed_ratio(name, ALONE), 0.9)
            for name in (SAVE, PUSH)
        ],
    )


def download(server: Server, folder: Path, state: State) -> Section:
    client = server.client()
    remote = standfast.Store("s3://standfast/download")
    with remote.run("saved") as run:
        run.save(1, state)
    names = itertools.count()

    def ranges() -> None:
        out = np.empty(SIZE, np.uint8)

        def get(start: int) -> None:
            found = obstore.get_range(client, "alone", start=start, length=PART)
            out[start : start + PART] = np.frombuffer(memoryview(found), np.uint8)

        with ThreadPoolExecutor(THREADS) as pool:
            list(pool.map(get, range(0, SIZE, PART)))

    def pull() -> None:
        with standfast.Store(folder / f"pulled{next(names)}") as target:
            remote.resolve("saved@1").copy_to(target)

    def clear() -> None:
        for each in folder.glob("pulled*"):
            shutil.rmtree(each)

    contenders: dict[str, tuple[Callable[[], object], Callable[[], object]]] = {
        STREAM: (clear, lambda: obstore.get(client, "alone").bytes()),
        RANGES: (clear, ranges),
        LOAD: (clear, lambda: remote.resolve("saved@1").load()),
        PULL: (clear, pull),
    }
    for before, measured in contenders.values():
        before()
        measured()
    rounds = run_rounds(contenders, ROUNDS)
    clear()
    return Section(
        "download from an object store on loopback",
        rounds,
        SIZE,
        [
            *(
                Figure(f"{name} of obstore.get", rounds.speed_ratio(name, STREAM), 0.9)
                for name in (LOAD, PULL)
            ),
            *(
                Figure(f"{name} of many ranges", rounds.speed_ratio(name, RANGES))
                for name in (LOAD, PULL)
            ),
        ],
    )


def traffic(server: Server, folder: Path) -> Section:
    """What goes over the wire, counted by a proxy."""
    with Proxy(server.port) as proxy:
        os.environ["AWS_ENDPOINT_URL"] = proxy.endpoint
        try:
            store = standfast.Store("s3://standfast/traffic")
            state = random_state(LARGE)
            run = store.run("large")
            run.save(1, state)
            record = len(store.backend.read(_record(store)))
            proxy.reset()
            chosen = list(state["model"])[3]
            found = standfast.Store("s3://standfast/traffic").resolve("large@1")
            assert found[f"model.{chosen}"].tobytes() == state["model"][chosen].tobytes()
            down = proxy.down
            changed = [*state["model"].values()][:: len(state["model"]) // 5][:5]
            for tensor in changed:  # 20 MiB of 2 GiB
                tensor += 1
            proxy.reset()
            run.save(2, state)
            up = proxy.up
        finally:
            os.environ |= server.environment
    chunks = sum(tensor.nbytes for tensor in changed)
    return Section(
        "traffic of a checkpoint of 2 GiB in tensors of 4 MiB",
        None,
        None,
        [
            Figure("MB, one tensor, without the record", (down - record) / 1e6, 4.4, at_most=True),
            Figure("MB, the record", record / 1e6),
            Figure("a 1 % change, of the bytes of its chunks", up / chunks, 1.05, at_most=True),
        ],
    )


def _record(store: standfast.Store) -> str:
    head = store.resolve("latest").head
    return standfast.store.schema.names.record_file(head.run, head.step)


def listing(server: Server, folder: Path) -> Section:
    url = "s3://standfast/listing"

    def make(number: int) -> None:
        with standfast.Store(url).run(f"run {number}") as run:
            for step in range(1, MANY // RUNS + 1):
                run.save(step, {"w": np.full(8, step)}, metrics={"loss": 1 / step})

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(make, range(RUNS)))

    def ls() -> None:
        store = find_store(url)
        store.index.refresh()
        found = checkpoints(store.index, chosen_runs(store.index, Filter()), None, None)
        assert len(found) == MANY

    command = [str(Path(sys.executable).parent / "standfast"), "ls", "--store", url]

    def cold() -> None:
        shutil.rmtree(folder / "cache", ignore_errors=True)

    run_it = partial(subprocess.run, command, check=True, stdout=subprocess.DEVNULL)
    cold()
    ls()
    rounds = run_rounds(
        {
            "ls of 1,000, without an index": (cold, ls),
            "ls of 1,000, with the local index": (ls, ls),
            "standfast ls, a new process, with the index": (ls, run_it),
        },
        ROUNDS,
    )
    return Section(
        "ls of 1,000 checkpoints in 10 runs of an object store",
        rounds,
        None,
        [
            Figure(
                "seconds, cold", rounds.median("ls of 1,000, without an index"), 2, at_most=True
            ),
            Figure(
                "seconds, warm",
                rounds.median("ls of 1,000, with the local index"),
                0.2,
                at_most=True,
            ),
        ],
    )
