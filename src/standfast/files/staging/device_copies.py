"""Copies into staging that devices make while the program goes on."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from contextlib import suppress
from typing import Final, NamedTuple

from standfast.files.staging.layout import SMALL, Copy, Summed
from standfast.tensors import Source
from standfast.tensors.devices import Copies, Device, Outgoing, device_under
from standfast.tensors.sources import Bytes

PINNED_AT_ONCE: Final = 1 << 30
"""Pinning holds the driver up, and with it the loop: 50 ms for so much, measured."""


class Share(NamedTuple):
    """What one device has of a state, by number."""

    device: Device
    small: Sequence[int]
    now: Sequence[int]
    """What is copied before anything that the caller has the device do from now on."""
    later: Sequence[int]
    """What may be copied beside it."""


def shares(sources: Sequence[Source], overlapped: Collection[int]) -> list[Share]:
    """The tensors on devices; those `overlapped` are copied later, unless they are small."""
    found: dict[Device, list[int]] = {}
    for number, source in enumerate(sources):
        device = device_under(source)
        if device is not None:
            found.setdefault(device, []).append(number)
    return [_share(device, numbers, sources, overlapped) for device, numbers in found.items()]


def _share(
    device: Device, numbers: Sequence[int], sources: Sequence[Source], overlapped: Collection[int]
) -> Share:
    large = [number for number in numbers if sources[number].spec.nbytes >= SMALL]
    return Share(
        device,
        [number for number in numbers if sources[number].spec.nbytes < SMALL],
        [number for number in large if number not in overlapped],
        [number for number in large if number in overlapped],
    )


class Underway:
    """A state on its way into staging, of which the host's part is there.

    Until `wait` has returned, the tensors of devices are read.
    """

    def __init__(
        self, sources: Sequence[Source], copies: Sequence[Copy], memory: Bytes, summed: Summed
    ) -> None:
        """The copies are those of the sources, and after them those of the sums."""
        self.copies = copies
        self.summed = summed
        """What is summed up: see `staged.changed`."""
        self._sources = sources
        self._memory = memory
        self._begun: list[Copies] = []
        self._sums = iter(zip(summed, copies[len(sources) :], strict=True))

    def begin(self, share: Share) -> None:
        """Begin to copy what a device has.

        What it has of it later is summed up before; sums, and small tensors that are put
        together, are nobody else's and need not be waited for. Without any of it on any device,
        the caller waits for all.
        """
        gathered = [*self._gathered(share)]
        summing = [*self._summed(share)] if share.later else []
        if share.now:
            self._begun.append(share.device.copy_out([*self._pieces(share.now)]))
            if self.summed:
                self._begun[-1].come_first()
        rest = [*gathered, *summing, *self._pieces(share.later)]
        if rest:
            self._begun.append(share.device.copy_out(rest))

    def _summed(self, share: Share) -> Iterator[Outgoing]:
        numbers, sums = next(self._sums)
        summing = share.device.sums([self._sources[number] for number in numbers])
        yield from self._cut(summing, sums)

    def _gathered(self, share: Share) -> Iterator[Outgoing]:
        """Small tensors, all that lie next to each other at once."""
        for run in _runs(share.small, self.copies):
            together = share.device.gather([self._sources[number] for number in run])
            first, last = self.copies[run[0]], self.copies[run[-1]]
            yield from self._cut(together, first, last)

    def _pieces(self, numbers: Sequence[int]) -> Iterator[Outgoing]:
        for number in numbers:
            yield from self._cut(self._sources[number], self.copies[number])

    def _cut(self, source: Source, first: Copy, last: Copy | None = None) -> Iterator[Outgoing]:
        """A copy into the staging, no piece of it over the end of what is pinned at once."""
        last = last or first
        at, end = first.start, last.start + last.memory.size
        while at < end:
            stop = min(end, at + PINNED_AT_ONCE - at % PINNED_AT_ONCE)
            yield Outgoing(source, at - first.start, self._memory[at:stop])
            at = stop

    def is_done(self) -> bool:
        """Whether nothing is read any more."""
        return all(copies.is_done() for copies in self._begun)

    def come_first(self) -> None:
        """Let what the caller has the devices do from now on wait for the copies."""
        for copies in self._begun:
            copies.come_first()

    def wait(self) -> None:
        """Return when all copies are made; raises CopyFailed, once none is under way any more."""
        try:
            for copies in self._begun:
                copies.wait()
        finally:
            self.drain()

    def drain(self) -> None:
        """Return when no copy is under way, however they end, and whoever is interrupted.

        Then it keeps nothing of the state alive.
        """
        for copies in self._begun:
            while not copies.is_done():
                with suppress(BaseException):
                    copies.wait()
        self._begun, self._sources = [], ()


def _runs(numbers: Sequence[int], copies: Sequence[Copy]) -> Iterator[list[int]]:
    """Those of the numbers whose copies lie in the staging without anything between them."""
    run: list[int] = []
    for number in sorted(numbers, key=lambda number: copies[number].start):
        if run and copies[number].start != copies[run[-1]].stop:
            yield run
            run = []
        run.append(number)
    if run:
        yield run
