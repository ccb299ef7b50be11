"""A tensor on a device, and the saved one whose bytes it is to have."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Final

from standfast.store.load.casting import is_regular, place_of, rescaled
from standfast.store.load.reading import Arrival
from standfast.store.schema.record import Record
from standfast.store.tree.aliases import View, is_in_c_order, overlapping
from standfast.tensors import Memory, TensorSpec, memory_of
from standfast.tensors.cast import cast_spec
from standfast.tensors.frameworks import view_on_device

RAW: Final = "uint8"
"""What bytes are elements of when they are not cast."""


@dataclass(frozen=True)
class Landing:
    """A tensor on a device, which becomes a saved one, cast or as it is."""

    target: Any
    tensor: int
    """The number of the saved one."""
    place: View
    """Where its bytes lie in those of the stored tensor that has them."""
    stored: TensorSpec
    before: TensorSpec
    """What was saved."""
    after: TensorSpec
    """What the target is."""

    @cached_property
    def memory(self) -> Memory | None:
        """Where the target lies; None if it is empty, or lazy."""
        return memory_of(self.target)

    @cached_property
    def is_regular(self) -> bool:
        """Whether a device can see the saved tensor in the bytes of the stored one."""
        return is_regular(self.place, self.before)

    @cached_property
    def takes_all(self) -> bool:
        """Whether the target is in C order, and is to have all bytes of the stored tensor so."""
        place, before = self.place, self.before
        width, shape = before.kind.numpy.itemsize, before.array_shape
        return (
            self.memory is not None
            and is_in_c_order(self.memory)
            and place.offset == 0
            and before.nbytes == self.stored.nbytes
            and is_in_c_order(Memory("", 0, width, shape, place.strides))
        )

    def arrival(self) -> Arrival:
        """All bytes of the stored tensor, on their way into the target that takes them."""
        dtype = RAW if self.before == self.after else self.before.dtype
        return Arrival(self.place.base, self.target, dtype)

    def can_be_seen_in(self, other: Landing) -> bool:
        """Whether the bytes are those of a part of what another target takes all of."""
        is_same = other.place.base == self.place.base and other.before.dtype == self.before.dtype
        return is_same and self.is_regular

    def lies_in(self, whole: Landing) -> bool:
        """Whether the target shares the memory of another just as the saved tensors did."""
        mine, its = self.memory, whole.memory
        if mine is None or its is None or not self.can_be_seen_in(whole):
            return False
        place = rescaled(self.place, self.before, self.after)
        steps = zip(mine.shape, mine.strides, place.strides, strict=True)
        return mine.address - its.address == place.offset and all(
            length == 1 or step == expected for length, step, expected in steps
        )

    def seen_in(self, whole: Any, is_cast: bool) -> Any:
        """The tensor within a stored one on the device, which was cast, or holds the raw bytes."""
        return seen_in(whole, self.place, self.before, self.after if is_cast else self.before)


def landing_of(record: Record, target: Any, tensor: int, cast: str | None) -> Landing:
    """The landing of a saved tensor, by its number, in one on a device."""
    place, before = place_of(record, tensor), record.specs[tensor]
    after = cast_spec(before, cast)
    return Landing(target, tensor, place, record.specs[place.base], before, after)


def seen_in(whole: Any, place: View, before: TensorSpec, after: TensorSpec) -> Any:
    """A view of saved bytes, of which those in `whole` are as wide as `after` says."""
    place = rescaled(place, before, after)
    return view_on_device(whole, after, place.offset, place.strides)


def divided(landings: Sequence[Landing]) -> tuple[list[Landing], list[Landing]]:
    """Those that can be streamed into, and others that need bytes all the same, in their order.

    Where targets share memory in the way that was saved, filling one of them fills the rest. If
    they share it in another way, they must be filled one after the other: the last one counts.
    """
    direct: list[int] = []
    others: list[int] = []
    for group in _sharing(landings):
        whole = next((n for n in group if landings[n].takes_all), None)
        if whole is not None and all(landings[n].lies_in(landings[whole]) for n in group):
            direct.append(whole)
        else:
            others += group
    return [landings[n] for n in sorted(direct)], [landings[n] for n in sorted(others)]


def _sharing(landings: Sequence[Landing]) -> Iterator[list[int]]:
    """The positions of those whose memory overlaps, and each other by itself; no empty ones."""
    spaces: dict[str, list[tuple[int, int, int]]] = {}
    alone = {n for n, landing in enumerate(landings) if landing.before.nbytes}
    for position in alone:
        if memory := landings[position].memory:
            spaces.setdefault(memory.space, []).append((*memory.span(), position))
    for spans in spaces.values():
        for group in overlapping(spans):
            alone.difference_update(group)
            yield group
    yield from ([position] for position in alone)
