"""Space that is reserved for a file, and file systems that cannot reserve any."""

import errno
import os
from collections.abc import Callable
from pathlib import Path
from threading import Lock
from time import sleep
from typing import Any

import numpy as np
import pytest

import standfast
from standfast import Store, errors
from standfast.files import libc, writer
from standfast.tensors import source_of
from standfast.tensors.sources import Bytes
from tests.kit.cases import kept
from tests.kit.seams import Seams
from tests.kit.stores import MIB, Array, random_bytes

SAVES: dict[str, Callable[[Path, dict[str, Array]], object]] = {
    "file": lambda folder, state: standfast.save(folder / "state.safetensors", state),
    "store": lambda folder, state: Store(folder).run(name="run").save(1, state),
}
LOADS: dict[str, Callable[[Path], dict[str, Array]]] = {
    "file": lambda folder: standfast.load(folder / "state.safetensors", verify=False),
    "store": lambda folder: Store(folder).run(name="run").load(verify=False),
}


def holds(kind: str, folder: Path, state: dict[str, Array]) -> bool:
    found = LOADS[kind](folder)
    return all(np.array_equal(found[name], state[name]) for name in state)


class WatchedFile:
    """A file that says whether space was reserved while a block was being written."""

    def __init__(self) -> None:
        self.reserved: list[int] = []
        self.writing = 0
        self.was_written_to = False
        self._guard = Lock()

    def reserve(self, size: int) -> None:
        self.reserved.append(size)
        self.was_written_to |= self.writing > 0

    def write(self, data: Bytes, offset: int) -> None:
        with self._guard:
            self.writing += 1
        sleep(0.02)
        with self._guard:
            self.writing -= 1

    def finish(self, size: int) -> None: ...

    def discard(self) -> None: ...


@pytest.mark.guarantee("G4")
def test_no_space_is_reserved_while_the_file_is_written_to(seams):
    """libc and some file systems do it by writing zeros, also over data of other threads."""
    seams.bound("bytes ahead of a writer", 0)
    source = source_of(np.zeros(16 * MIB, np.uint8))
    pieces = [(source, 0, 16 * MIB)] * 8
    file = writer.write_growing(WatchedFile, 0, pieces, lambda: b"head", 8 * 16 * MIB)
    assert len(file.reserved) == 3
    assert not file.was_written_to


def test_where_no_space_can_be_reserved_nothing_emulates_it(mount):
    """An emulation writes to the file, which other threads are writing to."""
    path = mount(fallocate=False) / "file"
    path.write_bytes(b"x")
    with path.open("r+b") as file, pytest.raises(OSError, match="Errno") as caught:
        libc.allocate(file.fileno(), MIB)
    assert caught.value.errno in libc.MISSING
    assert path.read_bytes() == b"x"


def answering(seams: Seams, number: int, most: int = 0) -> list[int]:
    """Let no more than so many bytes be reserved; returns what is asked for from then on."""
    asked: list[int] = []

    def allocate(real: Any, fd: int, size: int) -> None:
        asked.append(size)
        if size > most:
            raise OSError(number, os.strerror(number))

    seams.libc(allocate=allocate)
    return asked


@pytest.mark.parametrize("kind", SAVES)
@pytest.mark.parametrize("number", kept([errno.EOPNOTSUPP, errno.ENOSYS, errno.EINVAL], 95))
def test_a_file_is_written_where_reserving_is_not_supported(number, kind, tmp_path, seams):
    asked = answering(seams, number)
    seams.bound("bytes ahead of a writer", MIB)
    state = {str(n): random_bytes(8 * MIB, n) for n in range(4)}
    SAVES[kind](tmp_path, state)
    assert holds(kind, tmp_path, state)
    assert len(asked) >= (2 if kind == "store" else 1)


@pytest.mark.guarantee("G5")
@pytest.mark.parametrize("kind", SAVES)
@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT, errno.EIO])
def test_a_reservation_that_fails_fails_the_save(number, kind, tmp_path, seams):
    old = {"w": random_bytes(MIB, 9)}
    Store(tmp_path).run(name="run").save(0, old)
    answering(seams, number)
    with pytest.raises(errors.WriteFailed) as raised:
        SAVES[kind](tmp_path, {"w": random_bytes(MIB)})
    assert raised.value.errno == number
    assert holds("store", tmp_path, old)
    assert [path for path in tmp_path.rglob("*.standfast") if path.is_file()] == []


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT])
def test_what_fits_is_saved_though_space_for_all_that_may_come_does_not(number, tmp_path, seams):
    """Equal chunks are written once: it is known late how large the file becomes."""
    asked = answering(seams, number, most=20 * MIB)
    state = {str(n): random_bytes(16 * MIB) for n in range(4)}
    SAVES["store"](tmp_path, state)
    assert holds("store", tmp_path, state)
    assert max(asked) > 20 * MIB >= min(asked)
