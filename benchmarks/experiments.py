"""Experiments: hashing, the manifest beside saves, comparing checkpoints, retention."""

from __future__ import annotations

import itertools
import shutil
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import numpy as np
import torch

import holdfast
from benchmarks.files import ROUNDS, nothing
from benchmarks.many import CHECKPOINTS, fill_store
from benchmarks.report import Figure, Section
from benchmarks.rounds import Contender, Rounds, run_rounds
from benchmarks.store import Saves, gpt2_in_parts
from holdfast.identity import identify
from holdfast.retention import KeepBest, KeepEvery, KeepLast
from holdfast.store import manifest as manifests

MODULES = 10_000
SAMPLES = 1_000_000
RUNS = 10_000


def sections(folder: Path) -> Iterator[Section]:
    yield hashing()
    yield manifest(folder)
    yield comparing(folder)
    yield retention(folder)


def seconds(action: Callable[[], object]) -> float:
    began = time.perf_counter()
    action()
    return time.perf_counter() - began


def at_most(label: str, rounds: Rounds, name: str, target: float) -> Figure:
    return Figure(label, statistics.median(rounds.seconds[name]), target, at_most=True)


def hashing() -> Section:
    model = torch.nn.Sequential(*(torch.nn.Linear(4, 4) for _ in range(MODULES)))
    uids = [f"sample-{i:07d}" for i in range(SAMPLES)]
    data = {"uids": uids, "discarded": uids[::10], "tags": {uid: ["train"] for uid in uids[::2]}}
    modules, samples = f"a model of {MODULES:,} modules", f"{SAMPLES:,} samples, half with a tag"
    rounds = run_rounds(
        {
            modules: (nothing, lambda: identify(model=model)),
            samples: (nothing, lambda: identify(data=data)),
        },
        ROUNDS,
    )
    return Section(
        "identity",
        rounds,
        None,
        [
            at_most("seconds for the model", rounds, modules, 0.2),
            at_most("seconds for the samples", rounds, samples, 2.0),
        ],
    )


def manifest(folder: Path) -> Section:
    """Saves into a store of one run and into one of many, while the manifest is due."""
    stores = {1: folder / "one", RUNS: folder / "many"}
    fill_store(stores[RUNS], RUNS, RUNS)
    runs = {count: holdfast.Store(path).run("bench") for count, path in stores.items()}
    state = {"weight": np.zeros(1000)}
    steps = itertools.count()

    def save(run: holdfast.Run) -> None:
        run.save(next(steps), state)

    for run in runs.values():
        save(run)
    contenders: dict[str, Contender] = {
        f"a save beside {count:,} run{'s' if count > 1 else ''}": (
            nothing,
            partial(save, run),
        )
        for count, run in runs.items()
    }
    contenders["the manifest itself"] = (nothing, runs[RUNS].store.write_manifest)
    usual, manifests._REFRESHED = manifests._REFRESHED, 0.0  # it is due with every save
    rounds = run_rounds(contenders, 3 * ROUNDS)
    manifests._REFRESHED = usual
    few, many = list(contenders)[:2]
    for run in runs.values():
        run.close()
    for path in stores.values():
        shutil.rmtree(path)
    beyond = statistics.median(rounds.seconds[many]) - statistics.median(rounds.seconds[few])
    return Section(
        f"saves while the manifest of {RUNS:,} runs is due",
        rounds,
        None,
        [Figure("ms more than beside one run", 1e3 * beyond)],
    )


def comparing(folder: Path) -> Section:
    saves = Saves(folder, gpt2_in_parts())
    saves.change(0.01)
    saves.save()
    refs = (f"bench@{saves.step - 1}", f"bench@{saves.step}")
    holdfast_ = str(Path(sys.executable).parent / "holdfast")
    command = [holdfast_, "diff", *refs, "--store", str(saves.folder)]

    def compare() -> None:
        done = subprocess.run(command, capture_output=True, check=False)
        assert done.returncode == 3, done.stderr

    name = "holdfast diff, 1 % changed"
    rounds = run_rounds({name: (nothing, compare)}, ROUNDS)
    saves.run.close()
    shutil.rmtree(saves.folder)
    return Section(
        "comparing two checkpoints of 1.49 GB, as a command",
        rounds,
        None,
        [at_most("seconds", rounds, name, 1.0)],
    )


def retention(folder: Path) -> Section:
    path = folder / "retention"
    fill_store(path, CHECKPOINTS, 1)
    store = holdfast.Store(path)
    run = store.find_run("run 0")
    keep = KeepLast(10) | KeepBest(5, "loss") | KeepEvery(steps=1000)
    name = "what becomes of each"
    rounds = run_rounds({name: (nothing, lambda: run.verdicts(keep))}, ROUNDS)
    # Its newest has no data that could be read.
    store.index.set_verified(run.checkpoints()[-1].head.place)
    taken = seconds(lambda: run.retain(keep))
    left = len(run.checkpoints())
    assert left < 30, left
    shutil.rmtree(path)
    return Section(
        f"retention over {CHECKPOINTS:,} checkpoints of a run",
        rounds,
        None,
        [
            at_most("seconds to judge them", rounds, name, 2.0),
            Figure(f"seconds to delete all but {left}", taken, 2.0, at_most=True),
        ],
    )
