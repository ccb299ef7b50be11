"""The arguments and options that several commands share."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Final

import typer

from standfast.errors import BadName, UnreadableFile
from standfast.files.paths import check_local

Either = Annotated[
    str, typer.Argument(help="A file, or a checkpoint of the store.", show_default=False)
]
Ref = Annotated[
    str,
    typer.Argument(
        help="latest, a tag, a run (its latest), or RUN@STEP; a step may be latest or best.",
        show_default=False,
    ),
]
StorePath = Annotated[
    # No Path, which would make s3:/bucket of s3://bucket.
    str | None,
    typer.Option(
        "--store",
        help="A folder or URL; else $STANDFAST_STORE, or the store around the current folder.",
        show_default=False,
    ),
]
Json = Annotated[bool, typer.Option("--json", help="Print JSON, for scripts.")]
Every = Annotated[bool, typer.Option("--all", help="List everything.")]
Names = Annotated[
    Path | None,
    typer.Option(
        "--names",
        help="A text file with the tensors' names, a line each, for a .tenzor file without them.",
        show_default=False,
    ),
]
Yes = Annotated[bool, typer.Option("--yes", help="Do it.")]
Replace = Annotated[bool, typer.Option("--yes", help="Replace what is there.")]
Format = Annotated[
    str | None,
    typer.Option(help="The new format, if the suffix does not name it.", show_default=False),
]
Cast = Annotated[bool, typer.Option("--cast", help="Cast what the new format cannot hold.")]
TensorsOnly = Annotated[
    bool, typer.Option("--tensors-only", help="Leave out objects that only code could build.")
]

_SLOTS: Final = ("v", "m", "v_hat")
"""The original's names for the state that an optimizer keeps of a weight."""


def names_in(path: Path | None) -> list[str] | None:
    """The names in a file of the option --names, and those of the weights' optimizer state."""
    if path is None:
        return None
    check_local(path)
    try:
        names = path.read_text("utf-8-sig").split("\n")
    except OSError as error:
        raise UnreadableFile(error.errno, f"cannot read {path}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise BadName(f"{path}: the names are not UTF-8: {error}") from error
    return [*names, *(f"optim/{name}/{slot}" for name in names for slot in _SLOTS)]
