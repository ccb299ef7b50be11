"""What the adapter of a framework provides: one module for each, which keeps to this."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from typing import Any, Final, NamedTuple, Protocol

import numpy as np

from standfast.tensors.devices import Device
from standfast.tensors.shards import Shards
from standfast.tensors.sources import Source
from standfast.tensors.spec import TensorSpec


class Memory(NamedTuple):
    """Where the elements of a tensor lie, in bytes."""

    space: str
    """What the address counts in: `cpu`, or one storage on an accelerator."""
    address: int
    """That of the element at index 0."""
    itemsize: int
    shape: tuple[int, ...]
    """That of the array that holds the tensor."""
    strides: tuple[int, ...]

    def span(self) -> tuple[int, int]:
        """The addresses from the lowest element to the end of the highest."""
        start = stop = self.address
        for length, stride in zip(self.shape, self.strides, strict=True):
            if stride < 0:
                start += (length - 1) * stride
            else:
                stop += (length - 1) * stride
        return start, stop + self.itemsize


def may_overlap(shape: Sequence[int], strides: Sequence[int], itemsize: int) -> bool:
    """Whether several elements may share memory, as after `expand` of torch.

    True also for some exotic strides that interleave dimensions without sharing any element.
    """
    taken = itemsize
    for step, length in sorted((abs(s), n) for n, s in zip(shape, strides, strict=True) if n > 1):
        if step < taken:
            return 0 not in shape  # without elements, none of them share anything
        taken += step * (length - 1)
    return False


OVERLAPS: Final = "several of its elements share memory, as after expand(): give a copy of it"
"""Why such a tensor cannot be filled: an element would keep the last of several values."""


class Guard(Protocol):
    """An optimizer that says when it is about to change its tensors."""

    def owned(self) -> Iterable[Hashable]:
        """The tensors that it changes in its steps, and nobody else should between them.

        Each by the `key` of a DeviceSource of it.
        """
        ...

    def release(self) -> None:
        """Let it be as it was."""
        ...


class Framework(Protocol):
    """What an adapter module provides."""

    def source(self, value: Any) -> Source:
        """A tensor of this framework as a source; raises UnsupportedTensor or UnsupportedDType."""
        ...

    def tensor(self, array: np.ndarray[Any, Any], spec: TensorSpec) -> Any:
        """An array as a tensor of this framework, sharing its memory."""
        ...

    def describe(self, value: Any) -> Mapping[str, Any] | TensorSpec | None:
        """What a model or a tensor is, whatever its values; None for any other value.

        A model's classes, parameters and buffers by name; raises UnsupportedTensor.
        """
        ...

    def unwrapped(self, value: Any) -> Any:
        """What a wrapper of this framework is around, with its names; others as they are."""
        ...

    def plain(self, value: Any) -> str | None:
        """A value that is no more than a name, such as a dtype or a device, as text."""
        ...

    def kind(self, value: Any) -> str:
        """What must be remembered of a tensor so that it comes back as it was.

        It begins with the name of the framework; raises UnsupportedTensor for what cannot.
        """
        ...

    def as_kind(self, tensor: Any, kind: str) -> Any:
        """A tensor that `tensor` made, as what `kind` says; raises UnknownFramework, BadField."""
        ...

    def memory(self, value: Any) -> Memory | None:
        """Where a tensor lies; None if it is empty or its memory does not hold its values."""
        ...

    def stretch(self, value: Any, start: int, stop: int) -> Source:
        """The bytes between two addresses in the space of a tensor, which is kept alive."""
        ...

    def shards(self, value: Any) -> Shards | None:
        """What this process has of a tensor that is cut up; None for any other value.

        Raises UnsupportedTensor for one that cannot be saved box by box.
        """
        ...

    def why_not_fillable(self, value: Any) -> str | None:
        """Why a tensor cannot be written to; None if it can."""
        ...

    def fill(self, value: Any, array: np.ndarray[Any, Any], spec: TensorSpec) -> None:
        """Copy an array into a tensor of the same spec; raises UnsupportedTensor if it cannot."""
        ...

    def held(self, value: Any) -> Any:
        """A copy of a tensor of one number, made without waiting for it; `item()` reads it.

        Raises UnsupportedTensor for any other value.
        """
        ...

    def device(self, name: str) -> Device | None:
        """The device of that name; None for the host. Raises BadOption if there is none."""
        ...

    def device_of(self, value: Any) -> Device | None:
        """The device that a tensor lies on; None for the host."""
        ...

    def view(self, base: Any, spec: TensorSpec, offset: int, strides: Sequence[int]) -> Any:
        """A tensor within the bytes of one that a device made; both counted in bytes."""
        ...

    def copy(self, value: Any, given: Any) -> None:
        """Copy a tensor into one of the same shape, cast if that is of another dtype."""
        ...

    def same(self, a: Any, b: Any) -> bool:
        """Whether two tensors of one spec and device have the same bits, seen where they lie."""
        ...

    def guard(self, value: Any, before_step: Callable[[], None]) -> Guard | None:
        """Have an optimizer say when it is about to change its tensors; None for other values."""
        ...

    def home(self, value: Any, path: Sequence[Any]) -> Device | None:
        """Where an object will keep a tensor that it is given at this path of its state."""
        ...

    def random_states(self) -> dict[str, Any]:
        """Copies of the states of all generators that work unasked, as a tree."""
        ...

    def restore_random_states(self, states: Any) -> list[str]:
        """Put back what `random_states` gave; sentences say what could not be.

        Raises BadField, before anything is changed, for what it never gave.
        """
        ...

    def generator_state(self, value: Any) -> Any | None:
        """A copy of the state of a generator, as a tree; None for any other value."""
        ...

    def restore_generator(self, value: Any, state: Any) -> None:
        """Put back what `generator_state` gave; raises BadField or StateMismatch."""
        ...
