"""`standfast diff` inside a store: what differs between two runs, and between their checkpoints."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from standfast.cli.commands.diff.files import code_of, diff_json, print_tensors, value_lines
from standfast.cli.stores import find_store, resolve
from standfast.display.changes import (
    changes_json,
    hyperparameter_lines,
    layer_lines,
    metric_lines,
    sample_lines,
)
from standfast.display.output import (
    ROWS,
    hash_groups,
    on_terminal,
    print_json,
    say,
    say_more,
)
from standfast.display.trees import is_tree
from standfast.errors import RefNotFound, printable
from standfast.store import Checkpoint, Run, Store
from standfast.store.query.changes import PARTS, RunChanges, changes, layer_changes
from standfast.store.query.view import CheckpointView, diff_checkpoints, run_of
from standfast.tensorfile.diff import Diff, differences

if TYPE_CHECKING:
    from standfast.cli.commands.diff.trees import TreesCompared

_NONE: Final = Diff({}, {}, [], 0, 0, {})


@dataclass(frozen=True)
class _Side:
    """One of the two that are compared; a run without checkpoints has none."""

    hash: str
    run: Run | None
    """None if the file that describes it is damaged."""
    checkpoint: Checkpoint | None

    @property
    def label(self) -> str:
        name = (self.run.name if self.run else None) or self.hash[:8]
        if self.checkpoint is None:
            return f"{name}, no checkpoint"
        epoch = self.checkpoint.epoch
        return f"{name}@{self.checkpoint.step}" + ("" if epoch is None else f", epoch {epoch}")

    def as_json(self) -> dict[str, Any]:
        return {
            "run": self.hash,
            "name": self.run.name if self.run else None,
            "step": self.checkpoint.step if self.checkpoint else None,
            **dict(zip(PARTS, hash_groups(self.hash), strict=True)),
        }


def diff_runs(before: str, after: str, *, store: str | None, as_json: bool, every: bool) -> int:
    """Print what differs between two checkpoints and their runs; returns the exit code."""
    resolve_ref = partial(resolve, given=store, reads=True)
    find = partial(find_store, store, reads=True)
    old, new = _side(before, resolve_ref, find), _side(after, resolve_ref, find)
    found, of_runs, trees = _compared(old, new)
    if as_json:
        print_json(_as_json(before, after, old, new, found, of_runs, trees))
    else:
        _print(old, new, found, of_runs, trees, every)
    unsound = trees is not None and trees.problems
    return 1 if unsound else code_of(found or of_runs or trees, old.checkpoint, new.checkpoint)


def runs_diff_json(store: Store, before: str, after: str) -> dict[str, Any]:
    """What differs between two checkpoints of a store and their runs, for scripts."""
    old, new = (_side(ref, store.resolve, lambda: store) for ref in (before, after))
    return _as_json(before, after, old, new, *_compared(old, new))


def _compared(old: _Side, new: _Side) -> tuple[Diff, RunChanges | None, TreesCompared | None]:
    found, of_runs = _NONE, None
    trees = None
    if old.checkpoint is not None and new.checkpoint is not None:
        if is_tree(old.checkpoint) and is_tree(new.checkpoint):
            from standfast.cli.commands.diff.trees import compare_beside, compare_trees

            trees = compare_trees(old.checkpoint, new.checkpoint)
            found = compare_beside(old.checkpoint, new.checkpoint)
        else:
            found = diff_checkpoints(old.checkpoint, new.checkpoint)
    if old.run is not None and new.run is not None and old.hash != new.hash:
        of_runs = _changes(old, new)
    return found, of_runs, trees


def _as_json(
    before: str,
    after: str,
    old: _Side,
    new: _Side,
    found: Diff,
    of_runs: RunChanges | None,
    trees: TreesCompared | None,
) -> dict[str, Any]:
    sides = {"before": before, "after": after}
    runs = {"runs": [old.as_json(), new.as_json()], **changes_json(of_runs)}
    tree = {} if trees is None else {"tree": trees.as_json()}
    return {**sides, **runs, **diff_json(found), **tree}


def _side(argument: str, resolve: Callable[[str], Checkpoint], find: Callable[[], Store]) -> _Side:
    try:
        checkpoint = resolve(argument)
    except RefNotFound:
        run = _run_without_checkpoint(argument, find)
        if run is None:
            raise
        return _Side(run.hash, run, None)
    return _Side(checkpoint.head.run, run_of(checkpoint), checkpoint)


def _run_without_checkpoint(argument: str, find: Callable[[], Store]) -> Run | None:
    """The run that an argument means, if no checkpoint of it can be meant."""
    with suppress(RefNotFound):
        store = find()
        run = store.find_run(argument)
        return None if store.index.count(run.hash) else run
    return None


def _changes(old: _Side, new: _Side) -> RunChanges:
    """What differs between the runs; layers nobody described are those of the checkpoints."""
    assert old.run is not None
    assert new.run is not None
    found = changes(old.run, new.run)
    if found.layers is None and old.checkpoint is not None and new.checkpoint is not None:
        layers = layer_changes(_tensors_of(old.checkpoint), _tensors_of(new.checkpoint))
        return replace(found, layers=layers)
    return found


def _tensors_of(checkpoint: Checkpoint) -> dict[str, Any]:
    """The tensors of a model as its description has them."""
    model = next((part for part in checkpoint.head.parts if part.key == "model"), None)
    view = CheckpointView(checkpoint, model)
    specs = {name: view.spec(name) for name in view}
    return {"parameters": {name: [spec.dtype, list(spec.shape)] for name, spec in specs.items()}}


def _print(
    old: _Side,
    new: _Side,
    found: Diff,
    of_runs: RunChanges | None,
    trees: TreesCompared | None,
    every: bool,
) -> None:
    _print_header(old, new)
    if of_runs is not None:
        _print_section("hyperparameters", hyperparameter_lines(of_runs), every)
        for title, part, lines in (
            ("layers", "model", layer_lines(of_runs.layers)),
            ("samples", "data", sample_lines(of_runs.samples, every)),
        ):
            _print_section(title, _one_sided(part, old, new) or lines, every)
    metrics = found.metadata.get("metrics")
    if metrics is not None:
        _print_section("metrics", metric_lines(*metrics), every)
    if "state" in found.metadata:
        _print_section("values", value_lines(differences(*found.metadata["state"]), ""), every)
    lacking = [side for side in (old, new) if side.checkpoint is None]
    if lacking:
        names = " and ".join(side.label.partition(",")[0] for side in lacking)
        say((printable(f"no tensors to compare: {names} without a checkpoint"), "dim"))
    elif trees is None or found.added or found.removed or found.changed:
        print_tensors(found, every or not on_terminal())
    if trees is not None:
        trees.print(every, header=False)


def _one_sided(part: str, old: _Side, new: _Side) -> Iterator[str] | None:
    """What is to say if only one of two runs was given a model, or data."""
    given = [bool(side.run and side.run.file.identity.get(part)) for side in (old, new)]
    if all(given) or not any(given):
        return None
    label = (old if given[0] else new).label.partition(",")[0]
    return iter([f"only {label} was given {'a model' if part == 'model' else 'data'}"])


def _print_header(old: _Side, new: _Side) -> None:
    labels = [printable(side.label) for side in (old, new)]
    length = max(map(len, labels))
    groups = [hash_groups(side.hash) for side in (old, new)]
    differs = [a != b for a, b in zip(*groups, strict=True)]
    for label, parts, style in zip(labels, groups, ("red", "green"), strict=True):
        pieces = [
            (part, style if other else "dim") for part, other in zip(parts, differs, strict=True)
        ]
        between = [("_", "dim")] * (len(pieces) - 1)
        line = [p for pair in itertools.zip_longest(pieces, between) for p in pair if p]
        say((f"{label:{length}}  ", "bold"), *line)
    if any(differs) and not on_terminal():
        marks = (("^" if other else " ") * 8 for other in differs)
        say(f"{'':{length}}  {' '.join(marks)}".rstrip())


def _print_section(title: str, lines: Iterator[str], every: bool) -> None:
    found = list(lines)
    if not found:
        return
    say((title, "bold"))
    shown = found if every or not on_terminal() else found[:ROWS]
    for line in shown:
        say(printable(f"  {line}"))
    say_more(len(found) - len(shown))
