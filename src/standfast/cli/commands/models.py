"""`standfast models`: the model packages in a folder, the newest first."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from standfast.display.output import (
    ROWS,
    age_text,
    cut,
    on_terminal,
    print_json,
    print_table,
    say,
    say_more,
    size_text,
    time_text,
    width,
)
from standfast.errors import printable
from standfast.packages.listing import ModelInfo, list_saved_models

_COLUMNS: Final[tuple[str, ...]] = ("name", "parameters", "size", "weights", "created", "integrity")
_LEAST: Final = 16
"""The characters of a name that are shown at least."""


def print_models(folder: str | Path, *, every: bool, as_json: bool) -> int:
    """Print the packages in a folder; returns the exit code, which is 1 if one is broken."""
    models = list_saved_models(folder)
    broken = [model for model in models if model.integrity == "broken"]
    if as_json:
        print_json([model_json(model) for model in models])
    elif not models:
        say(f"no model packages in {printable(str(folder))}")
    else:
        shown = models if every or not on_terminal() else models[:ROWS]
        _print_table(shown)
        say_more(len(models) - len(shown))
        for model in models:
            say_problem(model, printable(f"{model.name}: {model.problem}"))
    return 1 if broken else 0


def say_problem(model: ModelInfo, what: str) -> None:
    """Say why a package is broken, or could not be looked at; nothing of one that is sound."""
    if model.problem:
        style = "bold red" if model.integrity == "broken" else "yellow"
        say((f"{model.integrity:12}", style), what)


def _print_table(models: Sequence[ModelInfo]) -> None:
    rows = [_row(model, time_text(_local(model))) for model in models]
    columns = _COLUMNS
    if on_terminal() and _width(columns, rows) > width():
        columns = tuple("age" if column == "created" else column for column in columns)
        rows = [_row(model, age_text(_local(model))) for model in models]
        # What still lacks is taken from the names, which are long for the date in them.
        longest = max(len(name) for name, *_ in rows) - (_width(columns, rows) - width())
        rows = [(cut(name, max(_LEAST, longest)), *others) for name, *others in rows]
    styles = ["red" if model.integrity == "broken" else "" for model in models]
    print_table(columns, rows, right="parameters size age", styles=styles)


def _row(model: ModelInfo, created: str) -> tuple[str, ...]:
    return (
        printable(model.name),
        "" if model.parameters is None else parameters_text(model.parameters),
        size_text(model.nbytes),
        printable(model.quantization or model.dtype or ""),
        created,
        model.integrity,
    )


def _width(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> int:
    """The characters that a line of the table takes, with the space beside each column."""
    return sum(2 + max(map(len, cells)) for cells in zip(columns, *rows, strict=True))


def _local(model: ModelInfo) -> str:
    """When it was made, by the clock on the wall."""
    try:
        return model.creation_date.astimezone().isoformat()
    except (ValueError, OverflowError):  # in the first year of all, or the last
        return model.creation_date.isoformat()


def parameters_text(count: int) -> str:
    """A number of parameters for people: 850, 12.5 k, 30.0 M, 1.2 B."""
    for unit, size in (("B", 10**9), ("M", 10**6), ("k", 10**3)):
        if count >= 0.9995 * size:
            return f"{count / size:.1f} {unit}"
    return str(count)


def model_json(model: ModelInfo) -> dict[str, Any]:
    """A package for scripts."""
    return {
        "name": model.name,
        "path": str(model.path),
        "creation_date": model.creation_date.isoformat(),
        "files": model.files,
        "nbytes": model.nbytes,
        "model_type": model.model_type,
        "model_size": model.model_size,
        "parameters": model.parameters,
        "dtype": model.dtype,
        "quantization": model.quantization,
        "integrity": model.integrity,
        "problem": model.problem or None,
    }
