"""Metrics as records and marks keep them."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from standfast.errors import RefusedState
from standfast.store.tree import tree


def checked_metrics(metrics: Mapping[str, Any] | None) -> dict[str, Any]:
    """Metrics as plain numbers in the form of the tree; raises RefusedState."""
    plain = {}
    if metrics is not None and not isinstance(metrics, Mapping):
        raise RefusedState(f"metrics is a {type(metrics).__name__}: it must be a mapping")
    for name, value in (metrics or {}).items():
        if not isinstance(name, str):
            raise RefusedState(f"metrics: the key {name!r} is no str")
        number = value
        if hasattr(value, "item"):  # a scalar of NumPy, or a tensor of one element
            with suppress(ValueError, RuntimeError, TypeError):
                number = value.item()
        if type(number) not in (int, float, bool):
            raise RefusedState(
                f"metrics[{name!r}] is a {type(value).__name__}: a metric is a number"
            )
        plain[name] = number
    node: dict[str, Any] = tree.flatten(plain)[0]
    return node
