"""Experiments: hashing, the manifest beside saves, comparing checkpoints, retention."""

from __future__ import annotations

import itertools
import os
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

import standfast
from benchmarks.files import ROUNDS, nothing
from benchmarks.many import CHECKPOINTS, fill_store
from benchmarks.report import Figure, Section
from benchmarks.rounds import Contender, Rounds, run_rounds
from benchmarks.store import Saves, gpt2_in_parts
from standfast.identity import identify
from standfast.policies import KeepBest, KeepEvery, KeepLast
from standfast.store.index import manifest as manifests

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
    """Saves into a store of many runs, while the manifest is due and while it is not."""
    path = folder / "many"
    fill_store(path, RUNS, RUNS)
    store = standfast.Store(path)
    run = store.run("bench")
    state = {"weight": np.zeros(1000)}
    steps = itertools.count()

    def save() -> None:
        run.save(next(steps), state)

    def due(after: float) -> None:
        store.flush()  # what the last save has begun
        manifests._REFRESHED = after

    save()
    usual = manifests._REFRESHED
    quiet, busy = "a save, the manifest not due", "a save, the manifest due"
    contenders: dict[str, Contender] = {
        quiet: (partial(due, 3600.0), save),
        busy: (partial(due, 0.0), save),
        "the manifest itself": (store.flush, store.write_manifest),
    }
    rounds = run_rounds(contenders, 3 * ROUNDS)
    manifests._REFRESHED = usual
    run.close()
    store.close()
    shutil.rmtree(path)
    pairs = zip(rounds.seconds[busy], rounds.seconds[quiet], strict=True)
    beyond = statistics.median(a - b for a, b in pairs)
    return Section(
        f"saves beside {RUNS:,} runs",
        rounds,
        None,
        [Figure("ms more while the manifest is due", 1e3 * beyond, 10, at_most=True)],
    )


def comparing(folder: Path) -> Section:
    saves = Saves(folder, gpt2_in_parts())
    saves.change(0.01)
    saves.save()
    os.sync()
    refs = (f"bench@{saves.step - 1}", f"bench@{saves.step}")
    standfast_ = str(Path(sys.executable).parent / "standfast")
    command = [standfast_, "diff", *refs, "--store", str(saves.folder)]

    def compare() -> None:
        done = subprocess.run(command, capture_output=True, check=False)
        assert done.returncode == 3, done.stderr

    name = "standfast diff, 1 % changed"
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
    """A run of many checkpoints: which of them stay, one that goes, and nearly all of them."""
    path = folder / "retention"
    fill_store(path, CHECKPOINTS, 1)
    os.sync()  # so that nothing of this is written while it is measured
    store = standfast.Store(path)
    run = store.find_run("run 0")
    # Its newest has no data that could be read.
    run.checkpoints()[-1].mark_verified()
    keep = KeepLast(10) | KeepBest(5, "loss") | KeepEvery(steps=1000)
    left = itertools.count(CHECKPOINTS - 1, -1)
    judging, one = "which of them stay", "and the oldest one deleted"
    rounds = run_rounds(
        {
            judging: (nothing, lambda: run.verdicts(keep)),
            one: (nothing, lambda: run.retain(KeepLast(next(left)))),
        },
        ROUNDS,
    )
    sizes = [file.stat().st_size for file in path.glob("checkpoints/models/*/*_step_*")]
    taken = seconds(lambda: run.retain(keep))
    assert len(run.checkpoints()) < 30
    store.close()
    bare = _bare_files(folder / "bare", sizes)
    floor = seconds(partial(_delete, bare))
    for each in (path, folder / "bare"):
        shutil.rmtree(each)
    return Section(
        f"retention over {CHECKPOINTS:,} checkpoints of a run",
        rounds,
        None,
        [
            at_most("seconds to judge them", rounds, judging, 2.0),
            at_most("seconds to judge them and delete one", rounds, one, 2.0),
            Figure("seconds to delete all but 24", taken),
            Figure(f"seconds to delete {len(bare):,} such files bare", floor),
        ],
    )


def _delete(files: list[Path]) -> None:
    for file in files:
        os.unlink(file)


def _bare_files(folder: Path, sizes: list[int]) -> list[Path]:
    folder.mkdir()
    files = [folder / f"{number:024x}_step_{number:06d}.json" for number in range(len(sizes))]
    for file, size in zip(files, sizes, strict=True):
        file.write_bytes(bytes(size))
    os.sync()
    return files
