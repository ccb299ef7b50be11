"""The memory that states are copied into: one staging, and a second one if there is room for it."""

from __future__ import annotations

import mmap
import threading
from collections import deque
from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from typing import Final, NamedTuple

from standfast.errors import StandfastError
from standfast.files.staging.free_memory import available
from standfast.files.staging.staging import SharedStaging, room_for
from standfast.tensors import Source
from standfast.tensors.devices import Device, device_under

_SLACK: Final = 1 << 20
"""What is warmed beyond a state's size: a little may be added."""
_PINNED: Final = 50e9
_UNPINNED: Final = 11e9
"""Bytes a second from a GPU into memory, as measured: see docs/benchmarks.md."""


class Warmth(NamedTuple):
    """What stagings shall be before they are needed."""

    size: int
    """What a state takes."""
    device: Device | None
    """That which they are pinned for; what is pinned for one is so for all of its framework."""


class Stagings:
    """Two stagings, the second of which is used once it is warm.

    All of it is guarded by a condition of the owner's, who is told of each change by it.
    """

    def __init__(self, changed: threading.Condition, limit: int | None) -> None:
        """`limit` is how many bytes they may take together; without one there are two if they fit.

        (What the second one takes must then be free once more.)
        """
        self.all: Final = (SharedStaging(), SharedStaging())
        self.notices: Final[deque[str]] = deque()
        """What the user should be warned of."""
        self._changed = changed
        self._limit = limit
        self._free = [self.all[0]]
        self._lent: set[SharedStaging] = set()
        """What was taken to copy a state into, and not given back."""
        self._wish: Warmth | None = None
        self._warmed = False

    def can_hold(self, size: int) -> bool:
        """Whether a copy of so many bytes may be made at all."""
        return self._limit is None or size <= self._limit

    def take(self, size: int, or_else: Callable[[], bool]) -> SharedStaging | None:
        """Wait for a staging that nobody uses, and that is warm; None if it is otherwise.

        The second one is used for what it is large enough for.
        """
        with self._changed:
            self._changed.wait_for(lambda: self._is_ready(size) or or_else())
            if or_else():
                return None
            staging = next(each for each in self._free if self._fits(each, size))
            self._lent.add(staging)
            self._free.remove(staging)
            return staging

    def _is_ready(self, size: int) -> bool:
        return not self.is_wished() and any(self._fits(each, size) for each in self._free)

    def _fits(self, staging: SharedStaging, size: int) -> bool:
        """Whether it is large enough, or will be made so by who takes it: nobody else can."""
        return staging.size >= size or (staging is self.all[0] and self._wish is None)

    def give_back(self, staging: SharedStaging) -> None:
        """Let others use it. May be called several times for one `take`."""
        with self._changed:
            if staging in self._lent:
                self._lent.discard(staging)
                self._offer(staging)

    def _offer(self, staging: SharedStaging) -> None:
        with self._changed:
            self._free.append(staging)
            self._changed.notify_all()

    def reclaim(self, used: Collection[SharedStaging]) -> None:
        """Give back what was taken and is none of these: whoever took it was interrupted."""
        with self._changed:
            for staging in self._lent.difference(used):
                self.give_back(staging)

    def is_outgrown(self, size: int) -> bool:
        """Whether a state of this size should be wished for."""
        return self._warmed and self.all[0].size < size

    def wish(self, sources: Sequence[Source]) -> None:
        """Ask for memory for such a state, pinned if it lies on a device."""
        found = (device_under(source) for source in sources)
        device = next((each for each in found if each is not None), None)
        with self._changed:
            self._wish = Warmth(room_for(sources), device)
            self._changed.notify_all()

    def is_wished(self) -> bool:
        """Whether there is something to be warmed, and nobody uses it."""
        first, second = self.all
        unused = first in self._free and (second in self._free or not second.size)
        return self._wish is not None and unused

    def take_wish(self) -> Warmth:
        """What was wished for; all stagings are taken."""
        with self._changed:
            assert self._wish is not None
            wish, self._wish = self._wish, None
            self._warmed = True
            self._free.clear()
            return wish

    def warm(self, wish: Warmth) -> None:
        """Do what was wished for; whoever has no memory for it will say so when it is needed."""
        first, second = self.all
        if self._limit is not None and 2 * wish.size > self._limit:
            second.empty()  # the first one may need what it has
        if self.can_hold(wish.size):
            self._warm(first, wish)
        self._offer(first)
        if self._has_room_for(second, wish.size):
            self._warm(second, wish)
        if second.size >= wish.size:
            self._offer(second)
        else:
            second.empty()

    def _warm(self, staging: SharedStaging, wish: Warmth) -> None:
        with suppress(StandfastError):
            staging.reserve(self._with_slack(wish.size))
            self._pin(staging, wish.device)

    def _with_slack(self, size: int) -> int:
        """What is warmed for a state, within the limit."""
        most = size + size // 100 + _SLACK
        if self._limit is None:
            return most
        share = self._limit // 2 if 2 * size <= self._limit else self._limit
        return min(most, share // mmap.PAGESIZE * mmap.PAGESIZE)

    def _has_room_for(self, second: SharedStaging, size: int) -> bool:
        if self._limit is not None:
            return 2 * size <= self._limit
        free = available()
        return second.size >= size or (free is not None and 2 * size - second.size <= free)

    def _pin(self, staging: SharedStaging, device: Device | None) -> None:
        if device is None:
            return
        try:
            staging.pin(device)
        except OSError as error:
            slow, fast = staging.size / _UNPINNED, staging.size / _PINNED
            self.notices.append(
                f"{staging.size:,} bytes of memory cannot be pinned for {device.name} "
                f"({error.strerror}): the loop waits about {slow:.1f} s for each copy of the "
                f"state, which would take {fast:.1f} s; raise the limit of locked memory (ulimit "
                "-l), or free some"
            )

    def close(self) -> None:
        """Give all memory back; a `warm` on another thread ends early."""
        for staging in self.all:
            staging.close()
