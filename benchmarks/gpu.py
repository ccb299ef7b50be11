"""Saves from a GPU and loads to it: `python -m benchmarks.gpu [--only held,overlap,…]`.

With `--device cpu --size small` it runs anywhere, to see that it does: its figures mean nothing.
"""

from __future__ import annotations

import argparse
import gc
import json
import shutil
from collections.abc import Iterator
from pathlib import Path

import torch
from rich.console import Console

from benchmarks.gpu_contenders import Bench, hush
from benchmarks.gpu_loading import cold, memory, warm
from benchmarks.gpu_saving import Files, durable, held_up
from benchmarks.gpu_state import SIZES, flat, mixed_precision, size_of
from benchmarks.gpu_training import overlapped
from benchmarks.machine import describe
from benchmarks.report import Section

NAMES = ("held", "save", "cold", "warm", "overlap")


def main() -> None:
    arguments = parsed()
    arguments.folder.mkdir(parents=True, exist_ok=True)
    arguments.json.parent.mkdir(parents=True, exist_ok=True)
    hush()
    if arguments.device == "cpu":
        torch.set_num_threads(1)  # more of them would mostly wait for each other
    console = Console(width=100)
    machine = describe(arguments.folder)
    console.print(", ".join(f"{key} {value}" for key, value in machine.items()), style="dim")
    bench = Bench(
        arguments.folder,
        arguments.device,
        SIZES[arguments.size],
        arguments.rounds,
        arguments.peer_rounds,
    )
    measured = []
    try:
        for section in sections(bench, arguments.only, console):
            section.print(console)
            console.file.flush()  # what is measured is seen at once
            measured.append(section.as_json())
            # Whatever comes later, what was measured is there.
            text = json.dumps({"machine": machine, "sections": measured}, indent=1)
            arguments.json.write_text(text)
    finally:
        shutil.rmtree(arguments.folder)
    console.print(f"written to {arguments.json}")


def parsed() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--size", choices=SIZES, default="large", help="of the state (10.6 GB)")
    parser.add_argument("--only", type=_chosen, default=NAMES, help=f"some of {','.join(NAMES)}")
    parser.add_argument("--rounds", type=int, default=3, help="of ours and of the floors")
    parser.add_argument("--peer-rounds", type=int, default=2, help="of all others")
    parser.add_argument("--folder", type=Path, default=Path("build/bench-gpu"))
    parser.add_argument("--json", type=Path, default=Path("build/bench-gpu.json"))
    arguments = parser.parse_args()
    if not 0 <= arguments.peer_rounds <= arguments.rounds:
        parser.error("--peer-rounds is from 0 to --rounds")
    if arguments.device == "cuda" and not torch.cuda.is_available():
        parser.error("torch sees no GPU here: give --device cpu --size small to try it out")
    return arguments


def _chosen(text: str) -> tuple[str, ...]:
    names = tuple(text.split(","))
    if not set(names) <= set(NAMES):
        raise argparse.ArgumentTypeError(f"there are {', '.join(NAMES)}")
    return names


def sections(bench: Bench, only: tuple[str, ...], console: Console) -> Iterator[Section]:
    """What is saved is left for the loads; training comes last, with all memory to itself."""
    if set(only) - {"overlap"}:
        yield from of_one_state(bench, only, console)
        gc.collect()
        if bench.device == "cuda":
            torch.cuda.empty_cache()
    if "overlap" in only:
        yield overlapped(bench)


def of_one_state(bench: Bench, only: tuple[str, ...], console: Console) -> Iterator[Section]:
    state = mixed_precision(bench.size, bench.device)
    files = Files(bench.folder, state)
    gigabytes = size_of(state) / 1e9
    title = f"A model with master weights and moments: {len(flat(state))} tensors"
    console.print(f"{title}, {gigabytes:.2f} GB on {bench.device}\n", style="bold")
    if "held" in only:
        yield held_up(bench, state)
    if "save" in only:
        yield durable(bench, state, files)
    if {"cold", "warm"} & set(only):
        files.make_missing(peers=bench.peer_rounds > 0)
    if "cold" in only:
        yield from cold(bench, state, files)
    if "warm" in only:
        yield from warm(bench, state, files)
    if {"cold", "warm"} & set(only) and bench.device == "cuda":
        yield memory(bench, files)
    files.remove(files.ours, files.pickled, files.dcp, files.store)


if __name__ == "__main__":
    main()
