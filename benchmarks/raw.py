"""The floors: the fastest ways to move the same bytes with nothing else done to them."""

from __future__ import annotations

import mmap
import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import torch

BLOCK = 32 << 20
Bytes = np.ndarray[Any, np.dtype[np.uint8]]


def fresh_memory(size: int) -> Bytes:
    """Page-aligned memory in huge pages, which nobody has touched."""
    memory = mmap.mmap(-1, -(-size // 4096) * 4096, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    memory.madvise(mmap.MADV_HUGEPAGE)
    return np.frombuffer(memory, np.uint8)


def staged(state: dict[str, torch.Tensor]) -> Bytes:
    """The bytes of a state, one tensor after the other, ready for direct writes."""
    memory = fresh_memory(sum(tensor.nbytes for tensor in state.values()))
    at = 0
    for tensor in state.values():
        data = tensor.reshape(-1).view(torch.uint8).numpy()
        memory[at : at + data.size] = data
        at += data.size
    return memory


def write_direct(path: Path, data: Bytes) -> None:
    """Durable: past the page cache, in large blocks, into reserved space, then fsync."""
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_DIRECT, 0o666)
    os.posix_fallocate(fd, 0, data.size)
    for start in range(0, data.size, BLOCK):
        os.pwrite(fd, data[start : start + BLOCK].data, start)
    os.fsync(fd)
    os.close(fd)


def read_mapped_populate(path: Path) -> object:
    fd = os.open(path, os.O_RDONLY)
    memory = mmap.mmap(fd, 0, flags=mmap.MAP_PRIVATE | mmap.MAP_POPULATE, prot=mmap.PROT_READ)
    os.close(fd)
    return memory


def read_mapped_touched(path: Path) -> object:
    fd = os.open(path, os.O_RDONLY)
    memory = mmap.mmap(fd, 0, prot=mmap.PROT_READ)
    memory.madvise(mmap.MADV_SEQUENTIAL)
    os.close(fd)
    np.frombuffer(memory, np.uint8)[::4096].sum()
    return memory


def read_direct(path: Path) -> object:
    return _read(path, os.O_DIRECT)


def read_direct_reused(path: Path) -> None:
    """Into two buffers, again and again: the fastest way to see a file that is not in memory."""
    size = path.stat().st_size
    buffers = [fresh_memory(BLOCK), fresh_memory(BLOCK)]
    fd = os.open(path, os.O_RDONLY | os.O_DIRECT)

    def read(half: int) -> None:
        for start in range(half * BLOCK, size, 2 * BLOCK):
            assert os.preadv(fd, [buffers[half].data], start) > 0

    with ThreadPoolExecutor(2) as pool:
        list(pool.map(read, (0, 1)))
    os.close(fd)


def read_plain(path: Path) -> object:
    return _read(path, 0)


def _read(path: Path, flags: int) -> object:
    size = path.stat().st_size
    memory = fresh_memory(size)
    fd = os.open(path, os.O_RDONLY | flags)

    def read(start: int) -> int:
        return os.preadv(fd, [memory[start : start + BLOCK].data], start)

    with ThreadPoolExecutor(2) as pool:
        assert sum(pool.map(read, range(0, size, BLOCK))) == size
    os.close(fd)
    return memory


READS: dict[str, Callable[[Path], object]] = {
    "raw: mapped, MAP_POPULATE": read_mapped_populate,
    "raw: mapped, touched in order": read_mapped_touched,
    "raw: direct reads": read_direct,
    "raw: plain reads": read_plain,
}


def make_cold(path: Path) -> None:
    """Drop a file from the page cache, after it was there.

    So every contender finds the same: as much memory as it needs, just freed. On a virtual
    machine, memory that was free for seconds is back with the host, and who touches it first
    pays for it; without this, that is what would be measured.
    """
    read_mapped_touched(path)
    fd = os.open(path, os.O_RDONLY)
    os.fsync(fd)
    os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
    os.close(fd)
