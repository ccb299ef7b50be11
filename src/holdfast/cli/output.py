"""How the command line prints: tables for people, plain columns for pipes, JSON for scripts."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Final

from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TransferSpeedColumn
from rich.table import Table
from rich.text import Text

from holdfast.errors import DamagedFile, HoldfastError
from holdfast.files.reader import Progress as Report

console = Console(highlight=False, soft_wrap=True)
"""Standard output; lines are never wrapped, so that a long name can be copied."""


_OPTIONS: Final = {
    "tensors_only=True": "--tensors-only",
    "cast=True": "--cast",
    "format=": "--format",
    "without extras": "with --bare",
}
"""What the arguments that messages speak of are called on the command line."""


def exit_code(error: HoldfastError) -> int:
    """1 for damage, 2 for all else."""
    return 1 if isinstance(error, DamagedFile) else 2


def message_of(error: HoldfastError) -> str:
    """The error in one sentence, without an error number in front, in the words of a shell."""
    text = str(getattr(error, "strerror", None) or error)
    for argument, option in _OPTIONS.items():
        text = text.replace(argument, option)
    return text


def print_json(value: Any) -> None:
    """Print a value as JSON; what JSON does not have, infinity too, is the text Python has."""
    print(json.dumps(_plain(value), indent=2, ensure_ascii=False, allow_nan=False))


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _plain(member) for key, member in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(member) for member in value]
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    return value if isinstance(value, str | int | float | None) else repr(value)


def print_table(columns: Sequence[str], rows: Sequence[Sequence[str]], right: str = "") -> None:
    """Print a table; the columns named in `right` are numbers.

    On a terminal it has lines and colours, elsewhere plain columns.
    """
    if console.is_terminal:
        table = Table(box=None, padding=(0, 2, 0, 0), header_style="bold")
        for column in columns:
            table.add_column(
                column,
                justify="right" if column in right.split() else "left",
                overflow="fold",
            )
        for row in rows:
            table.add_row(*(Text(cell) for cell in row))
        console.print(table, soft_wrap=False)
        return
    widths = [max(map(len, cells)) for cells in zip(columns, *rows, strict=True)]
    for row in (columns, *rows):
        cells = (
            cell.rjust(width) if column in right.split() else cell.ljust(width)
            for cell, width, column in zip(row, widths, columns, strict=True)
        )
        print("  ".join(cells).rstrip())


def shape_text(shape: Sequence[int]) -> str:
    """A shape for people: 768×3072."""
    return "×".join(map(str, shape)) or "scalar"


def size_text(nbytes: int) -> str:
    """A number of bytes for people: 999 B, 1.5 MB, 2.31 GB."""
    size = float(nbytes)
    for unit in ("B", "kB", "MB", "GB", "TB"):
        if size < 999.5 or unit == "TB":
            break
        size /= 1000
    return f"{size:.3g} {unit}" if unit != "B" else f"{nbytes} B"


@contextmanager
def progress_bar(label: str, total: int) -> Iterator[Report]:
    """A bar on standard error that appears when the work takes more than a second."""
    errors = Console(stderr=True)
    bar = Progress(
        TextColumn(label, markup=False),
        BarColumn(),
        DownloadColumn(),
        TransferSpeedColumn(),
        console=errors,
        transient=True,
        disable=not errors.is_terminal,
    )
    task = bar.add_task("", total=total)
    started = time.monotonic()

    def report(nbytes: int) -> None:
        if time.monotonic() - started > 1:
            bar.start()
        bar.advance(task, nbytes)

    try:
        yield report
    finally:
        bar.stop()
