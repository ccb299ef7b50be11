"""`standfast show`: what a file holds."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, Final

from standfast.display.output import (
    ROWS,
    on_terminal,
    plain,
    print_json,
    print_table,
    say,
    say_more,
    shape_text,
    size_text,
)
from standfast.display.trees import is_tree
from standfast.errors import printable, shortened
from standfast.tensorfile.open import TensorFile, open
from standfast.tensors import TensorSpec

OURS: Final = "standfast"
"""The key of the metadata that `standfast.tenzor` keeps for itself: only --json prints it."""


def show_file(
    path: Path,
    *,
    as_json: bool,
    every: bool,
    tensors_only: bool,
    names: Sequence[str] | None = None,
) -> int:
    """Print a file's format, metadata, tensors and tree; returns the exit code."""
    with open(path, tensors_only=tensors_only, names=names) as file:
        tree = None
        if as_json:
            found = file_json(path, file)
            if is_tree(file):
                from standfast.cli.commands.show.tree import tree_json

                tree = found["tree"] = tree_json(file, every=every)
            print_json(found)
            return 1 if tree and tree["problems"] else 0
        _print(path, file, every or not on_terminal())
        if is_tree(file):
            from standfast.cli.commands.show.tree import print_tree

            say()
            return 0 if print_tree(file, every=every) else 1
        return 0


def file_json(path: Path, file: TensorFile) -> dict[str, object]:
    """A file for scripts."""
    return {
        "path": str(path),
        "format": file.format,
        "bytes": path.stat().st_size,
        "digests": file.has_digests,
        "metadata": file.metadata,
        "left_out": file.left_out,
        "tensors": tensors_json((name, file.spec(name)) for name in file),
    }


def _print(path: Path, file: TensorFile, every: bool) -> None:
    specs = [(name, file.spec(name)) for name in file]
    elements = sum(spec.size for _, spec in specs)
    say((str(path), "bold"))
    say(
        f"{file.format}, {size_text(path.stat().st_size)}, {len(specs):,} tensors, "
        f"{elements:,} elements, {'with' if file.has_digests else 'without'} digests"
    )
    print_values(((k, v) for k, v in file.metadata.items() if k != OURS), every)
    if OURS in file.metadata:
        size = len(value_text(file.metadata[OURS]).encode())
        say(f"  {OURS}: {size_text(size)}, printed by --json")
    for key, what in file.left_out.items():
        say((printable(f"  {key}: left out, a {what}"), "yellow"))
    say()
    print_tensors(specs, every)


def tensors_json(specs: Iterable[tuple[str, TensorSpec]]) -> list[dict[str, Any]]:
    """Tensors for scripts."""
    return [
        {"name": name, "dtype": spec.dtype, "shape": spec.shape, "bytes": spec.nbytes}
        for name, spec in specs
    ]


def print_tensors(specs: Sequence[tuple[str, TensorSpec]], every: bool) -> None:
    """Print a table of tensors, of all of them or of the first."""
    shown = specs if every else specs[:ROWS]
    rows = [
        (printable(name), spec.dtype, shape_text(spec.shape), size_text(spec.nbytes))
        for name, spec in shown
    ]
    print_table(("tensor", "dtype", "shape", "size"), rows, right="size")
    say_more(len(specs) - len(rows))


def print_values(values: Iterable[tuple[str, Any]], every: bool) -> None:
    """Print plain values by name, all of them or the first."""
    pairs = list(values)
    for key, value in pairs if every else pairs[:ROWS]:
        text = value_text(value)
        say(printable(f"  {key}: {text if every else shortened(text)}"))
    if not every:
        say_more(len(pairs) - ROWS)


def value_text(value: Any) -> str:
    """A plain value for people."""
    if isinstance(value, str):
        return value
    if isinstance(value, bytes | complex):
        return repr(value)
    try:
        return json.dumps(value, ensure_ascii=False, default=repr)
    except (TypeError, ValueError):  # a key or an integer that JSON does not have
        return json.dumps(plain(value), ensure_ascii=False)
