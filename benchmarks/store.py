"""The store: full saves, saves of what changed, commits of small states, many checkpoints."""

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

import torch

import standfast
from benchmarks import raw
from benchmarks.files import ROUNDS, nothing
from benchmarks.many import CHECKPOINTS, RUNS, fill_store
from benchmarks.report import Figure, Section
from benchmarks.rounds import Contender, run_rounds
from benchmarks.state import parameter_shapes
from standfast.files.digests import CHUNK
from standfast.store.load.reading import read_record

State = dict[str, dict[str, torch.Tensor]]


def sections(folder: Path) -> Iterator[Section]:
    yield save(folder)
    yield from commits(folder)
    yield many(folder)
    yield record(folder)


def gpt2_in_parts() -> State:
    """The state of the other benchmarks as people have it: a model and an optimizer."""
    generator = torch.Generator().manual_seed(0)
    return {
        part: {
            f"{prefix}{name}": torch.randn(shape, generator=generator)
            for prefix in prefixes
            for name, shape in parameter_shapes()
        }
        for part, prefixes in {"model": [""], "optimizer": ["exp_avg.", "exp_avg_sq."]}.items()
    }


def _tensors(state: State) -> list[torch.Tensor]:
    return [tensor for part in state.values() for tensor in part.values()]


class Saves:
    """Saves into one run, each of the next step; only the last two are kept."""

    def __init__(self, folder: Path, state: State) -> None:
        self.folder = folder / "store"
        self.state = state
        self.run = standfast.Store(self.folder).run("bench")
        self._steps = itertools.count()
        self.save()

    def save(self) -> None:
        self.step = next(self._steps)
        self.run.save(self.step, self.state)

    def change(self, share: float) -> int:
        """Change this share of the state's bytes, in whole chunks; returns their bytes."""
        tensors = _tensors(self.state)
        left = share * sum(tensor.nbytes for tensor in tensors)
        changed = 0
        for tensor in tensors:
            for part in torch.split(tensor.reshape(-1), CHUNK // tensor.element_size()):
                if changed + part.nbytes <= left:
                    part.add_(1.0)
                    changed += part.nbytes
        return changed

    def forget(self) -> None:
        """Free the disk of all but the last checkpoint, and let it be quiet."""
        for checkpoint in self.run.checkpoints()[:-1]:
            self.run.delete(checkpoint.step)
        os.sync()

    def written(self) -> int:
        """The bytes that the last save wrote."""
        files = self.folder.glob(f"checkpoints/models/*/*_step_{self.step:06d}.*")
        return sum(path.stat().st_size for path in files)


def save(folder: Path) -> Section:
    state = gpt2_in_parts()
    flat = {f"{part}.{name}": t for part, each in state.items() for name, t in each.items()}
    floor, staged = folder / "floor", raw.staged(flat)
    saves = Saves(folder, state)
    ratios = []

    def all_changed() -> None:
        saves.change(1.0)
        saves.forget()

    changed = 0

    def little_changed() -> None:
        nonlocal changed
        changed = saves.change(0.01)
        saves.forget()

    def save_little() -> None:
        saves.save()
        ratios.append(saves.written() / changed)

    def gone() -> None:
        floor.unlink(missing_ok=True)
        os.sync()

    contenders: dict[str, Contender] = {
        "raw: direct writes": (gone, partial(raw.write_direct, floor, staged)),
        "run.save, all of it changed": (all_changed, saves.save),
        "run.save, 1 % of it changed": (little_changed, save_little),
    }
    rounds = run_rounds(contenders, ROUNDS)
    floor.unlink()
    shutil.rmtree(saves.folder)
    little, full = "run.save, 1 % of it changed", "run.save, all of it changed"
    return Section(
        "save into a store",
        rounds,
        staged.size,
        [
            Figure(
                "all changed, of the raw floor", rounds.speed_ratio(full, "raw: direct writes"), 0.8
            ),
            Figure(
                "1 % changed, time of the full save",
                1 / rounds.speed_ratio(little, full),
                0.5,
                at_most=True,
            ),
            Figure("1 % changed, bytes written of bytes changed", max(ratios), 1.05, at_most=True),
        ],
    )


# Small states


def commits(folder: Path) -> Iterator[Section]:
    """Commits of 1,000 tensors of 1 KB, with few and many checkpoints in the store."""
    path = folder / "many"
    for checkpoints in (10, 1_000, CHECKPOINTS):
        fill_store(path, checkpoints, max(1, checkpoints * RUNS // CHECKPOINTS))
        yield _commit(folder, path, checkpoints)


def _commit(folder: Path, path: Path, checkpoints: int) -> Section:
    state = {"model": {f"layers.{i}.weight": torch.randn(256) for i in range(1000)}}
    run = standfast.Store(path).run(f"commits beside {checkpoints}")
    steps = itertools.count()
    bare = folder / "bare"
    bare.mkdir(exist_ok=True)

    def change() -> None:
        for tensor in state["model"].values():
            tensor.add_(1.0)

    def save() -> None:
        run.save(next(steps), state)

    save()
    sizes = [f.stat().st_size for f in sorted(path.glob(f"checkpoints/models/{run.hash}/*step*"))]
    contenders: dict[str, Contender] = {
        "bare commit, the same fsyncs": (nothing, partial(_bare_commit, bare, sizes)),
        "run.save": (change, save),
    }
    rounds = run_rounds(contenders, 5 * ROUNDS)
    seconds = rounds.seconds
    beyond = statistics.median(
        a - b
        for a, b in zip(seconds["run.save"], seconds["bare commit, the same fsyncs"], strict=True)
    )
    return Section(
        f"commit of 1,000 tensors of 1 KB, {checkpoints:,} checkpoints in the store",
        rounds,
        None,
        [Figure("ms beyond a bare commit", 1e3 * beyond, 30, at_most=True)],
    )


_names = itertools.count()


def _bare_commit(folder: Path, sizes: list[int]) -> None:
    """Two files of these sizes, each synced, renamed and its name synced."""
    for size in sizes:
        name = f"{next(_names)}"
        fd = os.open(folder / f".{name}", os.O_WRONLY | os.O_CREAT, 0o666)
        os.write(fd, bytes(size))
        os.fsync(fd)
        os.close(fd)
        os.rename(folder / f".{name}", folder / name)
        fd = os.open(folder, os.O_RDONLY)
        os.fsync(fd)
        os.close(fd)


# Many checkpoints


def many(folder: Path) -> Section:
    path = folder / "many"  # it was filled for the commits
    store = standfast.Store(path)
    store.resolve("latest")
    command = [str(Path(sys.executable).parent / "standfast"), "ls", "--store", str(path)]

    def ls() -> None:
        done = subprocess.run(command, check=True, capture_output=True, text=True)
        assert len(done.stdout.splitlines()) > 50

    def latest() -> None:
        standfast.Store(path).resolve("latest")

    contenders: dict[str, Contender] = {
        "standfast ls, a new process": (nothing, ls),
        "Store(path).resolve('latest')": (nothing, latest),
        "python -c 'import standfast'": (
            nothing,
            lambda: subprocess.run([sys.executable, "-c", "import standfast"], check=True),
        ),
    }
    rounds = run_rounds(contenders, ROUNDS)
    rebuild = statistics.median(_seconds(store.index.rebuild) for _ in range(3))
    return Section(
        f"{CHECKPOINTS:,} checkpoints in {RUNS:,} runs, 1,000 tensors each",
        rounds,
        None,
        [
            Figure("seconds, ls", rounds.median("standfast ls, a new process"), 0.5, at_most=True),
            Figure(
                "seconds, latest", rounds.median("Store(path).resolve('latest')"), 0.1, at_most=True
            ),
            Figure("seconds, the index made again", rebuild, 5, at_most=True),
        ],
    )


def _seconds(action: Callable[[], object]) -> float:
    start = time.perf_counter()
    action()
    return time.perf_counter() - start


def record(folder: Path) -> Section:
    path = folder / "large"
    state = {
        "model": {f"layers.{i // 10}.block.{i % 10}.w": torch.zeros(3, 4) for i in range(100_000)}
    }
    run = standfast.Store(path).run("large")
    store = standfast.Store(path)
    saving = _seconds(lambda: run.save(1, state))
    contenders: dict[str, Contender] = {
        "a record of 100,000 tensors": (nothing, lambda: read_record(store.backend, run.hash, 1)),
        "run.load of its state": (nothing, run.load),
    }
    rounds = run_rounds(contenders, ROUNDS)
    shutil.rmtree(path)
    return Section(
        "100,000 tensors",
        rounds,
        None,
        [
            Figure(
                "seconds, its record",
                rounds.median("a record of 100,000 tensors"),
                0.5,
                at_most=True,
            ),
            Figure("seconds, run.save", saving),
        ],
    )
