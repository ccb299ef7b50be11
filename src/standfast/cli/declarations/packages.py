"""The commands that take model packages.

What a command needs is imported when it is called: none waits for the libraries of others.
"""

from __future__ import annotations

from typing import Annotated

import typer

from standfast.cli.options import Every, Json, Replace

app = typer.Typer()


@app.command()
def models(
    folder: Annotated[str, typer.Argument(help="A folder of model packages, or a URL.")] = ".",
    every: Every = False,
    json: Json = False,
) -> None:
    """List the model packages in a folder, the newest first, and say which are broken."""
    from standfast.cli.commands.models import print_models

    raise typer.Exit(print_models(folder, every=every, as_json=json))


@app.command()
def pack(
    folder: Annotated[str, typer.Argument(help="A model package.", show_default=False)],
    to: Annotated[
        str | None,
        typer.Option("--to", help="A .tar.gz or .tar.zst; else FOLDER.tar.gz.", show_default=False),
    ] = None,
    yes: Replace = False,
    json: Json = False,
) -> None:
    """Write a model package as one file, after it was verified."""
    from standfast.cli.commands.pack import pack_folder

    pack_folder(folder, to, replace=yes, as_json=json)


@app.command()
def unpack(
    archive: Annotated[str, typer.Argument(help="What `pack` wrote.", show_default=False)],
    into: Annotated[str, typer.Argument(help="Where its folder goes.")] = ".",
    json: Json = False,
) -> None:
    """Unpack a model package into a folder of its own, and verify it."""
    from standfast.cli.commands.pack import unpack_archive

    unpack_archive(archive, into, as_json=json)
