"""Save or load with little memory, then with a little more, …; run as a program.

    memory_limited OPERATION FOLDER

It fails if an error is none of ours, or leaves anything but the old state or the new one. It
prints how often the operation failed, and how often it succeeded.
"""

from __future__ import annotations

import errno
import gc
import resource
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

import standfast
from standfast.errors import OutOfMemory, StandfastError
from standfast.files import ring
from standfast.store import Store

MIB = 1 << 20
ROOM = [0, 1, 2, 3, 4, 5, 6, 8, 10, 12, *range(16, 96, 8), *range(96, 320, 32)]
"""MiB of address space beyond what the process has; a thread takes some ten."""


def state(seed: int) -> dict[str, Any]:
    numbers = np.random.default_rng(seed)
    large = {str(n): np.frombuffer(numbers.bytes(20 * MIB), np.uint8) for n in range(2)}
    return large | {f"small{n}": np.full(10, seed) for n in range(300)}


OLD, NEW = state(1), state(2)


def is_state(found: dict[str, Any], expected: dict[str, Any]) -> bool:
    return all(np.array_equal(found[name], expected[name]) for name in expected)


def taken() -> int:
    return int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()


class FileSave:
    """`standfast.save` over a file."""

    def __init__(self, folder: Path) -> None:
        self.file = folder / "state.safetensors"
        standfast.save(self.file, OLD)

    def act(self) -> None:
        standfast.save(self.file, NEW)

    def check(self, succeeded: bool) -> None:
        assert is_state(standfast.load(self.file), NEW if succeeded else OLD)
        standfast.save(self.file, OLD)
        assert [path.name for path in self.file.parent.iterdir()] == [self.file.name]


class FileLoad(FileSave):
    """`standfast.load`."""

    def act(self) -> None:
        assert is_state(standfast.load(self.file), OLD)

    def check(self, succeeded: bool) -> None:
        assert is_state(standfast.load(self.file), OLD)


class RunSave:
    """`run.save` into a store with a checkpoint."""

    def __init__(self, folder: Path) -> None:
        self.store = Store(folder)
        self.run = self.store.run(name="run")
        self.run.save(0, OLD)
        self.step = 0
        self.committed = [0]

    def act(self) -> None:
        self.step += 1
        self.run.save(self.step, NEW if self.step % 2 else OLD | {"step": self.step})

    def check(self, succeeded: bool) -> None:
        store = Store(self.store.place)
        found = sorted(each.step for each in store.open_run(self.run.hash).checkpoints())
        assert found in (self.committed, [*self.committed, self.step])
        assert not succeeded or self.step in found
        self.committed = found
        store.close()
        self.step += 1
        self.run.save(self.step, {"n": self.step})
        self.committed.append(self.step)
        assert is_state(self.run.load(0), OLD)
        left = [p for p in Path(self.store.url).rglob(".*") if p.is_file()]
        assert left == []


class RunLoad(RunSave):
    """`run.load`."""

    def act(self) -> None:
        assert is_state(self.run.load(), OLD)

    def check(self, succeeded: bool) -> None:
        assert is_state(self.run.load(), OLD)


OPERATIONS: dict[str, Callable[[Path], Any]] = {
    "file-save": FileSave,
    "file-load": FileLoad,
    "run-save": RunSave,
    "run-load": RunLoad,
}


def main(operation: str, folder: str) -> None:
    warnings.simplefilter("error")
    limited = OPERATIONS[operation](Path(folder))
    limited.act()  # imports what it needs
    limited.check(True)
    failed = []
    for room in ROOM:
        gc.collect()
        ring._spare.clear()
        resource.setrlimit(resource.RLIMIT_AS, (taken() + room * MIB, resource.RLIM_INFINITY))
        try:
            limited.act()
            succeeded = True
        except StandfastError as error:
            succeeded = False
            failed.append(error)
        finally:
            resource.setrlimit(resource.RLIMIT_AS, (resource.RLIM_INFINITY,) * 2)
        limited.check(succeeded)
    for error in failed:
        assert isinstance(error, OutOfMemory) or getattr(error, "errno", None) == errno.ENOMEM
    print(len(failed), len(ROOM) - len(failed))


if __name__ == "__main__":
    main(*sys.argv[1:])
