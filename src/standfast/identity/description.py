"""Hyperparameters for people to read, as the run file has them."""

from __future__ import annotations

import json
import math
from typing import Any, Final

from standfast.errors import UnstableValue
from standfast.identity.canonical import MAX_DEPTH
from standfast.identity.names import type_name
from standfast.identity.reduction import Applied, Content, Member, Named, Record, reduced
from standfast.tensors import TensorSpec

_SMALLEST: Final = -(1 << 63)
_LARGEST: Final = (1 << 64) - 1
"""Integers beyond these are not read as such by every reader of JSON."""

_PLAIN: Final = (type(None), bool, int, float, complex, str, bytes)


def recorded(hp: Any) -> Any:
    """Hyperparameters, volatile ones too, as a JSON value; what JSON lacks becomes text.

    Unlike an identity it refuses nothing: of a value that is not plain it gives the type.

    >>> recorded({"lr": 0.1, "path": Path("a/b"), "seeds": {1, 2}, "worst": float("inf")})
    {'lr': 0.1, 'path': 'a/b', 'seeds': [1, 2], 'worst': 'inf'}
    """
    return _shown(hp, frozenset())


def _shown(value: Any, within: frozenset[int]) -> Any:
    """One value; `within` are the containers that it lies in."""
    try:
        node = value if type(value) in _PLAIN else reduced(value)
    except UnstableValue:
        return f"<{type_name(type(value))}>"
    if not isinstance(node, list | set | dict | Record | Applied):
        return _single(node)
    if id(value) in within or len(within) == MAX_DEPTH:
        return "…"
    return _container(node, within | {id(value)})


def _container(node: Any, within: frozenset[int]) -> Any:
    if isinstance(node, Record):
        # No field can be called `class`, so that this hides none.
        return {"class": node.kind} | {k: _shown(v, within) for k, v in node.fields.items()}
    if isinstance(node, Applied):
        names = ("function", "arguments", "keywords")
        return {name: _shown(getattr(node, name), within) for name in names}
    if isinstance(node, dict):
        entries = [(_key(_shown(k, within)), _shown(v, within)) for k, v in node.items()]
        distinct = dict(entries)
        # 1 and "1" are two keys in Python and one in JSON: pairs lose neither.
        return distinct if len(distinct) == len(node) else [list(entry) for entry in entries]
    items = [_shown(item, within) for item in node]
    return sorted(items, key=_rank) if isinstance(node, set) else items


def _single(node: Any) -> Any:
    match node:
        case None | bool():
            return node
        case int():
            return node if _SMALLEST <= node <= _LARGEST else hex(node)
        case float():
            return node if math.isfinite(node) else str(node)
        case complex():
            return str(node)
        case str():
            return node.encode("utf-8", "backslashreplace").decode()  # a surrogate is no JSON
        case bytes():
            return node.hex()
        case Named():
            return node.name
        case Member():
            return f"{node.kind}.{node.name}"
        case TensorSpec():
            return _spec(node)
        case Content():
            return f"{_spec(node.spec)} blake3:{node.digest.hex()}"
    raise AssertionError(f"{type(node)} is not what values are reduced to")


def _spec(spec: TensorSpec) -> str:
    return f"{spec.dtype}{list(spec.shape)}"


def _key(shown: Any) -> str:
    return shown if isinstance(shown, str) else json.dumps(shown)


def _rank(shown: Any) -> tuple[bool, float, str]:
    """Numbers by their value, then all else by its text."""
    number = isinstance(shown, int | float)
    return not number, shown if number else 0, json.dumps(shown)
