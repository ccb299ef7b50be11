"""The file layer beside safetensors and torch, and beside the raw floor of the same rounds."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import safetensors.torch
import torch
from safetensors import safe_open

import standfast
from benchmarks import raw
from benchmarks.report import Figure, Section
from benchmarks.rounds import Contender, run_rounds
from benchmarks.state import gpt2_with_adam

ROUNDS = 9


def sections(folder: Path) -> Iterator[Section]:
    state = gpt2_with_adam()
    yield save(folder, state)
    yield load_cold(folder)
    yield load_warm(folder)
    yield touch_warm(folder)
    yield open_many(folder)
    yield memory(folder)


def nothing() -> None:
    """There is nothing to do before."""


def gone(path: Path) -> None:
    """The path is free and the disk is quiet."""
    path.unlink(missing_ok=True)
    os.sync()


def _fsync(path: Path) -> None:
    fd = os.open(path, os.O_RDONLY)
    os.fsync(fd)
    os.close(fd)


def touch(arrays: Iterable[Any]) -> None:
    """Read one byte of every page."""
    for array in arrays:
        flat = array.reshape(-1)
        flat = flat.view(torch.uint8).numpy() if isinstance(flat, torch.Tensor) else flat
        flat.view(np.uint8)[::4096].sum()


def save(folder: Path, state: dict[str, torch.Tensor]) -> Section:
    ours, theirs = folder / "ours.safetensors", folder / "theirs.safetensors"
    pickled, floor = folder / "state.pt", folder / "floor"
    staged = raw.staged(state)

    def save_theirs() -> None:
        safetensors.torch.save_file(state, theirs)
        _fsync(theirs)

    def save_torch() -> None:
        torch.save(state, pickled)
        _fsync(pickled)

    contenders: dict[str, Contender] = {
        "raw: direct writes": (partial(gone, floor), partial(raw.write_direct, floor, staged)),
        "standfast.save": (partial(gone, ours), partial(standfast.save, ours, state)),
        "safetensors save_file + fsync": (partial(gone, theirs), save_theirs),
        "torch.save + fsync": (partial(gone, pickled), save_torch),
    }
    rounds = run_rounds(contenders, ROUNDS)
    floor.unlink()
    ratio = partial(rounds.speed_ratio, "standfast.save")
    return Section(
        "durable save",
        rounds,
        staged.size,
        [
            Figure("of the raw floor", ratio("raw: direct writes"), 0.85),
            Figure("of safetensors + fsync", ratio("safetensors save_file + fsync"), 1.5, False),
            Figure("of torch.save + fsync", ratio("torch.save + fsync")),
        ],
    )


def load_cold(folder: Path) -> Section:
    ours, theirs = folder / "ours.safetensors", folder / "theirs.safetensors"
    cold = partial(raw.make_cold, ours)

    def load_theirs() -> object:
        tensors = safetensors.torch.load_file(theirs)
        touch(tensors.values())
        return tensors

    contenders: dict[str, Contender] = {
        name: (cold, partial(read, ours)) for name, read in raw.READS.items()
    }
    contenders["standfast.load, verified"] = (cold, partial(standfast.load, ours, "torch"))
    contenders["safetensors load_file, touched"] = (
        partial(raw.make_cold, theirs),
        load_theirs,
    )
    rounds = run_rounds(contenders, ROUNDS)
    fastest = rounds.fastest(list(raw.READS))
    ratio = partial(rounds.speed_ratio, "standfast.load, verified")
    return Section(
        "cold load",
        rounds,
        ours.stat().st_size,
        [
            Figure(
                f"of the fastest raw way ({fastest.removeprefix('raw: ')})", ratio(fastest), 0.7
            ),
            Figure("of safetensors", ratio("safetensors load_file, touched"), 1.3, False),
        ],
    )


def load_warm(folder: Path) -> Section:
    ours, pickled = folder / "ours.safetensors", folder / "state.pt"
    contenders: dict[str, Contender] = {
        "standfast.load, verified": (nothing, partial(standfast.load, ours, "torch")),
        "torch.load": (nothing, partial(torch.load, pickled, weights_only=True)),
    }
    for _, measured in contenders.values():
        measured()
    rounds = run_rounds(contenders, ROUNDS)
    ratio = rounds.speed_ratio("standfast.load, verified", "torch.load")
    return Section("warm load", rounds, ours.stat().st_size, [Figure("of torch.load", ratio, 2)])


def touch_warm(folder: Path) -> Section:
    ours, theirs = folder / "ours.safetensors", folder / "theirs.safetensors"

    def touch_ours() -> None:
        with standfast.open(ours, verify=False) as file:
            touch(file[name] for name in file)

    def touch_theirs() -> None:
        with safe_open(theirs, "pt") as file:
            touch(file.get_tensor(name) for name in file.keys())  # noqa: SIM118

    contenders: dict[str, Contender] = {
        "standfast.open, unverified, touched": (nothing, touch_ours),
        "safetensors safe_open, touched": (nothing, touch_theirs),
    }
    for _, measured in contenders.values():
        measured()
    rounds = run_rounds(contenders, 5 * ROUNDS)
    ratio = rounds.speed_ratio(
        "standfast.open, unverified, touched", "safetensors safe_open, touched"
    )
    return Section(
        "warm open and touch", rounds, ours.stat().st_size, [Figure("of safetensors", ratio, 1)]
    )


def open_many(folder: Path) -> Section:
    ours, theirs = folder / "many-ours.safetensors", folder / "many-theirs.safetensors"
    tensors = {f"layers.{i // 10}.block.{i % 10}.weight": torch.zeros(3, 4) for i in range(100_000)}
    standfast.save(ours, tensors)
    safetensors.torch.save_file(tensors, theirs)

    def open_theirs(path: Path) -> None:
        with safe_open(path, "np"):
            pass

    def open_ours(path: Path) -> None:
        with standfast.open(path):
            pass

    contenders: dict[str, Contender] = {
        "standfast.open, file of ours": (nothing, partial(open_ours, ours)),
        "safe_open, file of ours": (nothing, partial(open_theirs, ours)),
        "standfast.open, file of theirs": (nothing, partial(open_ours, theirs)),
        "safe_open, file of theirs": (nothing, partial(open_theirs, theirs)),
    }
    rounds = run_rounds(contenders, 2 * ROUNDS)
    return Section(
        "open 100,000 tensors",
        rounds,
        None,
        [
            Figure(
                f"times safe_open's time, file of {whose}",
                rounds.speed_ratio(
                    f"safe_open, file of {whose}", f"standfast.open, file of {whose}"
                ),
                1.5,
                at_most=True,
            )
            for whose in ("ours", "theirs")
        ],
    )


def memory(folder: Path) -> Section:
    """Measured in a process of its own, which prints the KiB it took beyond the state."""
    program = [
        sys.executable,
        "-m",
        "benchmarks.memory",
        "save",
        str(folder / "memory.safetensors"),
    ]
    done = subprocess.run(program, check=True, capture_output=True, text=True)
    mebibytes = int(done.stdout) / 1024
    return Section(
        "memory", None, None, [Figure("MiB beyond the state", mebibytes, 64, at_most=True)]
    )
