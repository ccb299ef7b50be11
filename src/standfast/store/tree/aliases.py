"""Tensors that share memory: which are stored, and which are views of what is stored.

Two tensors share memory if the addresses that their elements span overlap; they and all that
overlap one of them are a group. A member that covers the whole group in C order is stored, and
the others are views of it. Where there is none, the bytes under the group are stored besides, and
all members are views of them.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from standfast.errors import BadRange, StateMismatch, shortened
from standfast.tensors import Memory, Source, TensorSpec, memory_of, source_of, stretch_of
from standfast.tensors.sources import Bytes

_FEW: Final = 50
"""Of more tensors than these that overlap, not every two are looked at."""
_MAX_RANK: Final = 64
_MAX_SIZE: Final = 1 << 62


@dataclass(frozen=True, slots=True)
class View:
    """A tensor within the bytes of another."""

    base: int
    """The position among all that is stored: first `Aliases.stored`, then `Aliases.added`."""
    offset: int
    """Where in the base the element at index 0 begins, in bytes."""
    strides: tuple[int, ...]
    """In bytes, one for each dimension of the array that holds the tensor."""


@dataclass(frozen=True, slots=True)
class Added:
    """The bytes under a group of tensors none of which covers it."""

    source: Source
    beside: int
    """The position of the group's first tensor."""


@dataclass(frozen=True, slots=True)
class Aliases:
    """What to store so that tensors which share memory come back sharing it."""

    stored: list[int]
    """The positions of the tensors that are stored, in their order."""
    views: dict[int, View]
    """All others, by position."""
    added: list[Added]
    """What is stored besides."""


def find_aliases(values: Sequence[Any], sources: Sequence[Source]) -> Aliases:
    """Which of the tensors to store, and which are views; their sources are given too.

    Whoever reads an added source must keep the tensors alive until then.
    """
    groups = [_Group(values, positions) for positions in _shared(values, sources)]
    groups = [group for group in groups if group.base is not None or group.is_shared]
    views = {position for group in groups for position in group.views}
    stored = [position for position in range(len(values)) if position not in views]
    number_of = {position: number for number, position in enumerate(stored)} if groups else {}
    aliases = Aliases(stored, {}, [])
    for group in groups:
        if group.base is None:
            number = len(stored) + len(aliases.added)
            aliases.added.append(Added(group.stretch(), group.positions[0]))
        else:
            number = number_of[group.base]
        for position in group.views:
            aliases.views[position] = View(number, *group.place(position))
    return aliases


def _shared(values: Sequence[Any], sources: Sequence[Source]) -> Iterator[list[int]]:
    """The positions of tensors that overlap, group by group."""
    spaces: dict[str, list[tuple[int, int, int]]] = {"cpu": []}
    for position, source in enumerate(sources):
        flat = source.contiguous()
        if flat is not None and flat.size:  # nearly all are so, and it is quickly said
            address = flat.__array_interface__["data"][0]
            spaces["cpu"].append((address, address + flat.size, position))
        elif memory := memory_of(values[position]):
            spaces.setdefault(memory.space, []).append((*memory.span(), position))
    for spans in spaces.values():
        if len(spans) > 1:  # on a device, nearly every storage is one tensor's
            yield from overlapping(spans)


def overlapping(spans: Sequence[tuple[int, int, int]]) -> Iterator[list[int]]:
    """The numbers of two or more that overlap; of each its start, its stop and its number."""
    table = np.array(spans, np.uint64)
    table = table[np.argsort(table[:, 0], kind="stable")]
    # The end of all that began before; what begins below it overlaps some of it.
    reached = np.maximum.accumulate(table[:, 1])
    overlaps = table[1:, 0] < reached[:-1]
    if overlaps.any():
        for group in np.split(table[:, 2], np.flatnonzero(~overlaps) + 1):
            if group.size > 1:
                yield sorted(group.tolist())


def check_shared(targets: Mapping[str, Any], arrays: Mapping[str, np.ndarray[Any, Any]]) -> None:
    """Raise StateMismatch if targets share memory and cannot all hold their saved arrays."""
    names, values = list(targets), list(targets.values())
    sources = [source_of(value) for value in values]
    for positions in _shared(values, sources):
        group = _Group(values, positions)
        scratch = np.empty(group.size, np.uint8)
        parts = {names[n]: view_array(scratch, sources[n].spec, *group.place(n)) for n in positions}
        for name, part in parts.items():
            part[...] = arrays[name]
        lost = next((n for n in parts if parts[n].tobytes() != arrays[n].tobytes()), None)
        if lost is not None:
            others = ", ".join(repr(shortened(name)) for name in [*parts][:5] if name != lost)
            raise StateMismatch(
                f"{shortened(lost)!r} shares memory with {others} here, and different values were "
                "saved for them: nothing was filled"
            )


class _Group:
    """Tensors that overlap, and how each lies in what is stored of them."""

    def __init__(self, values: Sequence[Any], positions: list[int]) -> None:
        self.positions = positions
        self._first = values[positions[0]]
        self._memory = {position: _memory(values[position]) for position in positions}
        spans = [memory.span() for memory in self._memory.values()]
        self._start = min(start for start, _ in spans)
        self._stop = max(stop for _, stop in spans)
        self.size = self._stop - self._start
        self._twins = len({_layout(memory) for memory in self._memory.values()}) == 1
        self.base = positions[0] if self._twins else self._covering()
        self.views = [position for position in positions if position != self.base]

    @property
    def is_shared(self) -> bool:
        """Whether any two have an element in common, or nearly all bytes under them are theirs.

        Two columns of one array overlap and share nothing; what lies between is not ours to store.
        """
        members = sum(each.itemsize * math.prod(each.shape) for each in self._memory.values())
        if self.size <= 2 * members or len(self._memory) > _FEW:
            return True
        arrays = [np.asarray(_Addressed(memory)) for memory in self._memory.values()]
        return any(_have_in_common(a, b) for a, b in itertools.combinations(arrays, 2))

    def _covering(self) -> int | None:
        """The first member that has every byte of the group once, in order."""
        for position, memory in self._memory.items():
            size = memory.itemsize * math.prod(memory.shape)
            if size == self.size and is_in_c_order(memory):
                return position
        return None

    def stretch(self) -> Source:
        """The bytes under the group."""
        return stretch_of(self._first, self._start, self._stop)

    def place(self, position: int) -> tuple[int, tuple[int, ...]]:
        """The offset and the strides of a member in what is stored."""
        memory = self._memory[position]
        if self._twins:
            # All lie in the same way, and what is stored of the first is in C order.
            return 0, c_strides(memory)
        return memory.address - self._start, memory.strides


class _Addressed:
    """A tensor by its addresses, as NumPy takes it; nothing is read of it."""

    def __init__(self, memory: Memory) -> None:
        self.__array_interface__ = {
            "version": 3,
            "shape": memory.shape,
            "typestr": f"|V{memory.itemsize}",
            "data": (memory.address, True),
            "strides": memory.strides,
        }


def _have_in_common(a: np.ndarray[Any, Any], b: np.ndarray[Any, Any]) -> bool:
    try:
        return bool(np.shares_memory(a, b, max_work=10_000))  # type: ignore[arg-type]
    except RuntimeError:  # too hard to tell
        return True


def _memory(value: Any) -> Memory:
    memory = memory_of(value)
    assert memory is not None, "a tensor that overlaps another is not empty"
    return memory


def _layout(memory: Memory) -> tuple[Any, ...]:
    return memory.address, memory.itemsize, memory.shape, memory.strides


def is_in_c_order(memory: Memory) -> bool:
    """Whether the elements follow each other; of a dimension of one it does not matter how."""
    strides = zip(memory.shape, memory.strides, c_strides(memory), strict=True)
    return all(length == 1 or stride == expected for length, stride, expected in strides)


def c_strides(memory: Memory) -> tuple[int, ...]:
    """The strides that its elements would have if they followed each other."""
    strides = [memory.itemsize]
    for length in memory.shape[:0:-1]:
        strides.append(strides[-1] * length)
    return tuple(reversed(strides))[: len(memory.shape)]


def c_order(spec: TensorSpec) -> tuple[int, ...]:
    """The strides of a tensor whose elements follow each other."""
    return c_strides(Memory("", 0, spec.kind.numpy.itemsize, spec.array_shape, ()))


def check_view(spec: TensorSpec, offset: int, strides: Sequence[int], base_nbytes: int) -> None:
    """Raise BadRange if the view would reach outside of its base."""
    shape = spec.array_shape
    if len(strides) != len(shape) or len(shape) > _MAX_RANK:
        raise BadRange(f"a view of {len(shape)} dimensions has {len(strides)} strides")
    if min(shape, default=0) < 0 or spec.nbytes >= _MAX_SIZE:
        raise BadRange("a view has a shape that no tensor has")
    if any(abs(steps) >= _MAX_SIZE for steps in (offset, *strides, *shape)):
        raise BadRange("a view has an offset, stride or length beyond any memory")
    memory = Memory("", offset, spec.kind.numpy.itemsize, shape, tuple(strides))
    start, stop = memory.span() if spec.size else (offset, offset)
    if start < 0 or stop > base_nbytes:
        raise BadRange(
            f"a view reaches from byte {start:,} to byte {stop:,} of a base of {base_nbytes:,}"
        )


def view_array(
    base: Bytes, spec: TensorSpec, offset: int, strides: Sequence[int]
) -> np.ndarray[Any, Any]:
    """The view in the bytes of its base, sharing their memory; raises BadRange."""
    check_view(spec, offset, strides, base.nbytes)
    dtype = spec.kind.numpy
    try:
        return np.ndarray(spec.array_shape, dtype, base, offset, tuple(strides))
    except (ValueError, TypeError) as error:
        raise BadRange(f"a view that no array can be: {error}") from error
