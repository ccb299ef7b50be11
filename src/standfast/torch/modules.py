"""Torch modules: what a model is, and under which names its state is kept."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import Any, Final

import torch

from standfast.errors import UnsupportedTensor
from standfast.tensors import TensorSpec


def describe(value: Any) -> Mapping[str, Any] | TensorSpec | None:
    """A model's modules by class, its parameters and buffers by spec; a tensor's spec.

    What stands under several names, such as a tied weight, has its first name for its others.
    """
    if isinstance(value, torch.Tensor):
        return _described(value, "the tensor")
    if not isinstance(value, torch.nn.Module):
        return None
    value = _inner(value)
    first: dict[int, str] = {}
    modules: dict[str, Any] = {}
    parameters: dict[str, Any] = {}
    buffers: dict[str, Any] = {}
    waiting = [("", value)]
    while waiting:  # no recursion: models may be deep, and may hold themselves
        path, module = waiting.pop()
        module = _inner(module)
        known = first.setdefault(id(module), path)
        if known != path:
            modules[path] = known
            continue
        modules[path] = _class_of(module)
        prefix = f"{path}." if path else ""
        parameters |= _described_all(module._parameters, prefix, first)
        buffers |= _described_all(module._buffers, prefix, first)
        children = [(prefix + key, child) for key, child in module._modules.items()]
        waiting += [(name, child) for name, child in reversed(children) if child is not None]
    return {"modules": modules, "parameters": parameters, "buffers": buffers}


def _class_of(module: torch.nn.Module) -> type | str:
    """The class of a module, as it was before torch shared it out over processes.

    Of a scripted module torch keeps the name alone.
    """
    if isinstance(module, torch.jit.ScriptModule):
        return f"torch.jit.{module.original_name}"
    found: type = type(module)
    while found.__bases__[0].__module__.startswith("torch.distributed.") and found.__bases__[1:]:
        found = found.__bases__[1]
    return found


def _described_all(
    tensors: Mapping[str, torch.Tensor | None], prefix: str, first: dict[int, str]
) -> dict[str, TensorSpec | str]:
    found: dict[str, TensorSpec | str] = {}
    for key, tensor in tensors.items():
        if tensor is not None:
            path = prefix + key
            known = first.setdefault(id(tensor), path)
            found[path] = _described(tensor, path) if known == path else known
    return found


_COMPILED: Final = "_orig_mod"
"""Where a compiled module has the one that it was made of."""


def unwrapped(value: Any) -> Any:
    """The module in a compiled, parallel or distributed one, or one with compiled parts."""
    if not isinstance(value, torch.nn.Module):
        return value
    inner = _inner(value)
    names = (name for name, _ in inner.named_modules())
    return _Unwrapped(inner) if any(_COMPILED in name.split(".") for name in names) else inner


def _inner(module: torch.nn.Module) -> torch.nn.Module:
    """The module that others are wrapped around."""
    parallel = (torch.nn.DataParallel, torch.nn.parallel.DistributedDataParallel)
    while True:
        children = dict(module._modules.items())  # a scripted module has a mapping without `get`
        wrapped = module.module if isinstance(module, parallel) else children.get(_COMPILED)
        if not isinstance(wrapped, torch.nn.Module):
            return module
        module = wrapped


class _Unwrapped:
    """A module with compiled parts, whose state has the names that it had before."""

    def __init__(self, module: torch.nn.Module) -> None:
        self._module = module

    def state_dict(self) -> dict[str, Any]:
        state = self._module.state_dict()
        renamed = type(state)((_without(name), value) for name, value in state.items())
        metadata = getattr(state, "_metadata", {})
        renamed._metadata = type(metadata)(  # type: ignore[attr-defined]
            (_without(name), value) for name, value in metadata.items()
        )
        return renamed

    def load_state_dict(self, state: Mapping[str, Any]) -> Any:
        names = {_without(name): name for name in self._module.state_dict()}
        return self._module.load_state_dict({names.get(k, k): v for k, v in state.items()})


def _without(name: str) -> str:
    return ".".join(part for part in name.split(".") if part != _COMPILED)


def _described(tensor: torch.Tensor, path: str) -> TensorSpec:
    # The dtype may be one that cannot be saved, and counts all the same.
    if torch.nn.parameter.is_lazy(tensor) or tensor.is_nested:
        raise UnsupportedTensor(f"{path} has no shape yet: run the lazy module once first")
    return _spec(tensor.dtype, tensor.shape)


@lru_cache(maxsize=4096)  # the layers of a model repeat a few
def _spec(dtype: torch.dtype, shape: torch.Size) -> TensorSpec:
    return TensorSpec(str(dtype).removeprefix("torch."), tuple(shape))
