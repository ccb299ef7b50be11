"""The floors of the GPU benchmarks: the same bytes, moved through pinned memory alone."""

from __future__ import annotations

import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import torch

from benchmarks.gpu_state import State, flat, size_of, synchronize
from benchmarks.raw import Bytes, fresh_memory

BLOCK = 16 << 20
WRITERS = 3
READERS = (4, 8)


class Pinned:
    """Page-aligned memory that a GPU reaches by itself; beside a CPU it is only touched."""

    def __init__(self, size: int, device: str) -> None:
        self.memory: Bytes = fresh_memory(size)
        self.memory[::4096] = 1
        self._registered = device == "cuda"
        if self._registered:
            code = torch.cuda.cudart().cudaHostRegister(
                self.memory.ctypes.data, self.memory.size, 0
            )
            assert int(code) == 0, f"the memory of a floor cannot be pinned: {code}"

    def close(self) -> None:
        if self._registered:
            torch.cuda.cudart().cudaHostUnregister(self.memory.ctypes.data)


class Copy:
    """All tensors of a state, copied into one piece of pinned memory."""

    def __init__(self, state: State, device: str) -> None:
        self.pinned = Pinned(size_of(state), device)
        whole = torch.from_numpy(self.pinned.memory)
        self._pairs = []
        at = 0
        for tensor in flat(state).values():
            source = tensor.view(-1).view(torch.uint8)
            self._pairs.append((whole[at : at + source.numel()], source))
            at += source.numel()

    def copy(self) -> None:
        for target, source in self._pairs:
            target.copy_(source, non_blocking=True)
        synchronize()

    def close(self) -> None:
        self._pairs.clear()
        self.pinned.close()


def write(path: Path, data: Bytes) -> None:
    """Durable: past the page cache, by several threads, into reserved space, then fsync."""
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_DIRECT, 0o666)
    os.posix_fallocate(fd, 0, data.size)

    def write_share(first: int) -> None:
        for start in range(first * BLOCK, data.size, WRITERS * BLOCK):
            piece = data[start : start + BLOCK]
            assert os.pwrite(fd, piece.data, start) == piece.size

    _in_threads(WRITERS, write_share)
    os.fsync(fd)
    os.close(fd)


class Read:
    """Direct reads of a file into one pinned block a thread, again and again."""

    def __init__(self, threads: int, device: str) -> None:
        self._blocks = [Pinned(BLOCK, device) for _ in range(threads)]

    def read(self, path: Path) -> None:
        size = path.stat().st_size
        fd = os.open(path, os.O_RDONLY | os.O_DIRECT)

        def read_share(first: int) -> None:
            block = self._blocks[first].memory.data
            for start in range(first * BLOCK, size, len(self._blocks) * BLOCK):
                assert os.preadv(fd, [block], start) == min(BLOCK, size - start)

        _in_threads(len(self._blocks), read_share)
        os.close(fd)

    def close(self) -> None:
        for block in self._blocks:
            block.close()


def _in_threads(count: int, work: Callable[[int], None]) -> None:
    with ThreadPoolExecutor(count) as pool:
        list(pool.map(work, range(count)))
