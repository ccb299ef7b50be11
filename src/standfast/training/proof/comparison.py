"""Two stores that should hold the same: every tensor in bytes, every value, every metric."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from standfast.store import Checkpoint, Store
from standfast.store.maintenance.verify import verify_store
from standfast.store.query.view import CheckpointView
from standfast.store.tree import tree
from standfast.tensorfile.diff import Change, compare
from standfast.tensors import TensorSpec
from standfast.training.metrics import read_metrics

WHOLE = "the run without kills"
KILLED = "the run with kills"


@dataclass(frozen=True)
class Difference:
    """Something that is not the same in both."""

    run: str
    step: int
    what: str
    """The path of a tensor or value in the state, or `metrics.loss`."""
    how: str
    """What it is in both, or by how much it differs."""
    is_tensor: bool = False

    def __str__(self) -> str:
        return f"step {self.step}, {self.what}: {self.how}"


@dataclass
class Comparison:
    """What was compared, and what differs, the first step first."""

    runs: int = 0
    checkpoints: int = 0
    """How many steps were saved in both, and so could be compared."""
    tensors: int = 0
    """How many tensors these have, all together."""
    lines: int = 0
    """How many steps in the metrics logs were compared."""
    verified: int = 0
    """How many bytes were read from the disk and found to be what was saved."""
    only_whole: list[str] = field(default_factory=list)
    """The checkpoints, as RUN@STEP, that were saved without kills alone."""
    only_killed: list[str] = field(default_factory=list)
    """Those that were saved with kills alone."""
    differences: list[Difference] = field(default_factory=list)


def compare_stores(whole: Path, killed: Path) -> Comparison:
    """Compare the stores of two runs of one program. Times and places in a store do not count.

    Every byte of both is read and verified first: then tensors of equal digests are equal.
    """
    found = Comparison()
    before, after = Store(whole), Store(killed)
    with closing(before.index), closing(after.index):
        _verify(found, before, WHOLE)
        _verify(found, after, KILLED)
        runs, others = _runs(before), _runs(after)
        for run in runs | others:
            if run in runs and run in others:
                found.runs += 1
                _compare_run(found, before, after, run)
            else:
                where = WHOLE if run in runs else KILLED
                how = f"in {where} alone: does its identity change from one start to the next?"
                found.differences.append(Difference(run, 0, f"run {run}", how))
    found.differences.sort(key=lambda each: each.step)  # within a step as they were found
    return found


def _verify(found: Comparison, store: Store, where: str) -> None:
    verified = verify_store(store)
    found.verified += verified.nbytes
    for name, damage in verified.damaged.items():
        run, _, step = name.partition("@")
        number = int(step) if step.isdecimal() else 0
        how = f"damaged in {where}: {damage.message}"
        found.differences.append(Difference(run, number, name, how))


def _runs(store: Store) -> dict[str, None]:
    """The runs that have a checkpoint, in a fixed order."""
    return dict.fromkeys(sorted(run.hash for run in store.runs() if store.index.count(run.hash)))


def _compare_run(found: Comparison, before: Store, after: Store, run: str) -> None:
    steps, others = before.index.steps(run), after.index.steps(run)
    found.only_whole += [f"{run}@{step}" for step in steps if step not in others]
    found.only_killed += [f"{run}@{step}" for step in others if step not in steps]
    if steps[-1] != others[-1]:
        how = f"the last step is {steps[-1]} in {WHOLE}, and {others[-1]} in {KILLED}"
        found.differences.append(Difference(run, min(steps[-1], others[-1]), f"run {run}", how))
    found.differences += _metrics_differ(found, before, after, run, {*steps} ^ {*others})
    for step in sorted({*steps} & {*others}):
        found.checkpoints += 1
        found.differences += _checkpoints_differ(
            found, before.checkpoint(run, step), after.checkpoint(run, step)
        )


def _checkpoints_differ(
    found: Comparison, before: Checkpoint, after: Checkpoint
) -> Iterator[Difference]:
    run, step = before.head.run, before.step
    old, new = CheckpointView(before), CheckpointView(after)
    found.tensors += len(old)
    differing = dict(_tensors_differ(old, new))
    for name in dict.fromkeys([*old, *new]):  # in the order of the state
        if name in differing:
            yield Difference(run, step, name, differing[name], is_tensor=True)
    values = dict(_values_differ(old.values, new.values))
    if before.record.tree != after.record.tree and not differing and not values:
        values = {"state": "the same values in another order, or shared between other places"}
    values |= {f"metrics.{name}": how for name, how in _metrics_of(before, after)}
    if before.epoch != after.epoch:
        values["epoch"] = f"{before.epoch} and {after.epoch}"
    for name, how in values.items():
        yield Difference(run, step, name, how)


def _tensors_differ(old: CheckpointView, new: CheckpointView) -> Iterator[tuple[str, str]]:
    diff = compare(old, new)
    for name in diff.removed:
        yield name, f"in {WHOLE} alone"
    for name in diff.added:
        yield name, f"in {KILLED} alone"
    for change in diff.changed:
        yield change.name, _how_far(change)


def _how_far(change: Change) -> str:
    if change.before != change.after:
        return f"{_text(change.before)} and {_text(change.after)}"
    share = change.share or 0.0
    part = f"{share:.3g}" if share < 0.001 else f"{share:.1%}"
    largest = "" if change.max is None else f", by at most {change.max:.3g}"
    return f"{_text(change.after)}, {part} of its elements differ{largest}"


def _text(spec: TensorSpec) -> str:
    return f"{spec.dtype} {list(spec.shape)}"


def _values_differ(old: dict[str, Any], new: dict[str, Any]) -> Iterator[tuple[str, str]]:
    for name in dict.fromkeys([*old, *new]):
        if name not in old or name not in new:
            yield name, f"in {WHOLE if name in old else KILLED} alone"
        elif _exact(old[name]) != _exact(new[name]):
            yield name, f"{_exact(old[name]):.60} and {_exact(new[name]):.60}"


def _exact(value: Any) -> str:
    """A plain value in the form of the tree, in which 0.0 is not -0.0, nor 1 True."""
    return json.dumps(tree.flatten(value)[0], ensure_ascii=False)


def _metrics_of(before: Checkpoint, after: Checkpoint) -> Iterator[tuple[str, str]]:
    return _values_differ(before.metrics, after.metrics)


def _metrics_differ(
    found: Comparison, before: Store, after: Store, run: str, alone: set[int]
) -> Iterator[Difference]:
    """What differs in the metrics logs, step by step.

    Of a step that was saved in one run alone, only what both have: some metrics, such as those of
    a validation, are there when a step is saved.
    """
    old, new = _logged(before, run), _logged(after, run)
    for step in sorted({*old, *new}):
        found.lines += 1
        mine, theirs = old.get(step, {}), new.get(step, {})
        if step in alone:
            both = mine.keys() & theirs.keys()
            mine, theirs = ({name: each[name] for name in both} for each in (mine, theirs))
        for name, how in _values_differ(mine, theirs):
            yield Difference(run, step, f"metrics.{name}", how)


def _logged(store: Store, run: str) -> dict[int, dict[str, Any]]:
    """The metrics of each step, those that were reported late too."""
    logged: dict[int, dict[str, Any]] = {}
    path = store.logs and store.logs / f"{run}_metrics.jsonl"
    if path and path.exists():
        for line in read_metrics(path):
            logged.setdefault(line.step, {}).update(line.metrics)
    return logged
