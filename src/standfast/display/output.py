"""How the command line prints: tables for people, plain columns for pipes, JSON for scripts.

rich is loaded for terminals alone: a script that lists checkpoints should not wait for it.
"""

from __future__ import annotations

import json
import math
import re
import shutil
import sys
import time
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from functools import cache
from typing import TYPE_CHECKING, Any, Final, Literal

from standfast.errors import DamagedFile, StandfastError

if TYPE_CHECKING:
    from rich.console import Console

    from standfast.files.reader import Progress as Report

ROWS: Final = 40
"""A terminal shows this many lines of a table unless it is asked for all."""

_DEEPEST: Final = 250
"""Containers within each other beyond this many are no longer printed."""
_OPTIONS: Final = {
    "tensors_only=True": "--tensors-only",
    "cast=True": "--cast",
    "format=": "--format",
    "name=": "--name",
    "without extras": "with --bare",
    "config=": "--config",
    "tokenizer=": "--tokenizer",
    "part=": "--part",
}
"""What the arguments that messages speak of are called on the command line."""
_CALLS: Final = re.compile(r"store\.untag\((['\"])(.*)\1\)")


def exit_code(error: StandfastError) -> int:
    """1 for damage, 2 for all else."""
    return 1 if isinstance(error, DamagedFile) else 2


def message_of(error: StandfastError) -> str:
    """The error in one sentence, without an error number in front, in the words of a shell."""
    text = str(getattr(error, "strerror", None) or error)
    for argument, option in _OPTIONS.items():
        text = text.replace(argument, option)
    return _CALLS.sub(r"`standfast tag --delete \2`", text)


def on_terminal() -> bool:
    """Whether a person reads what is printed."""
    return sys.stdout.isatty()


@cache
def _console() -> Console:
    from rich.console import Console

    # Lines are never wrapped, so that a long name can be copied.
    return Console(highlight=False, soft_wrap=True)


def say(*pieces: str | tuple[str, str]) -> None:
    """Print a line; a piece may come with a style, which terminals show."""
    styled = [(piece, "") if isinstance(piece, str) else piece for piece in pieces]
    if on_terminal():
        from rich.text import Text

        _console().print(Text.assemble(*styled))
    else:
        print("".join(text for text, _ in styled))


def say_more(left_out: int) -> None:
    """Say how many lines a terminal was spared."""
    if left_out > 0:
        say((f"… and {left_out:,} more; --all lists them", "dim"))


def print_json(value: Any) -> None:
    """Print a value as JSON; what JSON does not have, infinity too, is the text Python has."""
    print(json.dumps(plain(value), indent=2, ensure_ascii=False, allow_nan=False))


def plain(value: Any, depth: int = 0) -> Any:
    """A value as JSON has it, or as text."""
    if isinstance(value, dict | list | tuple) and depth > _DEEPEST:
        return "…"
    if isinstance(value, dict):
        return {_key(key): plain(member, depth + 1) for key, member in value.items()}
    if isinstance(value, list | tuple):
        return [plain(member, depth + 1) for member in value]
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if isinstance(value, int) and value.bit_length() > 64:
        return hex(value)  # many readers have no such numbers, and Python no such long ones
    return value if isinstance(value, str | int | float | None) else repr(value)


def _key(key: Any) -> str:
    return key if isinstance(key, str) else str(key)


def width() -> int:
    """The characters in a line of the terminal."""
    return shutil.get_terminal_size().columns


def print_table(
    columns: Sequence[str],
    rows: Sequence[Sequence[str]],
    right: str | Collection[str] = "",
    styles: Sequence[str] = (),
) -> None:
    """Print a table; the columns named in `right` are numbers, `styles` those of the rows.

    On a terminal it has colours, elsewhere plain columns.
    """
    right = right.split() if isinstance(right, str) else right
    if on_terminal():
        _print_rich_table(columns, rows, right, styles)
        return
    widths = [max(map(len, cells)) for cells in zip(columns, *rows, strict=True)]
    for row in (columns, *rows):
        cells = (
            cell.rjust(width) if column in right else cell.ljust(width)
            for cell, width, column in zip(row, widths, columns, strict=True)
        )
        print("  ".join(cells).rstrip())


def _print_rich_table(
    columns: Sequence[str],
    rows: Sequence[Sequence[str]],
    right: Collection[str],
    styles: Sequence[str],
) -> None:
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, padding=(0, 2, 0, 0), header_style="bold")
    for column in columns:
        is_number = column in right
        justify: Literal["right", "left"] = "right" if is_number else "left"
        table.add_column(column, justify=justify, no_wrap=is_number, overflow="fold")
    for i, row in enumerate(rows):
        style = styles[i] if styles else ""
        table.add_row(*(Text(cell) for cell in row), style=style)
    _console().print(table, soft_wrap=False)


def cut(text: str, length: int) -> str:
    """As much of a text as there is room for."""
    return text if len(text) <= length else f"{text[: max(0, length - 1)]}…"


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


def hash_groups(run: str) -> tuple[str, str, str]:
    """The parts of a run's hash: of its hyperparameters, its model and its data."""
    return run[:8], run[8:16], run[16:]


def hash_text(run: str) -> str:
    """A run's hash as its three groups; in this form too it refers to the run."""
    return "_".join(hash_groups(run))


def metric_text(value: Any) -> str:
    """A metric for people, to four digits."""
    return f"{value:.4g}" if isinstance(value, float) else f"{plain(value)!s:.20}"


def count_text(count: int, what: str) -> str:
    """A number of things: 1 tensor, 2 tensors."""
    return f"{count:,} {what}{'' if count == 1 else 's'}"


def time_text(time: str) -> str:
    """A time as records have it, to the second."""
    return time[:19].replace("T", " ")


def age_text(time: str, now: datetime | None = None) -> str:
    """How long ago that was: 5 s, 12 min, 3 h, 9 d."""
    try:
        then = datetime.fromisoformat(time)
        seconds = ((now or datetime.now(UTC)) - then).total_seconds()
    except (ValueError, TypeError):  # text out of a file
        return "?"
    for unit, length, most in (("s", 1, 60), ("min", 60, 60), ("h", 3600, 48)):
        if seconds < length * most:
            return f"{max(0, int(seconds // length))} {unit}"
    return f"{int(seconds // 86400):,} d"


@contextmanager
def progress_bar(label: str, total: int) -> Iterator[Report]:
    """A bar on standard error that appears when the work takes more than a second."""
    if not sys.stderr.isatty():
        yield lambda nbytes: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TransferSpeedColumn

    bar = Progress(
        TextColumn(label, markup=False),
        BarColumn(),
        DownloadColumn(),
        TransferSpeedColumn(),
        console=Console(stderr=True),
        transient=True,
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
