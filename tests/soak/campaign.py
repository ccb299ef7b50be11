"""The campaign: phases in which workers use a store and are disturbed, and a check after each."""

import json
import math
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

from standfast.store import Store
from standfast.store.backends import locks
from standfast.store.index import database
from standfast.store.maintenance.doctor import clean, examine
from standfast.store.maintenance.verify import verify_store
from standfast.store.retention.trash import Trash
from tests import ROOT
from tests.kit.fuse import mounted
from tests.soak.journal import now, read
from tests.soak.model import Model, Operation, Span, Write, operations
from tests.soak.reader import DATA, NAME, Wrong, read_store
from tests.soak.worker import RUNS, STEPS, TRAININGS, Settings, Worker, run_of

SIZE = 1 << 30
"""Of a file system; there are few states of more than 16 MiB."""
WORKERS = 4
PHASE = 15.0
"""Seconds from the start of the workers to the check."""
LONGEST = 120.0
"""Seconds that a phase of so many operations may take."""
PATIENCE = 200.0
"""Seconds that a worker has for its last operation; it ends by itself before, if that hangs."""
DEAD = 0.5
"""Seconds after the end of a process in which what it had begun may still be done: its helper."""
_FILE = re.compile(f"{DATA.pattern}|{NAME.pattern}")
HELPER = "standfast.training.background.helper"


@dataclass
class Report:
    """What was done, and what is wrong."""

    title: str
    seed: int
    folder: Path
    seconds: float = 0.0
    begun: Counter[str] = field(default_factory=Counter)
    done: Counter[str] = field(default_factory=Counter)
    refused: Counter[str] = field(default_factory=Counter)
    disturbances: Counter[str] = field(default_factory=Counter)
    phases: int = 0
    nbytes: int = 0
    wrong: list[Wrong] = field(default_factory=list)
    journals: list[str] = field(default_factory=list)

    def __str__(self) -> str:
        def row(name: str, counts: Counter[str]) -> str:
            return f"  {name:<13}" + ", ".join(f"{k} {n:,}" for k, n in sorted(counts.items()))

        saves = self.done["save"] + self.done["background"]
        lines = [
            f"{self.title}, seed {self.seed}: {self.phases} phases in {self.seconds:.0f} s, "
            f"{sum(self.begun.values()):,} operations, {saves:,} saves acknowledged, "
            f"{self.nbytes / 1e9:.1f} GB verified",
            row("done", self.done),
            row("not done", self.refused),
            row("disturbed by", self.disturbances),
        ]
        if self.wrong:
            lines += [f"  the last entries of {len(self.journals)} journals:", *self.journals]
            lines += [f"  WRONG {wrong}" for wrong in self.wrong[:20]]
            lines += [f"  {len(self.wrong)} in all; the files are kept in {self.folder}"]
        return "\n".join(lines)


class Process:
    """A worker that was started."""

    def __init__(self, name: str, settings: Settings) -> None:
        self.name = name
        self.journal = Path(settings.journal)
        self.operations = settings.operations
        self.is_stopped = False
        self.died: float | None = None
        self.was_killed = False
        self.errors = self.journal.with_suffix(".err")
        with self.errors.open("wb") as errors:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "tests.soak.worker", json.dumps(settings)],
                cwd=ROOT,
                stdin=subprocess.DEVNULL,
                stdout=errors,
                stderr=errors,
                start_new_session=True,
            )

    def signal(self, number: int) -> None:
        with suppress(ProcessLookupError):
            os.kill(self.process.pid, number)

    def kill(self) -> None:
        self.was_killed = True
        self.process.kill()
        self.process.wait()
        with suppress(ProcessLookupError):  # forked children
            os.killpg(self.process.pid, signal.SIGKILL)
        self.died = now() + DEAD

    def is_over(self) -> bool:
        if self.died is None and self.process.poll() is not None:
            self.died = now() + DEAD
        return self.died is not None

    def begun(self) -> int:
        """How many operations it has begun."""
        return sum("kind" in entry for entry in read(self.journal))

    def helper(self) -> int | None:
        """The helper of its Checkpointer, if it has one now."""
        with suppress(OSError, ValueError):
            for task in os.listdir(f"/proc/{self.process.pid}/task"):
                children = Path(f"/proc/{self.process.pid}/task/{task}/children").read_text()
                for child in children.split():
                    if HELPER in Path(f"/proc/{child}/cmdline").read_text():
                        return int(child)
        return None


class Campaign:
    """One store on one file system, from the first phase to the last check."""

    def __init__(
        self, root: Path, journals: Path, report: Report, filler: Path | None, links: bool
    ) -> None:
        self._root, self._journals, self._report, self._links = root, journals, report, links
        self._filler, self._free_at = filler, 0.0
        self._random = random.Random(report.seed)
        self._store, self._other = root / "store", root / "other"
        self._outside = root / "outside"
        self._model = Model()
        self._started = 0
        self._spans: list[Span] = []
        self._processes: list[Process] = []
        self._planted: dict[Path, bytes | str] = {}
        self._old_index: Path | None = None
        with Store(self._store) as store:
            self._hashes = {name: run_of(store, name).hash for name in (*RUNS, *TRAININGS)}
        self._names = {run: name for name, run in self._hashes.items()}
        for name in self._hashes:
            self._model.registers[f"label {name}"].append(Write(0.0, 0.0, name, True))
        self._models = self._store / "checkpoints" / "models"
        self._own = self._store / "checkpoints" / ".standfast"

    # Phases

    def phase(self, seconds: float, operations: int = 0, workers: int = WORKERS) -> None:
        """Let workers work for so long, or until each has done so many operations; then check."""
        stop = self._journals / "stop"
        stop.unlink(missing_ok=True)
        self._processes, self._spans = [], []
        running = [self._start(stop, operations) for _ in range(workers)]
        until = now() + seconds
        while now() < until and running:
            time.sleep(self._random.expovariate(4))
            if now() > self._free_at:
                self._free_disk()
            running = [each for each in running if not each.is_over()]
            if not running:
                break
            process = self._random.choice(running)
            if self._disturb(process) == "kill":
                running.remove(process)
                if not operations or (left := process.operations - process.begun()) > 0:
                    running.append(self._start(stop, operations and left))
        self._free_disk()
        stop.touch()
        for process in running:
            process.signal(signal.SIGCONT)
            if self._random.random() < 0.3:
                self._count("kill")
                process.kill()
        for process in running:
            with suppress(subprocess.TimeoutExpired):
                process.process.wait(PATIENCE)
            if not process.is_over():
                self._report.wrong.append(Wrong("no process hangs", process.name))
                process.kill()
        time.sleep(DEAD)
        self._report.phases += 1
        self._check()

    def _start(self, stop: Path, operations: int) -> Process:
        self._started += 1
        name = f"worker-{self._started}"
        process = Process(name, self._settings(name, stop, operations))
        self._processes.append(process)
        return process

    def _settings(self, name: str, stop: Path, operations: int = 0) -> Settings:
        return Settings(
            str(self._store),
            str(self._other),
            str(self._journals / f"{name}.jsonl"),
            str(stop),
            self._random.randrange(1 << 32),
            self._started * 1_000_000,
            operations,
            self._links,
        )

    def stop(self) -> None:
        """End all that was started."""
        for process in self._processes:
            if not process.is_over():
                process.kill()

    def journals(self) -> list[str]:
        """The last entries of all journals of this phase."""
        return [
            f"  {process.name}: {str(entry)[:400]}"
            for process in self._processes
            for entry in [*read(process.journal)][-2:]
        ]

    def _count(self, what: str) -> None:
        self._report.disturbances[what] += 1

    # Disturbances

    def _disturb(self, process: Process) -> str:
        kinds = ["kill", "stop", "stop", "times", "foreign", "view", "view", "lock", "helper"]
        if self._filler is not None and self._report.phases % 2:
            kinds.append("full")  # not in all phases: where there is no space, the trash is emptied
        chosen = self._random.choice(kinds)
        if getattr(self, f"_try_{chosen}")(process):
            self._count(chosen)
        return chosen

    def _try_kill(self, process: Process) -> bool:
        process.kill()
        return True

    def _try_stop(self, process: Process) -> bool:
        process.signal(signal.SIGSTOP)
        time.sleep(self._random.random() * 0.8)
        process.signal(signal.SIGCONT)
        return True

    def _try_helper(self, process: Process) -> bool:
        for each in self._processes:
            if not each.is_over() and (helper := each.helper()):
                with suppress(ProcessLookupError):
                    os.kill(helper, signal.SIGKILL)
                return True
        return False

    def _try_times(self, process: Process) -> bool:
        """Set the times of files and folders, into the past or the future.

        Not of data files, under any name: who reads one takes it for one that was written to.
        """
        for path in self._some_paths():
            time_ns = self._random.randrange(10**18, 3 * 10**18)
            with suppress(FileNotFoundError):
                os.utime(path, ns=(time_ns, time_ns), follow_symlinks=False)
        return True

    def _some_paths(self) -> Iterator[Path]:
        for folder, folders, files in os.walk(self._models):
            for name in [*folders, *files]:
                if self._random.random() < 0.1 and not _FILE.fullmatch(name):
                    yield Path(folder, name)

    def _try_foreign(self, process: Process) -> bool:
        """Put something into the store that is none of ours, and must stay as it is."""
        run = self._random.choice([*self._hashes.values()])
        name = f"foreign-{self._random.randrange(1 << 32):08x}"
        kind = self._random.randrange(6)
        folder = self._random.choice((self._models / run, self._models, self._own / "trash"))
        try:
            if kind == 0:
                self._plant(folder / f"{name}.safetensors")
            elif kind == 1:
                self._plant(self._models / run / f".{name}")
            elif kind == 2:
                target = self._plant(self._outside / name)
                self._plant(folder / name, link=str(target))
            elif kind == 3:  # what looks like ours, reached through a link to a folder
                elsewhere = f"{self._random.randrange(1 << 64):024x}"
                outside = self._outside / elsewhere
                self._plant(outside / f"{elsewhere}_step_000001.0123abcd.model.safetensors")
                self._plant(outside / ".0123abcd.standfast")
                self._plant(self._models / elsewhere, link=str(outside))
            elif kind == 4:
                outside = self._outside / name
                self._plant(outside / f"{run}_step_000001.json")
                self._plant(self._own / "trash" / f"{run}.{name[-8:]}", link=str(outside))
            else:
                target = self._plant(self._outside / name)
                own = f"{run}_step_000001.{name[-8:]}.link.safetensors"
                (self._models / run / own).symlink_to(target)  # by its name it is ours, and may go
        except OSError:  # no folder, or no space
            return False
        return True

    def _plant(self, path: Path, link: str = "") -> Path:
        if path.parent.is_relative_to(self._outside):
            path.parent.mkdir(parents=True, exist_ok=True)
        if link:
            path.symlink_to(link)
        else:
            path.write_bytes(str(path).encode())
        self._planted[path] = link or str(path).encode()
        return path

    def _try_view(self, process: Process) -> bool:
        """Delete or overwrite what can be made again from the records."""
        index = [self._own / f"{database.NAME}{suffix}" for suffix in ("-shm", "-wal", "")]
        kind = self._random.randrange(5)
        with suppress(OSError):
            if kind == 0:
                for path in index:
                    path.unlink(missing_ok=True)
            elif kind == 1:
                _overwrite(self._random.choice(index[1:]), self._random.randbytes(5000))
            elif kind == 2:
                manifest = self._store / "checkpoints" / "manifest.yaml"
                manifest.unlink() if self._random.random() < 0.5 else manifest.write_bytes(b"\0{")
            elif kind == 3:
                self._old_index = self._journals / database.NAME
                shutil.copyfile(index[2], self._old_index)
            elif self._old_index is not None:
                for path in index:
                    path.unlink(missing_ok=True)
                shutil.copyfile(self._old_index, index[2])
            return True
        return False

    def _try_lock(self, process: Process) -> bool:
        """Delete the files of locks that no process holds."""
        folder = self._own / "locks"
        with suppress(OSError):
            for path in folder.iterdir():
                if lock := locks.take(path):
                    path.unlink()
                    lock.release()
            return True
        return False

    def _try_full(self, process: Process) -> bool:
        """Let the disk be full for a while."""
        if self._filler is None or self._filler.exists():
            return False
        begin = now()
        status = os.statvfs(self._filler.parent)
        size = status.f_bavail * status.f_frsize - self._random.randrange(3 << 20)
        try:
            with self._filler.open("wb") as file:
                os.posix_fallocate(file.fileno(), 0, max(1, size))
        except OSError:  # others write: it is nearly full
            pass
        self._spans.append(Span(begin, math.inf))
        self._free_at = now() + self._random.uniform(0.3, 3)
        return True

    def _free_disk(self) -> None:
        if self._filler is not None and self._filler.exists():
            self._filler.unlink()
            self._spans[-1] = Span(self._spans[-1].start, now())

    # Checks

    def _check(self) -> None:
        """Compare the disk with what the journals allow, then let the library tidy up."""
        for process in self._processes:
            code = process.process.returncode
            if code and not process.was_killed:
                text = process.errors.read_text(errors="replace")[-3000:]
                self._wrong("no process crashes", f"{process.name} ended with {code}: {text}")
        self._take(
            each
            for process in self._processes
            for each in operations(process.name, [*read(process.journal)], process.died or now())
        )
        self._compare("what the phase left")
        if self._report.wrong:
            return
        self._started += 1
        settings = self._settings("checker", Path(os.devnull) / "none")
        Path(settings.journal).unlink(missing_ok=True)
        checker = Worker(settings)
        try:
            for name in RUNS:
                if not checker.save(name, STEPS, replace=True):
                    *_, last = read(Path(settings.journal))
                    self._wrong("G5", f"the next save into {name} was refused: {last}")
            checker.let_go()
            self._tidy(checker.store)
        finally:
            checker.close()
        self._take(operations("checker", [*read(Path(settings.journal))], now()))
        for each in self._compare("after a save into each run"):
            self._wrong("G16", f"nothing refers to {each}")
        self._check_views()

    def _wrong(self, promise: str, what: str) -> None:
        self._report.wrong.append(Wrong(promise, what))

    def _take(self, found: Iterable[Operation]) -> None:
        sorted_ = sorted(found, key=lambda each: each.start)
        report = self._report
        report.begun.update(each.kind for each in sorted_)
        report.done.update(each.kind for each in sorted_ if each.outcome == "done")
        report.refused.update(each.outcome for each in sorted_ if each.outcome != "done")
        report.wrong += self._model.take(sorted_, self._spans)

    def _compare(self, when: str) -> list[str]:
        """Read both stores; returns the files that nothing refers to."""
        leftovers = []
        for place, prefix in ((self._store, ""), (self._other, "copy/")):
            disk = read_store(place)
            found = [*disk.wrong, *self._model.compare(disk, self._names, prefix)]
            self._report.wrong += [Wrong(each.promise, f"{each.what}, {when}") for each in found]
            self._report.nbytes += disk.nbytes
            self._model.settle(disk, self._names, prefix)
            leftovers += disk.leftovers
        for path, content in self._planted.items():
            try:
                found_there = os.readlink(path) if isinstance(content, str) else path.read_bytes()
            except OSError as error:
                found_there = str(error)
            if found_there != content:
                self._wrong("G14", f"{path}, which is foreign, is {found_there!r:.200}, {when}")
        return leftovers

    def _tidy(self, store: Store) -> None:
        """What `standfast doctor` and `verify` do; no other process uses the store."""
        for each in (store, Store(self._other)):
            clean(each.backend, each.index)
            Trash(each.backend).empty(older_than=math.inf)
            found = examine(each.backend, each.index)
            orphans = [name for name in found.orphans if name.split("/")[1] in self._names]
            if found.damaged or found.unverified or found.restored or orphans:
                self._wrong("G9", f"doctor: {found}")
            verified = verify_store(each)
            if verified.damaged or verified.unverified:
                self._wrong("G9", f"verify: {verified.damaged} {verified.unverified}")
            self._report.nbytes += found.nbytes + verified.nbytes
            each.close()

    def _check_views(self) -> None:
        """The index says what a new one does, and the manifest tells of all runs."""
        before = _indexed(self._store)
        for suffix in ("-shm", "-wal", ""):
            (self._own / f"{database.NAME}{suffix}").unlink(missing_ok=True)
        after = _indexed(self._store)
        if before != after:
            self._wrong("G17", f"the index had {before}, and a new one has {after}")
        manifest = (self._store / "checkpoints" / "manifest.yaml").read_text()
        if lacking := [name for name, run in self._hashes.items() if run not in manifest]:
            self._wrong("G17", f"the manifest lacks {lacking}")


def _indexed(place: Path) -> object:
    with Store(place) as store:
        store.index.refresh()
        runs = sorted(each.run for each in store.index.runs())
        latest = store.resolve("latest").ref
        tags = [sorted(store.index.tags(run).items()) for run in runs]
        late = [sorted(store.index.late_metrics(run).items()) for run in runs]
        files = [sorted(store.index.files(run)) for run in runs]
        return [runs, latest, tags, late, files, [store.index.sequences(run) for run in runs]]


def _overwrite(path: Path, data: bytes) -> None:
    """Write over the begin of a file, which is not cut."""
    fd = os.open(path, os.O_WRONLY)
    try:
        os.pwrite(fd, data, 0)
    finally:
        os.close(fd)


KINDS: dict[str, dict[str, bool]] = {
    "ext4": {},
    "tmpfs": {},
    "fuse": {},
    "fuse-without-fallocate": {"fallocate": False, "rename2": False},
    "fuse-without-links": {"links": False, "fallocate": False},
    "folder": {},
}
"""File systems, and the calls that they lack."""


def soak(
    kind: str,
    seed: int,
    seconds: float = 0.0,
    *,
    operations: int = 0,
    workers: int = WORKERS,
    folder: Path | None = None,
) -> Report:
    """Run a campaign on one file system, for some time, or one phase of so many operations."""
    place = Path(tempfile.mkdtemp(prefix="standfast-soak-", dir=folder))
    report = Report(kind, seed, place)
    journals = place / "journals"
    journals.mkdir()
    begin = now()
    with _mounted(place / "disk", kind) as (root, filler):
        campaign = Campaign(root, journals, report, filler, KINDS[kind].get("links", True))
        try:
            while not report.phases or (now() - begin < seconds and not report.wrong):
                left = begin + seconds - now()
                length = LONGEST if operations else min(PHASE, left)
                campaign.phase(length, operations, workers)
        finally:
            campaign.stop()
        report.seconds = now() - begin
        if report.wrong:
            report.journals = campaign.journals()
            subprocess.run(["cp", "-a", f"{root}/.", str(place / "kept")], check=True)
    if not report.wrong:
        shutil.rmtree(place)
    return report


@contextmanager
def _mounted(place: Path, kind: str) -> Iterator[tuple[Path, Path | None]]:
    """A file system, and where a file that fills it can be made."""
    if kind == "folder":
        place.mkdir()
        yield place, None
        return
    with mounted(place, kind.partition("-")[0], size=SIZE, **KINDS[kind]) as root:
        is_fuse = kind.startswith("fuse")
        yield root, (place.with_name("disk.backing") if is_fuse else root) / "filler"
