"""`holdfast diff`: what differs between two files, the worst first."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Any

from rich.text import Text

from holdfast.cli.output import console, print_json, print_table, shape_text
from holdfast.errors import printable
from holdfast.tensors import TensorSpec
from holdfast.verbs.diff import ABSENT, Change, Diff, diff

ROWS = 40
"""A terminal shows this many tensors unless it is asked for all."""


def diff_files(before: Path, after: Path, *, tensors_only: bool, as_json: bool, every: bool) -> int:
    """Print the differences; returns the exit code."""
    found = diff(before, after, tensors_only=tensors_only)
    if as_json:
        print_json({"before": str(before), "after": str(after), **_as_json(found)})
    else:
        _print(found, every or not console.is_terminal)
    return 3 if found else 0


def _as_json(found: Diff) -> dict[str, Any]:
    return {
        "same": found.same,
        "same_by_digests": found.by_digests,
        "added": {name: asdict(spec) for name, spec in found.added.items()},
        "removed": {name: asdict(spec) for name, spec in found.removed.items()},
        "changed": [asdict(change) for change in found.changed],
        "metadata": {
            key: {"before": old, "after": new} for key, (old, new) in found.metadata.items()
        },
    }


def _print(found: Diff, every: bool) -> None:
    for key, (old, new) in found.metadata.items():
        console.print(Text(printable(f"metadata {key}: {_value_text(old)} → {_value_text(new)}")))
    rows = [_row(change) for change in found.changed]
    rows += [(name, "new", _spec_text(spec), "", "", "") for name, spec in found.added.items()]
    rows += [(name, "gone", _spec_text(spec), "", "", "") for name, spec in found.removed.items()]
    if rows:
        shown = rows if every else rows[:ROWS]
        columns = ("tensor", "what", "dtype and shape", "max", "mean", "elements")
        print_table(
            columns, [(printable(name), *rest) for name, *rest in shown], right="max mean elements"
        )
        if len(shown) < len(rows):
            console.print(f"… and {len(rows) - len(shown):,} more; --all lists them", style="dim")
    plural = "tensor is" if found.same == 1 else "tensors are"
    how = ", bit for bit"
    if found.by_digests:
        some = "" if found.by_digests == found.same else f", {found.by_digests:,} of them"
        how = f"{some} by the digests in both files (verify reads them)"
    console.print(f"{found.same:,} {plural} the same{how}", style="dim")


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


def _value_text(value: Any) -> str:
    return "—" if value is ABSENT else f"{value!r:.100}"
