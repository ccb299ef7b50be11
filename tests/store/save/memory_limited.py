"""An operation with little memory, then with a little more, …; run as a program.

    memory_limited OPERATION FOLDER NTH

Every NTH amount of memory is tried. It fails if an error is not one of ours, or leaves anything but
the old state or the new one.
"""

import errno
import gc
import resource
import shutil
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

import standfast
from standfast.errors import OutOfMemory, SlowSaves, StandfastError
from standfast.files import ring
from standfast.store import Store
from standfast.store.maintenance.doctor import examine

MIB = 1 << 20
ROOM = [0, 1, 2, 3, 4, 5, 6, 8, 10, 12, *range(16, 96, 8), *range(96, 320, 32)]
"""MiB of address space beyond what the process has; a thread takes some ten."""


def state(seed: int) -> dict[str, Any]:
    numbers = np.random.default_rng(seed)
    large = {str(n): np.frombuffer(numbers.bytes(20 * MIB), np.uint8) for n in range(2)}
    return large | {f"small{n}": np.full(10, seed) for n in range(300)}


def same(found: dict[str, Any], expected: dict[str, Any]) -> bool:
    return all(np.array_equal(found[name], each) for name, each in expected.items())


OLD, NEW = state(1), state(2)


class FileSave:
    """`standfast.save` over a file."""

    rooms = ROOM
    needs_memory = True
    """Whether it fails where there is least."""
    needs_threads = False
    """Whether it raises OutOfMemory where no thread can be started."""

    def __init__(self, folder: Path) -> None:
        self.file = folder / "state.safetensors"
        standfast.save(self.file, OLD)

    def prepare(self) -> None:
        """What comes before it, with enough memory."""

    def act(self) -> None:
        standfast.save(self.file, NEW)

    def check(self, succeeded: bool) -> None:
        assert same(standfast.load(self.file), NEW if succeeded else OLD)
        standfast.save(self.file, OLD)
        assert [path.name for path in self.file.parent.iterdir()] == [self.file.name]


class FileLoad(FileSave):
    """`standfast.load`."""

    def act(self) -> None:
        assert same(standfast.load(self.file), OLD)

    def check(self, succeeded: bool) -> None:
        self.act()


class RunSave(FileSave):
    """`run.save` into a store with a checkpoint, the first save of a Store object."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.step = 0
        self.committed = [0]
        with Store(folder / "store").run(name="run") as run:
            run.save(0, OLD)

    def prepare(self) -> None:
        self.store = Store(self.folder / "store")
        self.run = self.store.run(name="run")

    def act(self) -> None:
        self.step += 1
        self.run.save(self.step, NEW if self.step % 2 else OLD | {"step": self.step})

    def check(self, succeeded: bool) -> None:
        with Store(self.store.place) as store:
            found = sorted(each.step for each in store.open_run(self.run.hash).checkpoints())
        assert found in (self.committed, [*self.committed, self.step])
        assert not succeeded or self.step in found
        self.step += 1
        self.run.save(self.step, {"n": self.step})
        self.committed = [*found, self.step]
        assert same(self.run.load(0), OLD)
        self.run.close()
        self.store.close()  # the manifest is written by now
        assert [p for p in Path(self.store.url).rglob(".*") if p.is_file()] == []


class RunLoad(RunSave):
    """`run.load`."""

    def act(self) -> None:
        assert same(self.run.load(0), OLD)

    def check(self, succeeded: bool) -> None:
        self.act()
        self.run.close()


class Doctor(RunLoad):
    """`standfast doctor`, which says of nothing whole that it is damaged, and changes nothing."""

    needs_memory = False

    def act(self) -> None:
        found = examine(self.store.backend, self.store.index)
        assert not found.damaged
        assert not found.restored
        if found.unverified:
            raise OutOfMemory(f"not verified: {found.unverified}")


class CopyTo(RunLoad):
    """`Checkpoint.copy_to` into an empty store; one that failed is completed by the next one."""

    def prepare(self) -> None:
        super().prepare()
        shutil.rmtree(self.folder / "other", ignore_errors=True)

    def act(self) -> None:
        self.run.checkpoint(0).copy_to(Store(self.folder / "other"))

    def check(self, succeeded: bool) -> None:
        if not succeeded:
            self.act()
        assert same(Store(self.folder / "other").open_run(self.run.hash).load(0), OLD)
        self.run.close()


class Training(FileSave):
    """Two steps of a program with a Checkpointer, which goes on when it is started again."""

    rooms = ROOM[::4]
    needs_memory = False
    asynchronous = False

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.attempt = 0

    def prepare(self) -> None:
        self.attempt += 1

    def act(self) -> None:
        state = standfast.TrainingState(weight=np.zeros(MIB))
        with (
            warnings.catch_warnings(action="ignore", category=SlowSaves),
            standfast.Checkpointer(
                self.folder / str(self.attempt),
                state,
                name="run",
                every=1,
                asynchronous=self.asynchronous,
            ) as ckpt,
        ):
            for step in ckpt.steps(2):
                state.weight += 1
                ckpt.step(step)

    def check(self, succeeded: bool) -> None:
        if not succeeded:
            self.act()
        [run] = Store(self.folder / str(self.attempt)).runs()
        checkpoints = sorted(run.checkpoints(), key=lambda each: each.step)
        assert [each["weight"][-1] for each in checkpoints] == [1, 2]
        assert all(np.ptp(each["weight"]) == 0 for each in checkpoints)


class TrainingWithHelper(Training):
    """The same, with saves in the background."""

    needs_memory = needs_threads = True
    asynchronous = True


OPERATIONS: dict[str, Callable[[Path], FileSave]] = {
    "file-save": FileSave,
    "file-load": FileLoad,
    "run-save": RunSave,
    "run-load": RunLoad,
    "doctor": Doctor,
    "copy-to": CopyTo,
    "training": Training,
    "training-with-helper": TrainingWithHelper,
}


def main(operation: str, folder: str, nth: str) -> None:
    warnings.simplefilter("error")
    limited = OPERATIONS[operation](Path(folder))
    limited.prepare()
    limited.act()  # imports what it needs
    limited.check(True)
    errors: list[Any] = []
    rooms = limited.rooms[:: int(nth)]
    for room in rooms:
        limited.prepare()
        gc.collect()
        ring._spare.clear()
        taken = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
        failed = len(errors)
        resource.setrlimit(resource.RLIMIT_AS, (taken + room * MIB, resource.RLIM_INFINITY))
        try:
            limited.act()
        except StandfastError as error:
            errors.append(error)
        finally:
            resource.setrlimit(resource.RLIMIT_AS, (resource.RLIM_INFINITY,) * 2)
        limited.check(len(errors) == failed)
    for error in errors:
        assert isinstance(error, OutOfMemory) or getattr(error, "errno", None) == errno.ENOMEM
    assert limited.needs_memory <= len(errors) < len(rooms)


if __name__ == "__main__":
    main(*sys.argv[1:])
