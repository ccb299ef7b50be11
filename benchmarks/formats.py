"""The other formats, beside the raw floor and the libraries that wrote them first."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from unittest.mock import patch

import numpy as np
import torch

import standfast
from benchmarks import raw
from benchmarks.files import ROUNDS, gone, nothing, touch
from benchmarks.report import Figure, Section
from benchmarks.rounds import Contender, run_rounds
from benchmarks.state import gpt2_with_adam
from standfast.tensorfile.convert import Proof

SUFFIXES = {"tenzor": ".tenzor", "oxck": ".oxck", "torch": ".pt", "npz": ".npz"}


def sections(folder: Path) -> Iterator[Section]:
    state = gpt2_with_adam()
    yield save(folder, state)
    yield load_warm(folder, state)
    del state
    yield convert(folder)
    yield open_many(folder)


def save(folder: Path, state: dict[str, torch.Tensor]) -> Section:
    floor, staged = folder / "floor", raw.staged(state)
    contenders: dict[str, Contender] = {
        "raw: direct writes": (partial(gone, floor), partial(raw.write_direct, floor, staged))
    }
    for name, suffix in SUFFIXES.items():
        path = folder / f"ours{suffix}"
        contenders[f"standfast.save, {name}"] = (
            partial(gone, path),
            partial(standfast.save, path, state),
        )
    rounds = run_rounds(contenders, ROUNDS)
    floor.unlink()
    return Section(
        "durable save, other formats",
        rounds,
        staged.size,
        [
            Figure(
                f"{name}, of the raw floor",
                rounds.speed_ratio(f"standfast.save, {name}", "raw: direct writes"),
                None if name == "npz" else 0.8,
            )
            for name in SUFFIXES
        ],
    )


def load_warm(folder: Path, state: dict[str, torch.Tensor]) -> Section:
    ours, theirs = folder / "ours.pt", folder / "theirs.pt"
    torch.save(state, theirs)

    def load_theirs() -> object:
        tensors = standfast.load(theirs, "torch", verify=False)
        touch(tensors.values())
        return tensors

    contenders: dict[str, Contender] = {
        "standfast.load, file of ours, verified": (nothing, partial(standfast.load, ours, "torch")),
        "standfast.load, file of theirs, touched": (
            nothing,
            load_theirs,
        ),
        "torch.load, file of theirs": (
            nothing,
            partial(torch.load, theirs, weights_only=True),
        ),
    }
    for _, measured in contenders.values():
        measured()
    rounds = run_rounds(contenders, ROUNDS)
    theirs.unlink()
    ratio = partial(rounds.speed_ratio, base="torch.load, file of theirs")
    return Section(
        "warm load of a .pt",
        rounds,
        ours.stat().st_size,
        [
            Figure("verified, of torch.load", ratio("standfast.load, file of ours, verified"), 2),
            Figure(
                "of torch's file, of torch.load",
                ratio("standfast.load, file of theirs, touched"),
                2,
            ),
        ],
    )


def convert(folder: Path) -> Section:
    """The old file is in memory, as one that was just made; the new one is not."""
    old, new, floor = folder / "ours.pt", folder / "new.safetensors", folder / "floor"
    staged = raw.fresh_memory(old.stat().st_size)
    staged[: old.stat().st_size] = np.fromfile(old, np.uint8)

    def write_and_read_back() -> None:
        raw.write_direct(floor, staged)
        raw.read_direct_reused(floor)

    def convert_unproven() -> None:
        """The part that a user cannot have alone: written and durable, and not yet read back."""
        with patch.object(Proof, "check"):
            standfast.convert(old, new, replace=True)

    contenders: dict[str, Contender] = {
        "raw: direct writes": (partial(gone, floor), partial(raw.write_direct, floor, staged)),
        "standfast.convert, as far as it is durable": (partial(gone, new), convert_unproven),
        "raw: direct writes, read back": (partial(gone, floor), write_and_read_back),
        "standfast.convert, .pt to safetensors": (
            partial(gone, new),
            partial(standfast.convert, old, new),
        ),
    }
    rounds = run_rounds(contenders, ROUNDS)
    floor.unlink()
    ratio = partial(rounds.speed_ratio, "standfast.convert, .pt to safetensors")
    return Section(
        "durable conversion, proven",
        rounds,
        staged.size,
        [
            Figure(
                "durable, of the raw floor",
                rounds.speed_ratio(
                    "standfast.convert, as far as it is durable", "raw: direct writes"
                ),
                0.7,
            ),
            Figure("proven, of the floor read back", ratio("raw: direct writes, read back"), 0.7),
            Figure("proven, of the raw floor", ratio("raw: direct writes")),
            Figure("MiB beyond what is mapped", _memory_of_conversion(old, new), 64, at_most=True),
        ],
    )


def _memory_of_conversion(old: Path, new: Path) -> float:
    program = [sys.executable, "-m", "benchmarks.memory", "convert", str(old), str(new)]
    done = subprocess.run(program, check=True, capture_output=True, text=True)
    return int(done.stdout) / 1024


def open_many(folder: Path) -> Section:
    tensors = {
        f"layers.{i // 10}.block.{i % 10}.weight": np.zeros((3, 4), np.float32)
        for i in range(100_000)
    }
    contenders: dict[str, Contender] = {}
    for name, suffix in SUFFIXES.items():
        path = folder / f"many{suffix}"
        standfast.save(path, tensors)
        contenders[f"standfast.open, {name}"] = (nothing, partial(_open, path))
    contenders["torch.load, torch"] = (
        nothing,
        partial(torch.load, folder / "many.pt", weights_only=True, mmap=True),
    )
    rounds = run_rounds(contenders, ROUNDS)
    seconds = rounds.median("standfast.open, tenzor")
    return Section(
        "open 100,000 tensors, other formats",
        rounds,
        None,
        [
            Figure("seconds, tenzor", seconds, 0.1, at_most=True),
            Figure(
                "times as fast as torch.load, torch",
                rounds.speed_ratio("standfast.open, torch", "torch.load, torch"),
            ),
        ],
    )


def _open(path: Path) -> None:
    with standfast.open(path):
        pass
