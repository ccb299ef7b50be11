"""The command that shows a store in a browser.

What it needs is imported when it is called: no other command waits for a web server.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from standfast.cli.declarations.store import PANEL

app = typer.Typer()


@app.command(rich_help_panel=PANEL)
def ui(
    store: Annotated[
        str | None,
        typer.Argument(
            help="A folder or URL; else $STANDFAST_STORE, or the store around the current folder.",
            show_default=False,
        ),
    ] = None,
    port: Annotated[
        int | None,
        typer.Option(
            min=0,
            max=65535,
            help="Else 7433, or the next one that is free; 0 is any free one.",
            show_default=False,
        ),
    ] = None,
    host: Annotated[
        str, typer.Option(help="The address to listen at; beyond this machine a token is needed.")
    ] = "127.0.0.1",
    no_open: Annotated[bool, typer.Option("--no-open", help="Open no browser.")] = False,
    allow_edit: Annotated[
        bool, typer.Option("--allow-edit", help="Let people tag, note and rename.")
    ] = False,
    files: Annotated[
        Path | None,
        typer.Option(
            help="Show the files in this folder too.", show_default=False, metavar="FOLDER"
        ),
    ] = None,
) -> None:
    """Show a store in the browser: runs, curves, lineage, tensors, storage."""
    from standfast.cli.commands.ui import serve
    from standfast.cli.stores import find_store, open_store

    serve(
        open_store(store, reads=True) if store else find_store(None, reads=True),
        port=port,
        host=host,
        open_browser=not no_open,
        allow_edit=allow_edit,
        files=files,
    )
