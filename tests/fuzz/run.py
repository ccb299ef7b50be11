"""The corpus, the seeds and some changes of them: always the same for the same seed."""

import lzma
import re
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory
from typing import Protocol

from blake3 import blake3

from standfast.files.layout import Index
from standfast.formats.reader import Options
from tests import GOLDEN, ROOT
from tests.formats.malformed import TABLES
from tests.fuzz.limits import alarm_clock, memory_limit, peak_memory
from tests.fuzz.on_disk import check_on_disk
from tests.fuzz.properties import check_in_memory, check_opened
from tests.fuzz.target import LARGEST_SEED, Target, require

SECONDS_EACH = 3.0
"""Of the processor, for one input."""
SECONDS_WAITED = 60.0
"""By the clock: others use the machine too."""
MEMORY_EACH = 256 << 20
MEMORY_ALL = 2 << 30
OPENED_EVERY = 4
ON_DISK_EVERY = 40

KEPT = ROOT / "build" / "fuzz"
CORPUS = Path(__file__).with_name("corpus")
"""The inputs that campaigns found, in one file for each target: each after its length."""


def corpus(name: str) -> list[bytes]:
    """The inputs of a target."""
    data, found, at = lzma.decompress((CORPUS / f"{name}.xz").read_bytes()), [], 0
    while at < len(data):
        start = at + 4
        at = start + int.from_bytes(data[at:start], "little")
        found.append(data[start:at])
    return found


def replace_corpus(name: str, files: Iterable[bytes]) -> None:
    """Keep these inputs in the place of those of a target."""
    data = b"".join(len(file).to_bytes(4, "little") + file for file in sorted(set(files)))
    (CORPUS / f"{name}.xz").write_bytes(lzma.compress(data, preset=9))


class Subject(Protocol):
    """What is fuzzed: a format, or records."""

    @property
    def name(self) -> str: ...
    @property
    def suffix(self) -> str: ...
    def seeds(self) -> list[bytes]: ...
    def mutate(self, random: Random, file: bytes, others: Sequence[bytes]) -> bytes: ...
    def attempt(self, data: bytes, random: Random, tried: int) -> str:
        """Try an input: the name of the error that refused it, or nothing.

        Some of the checks are made of some of the inputs, by their count.
        """
        ...


class Format:
    """A format as what is fuzzed; some inputs become files in a folder."""

    def __init__(self, target: Target, folder: Path) -> None:
        self.name, self.suffix = target.name, target.suffix
        self.mutate = target.mutate
        self._target, self._folder = target, folder

    def seeds(self) -> list[bytes]:
        """The corpus, the golden files, and what is known to be malformed."""
        golden = [path.read_bytes() for path in sorted(GOLDEN.glob(f"*{self.suffix}"))]
        tables = [TABLES[self.name]] + [TABLES["pickle"]] * self._target.has_objects
        rows = [row.content for table in tables for row in table.rows if not callable(row.data)]
        small = [data for data in (*golden, *rows) if len(data) <= LARGEST_SEED]
        return [*corpus(self.name), *small]

    def attempt(self, data: bytes, random: Random, tried: int) -> str:
        objects = self._target.has_objects and random.random() < 0.3
        options = Options(verify=random.random() < 0.6, tensors_only=objects)
        outcome = check_in_memory(data, self._target, options)
        if tried % OPENED_EVERY == 0:
            check_opened(data, outcome, self._target, options)
        if tried % ON_DISK_EVERY == 0:
            name = random.choice((f"file{self.suffix}", "file.bin"))
            return check_on_disk(data, self._folder / name, options, random)
        return "" if isinstance(outcome, Index) else type(outcome).__name__


@contextmanager
def memory_folder() -> Iterator[Path]:
    """A folder for files that no disk should see, where there is one."""
    shared = Path("/dev/shm")
    with TemporaryDirectory(dir=shared if shared.is_dir() else None) as folder:
        yield Path(folder)


@dataclass
class Report:
    """What was tried, and what came of it."""

    target: str
    seconds: float = 0.0
    tried: int = 0
    accepted: int = 0
    refused: Counter[str] = field(default_factory=Counter)
    failures: dict[str, str] = field(default_factory=dict)
    """The first input of each kind of failure, and where it is kept."""

    def __str__(self) -> str:
        refusals = (f"{name} {count:,}" for name, count in self.refused.most_common())
        lines = [
            f"{self.target}: {self.tried:,} inputs, {self.tried / self.seconds:,.0f} a second",
            f"  accepted {self.accepted:,}, {', '.join(refusals)}",
            *self.failures.values(),
        ]
        return "\n".join(lines)


def fuzz(subject: Subject, seed: int, inputs: int) -> Report:
    """Try the corpus, the seeds, and so many changes of them."""
    random, report, begun = Random(seed), Report(subject.name), time.perf_counter()
    pool = subject.seeds()
    with memory_limit(MEMORY_ALL), alarm_clock() as alarm:
        for tried in range(len(pool) + inputs):
            changed = tried >= len(pool)
            data = subject.mutate(random, random.choice(pool), pool) if changed else pool[tried]
            if _attempt(subject, data, random, report, alarm) and changed:
                pool.append(data)  # what was accepted is a good start for others
    report.seconds = time.perf_counter() - begun
    return report


def _attempt(
    subject: Subject, data: bytes, random: Random, report: Report, alarm: Callable[[float], object]
) -> bool:
    """Whether it was accepted."""
    report.tried += 1
    memory, begun = peak_memory(), time.process_time()
    try:
        alarm(SECONDS_WAITED)
        refused = subject.attempt(data, random, report.tried)
        alarm(0)
        require(time.process_time() - begun < SECONDS_EACH, "it took too much time")
        require(peak_memory() - memory < MEMORY_EACH, "it took too much memory")
    except KeyboardInterrupt:
        raise
    except BaseException as error:
        alarm(0)
        _note(report, error, data, subject.suffix)
        return False
    if refused:
        report.refused[refused] += 1
    else:
        report.accepted += 1
    return not refused and len(data) <= LARGEST_SEED


def _note(report: Report, error: BaseException, data: bytes, suffix: str) -> None:
    """Keep the first input of each kind of failure."""
    what = f"{type(error).__name__}: {str(error)[:300]}"
    # Failures that differ only in numbers and names are one kind.
    kind = re.sub(r"'[^']*'|\"[^\"]*\"|`[^`]*`|\d+", "…", what)[:100]
    if kind not in report.failures:
        KEPT.mkdir(parents=True, exist_ok=True)
        kept = KEPT / f"{report.target}.{blake3(data).hexdigest()[:16]}{suffix}"
        kept.write_bytes(data)
        report.failures[kind] = f"{what}\n  python -m tests.fuzz --replay {kept}"
