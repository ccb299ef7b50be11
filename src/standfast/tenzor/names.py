"""The names that tensors have in a checkpoint."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

from standfast.errors import RefusedTensor
from standfast.tensors import memory_of

SLOTS: Final = {"momentum_buffer": "v", "exp_avg": "m", "exp_avg_sq": "v_hat"}
"""What the original calls these; all other slots keep the names that the optimizer gives them."""

OPTIMIZER: Final = ("optimizer", "state")
"""The path in the saved tree of what the optimizer's `state_dict` gave."""


def parameter_names(parameters: Iterable[Any], weights: Mapping[str, Any]) -> list[str | None]:
    """The name of each parameter among the weights, found by its memory; None without one."""
    by_memory: dict[Any, str] = {}
    for name, tensor in weights.items():
        by_memory.setdefault(_memory(tensor), name)
    by_memory.pop(None, None)
    return [by_memory.get(_memory(parameter)) for parameter in parameters]


def _memory(tensor: Any) -> Any:
    try:
        return memory_of(tensor)
    except RefusedTensor:
        return None


def all_named(names: Sequence[str | None]) -> list[str]:
    """Each name, and for a parameter without one its number: `param.3`."""
    return unique(f"param.{i}" if name is None else name for i, name in enumerate(names))


def leaf_name(path: tuple[Any, ...], parameters: Sequence[str]) -> str:
    """The name of the tensor at a path of the saved tree: `optim/fc1.weight/v`."""
    depth = len(OPTIMIZER)
    if path[:depth] != OPTIMIZER:
        return "/".join(["standfast", *map(str, path[1:])])
    parts = list(path[depth:])
    of_parameter = len(parts) > 1 and parts[0] == "state" and type(parts[1]) is int
    if of_parameter and 0 <= parts[1] < len(parameters):
        parts[:2] = [parameters[parts[1]]]
        parts[1:2] = [SLOTS.get(slot, slot) for slot in parts[1:2]]
    return "/".join(["optim", *map(str, parts)])


def unique(names: Iterable[str], taken: Iterable[str] = ()) -> list[str]:
    """The names, with a ~ behind one that is taken."""
    seen, result = set(taken), []
    for name in names:
        while name in seen:
            name += "~"
        seen.add(name)
        result.append(name)
    return result
