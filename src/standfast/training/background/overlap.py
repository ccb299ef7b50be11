"""Copies of a state that go on beside the next steps, up to the one that would change it.

What an optimizer owns changes in its next step and not before: its copies may run until then.
docs/gpu.md says what keeps a mix of two steps from being committed.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, cast

from standfast.files.staging.device_copies import Underway
from standfast.tensors import Source
from standfast.tensors.devices import DeviceSource, device_under
from standfast.tensors.frameworks import guard


class Overlap:
    """The optimizers of a program, each of which waits, before a step, for copies under way."""

    def __init__(self, values: Iterable[Any]) -> None:
        self._underway: list[Underway] = []
        found = [guard(value, self._before_step) for value in values]
        self._guards = [each for each in found if each is not None]

    def owned(self, sources: Sequence[Source]) -> set[int]:
        """Those of the sources that lie on devices, and that only the optimizers change."""
        on_devices = [n for n, source in enumerate(sources) if device_under(source) is not None]
        if not on_devices:
            return set()
        own = {key for each in self._guards for key in each.owned()}
        return {number for number in on_devices if cast(DeviceSource, sources[number]).key in own}

    def begun(self, underway: Underway) -> None:
        """Let the next step of any optimizer wait for these copies."""
        self._underway = [each for each in self._underway if not each.is_done()]
        if not underway.is_done():
            self._underway.append(underway)

    def _before_step(self) -> None:
        # An optimizer that steps within backward does so on threads of its own.
        underway, self._underway = self._underway, []
        for each in underway:
            each.come_first()

    def settle(self) -> None:
        """Return when no copy is under way any more."""
        while self._underway:
            self._underway.pop().drain()

    def end(self) -> None:
        """Have the optimizers wait for nothing any more, and nothing under way."""
        self.settle()
        for each in self._guards:
            each.release()
        self._guards.clear()
