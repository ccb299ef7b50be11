"""Blocks of memory that files are read into, on their way to a device that reaches them itself."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

import numpy as np

from standfast.files.digests import CHUNK
from standfast.files.disk import ALIGNMENT
from standfast.files.ring import new_block
from standfast.tensors.devices import Device
from standfast.tensors.sources import Bytes

BLOCK: Final = CHUNK + 2 * ALIGNMENT
"""A chunk, wherever it lies in the file, and all of the pages that its first and last byte are in.

A direct read takes these whole.
"""


class Blocks:
    """A number of blocks, each of which begins on a page."""

    def __init__(self, count: int) -> None:
        self._memory: Bytes = np.frombuffer(new_block(count * BLOCK), np.uint8)
        self._pinned = False
        self.refused = False
        """Whether they cannot be pinned now."""

    def __len__(self) -> int:
        return self._memory.size // BLOCK

    def __iter__(self) -> Iterator[Bytes]:
        return iter(self._memory.reshape(-1, BLOCK))

    def pin(self, device: Device) -> None:
        """Let the device reach them, if it can; a device that cannot copies them more slowly."""
        if self._pinned or self.refused:
            return
        self._pinned = True  # at once: an interrupt may come when they are, before it is noted
        try:
            device.pin(self._memory)
        except OSError:
            self._pinned, self.refused = False, True

    def unpin(self, device: Device) -> None:
        """Undo `pin`, before they are let go."""
        if self._pinned:
            device.unpin(self._memory)
            self._pinned = False


_kept: Final[dict[Device, Blocks]] = {}
"""Those of earlier loads: to touch and to pin them takes as long as to read into them does."""


@contextmanager
def borrowed_blocks(device: Device, count: int) -> Iterator[Blocks]:
    """At least so many blocks; whoever leaves the `with` has nothing under way in them."""
    blocks = _kept.pop(device, None)
    if blocks is not None and len(blocks) < count:
        blocks.unpin(device)
        blocks = None
    if blocks is None:
        blocks = Blocks(count)
    blocks.refused = False  # what could not be pinned for another load may be now
    try:
        yield blocks
    finally:
        if _kept.setdefault(device, blocks) is not blocks:  # those of a load on another thread
            blocks.unpin(device)


def _forget() -> None:
    """In a forked child: what its parent pinned is not pinned in it."""
    _kept.clear()


os.register_at_fork(after_in_child=_forget)
