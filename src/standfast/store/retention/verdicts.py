"""What becomes of each checkpoint of a run, and why.

What the run's policies want is one thing; what is never deleted, whatever they want, another:
the latest checkpoint of the run, its best, those that bear a tag or are in use. These stay whole.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import datetime
from typing import TYPE_CHECKING, Any, Final, Literal

from standfast.errors import DamagedFile
from standfast.policies import Candidate, KeepBest, Retention, Wish, judge
from standfast.store.index.index import Index, Listed
from standfast.store.retention.pins import pinned_steps
from standfast.store.retention.space import Space
from standfast.store.schema.run_file import Monitor
from standfast.store.tree import tree
from standfast.store.v3.torch_names import whole_of

if TYPE_CHECKING:
    from standfast.store.store import Store

IN_USE: Final = "in use: it is being read, or a run that is running came from it"
UNKNOWN: Final = "what the run keeps is unknown: its run file is damaged or missing"
TOO_NEW: Final = "too new"
NOBODY_KNOWS: Final = "nobody knows which is the best"


@dataclass(frozen=True, slots=True)
class Verdict:
    """What becomes of a checkpoint."""

    step: int
    sequence: int
    keep: bool
    why: tuple[str, ...]
    """Why it stays, or goes."""
    protected: bool = False
    """Whether nothing may delete it now."""
    drop: tuple[str, ...] = ()
    """If it stays, the parts of it that go."""
    by: Literal["policy", "budget"] = "policy"
    """What it goes by, if it does."""


def protections(store: Store, run: str) -> dict[int, tuple[str, ...]]:
    """The steps of a run that nothing may delete now, and why."""
    index = store.index
    found: dict[int, tuple[str, ...]] = {}
    latest, best = next(index.newest(run), None), index.best(run)
    if latest is not None:
        found[latest.step] = ("the latest of its run",)
    if best is not None:
        found[best.step] = (*found.get(best.step, ()), "the best of its run")
    for step, why in index.protected(run).items():
        said = why.partition(": remove")[0].removeprefix("is ")
        found[step] = (*found.get(step, ()), said)
    for step in pinned_steps(store.backend, run):
        found[step] = (*found.get(step, ()), IN_USE)
    return found


def verdicts(store: Store, run: str, retention: Retention | None = None) -> list[Verdict]:
    """What becomes of each checkpoint of a run, the newest first.

    Without a retention it is that of the run; a run that has none keeps everything. So does one
    whose run file cannot be read, whatever is given.
    """
    store.index.refresh()
    return judged(store, run, retention or stored(store, run))


def judged(store: Store, run: str, retention: Retention) -> list[Verdict]:
    """The same, with the index as it is."""
    listed = list(store.index.newest(run))
    if not store.index.has_run_file(run):
        why = (unknown(store.index, run),)
        return [Verdict(e.step, e.head.sequence, True, why, protected=True) for e in listed]
    candidates = _candidates(store, run, listed)
    wishes = judge(retention.keep, candidates)
    protected = protections(store, run)
    limits = str(Retention(retention.keep))
    found = [_verdict(each, wishes[each.step], protected, limits) for each in listed]
    doubt = _unknown_metric(retention, candidates)
    if doubt is not None:
        found = [each if each.keep else replace(each, keep=True, why=(doubt,)) for each in found]
    return found if retention.budget is None else _within(store, run, found, retention)


def best_by(store: Store, run: str, monitor: Monitor) -> int | None:
    """The step of a run that is the best by a metric; None if no checkpoint has it."""
    candidates = _candidates(store, run, list(store.index.newest(run)))
    return next(iter(KeepBest(1, monitor.metric, monitor.mode).keeps(candidates)), None)


def _unknown_metric(retention: Retention, candidates: Sequence[Candidate]) -> str | None:
    """Why the best cannot be told from the others, if no checkpoint has the metric."""
    known = {name for each in candidates for name in each.metrics}
    for policy in retention.keep:
        if isinstance(policy, KeepBest) and policy.metric not in known:
            there = f"; there are {', '.join(sorted(known)[:10])}" if known else ""
            return f"{NOBODY_KNOWS}: no checkpoint has the metric {policy.metric!r}{there}"
    return None


def unknown(index: Index, run: str) -> str:
    """Why it is unknown what a run keeps, if its run file cannot be read or the run is too new."""
    newer = index.newer(run)
    return UNKNOWN if newer is None else f"{TOO_NEW}: {newer}"


def stored(store: Store, run: str) -> Retention:
    """What a run was told to keep; everything, if that is unknown."""
    file = store.index.run_file(run)
    return (file.retention if file else None) or Retention()


def _verdict(
    listed: Listed, wish: Wish, protected: dict[int, tuple[str, ...]], limits: str
) -> Verdict:
    step, sequence = listed.step, listed.head.sequence
    if step in protected:
        return Verdict(step, sequence, True, (*protected[step], *wish.reasons), protected=True)
    if wish.reasons:
        # Of a whole file nothing can go: it would still have it all.
        parts = set() if whole_of(listed.head) else {part.key for part in listed.head.parts}
        drop = tuple(sorted(wish.without & parts))
        return Verdict(step, sequence, True, wish.reasons, drop=drop)
    return Verdict(step, sequence, False, (f"not among those that are kept: {limits}",))


def _candidates(store: Store, run: str, listed: Sequence[Listed]) -> list[Candidate]:
    late, tags = store.index.late_metrics(run), store.index.tags(run)
    return [
        Candidate(
            each.step,
            _seconds(each.head.time),
            _numbers({**each.head.metrics, **late.get(each.step, {})}),
            bool(tags.get(each.step)),
        )
        for each in reversed(listed)
    ]


def _numbers(node: dict[str, Any]) -> dict[str, Any]:
    """Metrics out of the form of the tree, which most of them are in as they are."""
    if not any(isinstance(value, dict) for value in node.values()):
        return node
    with suppress(DamagedFile):  # sealed by somebody, and no metrics
        decoded: dict[str, Any] = tree.decode(json.dumps(node).encode(), 0)
        return decoded
    return {}


def _seconds(time: str) -> float:
    try:
        return datetime.fromisoformat(time).timestamp()
    except ValueError:  # text out of a file
        return 0.0


def _within(store: Store, run: str, found: list[Verdict], retention: Retention) -> list[Verdict]:
    """The same, but that the oldest go until the run takes no more than the budget."""
    budget = retention.budget or 0
    space = Space(store.backend, store.index, [run])
    for each in found:
        if not each.keep:
            space.delete(run, each.step)
    left: list[Verdict] = []
    for each in reversed(found):
        if each.keep and not each.protected and space.total > budget:
            space.delete(run, each.step)
            why = f"the run takes more than its budget of {budget:,} bytes, and the oldest go first"
            each = replace(each, keep=False, why=(why,), drop=(), by="budget")
        elif each.keep and not retention.keep:
            each = replace(each, why=(*each.why[:-1], "within the budget"))
        left.append(each)
    return left[::-1]
