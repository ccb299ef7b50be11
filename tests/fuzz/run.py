"""The loop: an input after the other, for some time, or so many of them."""

from __future__ import annotations

import math
import re
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from random import Random

from blake3 import blake3

from standfast.files.layout import Index
from standfast.formats.reader import Options
from tests import ROOT
from tests.fuzz.limits import alarm_clock, memory_limit, peak_memory
from tests.fuzz.on_disk import check_on_disk
from tests.fuzz.properties import check_in_memory, check_opened
from tests.fuzz.target import LARGEST_SEED, Target, require

SECONDS_EACH = 3.0
"""Of the processor, for one input."""
SECONDS_WAITED = 60.0
"""By the clock: a disk that others use can make an input wait."""
MEMORY_EACH = 256 << 20
MEMORY_ALL = 2 << 30
OPENED_EVERY = 4
ON_DISK_EVERY = 40
POOL = 2000
"""How many inputs are kept to be changed further."""

KEPT = ROOT / "build" / "fuzz"


@dataclass(frozen=True)
class Failure:
    """An input for which a property does not hold."""

    what: str
    kept: Path

    def __str__(self) -> str:
        return f"{self.what}\n  python -m tests.fuzz --replay {self.kept}"


@dataclass
class Report:
    """What was tried of one format, and what came of it."""

    target: str
    seed: int
    seconds: float = 0.0
    tried: int = 0
    accepted: int = 0
    opened: int = 0
    on_disk: int = 0
    refused: Counter[str] = field(default_factory=Counter)
    failures: dict[str, Failure] = field(default_factory=dict)
    """The first input of each kind of failure."""

    def __str__(self) -> str:
        rate = self.tried / self.seconds if self.seconds else 0
        refusals = (f"{name} {count:,}" for name, count in self.refused.most_common())
        lines = [
            f"{self.target}, seed {self.seed}: {self.tried:,} inputs, {rate:,.0f} a second; "
            f"{self.opened:,} opened as streams, {self.on_disk:,} as real files",
            f"  accepted {self.accepted:,}, {', '.join(refusals)}",
            f"  {len(self.failures)} kinds of failures",
            *map(str, self.failures.values()),
        ]
        return "\n".join(lines)


def fuzz(
    target: Target, seed: int, folder: Path, seconds: float = math.inf, inputs: float = math.inf
) -> Report:
    """Try so many inputs, or for some time; `folder` is for the files opened from a disk."""
    fuzzer = Fuzzer(target, seed, folder)
    report, begun = fuzzer.report, time.perf_counter()
    with memory_limit(MEMORY_ALL), alarm_clock() as alarm:
        while report.tried < inputs and report.seconds < seconds:
            fuzzer.step(alarm)
            report.seconds = time.perf_counter() - begun
    return report


def replay(target: Target, path: Path, folder: Path) -> None:
    """Try one input in every way; raises what is wrong with it."""
    data = path.read_bytes()
    for verify in (True, False):
        for tensors_only in (False, True) if target.has_objects else (False,):
            options = Options(verify=verify, tensors_only=tensors_only)
            outcome = check_in_memory(data, target, options)
            check_opened(data, outcome, target, options)
            for suffix in (target.suffix, ".bin"):
                # Each seed takes other slices of the tensors.
                for seed in range(20):
                    check_on_disk(data, folder / f"file{suffix}", options, Random(seed))


class Fuzzer:
    """All seeds as they are, then one changed input after the other."""

    def __init__(self, target: Target, seed: int, folder: Path) -> None:
        self.report = Report(target.name, seed)
        self._target = target
        self._random = Random(seed)
        self._folder = folder
        self._pool = target.seeds()
        self._fresh = list(self._pool)

    def step(self, alarm: Callable[[float], None]) -> None:
        """Try one input, and count what came of it."""
        data = self._fresh.pop() if self._fresh else self._next()
        self.report.tried += 1
        memory, begun = peak_memory(), time.process_time()
        try:
            alarm(SECONDS_WAITED)
            refused = self._refusal(data)
            alarm(0)
            require(time.process_time() - begun < SECONDS_EACH, "it took too much time")
            require(peak_memory() - memory < MEMORY_EACH, "it took too much memory")
        except KeyboardInterrupt:
            raise
        except BaseException as error:
            alarm(0)
            self._note(error, data)
        else:
            if refused:
                self.report.refused[refused] += 1
            else:
                self.report.accepted += 1
                self._keep(data)

    def _next(self) -> bytes:
        random, pool = self._random, self._pool
        data = random.choice(pool)
        if random.random() < 0.1:
            data = self._target.random_file(random)
        return self._target.mutate(random, data, pool) if random.random() < 0.95 else data

    def _refusal(self, data: bytes) -> str:
        """The name of the error by which an input was refused; nothing if it was accepted."""
        objects = self._target.has_objects and self._random.random() < 0.3
        options = Options(verify=self._random.random() < 0.6, tensors_only=objects)
        outcome = check_in_memory(data, self._target, options)
        if self.report.tried % OPENED_EVERY == 0:
            self.report.opened += 1
            check_opened(data, outcome, self._target, options)
        if self.report.tried % ON_DISK_EVERY == 0:
            self.report.on_disk += 1
            name = self._random.choice((f"file{self._target.suffix}", "file.bin"))
            return check_on_disk(data, self._folder / name, options, self._random)
        return "" if isinstance(outcome, Index) else type(outcome).__name__

    def _keep(self, data: bytes) -> None:
        """An accepted input is a good start for others."""
        if len(data) > LARGEST_SEED:
            return
        if len(self._pool) < POOL:
            self._pool.append(data)
        else:
            self._pool[self._random.randrange(POOL)] = data

    def _note(self, error: BaseException, data: bytes) -> None:
        noted(self.report, error, data, self._target.suffix)


def noted(report: Report, error: BaseException, data: bytes, suffix: str) -> None:
    """Keep the first input of each kind of failure."""
    what = f"{type(error).__name__}: {str(error)[:300]}"
    # Failures that differ only in numbers and names are one kind.
    kind = re.sub(r"'[^']*'|\"[^\"]*\"|`[^`]*`|\d+", "…", what)[:100]
    if kind not in report.failures:
        KEPT.mkdir(parents=True, exist_ok=True)
        kept = KEPT / f"{blake3(data).hexdigest()[:16]}{suffix}"
        kept.write_bytes(data)
        report.failures[kind] = Failure(what, kept)
