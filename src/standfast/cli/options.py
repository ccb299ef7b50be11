"""The arguments and options that several commands share."""

from __future__ import annotations

from typing import Annotated

import typer

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
