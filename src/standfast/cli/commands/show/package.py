"""`standfast show` of a model package: what the model is, its files, where it came from."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from standfast.cli.commands.models import model_json, parameters_text, say_problem
from standfast.cli.commands.show.file import print_values
from standfast.display.output import on_terminal, print_json, print_table, say, size_text, time_text
from standfast.errors import MissingFile, StandfastError, printable
from standfast.packages.documents.json_text import read_object
from standfast.packages.documents.manifest import Manifest
from standfast.packages.documents.names import CONFIG, GENERATION_INFO
from standfast.packages.listing import ModelInfo, list_saved_models
from standfast.packages.remote.places import Entry, File, Folder, entries_of, folder_at


def show_package(given: str | Path, *, as_json: bool, every: bool) -> int:
    """Print what a package says of itself; returns the exit code, 1 for one that is broken."""
    model, said = _told(given)
    if as_json:
        print_json(_as_json(model, said))
    else:
        _print(model, said, every or not on_terminal())
    return 1 if model.integrity == "broken" else 0


def package_json(given: str | Path) -> dict[str, Any]:
    """A package for scripts; raises MissingFile for a folder that is none."""
    return _as_json(*_told(given))


def _as_json(model: ModelInfo, said: dict[str, Any]) -> dict[str, Any]:
    return {**model_json(model), "sizes": _sizes(model), **said}


def _told(given: str | Path) -> tuple[ModelInfo, dict[str, Any]]:
    """A package, and what its files say of it."""
    folder = folder_at(given)
    return _model(folder), {
        "config": _read(folder / CONFIG),
        "generation_info": _read(folder / GENERATION_INFO),
        "provenance": _provenance(folder),
    }


def _model(folder: Folder) -> ModelInfo:
    """The package itself; raises MissingFile for a folder that is none."""
    here = os.path.abspath(folder) if isinstance(folder, Path) else str(folder)
    for model in list_saved_models(folder):
        if str(model.path) == here:
            return model
    raise MissingFile(
        errno.ENOENT, f"{folder} is no model package: `standfast models` lists those in it"
    )


def _print(model: ModelInfo, said: dict[str, Any], every: bool) -> None:
    say((printable(str(model.path)), "bold"))
    said_first = [model.model_type or "no model"]
    if model.parameters is not None:
        weights = model.quantization or model.dtype
        said_first.append(f"{parameters_text(model.parameters)} parameters of {weights}")
    said_first += [size_text(model.nbytes), f"made {time_text(model.creation_date.isoformat())}"]
    said_first.append(model.integrity)
    say(printable(", ".join(said_first)))
    say_problem(model, printable(model.problem))
    for title, values in said.items():
        if values:
            say()
            say((title, "bold"))
            print_values(_flat(values), every)
    say()
    rows = [
        (printable(name), "missing" if nbytes is None else size_text(nbytes))
        for name, nbytes in _sizes(model).items()
    ]
    print_table(("file", "size"), rows, right="size")


def _flat(values: dict[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Each value on a line of its own: of a checkpoint, run and step are what one looks for."""
    for key, value in values.items():
        if isinstance(value, dict) and value:
            yield from _flat(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value


def _sizes(model: ModelInfo) -> dict[str, int | None]:
    """The bytes of each file; None of one that is missing."""
    entries = entries_of(folder_at(model.path))
    return {name: _size(entries.get(name)) for name in model.files}


def _size(entry: Entry | None) -> int | None:
    try:
        return entry.stat().st_size if entry else None
    except OSError:  # a link to nothing, or deleted this moment
        return None


def _provenance(folder: Folder) -> dict[str, Any]:
    try:
        manifest = Manifest.read(folder)
    except StandfastError:
        return {}
    return dict(manifest.provenance) if manifest else {}


def _read(path: File) -> dict[str, Any]:
    """What a file says; nothing if it cannot be read: why not, the list has said."""
    try:
        return read_object(path)
    except StandfastError:
        return {}
