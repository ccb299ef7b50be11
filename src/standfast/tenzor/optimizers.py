"""The state of an optimizer: out of it as a tree, and back with every bit."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import msgspec
import numpy as np

from standfast.errors import BadField, RefusedState, RefusedTensor, StateMismatch, shortened
from standfast.tensors import TensorSpec, kind_of, memory_of, source_of, tensor_of
from standfast.tenzor.document import SLOTS, unique
from standfast.tenzor.metadata import CheckpointMetadata
from standfast.tenzor.weights import StoredTensors


class Saved(msgspec.Struct, frozen=True, rename={"kind": "class"}, forbid_unknown_fields=True):
    """An optimizer as it stands in a checkpoint."""

    kind: str
    """The name of its class."""
    parameters: list[tuple[str, str, list[int]]]
    """Name, dtype and shape, in the order of the optimizer's groups."""
    groups: list[int]
    """How many parameters each group has."""
    state: Any
    """What `state_dict` gave."""


def captured(optimizer: Any, weights: Mapping[str, Any]) -> tuple[dict[str, Any], list[str]]:
    """An optimizer as a tree, and the names of its parameters."""
    if not callable(getattr(optimizer, "state_dict", None)):
        raise RefusedState(
            f"optimizer: a {type(optimizer).__name__} has no state_dict(); give one that has, "
            "or None"
        )
    parameters = _parameters(optimizer)
    names = all_named(parameter_names(parameters, weights))
    specs = [source_of(parameter).spec for parameter in parameters]
    tree = {
        "class": type(optimizer).__name__,
        "parameters": [
            [name, spec.dtype, list(spec.shape)] for name, spec in zip(names, specs, strict=True)
        ],
        "groups": _group_sizes(optimizer),
        "state": optimizer.state_dict(),
    }
    return tree, names


def plan_resuming(
    optimizer: Any, tree: Any, build: Callable[[Any], Any], weights: Mapping[str, Any] | None
) -> Callable[[], None]:
    """What resumes an optimizer, once all was found to fit.

    `build` puts tensors into a saved tree; `weights` may tell the names of the parameters.
    """
    try:
        saved = msgspec.convert(tree, Saved)
    except msgspec.ValidationError as error:
        raise BadField(f"the saved optimizer: {error}") from error
    differences = list(_differences(optimizer, saved, weights))
    if differences:
        raise _mismatch(differences)
    state = build(saved.state)

    def resume() -> None:
        try:
            optimizer.load_state_dict(state)
        except (KeyError, TypeError, ValueError, IndexError, AttributeError) as error:
            raise StateMismatch(f"the optimizer does not take the saved state: {error}") from error
        _put_exactly(optimizer, state)

    return resume


def _mismatch(differences: Sequence[str]) -> StateMismatch:
    head = "the checkpoint and the optimizer differ, and nothing was changed:"
    return StateMismatch("\n".join([head, *differences[:20]]))


def _differences(optimizer: Any, saved: Saved, weights: Mapping[str, Any] | None) -> Iterator[str]:
    kind = type(optimizer).__name__
    if kind != saved.kind:
        yield f"the state of {shortened(saved.kind)} was saved, {kind} is given"
    parameters = _parameters(optimizer)
    if _group_sizes(optimizer) != saved.groups or len(parameters) != len(saved.parameters):
        yield f"groups of {saved.groups} parameters were saved, {_group_sizes(optimizer)} are given"
        return
    names = parameter_names(parameters, weights or {})
    for i, (parameter, name) in enumerate(zip(parameters, names, strict=True)):
        old_name, dtype, shape = saved.parameters[i]
        spec = source_of(parameter).spec
        if name is not None and name != old_name:
            yield f"parameter {i}: {shortened(old_name)!r} was saved, {name!r} is given"
        elif (spec.dtype, list(spec.shape)) != (dtype, shape):
            yield (
                f"parameter {i}, {shortened(old_name)}: {shortened(dtype)} {shape[:8]} was saved, "
                f"{spec.dtype} {list(spec.shape)} is given"
            )


def _put_exactly(optimizer: Any, state: Any) -> None:
    """Give back their dtypes to tensors which `load_state_dict` of torch casts to a parameter's.

    NAdam's products and ASGD's averages are float32 beside parameters of any dtype.
    """
    now = getattr(optimizer, "state", None)
    saved = state.get("state") if isinstance(state, dict) else None
    if not isinstance(now, Mapping) or not isinstance(saved, Mapping):
        return
    for index, parameter in enumerate(_parameters(optimizer)):
        slots = saved.get(index)
        if isinstance(slots, dict) and parameter in now:
            for slot, value in slots.items():
                now[parameter][slot] = _as_saved(now[parameter][slot], value)


def _as_saved(now: Any, saved: Any) -> Any:
    if isinstance(saved, list | tuple):
        return type(saved)(_as_saved(a, b) for a, b in zip(now, saved, strict=True))
    if isinstance(saved, dict):
        return {key: _as_saved(now[key], value) for key, value in saved.items()}
    if hasattr(saved, "dtype") and hasattr(now, "device") and now.dtype != saved.dtype:
        return saved.to(device=now.device)
    return now


def plan_slots(
    optimizer: Any,
    metadata: CheckpointMetadata,
    saved: StoredTensors,
    weights: Mapping[str, Any] | None,
) -> Callable[[], None]:
    """What fills an optimizer from the slots that the original writes, found by their names.

    The file must have exactly the slots that this optimizer keeps. Its groups stay as they are,
    and Adam's step is that of the training. The original adds its velocity to a parameter, where
    torch subtracts the learning rate times its momentum buffer: one is converted to the other.
    """
    rate = metadata.learning_rate
    parameters = _parameters(optimizer)
    names = parameter_names(parameters, weights or {})
    if not any(names):
        raise StateMismatch(
            "the file has no names, and the optimizer's parameters have none either: call "
            "load_weights(model) first, with the model whose parameters the optimizer has"
        )
    state: dict[int, dict[str, Any]] = {}
    differences = []
    kept = [slots for group in optimizer.param_groups for slots in _slots_kept(optimizer, group)]
    for i, (parameter, name) in enumerate(zip(parameters, names, strict=True)):
        if name is None:
            differences.append(f"parameter {i} is not among the weights that were loaded")
            continue
        spec = source_of(parameter).spec
        for slot, short in SLOTS.items():
            tensor = f"optim/{name}/{short}"
            found = saved.find(tensor)
            if slot not in kept[i]:
                if found is not None:
                    differences.append(f"{tensor}: was saved, but this optimizer keeps no {slot}")
            elif found is None:
                differences.append(f"{tensor}: was not saved, but this optimizer needs it")
            elif saved.spec(found) != spec:
                differences.append(
                    f"{tensor}: {saved.spec(found).dtype} {list(saved.spec(found).shape)} was "
                    f"saved, the parameter is {spec.dtype} {list(spec.shape)}"
                )
            else:
                kind = kind_of(parameter).partition(":")[0]
                slots = state.setdefault(i, {})
                array = saved.fresh(found)
                if slot != "momentum_buffer":
                    count = np.array(metadata.global_step, np.float32)
                    slots["step"] = tensor_of(count, TensorSpec("float32", ()), kind)
                elif 0 < rate < math.inf:
                    array = (array / np.float32(-rate)).astype(array.dtype)
                elif array.any():
                    differences.append(f"{tensor}: no learning rate ({rate:g}) to convert it with")
                slots[slot] = tensor_of(array, spec, kind)
    if differences:
        raise _mismatch(differences)
    return lambda: optimizer.load_state_dict(optimizer.state_dict() | {"state": state})


def _slots_kept(optimizer: Any, group: Mapping[str, Any]) -> list[tuple[str, ...]]:
    """The slots that an optimizer keeps of each parameter of a group, the step aside.

    Raises StateMismatch for one that keeps others than those which the original writes.
    """
    kind = type(optimizer).__name__
    if kind == "SGD" and "momentum" in group:
        slots: tuple[str, ...] = ("momentum_buffer",) if group["momentum"] else ()
    elif kind in ("Adam", "AdamW") and not group.get("amsgrad", True):
        slots = ("exp_avg", "exp_avg_sq")
    else:
        option = " with amsgrad" if group.get("amsgrad") else ""
        raise _mismatch(
            [
                f"the file has no state of {kind}{option}: the original saves that of SGD with "
                "momentum (v) and of Adam (m, v_hat)"
            ]
        )
    return [slots] * len(group["params"])


def _parameters(optimizer: Any) -> list[Any]:
    groups = getattr(optimizer, "param_groups", None) or []
    return [parameter for group in groups for parameter in group["params"]]


def _group_sizes(optimizer: Any) -> list[int]:
    groups = getattr(optimizer, "param_groups", None) or []
    return [len(group["params"]) for group in groups]


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
