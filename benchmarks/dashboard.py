"""What the dashboard takes: a page of a large store, a tensor of a gigabyte, many at once."""

from __future__ import annotations

import os
import resource
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np

import standfast
from benchmarks.many import fill_store
from benchmarks.report import Figure, Section
from benchmarks.rounds import run_rounds
from standfast.store.query.view import CheckpointView
from standfast.web import numbers
from tests.web.api.client import Api

ROUNDS = 5
AT_ONCE = 50
PAGE, FILTER, ALL = "first page of runs", "filtered by a metric", f"{AT_ONCE} such at once"
COLD, WARM = "histogram, cold", "histogram, warm"
LARGE = 1 << 30


def sections(folder: Path) -> Iterator[Section]:
    yield lists(folder / "many")
    yield tensor(folder / "large")


def lists(folder: Path) -> Section:
    """1,000 runs with 10,000 checkpoints; the index is there, as after any other command."""
    fill_store(folder, 10_000, 1000)
    api = Api(standfast.Store(folder))

    def asked(path: str) -> Callable[[], object]:
        return lambda: api(path)

    def at_once() -> None:
        with ThreadPoolExecutor(AT_ONCE) as pool:
            found = list(pool.map(api, ["/runs"] * AT_ONCE))
        assert all(each["total"] >= 1000 for each in found)

    nothing = lambda: None  # noqa: E731
    asked("/runs")()
    rounds = run_rounds(
        {
            PAGE: (nothing, asked("/runs")),
            FILTER: (nothing, asked("/runs?metric=loss%3C0.3&sort=loss")),
            ALL: (nothing, at_once),
        },
        ROUNDS,
    )
    return Section(
        "dashboard: 10,000 checkpoints in 1,000 runs",
        rounds,
        None,
        [Figure(f"seconds, {PAGE}", rounds.median(PAGE), 0.3, at_most=True)],
    )


def tensor(folder: Path) -> Section:
    store = standfast.Store(folder)
    with store.run("large") as run:
        values = np.random.default_rng(0).standard_normal(LARGE // 4, np.float32)
        run.save(1, {"w": values})
        del values
    (data,) = folder.glob("checkpoints/models/*/*.safetensors")

    def forget() -> None:
        with data.open("rb") as file:
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)

    def look() -> None:
        found = numbers.summary(CheckpointView(store.resolve("large@1")), "w", 64)
        assert sum(found["histogram"]["counts"]) == found["seen"]

    look()
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    rounds = run_rounds({COLD: (forget, look), WARM: (look, look)}, ROUNDS)
    more = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024
    return Section(
        "dashboard: a tensor of 1 GiB",
        rounds,
        None,
        [
            Figure(f"seconds, {COLD}", rounds.median(COLD), 2, at_most=True),
            Figure("MiB of memory more than the first look took", more, 150, at_most=True),
        ],
    )
