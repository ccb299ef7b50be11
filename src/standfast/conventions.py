"""The names that users of Lightning and Transformers bring along, in Standfast's own terms.

docs/retention.md has the table.
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Final

from standfast.errors import BadOption
from standfast.policies import KeepAll, KeepBest, KeepLast, KeepTagged, Mode, Policies, Policy

NAMES: Final = (
    "save_top_k",
    "save_last",
    "save_total_limit",
    "metric_for_best_model",
    "greater_is_better",
    "every_n_train_steps",
    "train_time_interval",
    "save_steps",
)


_EVERY: Final = ("every_n_train_steps", "save_steps", "train_time_interval")


@dataclass(frozen=True)
class Translated:
    """What options come down to; None for what they do not speak of."""

    keep: Policy | Policies | None = None
    monitor: str | None = None
    mode: Mode | None = None
    every: int | timedelta | None = None


def translate(
    options: Mapping[str, Any],
    monitor: str | None = None,
    mode: Mode | None = None,
    keep: Policy | Policies | None = None,
) -> Translated:
    """What these options mean, beside what was said in our own terms; raises BadOption."""
    _refuse_unknown(options)
    given = {name: value for name, value in options.items() if value is not None}
    if "metric_for_best_model" in given:
        _refuse_two("monitor", monitor, "metric_for_best_model", given["metric_for_best_model"])
        monitor = given["metric_for_best_model"]
    if "greater_is_better" in given:
        said: Mode = "max" if given["greater_is_better"] else "min"
        _refuse_two("mode", mode, "greater_is_better", said)
        mode = said
    if "metric_for_best_model" in given:
        mode = mode or ("min" if "loss" in str(monitor) else "max")
    every = [name for name in _EVERY if name in given]
    if len(every) > 1:
        raise BadOption(f"{' and '.join(every)} say the same: give one of them")
    kept = _kept(given, monitor, mode)
    if kept is not None and keep is not None:
        raise BadOption("keep says what is kept, and save_top_k and its like do too: give one")
    kept = keep if kept is None else kept
    return Translated(kept, monitor, mode, given[every[0]] if every else None)


def _refuse_unknown(options: Mapping[str, Any]) -> None:
    for name in options.keys() - set(NAMES):
        near = difflib.get_close_matches(name, NAMES, 1, cutoff=0.8)
        hint = f"; did you mean {near[0]!r}?" if near else ""
        if "keep" in name:
            hint = "; what is kept is said by keep=KeepLast(3) and its like"
        raise BadOption(f"there is no argument {name!r}{hint}")


def _refuse_two(name: str, value: Any, other: str, also: Any) -> None:
    if value is not None and value != also:
        raise BadOption(f"{name}={value!r} and {other} contradict each other: give one of them")


def _kept(
    given: Mapping[str, Any], monitor: str | None, mode: Mode | None
) -> Policy | Policies | None:
    keep: list[Policy] = []
    if "save_top_k" in given:
        keep.append(_top(given["save_top_k"], monitor, mode))
    if not isinstance(given.get("save_last", False), bool):
        raise BadOption(f"save_last is True or False, not {given['save_last']!r}")
    if given.get("save_last"):
        keep.append(KeepLast(1))
    if "save_total_limit" in given:
        keep.append(_limited(given["save_total_limit"], best=monitor is not None))
    return Policies(tuple(keep)) if keep else None


def _top(k: Any, monitor: str | None, mode: Mode | None) -> Policy:
    if isinstance(k, bool) or not isinstance(k, int) or k < -1:
        raise BadOption(f"save_top_k is a number of checkpoints, or -1 for all, not {k!r}")
    if k < 1:
        return KeepAll() if k else KeepTagged()
    if monitor is not None:
        return KeepBest(k, monitor, mode)
    if k > 1:
        raise BadOption(f"save_top_k={k}: the best by which metric? Give a `monitor` too")
    return KeepLast(1)


def _limited(limit: Any, *, best: bool) -> Policy:
    """At most so many, among which is the best, that is kept anyway."""
    if isinstance(limit, bool) or not isinstance(limit, int):
        raise BadOption(f"save_total_limit is a number of checkpoints, not {limit!r}")
    if limit < 1:
        return KeepAll()
    return KeepLast(max(1, limit - 1) if best else limit)
