"""Loads to a GPU: from the disk, from the page cache, and what memory they take on it."""

from __future__ import annotations

import gc
import os
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import safetensors.torch
import torch
from torch.distributed.checkpoint import state_dict_loader

import standfast
from benchmarks import gpu_floors
from benchmarks.gpu_contenders import Bench, Contest, Ours
from benchmarks.gpu_saving import Files
from benchmarks.gpu_state import State, size_of, synchronize
from benchmarks.report import Figure, Section
from benchmarks.rounds import Rounds

LOAD = "standfast.load, verified"
CAST = 'standfast.load, cast="bfloat16", verified'
STORED = "run.load, verified"
RESUMED = "Checkpointer, resumed in place, verified"
PART = 'run.load, part="model", verified'
MOST_MEMORY = 512.0
"""MB on the device beyond what is loaded."""


def cold(bench: Bench, state: State, files: Files) -> Iterator[Section]:
    """Nothing of the files is in memory."""
    contest = _loads(bench, state, files, drop)
    floors = {
        f"raw: direct reads into pinned blocks, {threads} threads": gpu_floors.Read(
            threads, bench.device
        )
        for threads in gpu_floors.READERS
    }
    for name, floor in floors.items():
        contest.add(name, partial(drop, files.ours), partial(floor.read, files.ours))
    rounds = contest.run()
    for floor in floors.values():
        floor.close()
    fastest = rounds.fastest([*floors])
    figures = [
        Figure("standfast.load, of the faster floor", rounds.speed_ratio(LOAD, fastest), 0.88),
        Figure("run.load, of it", rounds.speed_ratio(STORED, fastest)),
        Figure("a resume, of it", rounds.speed_ratio(RESUMED, fastest)),
    ]
    yield from _sections("Load to the GPU, cold", rounds, state, figures)


def warm(bench: Bench, state: State, files: Files) -> Iterator[Section]:
    """All of the files is in the page cache."""
    for path in (files.ours, files.pickled, files.dcp, files.store):
        bring_in(path)
    rounds = _loads(bench, state, files, lambda _: gc.collect()).run()
    speed = size_of(state) / 1e9 / rounds.median(LOAD)
    figures = [Figure("GB/s, standfast.load", speed, 20.0)]
    yield from _sections("Load to the GPU, warm", rounds, state, figures)


def memory(bench: Bench, files: Files) -> Section:
    """What a load has on the device at its worst, and what it leaves, beyond what it returns."""
    figures = []
    for name, cast in {LOAD: None, CAST: "bfloat16"}.items():
        peak, left = _beyond(partial(_load, files.ours, bench.device, cast))
        figures += [
            Figure(f"MB, {name}", peak / 1e6, MOST_MEMORY, at_most=True),
            Figure("MB, left to the device's allocator and driver", left / 1e6),
        ]
    return Section("Memory on the GPU beyond what is loaded", None, None, figures)


def _loads(bench: Bench, state: State, files: Files, before: Callable[[Path], object]) -> Contest:
    """Everybody who loads the state, each from a file or a folder of its own kind."""
    device = bench.device
    run = standfast.Store(files.store).runs()[0]

    def resume() -> None:
        Ours(files.store, state, asynchronous=False).close()

    contest = Contest(bench)
    contest.add(LOAD, partial(before, files.ours), partial(_load, files.ours, device, None))
    contest.add(CAST, partial(before, files.ours), partial(_load, files.ours, device, "bfloat16"))
    contest.add(STORED, partial(before, files.store), partial(run.load, device=device))
    part = partial(run.load, device=device, part="model")
    contest.add(PART, partial(before, files.store), part)
    contest.add(RESUMED, partial(before, files.store), resume)
    for name, path, load in (
        ("safetensors load_file", files.ours, _load_theirs),
        ("torch.load", files.pickled, _load_pickled),
        ("torch.load, mmap=True", files.pickled, partial(_load_pickled, mmap=True)),
    ):
        contest.add_peer(name, partial(before, path), partial(load, path, device))
    contest.add_peer(
        "dcp.load, in place",
        partial(before, files.dcp),
        partial(state_dict_loader.load, state, checkpoint_id=files.dcp, no_dist=True),
    )
    return contest


def _sections(title: str, rounds: Rounds, state: State, figures: list[Figure]) -> Iterator[Section]:
    """The model alone has a section of its own: it is fewer bytes."""
    others = {name: seconds for name, seconds in rounds.seconds.items() if name != PART}
    yield Section(title, Rounds(others), size_of(state), figures)
    alone = size_of({"model": state["model"]})
    yield Section(f"{title}, the model alone", Rounds({PART: rounds.seconds[PART]}), alone, [])


def _load(path: Path, device: str, cast: str | None) -> object:
    return standfast.load(path, framework="torch", device=device, cast=cast)


def _load_theirs(path: Path, device: str) -> object:
    return safetensors.torch.load_file(path, device=device)


def _load_pickled(path: Path, device: str, mmap: bool = False) -> object:
    return torch.load(path, map_location=device, weights_only=True, mmap=mmap)


def drop(path: Path) -> None:
    """Nothing of a file, or of those in a folder, is in the page cache."""
    gc.collect()
    os.sync()
    for file in _files(path):
        with file.open("rb") as opened:
            os.posix_fadvise(opened.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def bring_in(path: Path) -> None:
    """All of a file, or of those in a folder, is in the page cache."""
    block = bytearray(64 << 20)
    for file in _files(path):
        with file.open("rb", buffering=0) as opened:
            while opened.readinto(block):
                pass


def _files(path: Path) -> list[Path]:
    return [path] if path.is_file() else [each for each in path.rglob("*") if each.is_file()]


def _beyond(load: Callable[[], object]) -> tuple[int, int]:
    """The bytes that a load has allocated at its peak, and taken in all, beyond its tensors."""
    gc.collect()
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    allocated, free = torch.cuda.memory_allocated(), torch.cuda.mem_get_info()[0]
    loaded = load()
    synchronize()
    peak, taken = torch.cuda.max_memory_allocated(), free - torch.cuda.mem_get_info()[0]
    now = torch.cuda.memory_allocated()
    del loaded
    return peak - now, taken - (now - allocated)
