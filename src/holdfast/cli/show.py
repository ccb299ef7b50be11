"""`holdfast show`: what a file holds."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from rich.text import Text

from holdfast.cli.output import console, print_json, print_table, shape_text, size_text
from holdfast.errors import printable
from holdfast.verbs.open import TensorFile, open

ROWS = 40
"""A terminal shows this many tensors, and keys, unless it is asked for all."""


def show_file(path: Path, *, as_json: bool, every: bool, tensors_only: bool) -> None:
    """Print a file's format, metadata and tensors."""
    with open(path, tensors_only=tensors_only) as file:
        if as_json:
            print_json(_as_json(path, file))
        else:
            _print(path, file, every or not console.is_terminal)


def _as_json(path: Path, file: TensorFile) -> dict[str, object]:
    specs = {name: file.spec(name) for name in file}
    return {
        "path": str(path),
        "format": file.format,
        "bytes": path.stat().st_size,
        "digests": file.has_digests,
        "metadata": file.metadata,
        "left_out": file.left_out,
        "tensors": [
            {"name": name, "dtype": spec.dtype, "shape": spec.shape, "bytes": spec.nbytes}
            for name, spec in specs.items()
        ],
    }


def _print(path: Path, file: TensorFile, every: bool) -> None:
    specs = [(name, file.spec(name)) for name in file]
    elements = sum(spec.size for _, spec in specs)
    console.print(Text(str(path), style="bold"))
    console.print(
        f"{file.format}, {size_text(path.stat().st_size)}, {len(specs):,} tensors, "
        f"{elements:,} elements, {'with' if file.has_digests else 'without'} digests"
    )
    lines = [_metadata_line(key, value) for key, value in file.metadata.items()]
    for line in lines if every else lines[:ROWS]:
        console.print(Text(line))
    if len(lines) > ROWS and not every:
        console.print(f"  … and {len(lines) - ROWS:,} more; --all lists them", style="dim")
    for key, what in file.left_out.items():
        console.print(Text(printable(f"  {key}: left out, a {what}"), style="yellow"))
    console.print()
    rows = [
        (
            printable(name),
            spec.dtype,
            shape_text(spec.shape),
            size_text(spec.nbytes),
        )
        for name, spec in (specs if every else specs[:ROWS])
    ]
    print_table(("tensor", "dtype", "shape", "size"), rows, right="size")
    if len(rows) < len(specs):
        console.print(f"… and {len(specs) - len(rows):,} more; --all lists them", style="dim")


def _metadata_line(key: str, value: Any) -> str:
    shown = value
    if not isinstance(value, str):
        shown = json.dumps(value, ensure_ascii=False, default=repr)
    return printable(f"  {key}: {shown}")
