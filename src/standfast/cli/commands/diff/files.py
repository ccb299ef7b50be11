"""`standfast diff`: what differs between two files or checkpoints, the worst first."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict
from typing import TYPE_CHECKING, Any, Final

from standfast.cli.stores import is_file, resolve
from standfast.display.changes import value_text
from standfast.display.output import (
    ROWS,
    count_text,
    on_terminal,
    print_json,
    print_table,
    say,
    say_more,
    shape_text,
)
from standfast.display.trees import is_tree
from standfast.errors import printable
from standfast.tensorfile.diff import Change, Comparable, Diff, compare, differences
from standfast.tensorfile.open import TensorFile
from standfast.tensors import TensorSpec

if TYPE_CHECKING:
    from standfast.store import Checkpoint

_DEPTH: Final = 4
"""Of dicts that differ, those within others up to this deep are gone through."""


def diff_two(
    before: str,
    after: str,
    *,
    store: str | None,
    tensors_only: bool,
    as_json: bool,
    every: bool,
) -> int:
    """Print the differences; returns the exit code."""
    if not is_file(before) and not is_file(after):
        from standfast.cli.commands.diff.runs import diff_runs

        return diff_runs(before, after, store=store, as_json=as_json, every=every)
    with (
        _opened(before, store, tensors_only) as old,
        _opened(after, store, tensors_only) as new,
    ):
        if is_tree(old) and is_tree(new):
            from standfast.cli.commands.diff.trees import diff_trees

            return diff_trees(before, after, old, new, as_json=as_json, every=every)
        found = compare(_comparable(old), _comparable(new))
        if as_json:
            print_json({"before": before, "after": after, **diff_json(found)})
        else:
            print_metadata(found, every or not on_terminal())
            print_tensors(found, every or not on_terminal())
        return code_of(found, old, new)


def code_of(differs: object, *sides: TensorFile | Checkpoint | None) -> int:
    """The exit code. What does not differ is read, all of it: raises a DamagedFile, and no 0."""
    for side in () if differs else sides:
        if isinstance(side, TensorFile):
            for name in side:
                side.check(name)
        elif side is not None:
            with side.data() as data:
                data.check()
    return 3 if differs else 0


def _opened(
    argument: str, store: str | None, tensors_only: bool
) -> AbstractContextManager[TensorFile | Checkpoint]:
    if is_file(argument):
        return TensorFile(argument, tensors_only=tensors_only)
    return nullcontext(resolve(argument, store, reads=True))


def _comparable(what: TensorFile | Checkpoint) -> Comparable:
    if isinstance(what, TensorFile):
        return what
    from standfast.store.query.view import CheckpointView

    return CheckpointView(what)


def diff_json(found: Diff) -> dict[str, Any]:
    """All differences, for scripts."""
    return {
        "same": found.same,
        "equal_digests": found.by_digests,
        "added": {name: asdict(spec) for name, spec in found.added.items()},
        "removed": {name: asdict(spec) for name, spec in found.removed.items()},
        "changed": [asdict(change) for change in found.changed],
        "metadata": {
            key: {"before": old, "after": new} for key, (old, new) in found.metadata.items()
        },
    }


def print_metadata(found: Diff, every: bool) -> None:
    """Print a line for each plain value that differs."""
    lines = list(value_lines(found.metadata, "metadata "))
    for line in lines if every else lines[:ROWS]:
        say(printable(line))
    if not every:
        say_more(len(lines) - ROWS)


def print_tensors(found: Diff, every: bool) -> None:
    """Print a table of the tensors that differ, and how many do not, by their bytes or digests."""
    rows = [_row(change) for change in found.changed]
    rows += [(name, "new", _spec_text(spec), "", "", "") for name, spec in found.added.items()]
    rows += [(name, "gone", _spec_text(spec), "", "", "") for name, spec in found.removed.items()]
    if rows:
        shown = rows if every else rows[:ROWS]
        columns = ("tensor", "what", "dtype and shape", "max", "mean", "elements")
        print_table(
            columns, [(printable(name), *rest) for name, *rest in shown], right="max mean elements"
        )
        say_more(len(rows) - len(shown))
    if found.same or not found.by_digests:
        verb = "is" if found.same == 1 else "are"
        say((f"{count_text(found.same, 'tensor')} {verb} the same, bit for bit", "dim"))
    if found.by_digests:
        verb = "has" if found.by_digests == 1 else "have"
        what = f"{count_text(found.by_digests, 'tensor')} {verb} the same digests in both"
        say((f"{what} (verify reads them)", "dim"))


def value_lines(
    changes: Mapping[str, tuple[Any, Any]], within: str, depth: int = 0
) -> Iterator[str]:
    """A line for each plain value that differs; of dicts, for each one in them."""
    for key, (old, new) in changes.items():
        if isinstance(old, dict) and isinstance(new, dict) and depth < _DEPTH:
            inner = differences(old, new)
            yield from value_lines(inner, f"{within}{key}.", depth + 1)
            if not inner:
                yield f"{within}{key}: its keys are in another order"
        else:
            yield f"{within}{key}: {value_text(old)} → {value_text(new)}"


def _row(change: Change) -> tuple[str, str, str, str, str, str]:
    before, after = change.before, change.after
    what = "changed"
    if before.shape != after.shape:
        what = "shape"
    elif before.dtype != after.dtype:
        what = "dtype"
    spec = _spec_text(after)
    if before != after:
        spec = f"{_spec_text(before)} → {spec}"
    share = "" if change.share is None else _share_text(change.share)
    return change.name, what, spec, _number_text(change.max), _number_text(change.mean), share


def _spec_text(spec: TensorSpec) -> str:
    return f"{spec.dtype} {shape_text(spec.shape)}"


def _number_text(value: float | None) -> str:
    return "" if value is None else f"{value:.3g}"


def _share_text(share: float) -> str:
    # A single element of many is not none of them.
    return "<0.1%" if 0 < share < 0.001 else f"{share:.1%}"
