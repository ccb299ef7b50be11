"""Two states, an old and a new one, of several blocks each when blocks are small."""

import ctypes
import errno
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

import standfast
from tests.kit.seams import Seams

SMALL_BLOCK = 8192


def _state(seed: int) -> dict[str, np.ndarray[Any, Any]]:
    random = np.random.default_rng(seed)
    return {
        "weight": random.standard_normal((50, 100)).astype(np.float32),
        "bias": random.standard_normal(333),
        "mask": random.integers(0, 2, 777).astype(bool),
    }


OLD = _state(1)
NEW = _state(2)


def is_state(path: Path, state: dict[str, np.ndarray[Any, Any]]) -> bool:
    loaded = standfast.load(path)
    return list(loaded) == list(state) and all(
        np.array_equal(loaded[name], state[name]) for name in state
    )


def leftovers(path: Path) -> list[str]:
    return [name for name in os.listdir(path.parent) if name != path.name]


def cached(seams: Seams, is_cached: bool) -> list[int]:
    """Let files be in the page cache, or not; returns the sizes of what is read from then on."""
    sizes: list[int] = []

    def preadv(read: Any, fd: int, buffers: Any, offset: int, flags: int = 0) -> int:
        if flags != os.RWF_NOWAIT:
            sizes.append(len(buffers[0]))
            return int(read(fd, buffers, offset, flags))
        if not is_cached:
            raise BlockingIOError(errno.EAGAIN, "Resource temporarily unavailable")
        return 1

    seams.system(os, preadv=preadv)
    return sizes


def flip_in(path: Path, name: str, at: int = 0) -> None:
    """Turn one bit of a tensor where it lies."""
    with standfast.open(path, verify=False) as file:
        start = int(file._index.starts[file._row(name)])
    np.memmap(path, np.uint8, "r+")[start + at] ^= 1


def refusing(number: int) -> Callable[..., int]:
    """A call of libc that fails with this error."""

    def call(real: Any, *arguments: Any) -> int:
        ctypes.set_errno(number)
        return -1

    return call


def failing(number: int) -> Callable[..., Any]:
    """An operation that raises OSError with this error."""

    def operation(real: Any, *arguments: Any, **options: Any) -> Any:
        raise OSError(number, os.strerror(number))

    return operation
