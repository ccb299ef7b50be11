"""What a disk may hold after a power cut, from a log of what was asked of it.

The model knows only what POSIX promises. Writes, size changes and names that no sync covers
may each be there or not, in any combination, and a write may be torn. A sync of a file makes
its content durable, a sync of a folder its names.
"""

from __future__ import annotations

import itertools
import os
import random
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from holdfast.files.disk import Disk


@dataclass(frozen=True)
class Operation:
    kind: str
    file: int = -1
    """Which file, by the order of creation."""
    name: str = ""
    target: str = ""
    offset: int = 0
    data: bytes = b""


class LoggingDisk(Disk):
    """The real disk, and a log of every change."""

    def __init__(self) -> None:
        self.log: list[Operation] = []
        self._files: dict[int, int] = {}
        self._count = itertools.count(1)

    def create(self, path: Path) -> int:
        fd = super().create(path)
        self._files[fd] = next(self._count)
        self.log.append(Operation("create", self._files[fd], path.name))
        return fd

    def reserve(self, fd: int, size: int) -> None:
        super().reserve(fd, size)
        self.log.append(Operation("reserve", self._files[fd], offset=size))

    def write(self, fd: int, data: np.ndarray[Any, Any], offset: int) -> None:
        super().write(fd, data, offset)
        self.log.append(Operation("write", self._files[fd], offset=offset, data=data.tobytes()))

    def truncate(self, fd: int, size: int) -> None:
        super().truncate(fd, size)
        self.log.append(Operation("truncate", self._files[fd], offset=size))

    def sync(self, fd: int) -> None:
        super().sync(fd)
        self.log.append(Operation("sync", self._files[fd]))

    def rename(self, source: Path, target: Path) -> None:
        super().rename(source, target)
        self.log.append(Operation("rename", name=source.name, target=target.name))

    def sync_folder(self, folder: Path) -> None:
        super().sync_folder(folder)
        self.log.append(Operation("sync_folder"))

    def remove(self, path: Path) -> None:
        super().remove(path)
        self.log.append(Operation("remove", name=path.name))


@dataclass
class _Crash:
    """A disk after some operations: what is durable, and what is still in the air."""

    names: dict[str, int] = field(default_factory=dict)
    contents: dict[int, bytes] = field(default_factory=dict)
    renames: list[Operation] = field(default_factory=list)
    writes: dict[int, list[Operation]] = field(default_factory=dict)
    live: dict[str, int] = field(default_factory=dict)
    """The names as a running program sees them."""

    def apply(self, operation: Operation) -> None:
        kind, file = operation.kind, operation.file
        if kind == "sync":
            self.contents[file] = _content(self.contents.get(file, b""), self.writes.pop(file, []))
        elif kind == "sync_folder":
            self.names = dict(self.live)
            self.renames.clear()
        elif kind in ("write", "reserve", "truncate"):
            self.writes.setdefault(file, []).append(operation)
        else:
            if kind == "rename":
                file = self.live[operation.name]
                operation = Operation(kind, file, operation.name, operation.target)
            self.renames.append(operation)
            _rename(self.live, operation)


def states_after_power_cut(
    log: list[Operation], names: dict[str, int], contents: dict[int, bytes], target: str
) -> Iterator[tuple[bool, bytes | None]]:
    """Every content that `target` may have when the power fails, after each prefix of the log.

    `names` and `contents` are what was durable before; yields whether the log had ended, and
    the content, None if there is no such file.
    """
    for end in range(len(log) + 1):
        crash = _Crash(dict(names), dict(contents), live=dict(names))
        for operation in log[:end]:
            crash.apply(operation)
        for kept in _subsets(crash.renames):
            left = dict(crash.names)
            for operation in kept:
                _rename(left, operation)
            if target not in left:
                yield end == len(log), None
                continue
            file = left[target]
            for writes in _torn(crash.writes.get(file, [])):
                yield end == len(log), _content(crash.contents.get(file, b""), writes)


def _rename(names: dict[str, int], operation: Operation) -> None:
    if operation.kind == "create":
        names[operation.name] = operation.file
    elif operation.kind == "rename":
        names.pop(operation.name, None)
        names[operation.target] = operation.file
    elif operation.kind == "remove":
        names.pop(operation.name, None)


def _content(durable: bytes, operations: list[Operation]) -> bytes:
    content = bytearray(durable)
    for operation in operations:
        end = operation.offset + len(operation.data)
        if operation.kind == "truncate":
            del content[end:]
        content.extend(bytes(max(0, end - len(content))))
        if operation.kind == "write":
            content[operation.offset : end] = operation.data
    return bytes(content)


def _subsets(operations: list[Operation]) -> Iterator[list[Operation]]:
    for keep in itertools.product((True, False), repeat=len(operations)):
        yield list(itertools.compress(operations, keep))


def _torn(operations: list[Operation]) -> Iterator[list[Operation]]:
    """Ways in which unsynced operations may have reached the disk: all of them if they are few."""
    yield operations
    for i, operation in enumerate(operations):
        without = operations[:i] + operations[i + 1 :]
        yield without
        yield [operation]
        if operation.kind == "write":
            half = operation.data[: len(operation.data) // 2 // 512 * 512]
            torn = Operation("write", operation.file, offset=operation.offset, data=half)
            yield [*operations[:i], torn, *operations[i + 1 :]]
    chance = random.Random(0)
    for _ in range(30):
        yield [operation for operation in operations if chance.random() < 0.5]


def folder_state(folder: Path) -> tuple[dict[str, int], dict[int, bytes]]:
    """The files of a folder as the durable state to start from, numbered from below zero."""
    names = {name: -i for i, name in enumerate(sorted(os.listdir(folder)), 1)}
    return names, {number: (folder / name).read_bytes() for name, number in names.items()}
