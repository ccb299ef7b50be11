"""How a state lies in staging, and the proof that it is the one that was to be copied."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from typing import Final

import numpy as np

from standfast.files.threads import Threads
from standfast.tensors import TensorSpec
from standfast.tensors.devices import sum_length, sums_of
from standfast.tensors.sources import ALIGNMENT, Bytes

SMALL: Final = 256 << 10
"""Tensors of less bytes than these lie next to each other, so that a device copies them at once."""
_SUMMING: Final = 4
"""Threads that sum copies up: they keep up with any disk."""

Summed = Sequence[Sequence[int]]
"""The tensors of each device that were summed up there before they were copied."""


class Copy:
    """A tensor in staging."""

    __slots__ = ("memory", "spec", "start")
    sequential = False

    def __init__(self, spec: TensorSpec, memory: Bytes, start: int) -> None:
        self.spec = spec
        self.memory = memory
        self.start = start
        """Where in the staging it begins."""

    @property
    def stop(self) -> int:
        """Where in the staging the next one may begin."""
        return self.start + _aligned(self.memory.size)

    def contiguous(self) -> Bytes:
        """All the bytes."""
        return self.memory

    def copy_to(self, out: Bytes, start: int) -> None:
        """Fill `out` with the bytes that begin at `start`."""
        np.copyto(out, self.memory[start : start + out.size])


def staged_size(specs: Sequence[TensorSpec]) -> int:
    """How many bytes tensors of these specs take in staging."""
    return sum(_aligned(spec.nbytes) for spec in specs)


def laid_out(memory: Bytes, specs: Sequence[TensorSpec]) -> list[Copy]:
    """Each tensor where it lies: one after the other, aligned, the small ones last.

    (Of those the tiny ones: counters of steps, which lie on the host while their like do not.)
    """
    sizes = [spec.nbytes for spec in specs]
    order = sorted(range(len(sizes)), key=lambda n: (sizes[n] < SMALL) + (sizes[n] < ALIGNMENT))
    starts = itertools.accumulate((_aligned(sizes[n]) for n in order), initial=0)
    start_of = dict(zip(order, starts, strict=False))
    return [
        Copy(spec, memory[start_of[n] : start_of[n] + sizes[n]], start_of[n])
        for n, spec in enumerate(specs)
    ]


def _aligned(size: int) -> int:
    return -(-size // ALIGNMENT) * ALIGNMENT


def with_sums(specs: Sequence[TensorSpec], summed: Summed) -> list[TensorSpec]:
    """The same, and after them what the sums of some of them take, of one device each."""
    lengths = (sum(sum_length(specs[n].nbytes) for n in numbers) for numbers in summed)
    return [*specs, *(TensorSpec("int64", (length,)) for length in lengths)]


def changed(copies: Sequence[Copy], summed: Summed) -> list[int]:
    """The tensors whose copies are not what was summed up; the sums come after all copies."""
    if not summed:
        return []
    with Threads(_SUMMING) as pool:
        found = [
            pool.map(_changed, _pairs(copies, numbers, sums))
            for numbers, sums in zip(summed, copies[-len(summed) :], strict=True)
        ]
        return [number for numbers in found for number in numbers if number is not None]


def _pairs(
    copies: Sequence[Copy], numbers: Sequence[int], sums: Copy
) -> Iterator[tuple[int, Bytes, Bytes]]:
    """The number of each tensor, its copy, and what was summed up of it."""
    at = 0
    for number in numbers:
        size = 8 * sum_length(copies[number].memory.size)
        yield number, copies[number].memory, sums.memory[at : at + size]
        at += size


def _changed(pair: tuple[int, Bytes, Bytes]) -> int | None:
    """The number of a tensor if its copy is not what was summed up."""
    number, copied, sums = pair
    return None if np.array_equal(sums_of(copied), sums.view(np.int64)) else number
