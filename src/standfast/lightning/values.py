"""What Lightning puts into a checkpoint, as plain values and tensors, and back.

A value that a store does not know, and that can be made again from plain ones, becomes
`{"standfast.kind": "timedelta", "value": [1, 0, 0]}`. All else is left for the store to refuse.
"""

from __future__ import annotations

from argparse import Namespace
from collections import OrderedDict
from collections.abc import Callable, Mapping
from datetime import date, datetime, time, timedelta
from pathlib import Path, PurePath
from typing import Any, Final, NamedTuple

import torch

from standfast.errors import BadField, RefusedState, printable, shortened
from standfast.lightning.library import library

KIND: Final = "standfast.kind"
_VALUE: Final = "value"
_DEEPEST: Final = 64

_AttributeDict: Final[Any] = library.utilities.parsing.AttributeDict


class _Way(NamedTuple):
    """How values of a type become plain, and how they are made again."""

    type: type
    plain: Callable[[Any], Any]
    again: Callable[[Any], Any]


def _dtype(name: Any) -> torch.dtype:
    found = getattr(torch, name, None) if isinstance(name, str) else None
    if not isinstance(found, torch.dtype):
        raise ValueError("torch has no dtype of this name")
    return found


def _delta(parts: Any) -> timedelta:
    days, seconds, microseconds = parts
    return timedelta(days, seconds, microseconds)


_WAYS: Final = {
    "attributes": _Way(_AttributeDict, dict, _AttributeDict),
    "namespace": _Way(Namespace, lambda value: dict(vars(value)), lambda value: Namespace(**value)),
    "path": _Way(PurePath, str, Path),
    "timedelta": _Way(timedelta, lambda it: [it.days, it.seconds, it.microseconds], _delta),
    "datetime": _Way(datetime, datetime.isoformat, datetime.fromisoformat),
    "date": _Way(date, date.isoformat, date.fromisoformat),
    "time": _Way(time, time.isoformat, time.fromisoformat),
    "set": _Way(set, list, set),
    "frozenset": _Way(frozenset, list, frozenset),
    "range": _Way(range, lambda it: [it.start, it.stop, it.step], lambda it: range(*it)),
    "size": _Way(torch.Size, list, torch.Size),
    "dtype": _Way(torch.dtype, lambda it: str(it).removeprefix("torch."), _dtype),
    "device": _Way(torch.device, str, torch.device),
}
"""By the names that stand in checkpoints. A path is of a class of its own on each system."""
_EXACT: Final = {way.type: name for name, way in _WAYS.items() if name != "path"}


def plain(value: Any) -> Any:
    """A checkpoint of Lightning as a store keeps it; containers in which nothing changed stay."""
    return _plain(value, 0)


def _plain(value: Any, depth: int) -> Any:
    if depth > _DEEPEST:
        return value  # it may hold itself: the store says so
    name = "path" if isinstance(value, PurePath) else _EXACT.get(type(value))
    if name is not None:
        return {KIND: name, _VALUE: _plain(_WAYS[name].plain(value), depth + 1)}
    if type(value) in (dict, OrderedDict):
        if KIND in value:
            raise RefusedState(f"a dict with the key {KIND!r}, which Standfast uses itself")
        members = {key: _plain(member, depth + 1) for key, member in value.items()}
        same = all(members[key] is member for key, member in value.items())
        return value if same else type(value)(members)
    if type(value) in (list, tuple):
        items = [_plain(member, depth + 1) for member in value]
        same = all(new is old for new, old in zip(items, value, strict=True))
        return value if same else type(value)(items)
    return value


def again(value: Any) -> Any:
    """What `plain` was given; raises BadField for what it never makes."""
    if isinstance(value, Mapping):
        if KIND in value:
            return _made(value)
        for key in value:
            value[key] = again(value[key])  # type: ignore[index]  # it was made by the loader
        return value
    if type(value) is list:
        value[:] = [again(member) for member in value]
        return value
    return tuple(again(member) for member in value) if type(value) is tuple else value


def _made(value: Mapping[str, Any]) -> Any:
    name = value[KIND]
    if not isinstance(name, str) or name not in _WAYS or set(value) != {KIND, _VALUE}:
        known = ", ".join(_WAYS)
        raise BadField(f"{KIND}: {printable(shortened(repr(name)))} is none of {known}")
    try:
        return _WAYS[name].again(again(value[_VALUE]))
    except (TypeError, ValueError, RuntimeError, OverflowError) as error:
        reason = printable(shortened(str(error)))
        raise BadField(f"what is saved as a {name} is none: {reason}") from error


_ORIGINS: Final = {
    "hyper_parameters": "self.save_hyperparameters(ignore=[…]) in the module leaves it out",
    "datamodule_hyper_parameters": "self.save_hyperparameters(ignore=[…]) in the datamodule leaves "
    "it out",
    "hparams_type": "pass OmegaConf.to_container(config) to save_hyperparameters",
    "callbacks": "it comes from the state_dict or on_save_checkpoint of that callback",
    "lr_schedulers": "it comes from the state_dict of that scheduler",
    "optimizer_states": "it comes from the state_dict of that optimizer",
    "state_dict": "it comes from the state_dict of the module: see get_extra_state",
}


def explained(error: RefusedState) -> RefusedState:
    """A refusal of the store, with where in a Lightning program the value comes from."""
    top = str(error).partition(":")[0].partition(".")[0]
    origin = _ORIGINS.get(top, "it comes from an on_save_checkpoint or a state_dict of the program")
    return RefusedState(f"{error}. In the checkpoint of Lightning {origin}")
