"""Devices with memory of their own: what all other rooms know of them.

A device copies between its memory and that of the host while the program goes on. An adapter has
the real ones; tests put one in their place whose copies come late, fail, or cannot be had.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import Any, Final, NamedTuple, Protocol

import numpy as np

from standfast.tensors.sources import Bytes, Source
from standfast.tensors.spec import TensorSpec

Sums = np.ndarray[Any, np.dtype[np.int64]]
"""What `sums_of` makes of some bytes."""

WORD: Final = 4
COLUMNS: Final = 4093
"""A prime: rows of a tensor that change places do not fall into the columns they were in."""


class Outgoing(NamedTuple):
    """Bytes of a tensor on a device, from `start` on, on their way to the host."""

    source: Source
    start: int
    target: Bytes


class Incoming(NamedTuple):
    """Bytes of the host, on their way into a tensor on a device."""

    data: Bytes
    target: Any
    """A tensor of the framework, in C order, as `Device.empty` makes it."""
    start: int
    """The byte of the tensor, as it was saved, that they begin at; no element is cut in two."""
    dtype: str
    """What they are elements of; a tensor of another dtype gets them cast."""


class Copies(Protocol):
    """Copies that a device makes in their order, while the program goes on."""

    def is_done(self) -> bool:
        """Whether all of them are made, or have failed."""
        ...

    def wait(self) -> None:
        """Return when all are made; raises CopyFailed. May be called from any thread."""
        ...

    def come_first(self) -> None:
        """Let what the caller has the device do from now on wait for them.

        The caller does not wait, where the device can order the two by itself.
        """
        ...


class Device(Protocol):
    """One accelerator. Its methods may be called from any thread."""

    @property
    def name(self) -> str:
        """What its framework calls it: `cuda:0`."""
        ...

    def pin(self, memory: Bytes) -> None:
        """Let the device reach whole pages of the host by itself; raises OSError if it cannot."""
        ...

    def unpin(self, memory: Bytes) -> None:
        """Undo `pin`, of the same memory, before it is given back."""
        ...

    def copy_out(self, pieces: Sequence[Outgoing]) -> Copies:
        """Begin to copy what tensors are once all is done that the caller has asked for so far.

        No piece reaches over the end of memory that was pinned at once.
        """
        ...

    def gather(self, sources: Sequence[Source]) -> Source:
        """Small tensors as they are now, one after the other, each at a multiple of `ALIGNMENT`.

        As with `copy_out`, "now" is when all is done that the caller has asked for so far.
        """
        ...

    def sums(self, sources: Sequence[Source]) -> Source:
        """The `sums_of` tensors as they are now, one after the other."""
        ...

    def empty(self, spec: TensorSpec) -> Any:
        """A new tensor with any content; raises CopyFailed if there is no memory for it."""
        ...

    def copy_in(self, pieces: Sequence[Incoming]) -> Copies:
        """Begin to copy into tensors; the data stays as it is until the copies are done."""
        ...


class DeviceSource(Source, Protocol):
    """A tensor on a device."""

    @property
    def device(self) -> Device | None:
        """Where it lies; None for a device that no adapter knows how to copy from."""
        ...

    @property
    def key(self) -> Hashable:
        """What the same elements in the same places have in common: see `Guard.owned`."""
        ...


def device_under(source: Source) -> Device | None:
    """The device that the bytes of a source lie on; None for the host."""
    device: Device | None = getattr(source, "device", None)
    return device


def sum_length(nbytes: int) -> int:
    """How many sums there are of so many bytes."""
    words = nbytes // WORD
    whole = COLUMNS + words % COLUMNS if words >= 2 * COLUMNS else words
    return whole + (nbytes % WORD > 0)


def sums_of(data: Bytes) -> Sums:
    """Few numbers that change if bytes do, or if they change places.

    The bytes as 32-bit words, in rows of a prime number of them, are added up column by column;
    what fills no row, or no word, is there as it is. Sums of 64 bits hold all that the words of
    a column can add up to: two changed signs do not make up for each other.
    """
    whole = data.size - data.size % WORD
    words = data[:whole].view(np.int32)
    rows = words.size // COLUMNS
    parts = []
    if rows > 1:
        parts.append(words[: rows * COLUMNS].reshape(rows, COLUMNS).sum(0, dtype=np.int64))
        words = words[rows * COLUMNS :]
    parts.append(words.astype(np.int64))
    if whole < data.size:
        last = np.zeros(WORD, np.uint8)
        last[: data.size - whole] = data[whole:]
        parts.append(last.view(np.int32).astype(np.int64))
    return np.concatenate(parts)
