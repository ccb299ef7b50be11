"""Torch optimizers: what they alone change, and when they are about to."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Sequence
from typing import Any

import torch

from standfast.tensors import TensorSpec
from standfast.tensors.devices import Device
from standfast.torch.devices import device_of, key
from standfast.torch.dtypes import seen_as
from standfast.torch.shards import is_sharded, local_of


class Guard:
    """An optimizer that says when it is about to change its parameters and its own state."""

    def __init__(self, optimizer: torch.optim.Optimizer, before_step: Callable[[], None]) -> None:
        self._optimizer = optimizer
        self._hook = optimizer.register_step_pre_hook(lambda *_: before_step())

    def owned(self) -> Iterator[Hashable]:
        """The tensors that it changes in its steps, and nobody else should between them."""
        for group in self._optimizer.param_groups:
            yield from (key(_local(each)) for each in group["params"])
        for state in self._optimizer.state.values():
            yield from (key(_local(each)) for each in _tensors(state))

    def release(self) -> None:
        """Let it be as it was."""
        self._hook.remove()


def guard(value: Any, before_step: Callable[[], None]) -> Guard | None:
    """Have `before_step` called before each step of an optimizer; None for any other value."""
    if not isinstance(value, torch.optim.Optimizer):
        return None
    # A wrapper with a step of its own may have hooks that nobody calls.
    is_hooked = getattr(type(value).step, "hooked", False)
    return Guard(value, before_step) if is_hooked else None


def home(value: Any, path: Sequence[Any]) -> Device | None:
    """Where an optimizer will keep the tensor that it is given at this path of its state.

    None for the host, and for values that are no optimizers.
    """
    found = _parameter(value, path)
    if found is None:
        return None
    parameter, group = found
    is_counter = path[2] == "step" and not (group.get("capturable") or group.get("fused"))
    return None if is_counter else device_of(parameter)


def blank(value: Any, path: Sequence[Any], spec: TensorSpec) -> Any:
    """A tensor for an optimizer's state that is shared out as the parameter is that it is about.

    None where it would not be.
    """
    found = _parameter(value, path)
    if found is None or not is_sharded(found[0]) or tuple(found[0].shape) != spec.shape:
        return None
    return torch.empty_like(found[0].detach(), dtype=seen_as(spec, len(spec.shape)))


def _parameter(value: Any, path: Sequence[Any]) -> tuple[torch.Tensor, dict[str, Any]] | None:
    """The parameter that a path in the state of an optimizer is about, and its group."""
    if not isinstance(value, torch.optim.Optimizer) or len(path) < 3 or path[0] != "state":
        return None
    number = path[1]
    if not isinstance(number, int) or number < 0:
        return None
    for group in value.param_groups:  # whose parameters are counted through
        if number < len(group["params"]):
            return group["params"][number], group
        number -= len(group["params"])
    return None


def _tensors(value: Any) -> Iterator[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, dict):
        for member in value.values():
            yield from _tensors(member)
    elif isinstance(value, list | tuple):
        for member in value:
            yield from _tensors(member)


def _local(tensor: torch.Tensor) -> torch.Tensor:
    """What this process has of a tensor."""
    return local_of(tensor) if is_sharded(tensor) else tensor
