"""What is said of a value that a state cannot keep: where it is, what it is, what to do."""

from __future__ import annotations

import dataclasses
from argparse import Namespace
from collections import Counter, OrderedDict, deque
from collections.abc import Set
from enum import Enum
from typing import Any, Final

import numpy as np

from standfast.errors import RefusedState, printable, shortened

_INSTEAD: Final[tuple[tuple[type | tuple[type, ...], str], ...]] = (
    (Enum, "save its .value"),
    (np.ndarray, "save numpy.asarray(value)"),
    (np.bool_, "save bool(value)"),
    (np.integer, "save int(value)"),
    (np.floating, "save float(value)"),
    (np.str_, "save str(value)"),
    (np.generic, "save its fields, or value.tobytes()"),
    (OrderedDict, "save OrderedDict(value) or dict(value)"),
    (Counter, "save Counter(value) or dict(value)"),
    (dict, "save dict(value)"),
    (tuple, "save tuple(value)"),
    ((list, deque, range), "save list(value)"),
    (Set, "save sorted(value)"),
    (int, "save int(value)"),
    (float, "save float(value)"),
    (complex, "save complex(value)"),
    (str, "save str(value)"),
    ((bytes, bytearray, memoryview), "save bytes(value)"),
    (type, "save its name"),
)
"""The first that fits: an enumeration may be an integer, and a NumPy float is a float."""

_KEY_INSTEAD: Final = (
    (Enum, "its .value"),
    (np.bool_, "bool(key)"),
    ((int, np.integer), "int(key)"),
    ((float, np.floating), "float(key)"),
)

_ELSE: Final = "save str(value), or the numbers, texts and tensors that it is made of"


def state_error(path: str, found: str, advice: str) -> RefusedState:
    """The state cannot be kept because of what was found at this path."""
    return RefusedState(f"{path}: {found}, which a state cannot have: {advice}")


def refused_value(path: str, value: Any, reason: str) -> RefusedState:
    """The value is of a type that would not come back; `reason` is what a tensor's adapter said."""
    advice = _instead(value)
    if advice is None and hasattr(value, "dtype") and hasattr(value, "shape"):
        return RefusedState(f"{path}: {reason}")
    name = _type_name(type(value))
    return RefusedState(f"{path}: a {name} would not come back as one: {advice or _ELSE}")


def refused_key(path: str, key: Any) -> RefusedState:
    """The key is of a type that would not come back."""
    shown = printable(shortened(_shown(key)))
    advice = next((advice for types, advice in _KEY_INSTEAD if isinstance(key, types)), "str(key)")
    return RefusedState(
        f"{path}: its key {shown} is a {_type_name(type(key))}, and keys are str, int, float, "
        f"bool or None: use {advice}"
    )


def _shown(key: Any) -> str:
    try:
        return repr(key)
    except Exception:  # it may be anything, and is only to be named
        return "of a type that cannot be shown"


def _type_name(type_: type) -> str:
    module = "" if type_.__module__ == "builtins" else f"{type_.__module__}."
    return printable(shortened(f"{module}{type_.__qualname__}"))


def _instead(value: Any) -> str | None:
    if isinstance(value, np.ndarray) and hasattr(value, "mask"):
        return "save its .data and .mask"
    for types, advice in _INSTEAD:
        if isinstance(value, types):
            return advice
    if isinstance(value, Namespace):
        return "save vars(value)"
    if isinstance(value, np.random.Generator):
        return "save value.bit_generator.state"
    if callable(getattr(value, "state_dict", None)):
        return "save value.state_dict()"
    if dataclasses.is_dataclass(value):
        return "save dataclasses.asdict(value)"
    if callable(value):
        return "leave it out: code is not kept"
    return None
