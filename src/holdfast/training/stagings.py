"""The memory that states are copied into: one staging, and a second one if there is room for it."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Final, NamedTuple

from holdfast.errors import HoldfastError
from holdfast.files.available import available
from holdfast.files.staged import staged_size
from holdfast.files.staging import SharedStaging
from holdfast.store.planning import Plan
from holdfast.tensors import Source
from holdfast.tensors.devices import Device, device_under

_SLACK: Final = 1 << 20
"""What is warmed beyond a state's size: its tensors are aligned, and a little may be added."""
_PINNED: Final = 50e9
_UNPINNED: Final = 11e9
"""Bytes a second from a GPU into memory, as measured: see docs/benchmarks.md."""


class Warmth(NamedTuple):
    """What stagings shall be before they are needed."""

    size: int
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
        self._wish: Warmth | None = None

    def can_hold(self, sources: Sequence[Source]) -> bool:
        """Whether copies of these may be made at all."""
        size = staged_size([source.spec for source in sources])
        return self._limit is None or size <= self._limit

    def take(self, or_else: Callable[[], bool]) -> SharedStaging | None:
        """Wait for a staging that nobody uses, and that is warm; None if it is otherwise."""
        with self._changed:
            self._changed.wait_for(lambda: (self._free and not self.is_wished()) or or_else())
            return None if or_else() else self._free.pop(0)

    def give_back(self, staging: SharedStaging) -> None:
        """Let others use it."""
        with self._changed:
            self._free.append(staging)
            self._changed.notify_all()

    def wish(self, plan: Plan) -> None:
        """Ask for memory for such a state, pinned if it lies on a device."""
        found = [device_under(tensor.source) for tensor in plan.tensors if tensor.source]
        device = next((each for each in found if each is not None), None)
        with self._changed:
            self._wish = Warmth(plan.most + plan.most // 100 + _SLACK, device)
            self._changed.notify_all()

    def is_wished(self) -> bool:
        """Whether there is something to be warmed, and nobody uses it."""
        return self._wish is not None and self.all[0] in self._free

    def take_wish(self) -> Warmth:
        """What was wished for; the first staging is taken."""
        with self._changed:
            assert self._wish is not None
            wish, self._wish = self._wish, None
            self._free.remove(self.all[0])
            return wish

    def warm(self, wish: Warmth) -> None:
        """Do what was wished for; whoever has no memory for it will say so when it is needed."""
        first, second = self.all
        self._warm(first, wish, self._limit is None or wish.size <= self._limit)
        self.give_back(first)
        with self._changed:
            if second in self._free:
                self._free.remove(second)
            elif second.size:  # somebody has it, for whom it was large enough
                return
        self._warm(second, wish, self._has_room_for_another(wish.size))
        if second.size:
            self.give_back(second)

    def _warm(self, staging: SharedStaging, wish: Warmth, may: bool) -> None:
        with suppress(HoldfastError):
            if may:
                staging.reserve(wish.size)
                self._pin(staging, wish.device)

    def _has_room_for_another(self, size: int) -> bool:
        if self._limit is not None:
            return 2 * size <= self._limit
        free = available()
        return free is not None and 2 * size <= free

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
