"""Four ranks beside torch.distributed.checkpoint: saves, resharded loads, plans, and waiting.

`python -m benchmarks.ranks --width 128 --rounds 1` is a trial: its figures mean nothing.
"""

from __future__ import annotations

import argparse
import os
import shutil
import sys
import time
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path

import numpy as np
from rich.console import Console

from benchmarks import raw
from benchmarks.ranks_crew import Contender, Crew, RanksFailed
from benchmarks.ranks_state import WIDTH, files_in
from benchmarks.report import Figure, Section
from benchmarks.rounds import Rounds, run_rounds
from standfast.parallel.assignment import Holding, writers

ROUNDS = 5
SAVING, LOADING = 4, 2
FASTER = 1.3
"""So many times as fast as DCP are saves and loads to be."""
WARMING = 5.0
"""Seconds after which the memory for copies is ready, as it is in any real program."""
FLOOR = "raw: direct writes, each rank its own"
DCP, THREADS = "dcp.save", "dcp.save, two threads a rank"
RUN, PLUGIN = "run.save", "dcp.save through standfast's Writer"
RUN_LOAD, DCP_LOAD = "run.load, verified", "dcp.load"
PLUGIN_LOAD = "dcp.load through standfast's Reader, verified"
STEP, COPY = "Checkpointer.step", "a copy by each rank"
ASYNC, REUSED = "dcp.async_save", "dcp.async_save, reused stager"


def sections(folder: Path, width: int = WIDTH, rounds: int = ROUNDS) -> Iterator[Section]:
    with Crew("saving", SAVING, folder, width) as crew:
        has_plugin = _works(crew, "plugin")
        yield save(crew, rounds, has_plugin)
        yield held_up(crew, rounds)
        _save_the_same(crew, has_plugin)
        size = sum(crew.do("nbytes")[1])
    with Crew("loading", LOADING, folder, width) as crew:
        has_plugin = has_plugin and _works(crew, "plugin")
        _check_loads(crew, ["run", "dcp", *["plugin"] * has_plugin])
        for cold in (True, False):
            yield load(crew, folder, size, rounds, has_plugin, cold)
    for name in ("run", "dcp", "plugin", "checkpointer"):
        shutil.rmtree(folder / name, ignore_errors=True)
    yield planning(rounds)


def _works(crew: Crew, name: str) -> bool:
    """Whether the ranks can do it; if not, the rest is measured without."""
    try:
        crew.do(name)
    except RanksFailed as error:
        print(f"left out: {error}", file=sys.stderr)
        return False
    return True


def save(crew: Crew, rounds: int, has_plugin: bool) -> Section:
    """All bytes are other ones each time, and the checkpoint before is there."""
    size = sum(crew.do("nbytes")[1])
    crew.do("stage")

    def before() -> None:
        crew.do("make_room")
        crew.do("change")
        os.sync()

    contenders: dict[str, Contender] = {
        FLOOR: (before, ["floor"]),
        DCP: (before, ["dcp"]),
        THREADS: (before, ["dcp_with_threads", 2]),
        RUN: (before, ["run"]),
    }
    if has_plugin:
        contenders[PLUGIN] = (before, ["plugin"])
    for _, measured in contenders.values():  # what it imports and keeps
        before()
        crew.do(*measured)
    measured_rounds = crew.rounds(contenders, rounds)
    crew.do("make_room")
    crew.do("unstage")
    best = measured_rounds.fastest([DCP, THREADS])
    figures = [
        Figure("run.save of the raw floor", measured_rounds.speed_ratio(RUN, FLOOR)),
        *_faster(measured_rounds, RUN, [DCP, THREADS], FASTER),
    ]
    if has_plugin:
        ratio = measured_rounds.speed_ratio(PLUGIN, best)
        figures.append(Figure(f"the Writer of {best}", ratio, 1.0))
    return Section(f"durable save by {SAVING} ranks", measured_rounds, size, figures)


def _faster(rounds: Rounds, name: str, others: Sequence[str], target: float) -> list[Figure]:
    """Against each of them; that against the fastest one is the promise."""
    best = rounds.fastest([*others])
    return [
        Figure(
            f"{name} of {other}",
            rounds.speed_ratio(name, other),
            target if other == best else None,
        )
        for other in others
    ]


def held_up(crew: Crew, rounds: int) -> Section:
    """The caller's time alone: what is written in the background is waited for off the clock."""
    crew.do("begin")
    crew.do("rest", WARMING)

    def before() -> None:
        crew.do("settle")
        crew.do("make_room")
        crew.do("change")
        os.sync()

    contenders: dict[str, Contender] = {
        COPY: (before, ["copy"]),
        STEP: (before, ["step"]),
        ASYNC: (before, ["async_save", False]),
        REUSED: (before, ["async_save", True]),
    }
    for _, measured in contenders.values():
        before()
        crew.do(*measured)
    measured_rounds = crew.rounds(contenders, rounds)
    made = {*crew.do("end")[1]}
    assert made == {rounds + 1}, f"{made} checkpoints were made"
    figures = [
        Figure(f"{STEP} of {other}", 1 / measured_rounds.speed_ratio(STEP, other))
        for other in (COPY, ASYNC, REUSED)
    ]
    title = f"The loop held up by an asynchronous save by {SAVING} ranks"
    return Section(title, measured_rounds, None, figures)


def _save_the_same(crew: Crew, has_plugin: bool) -> None:
    """Leaves a checkpoint of each way, and all have the same bytes."""
    crew.do("make_room")
    crew.do("change")
    for name in ["run", "dcp", *["plugin"] * has_plugin]:
        crew.do(name)
    crew.do("thin")


def _check_loads(crew: Crew, names: Sequence[str]) -> None:
    """All ways bring the same bytes, and bring them all."""
    digests = {}
    for name in ("blank", *names):
        crew.do("blank")
        crew.do(name)
        digests[name] = tuple(crew.do("digest")[1])
    blank = digests.pop("blank")
    assert len({*digests.values()} - {blank}) == 1, f"not the same was loaded: {digests}"


def load(crew: Crew, folder: Path, size: int, rounds: int, has_plugin: bool, cold: bool) -> Section:
    """Saved by four ranks, loaded by two, into memory that is theirs already."""

    def before(name: str) -> None:
        crew.do("blank")
        for file in files_in(folder / name):
            (raw.make_cold if cold else raw.read_mapped_touched)(file)

    floors = ["raw: plain reads", "raw: direct reads"]
    contenders: dict[str, Contender] = {
        name: (partial(before, "run"), ["floor", name]) for name in floors
    }
    contenders[DCP_LOAD] = (partial(before, "dcp"), ["dcp"])
    contenders[RUN_LOAD] = (partial(before, "run"), ["run"])
    if has_plugin:
        contenders[PLUGIN_LOAD] = (partial(before, "plugin"), ["plugin"])
    measured = crew.rounds(contenders, rounds)
    fastest = measured.fastest(floors)
    figures = [
        Figure(
            f"of the fastest raw way ({fastest.removeprefix('raw: ')})",
            measured.speed_ratio(RUN_LOAD, fastest),
        ),
        Figure("run.load of dcp.load", measured.speed_ratio(RUN_LOAD, DCP_LOAD), FASTER),
    ]
    if has_plugin:
        ratio = measured.speed_ratio(PLUGIN_LOAD, DCP_LOAD)
        figures.append(Figure("the Reader of dcp.load", ratio, 1.0))
    way = "cold" if cold else "warm"
    return Section(f"{way} load by {LOADING} ranks of {SAVING}", measured, size, figures)


def planning(rounds: int, tensors: int = 100_000, ranks: int = 64) -> Section:
    """Who writes what: of ten tensors six are cut up, three everywhere, one in groups."""
    numbers = np.arange(tensors)
    kinds = np.array([0, 1, 0, 2, 0, 1, 0, 0, 1, 0])[numbers % 10]
    unit = 1 + numbers * 7919 % 1000
    lengths = np.choose(kinds, [unit, ranks * unit, 8 * unit])
    holdings = []
    for rank in range(ranks):
        starts = np.choose(kinds, [rank * unit, 0 * unit, rank % 8 * 8 * unit])
        holdings.append(Holding(numbers, starts, starts + lengths, 4 * lengths))
    name = f"{tensors:,} tensors on {ranks} ranks"
    measured = run_rounds({name: (lambda: None, partial(writers, holdings))}, rounds)
    figures = [Figure("seconds, on one core", measured.median(name), 2, at_most=True)]
    return Section("who writes what", measured, None, figures)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--folder", type=Path, default=Path("build/bench-ranks"))
    parser.add_argument("--width", type=int, default=WIDTH)
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    arguments = parser.parse_args()
    arguments.folder.mkdir(parents=True)
    console = Console(width=100)
    began = time.perf_counter()
    try:
        for section in sections(arguments.folder, arguments.width, arguments.rounds):
            section.print(console)
            console.file.flush()
    finally:
        shutil.rmtree(arguments.folder)
    console.print(f"{time.perf_counter() - began:.0f} s")


if __name__ == "__main__":
    main()
