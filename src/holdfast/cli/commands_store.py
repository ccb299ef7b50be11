"""The commands that work inside a store.

What a command needs is imported when it is called: none waits for the libraries of others.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Final

import typer

from holdfast.cli.options import Cast, Format, Json, Ref, StorePath, Yes
from holdfast.cli.stores import find_store, resolve

app = typer.Typer()

PANEL: Final = "Inside a store"
NEWEST: Final = 50

Run = Annotated[
    str, typer.Argument(help="A run's name, or the beginning of its hash.", show_default=False)
]


@app.command(rich_help_panel=PANEL)
def ls(
    run: Annotated[
        str | None, typer.Argument(help="List this run alone.", show_default=False)
    ] = None,
    number: Annotated[int, typer.Option("-n", "--number", min=1, help="How many.")] = NEWEST,
    every: Annotated[bool, typer.Option("--all", help="List all of them.")] = False,
    json: Json = False,
    store: StorePath = None,
) -> None:
    """List checkpoints, the newest first."""
    from holdfast.cli.ls import list_checkpoints

    list_checkpoints(find_store(store), run, number=None if every else number, as_json=json)


@app.command(rich_help_panel=PANEL)
def export(
    ref: Ref,
    target: Annotated[
        Path, typer.Argument(help="A file of any format, or a folder.", show_default=False)
    ],
    part: Annotated[
        str | None,
        typer.Option(help="Only this part of the state: model, optimizer, …", show_default=False),
    ] = None,
    format: Format = None,
    cast: Cast = False,
    yes: Annotated[bool, typer.Option("--yes", help="Replace what is there.")] = False,
    json: Json = False,
    store: StorePath = None,
) -> None:
    """Write a checkpoint as one file, or as a folder of files."""
    from holdfast.cli.export import export_checkpoint

    export_checkpoint(
        resolve(ref, store),
        target,
        part=part,
        format=format,
        cast=cast,
        replace=yes,
        as_json=json,
    )


@app.command("import", rich_help_panel=PANEL)
def import_(
    folder: Annotated[
        Path,
        typer.Argument(
            help="A folder of torch, Transformers or Lightning checkpoints.", show_default=False
        ),
    ],
    name: Annotated[
        str | None, typer.Option(help="The run's name; else the folder's.", show_default=False)
    ] = None,
    json: Json = False,
    store: StorePath = None,
) -> None:
    """Save a folder of checkpoints into a run; steps that it has are skipped."""
    from holdfast.cli.importing import import_run

    import_run(find_store(store, new=True), folder, name, as_json=json)


@app.command(rich_help_panel=PANEL)
def tag(
    ref: Annotated[str | None, typer.Argument(help="The checkpoint.", show_default=False)] = None,
    name: Annotated[str | None, typer.Argument(help="The tag.", show_default=False)] = None,
    delete: Annotated[
        str | None, typer.Option("--delete", help="Take this tag away.", show_default=False)
    ] = None,
    json: Json = False,
    store: StorePath = None,
) -> None:
    """Give a checkpoint a name of its own; one with a tag is not deleted."""
    from holdfast.cli.marks import tag_checkpoint, untag_checkpoint

    if delete is not None:
        if ref is not None:
            raise typer.BadParameter("--delete NAME takes no other argument")
        untag_checkpoint(find_store(store), delete, as_json=json)
    elif ref is None or name is None:
        raise typer.BadParameter("give a checkpoint and a tag, or --delete and a tag")
    else:
        tag_checkpoint(resolve(ref, store), name, as_json=json)


@app.command(rich_help_panel=PANEL)
def note(
    ref: Ref,
    text: Annotated[str, typer.Argument(help="What to write about it.", show_default=False)],
    json: Json = False,
    store: StorePath = None,
) -> None:
    """Write a note about a checkpoint."""
    from holdfast.cli.marks import note_checkpoint

    note_checkpoint(resolve(ref, store), text, as_json=json)


@app.command(rich_help_panel=PANEL)
def rename(
    run: Run,
    name: Annotated[str, typer.Argument(help="Its new name.", show_default=False)],
    json: Json = False,
    store: StorePath = None,
) -> None:
    """Give a run another name."""
    from holdfast.cli.marks import rename_run

    rename_run(find_store(store), run, name, as_json=json)


@app.command(rich_help_panel=PANEL)
def rm(
    refs: Annotated[
        list[str],
        typer.Argument(help="RUN@STEP for a checkpoint, RUN for a whole run.", show_default=False),
    ],
    yes: Yes = False,
    json: Json = False,
    store: StorePath = None,
) -> None:
    """Show what deleting would free; with --yes, delete."""
    from holdfast.cli.rm import remove

    remove(find_store(store), refs, yes=yes, as_json=json)


@app.command(rich_help_panel=PANEL)
def du(json: Json = False, store: StorePath = None) -> None:
    """Show what runs take on the disk, and what was saved by writing nothing twice."""
    from holdfast.cli.du import print_usage

    print_usage(find_store(store), as_json=json)


@app.command(rich_help_panel=PANEL)
def doctor(
    yes: Annotated[
        bool, typer.Option("--yes", help="Delete what crashes have left as well.")
    ] = False,
    json: Json = False,
    store: StorePath = None,
) -> None:
    """Examine every byte of a store, and mend what can be mended."""
    from holdfast.cli.doctor import examine_store

    raise typer.Exit(examine_store(find_store(store), yes=yes, as_json=json))
