"""The commands that work inside a store.

What a command needs is imported when it is called: none waits for the libraries of others.
"""

from __future__ import annotations

from typing import Annotated, Final

import typer

from standfast.cli.options import Json, Ref, StorePath, Yes
from standfast.cli.stores import find_store, resolve

app = typer.Typer()

PANEL: Final = "Inside a store"
NEWEST: Final = 50

Run = Annotated[
    str, typer.Argument(help="A run's name, or the beginning of its hash.", show_default=False)
]


@app.command(rich_help_panel=PANEL)
def ls(
    run: Annotated[
        str | None, typer.Argument(help="List the runs of this name alone.", show_default=False)
    ] = None,
    hp: Annotated[
        list[str] | None,
        typer.Option(
            help="Only runs with this hyperparameter: lr=0.1, optimizer.name=adam, lr.",
            show_default=False,
            metavar="KEY=VALUE",
        ),
    ] = None,
    model: Annotated[
        str | None,
        typer.Option(help="Only runs of the model with this hash.", show_default=False),
    ] = None,
    data: Annotated[
        str | None,
        typer.Option(help="Only runs on the data with this hash.", show_default=False),
    ] = None,
    best: Annotated[
        str | None,
        typer.Option(
            help="Those with this metric, the best first: less is better.",
            show_default=False,
            metavar="METRIC",
        ),
    ] = None,
    more: Annotated[bool, typer.Option("--max", help="Of that metric, more is better.")] = False,
    sort: Annotated[
        str | None,
        typer.Option(
            help="By step, time or size, the highest first, or by a metric, the least first.",
            show_default=False,
            metavar="BY",
        ),
    ] = None,
    reverse: Annotated[bool, typer.Option("--reverse", help="The other way round.")] = False,
    number: Annotated[int, typer.Option("-n", "--number", min=1, help="How many.")] = NEWEST,
    every: Annotated[bool, typer.Option("--all", help="List all of them.")] = False,
    json: Json = False,
    store: StorePath = None,
) -> None:
    """List checkpoints, the newest first."""
    from standfast.cli.commands.ls import list_checkpoints
    from standfast.store.query.filters import Filter, Hyperparameter
    from standfast.store.query.listing import Order

    if best is not None and (sort is not None or reverse):
        raise typer.BadParameter("--best METRIC is an order itself; --max turns it round")
    if more and best is None:
        raise typer.BadParameter("--max says what is best: give --best METRIC too")
    order = Order(sort or "time", reverse) if sort is not None or reverse else None
    if best is not None:
        order = Order(best, reverse=more, rated=True)
    chosen = Filter(run, tuple(map(Hyperparameter.parse, hp or ())), model, data)
    most = None if every else number
    list_checkpoints(find_store(store, reads=True), chosen, number=most, as_json=json, order=order)


@app.command(rich_help_panel=PANEL)
def log(
    run: Annotated[
        str | None, typer.Argument(help="Tell the history of this run.", show_default=False)
    ] = None,
    retention: Annotated[
        bool, typer.Option("--retention", help="Why checkpoints are kept, or were deleted.")
    ] = False,
    number: Annotated[int, typer.Option("-n", "--number", min=1, help="How many.")] = NEWEST,
    every: Annotated[bool, typer.Option("--all", help="List all of them.")] = False,
    json: Json = False,
    store: StorePath = None,
) -> None:
    """Show which runs came from which, or the history of one, back to the beginning."""
    if retention:
        from standfast.cli.commands.log.retention import print_retention

        print_retention(find_store(store), run, as_json=json)
        return
    most = None if every else number
    if run is None:
        from standfast.cli.commands.log.lineage import print_lineage

        print_lineage(find_store(store, reads=True), number=most, as_json=json)
    else:
        from standfast.cli.commands.log.history import print_history

        print_history(find_store(store, reads=True), run, number=most, as_json=json)


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
    from standfast.cli.commands.marks import tag_checkpoint, untag_checkpoint

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
    from standfast.cli.commands.marks import note_checkpoint

    note_checkpoint(resolve(ref, store), text, as_json=json)


@app.command(rich_help_panel=PANEL)
def rename(
    run: Run,
    name: Annotated[str, typer.Argument(help="Its new name.", show_default=False)],
    json: Json = False,
    store: StorePath = None,
) -> None:
    """Give a run another name."""
    from standfast.cli.commands.marks import rename_run

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
    """Show what deleting would free; with --yes, move it to the trash."""
    from standfast.cli.commands.rm import remove

    raise typer.Exit(remove(find_store(store), refs, yes=yes, as_json=json))


@app.command(rich_help_panel=PANEL)
def restore(
    refs: Annotated[
        list[str] | None,
        typer.Argument(
            help="RUN@STEP for a checkpoint, RUN for all of a run; none lists the trash.",
            show_default=False,
        ),
    ] = None,
    json: Json = False,
    store: StorePath = None,
) -> None:
    """Bring back what is in the trash; without arguments, list it."""
    from standfast.cli.commands.restore import bring_back, list_trash

    if not refs:
        list_trash(find_store(store), as_json=json)
        return
    raise typer.Exit(bring_back(find_store(store), refs, as_json=json))


@app.command(rich_help_panel=PANEL)
def gc(
    runs: Annotated[
        list[str] | None,
        typer.Argument(help="Collect in these runs alone.", show_default=False),
    ] = None,
    last: Annotated[
        int | None, typer.Option("--keep-last", help="Keep the newest N.", show_default=False)
    ] = None,
    best: Annotated[
        list[str] | None,
        typer.Option(
            "--keep-best", help="Keep the best by METRIC, or by METRIC:max.", show_default=False
        ),
    ] = None,
    every: Annotated[
        int | None,
        typer.Option("--keep-every", help="Keep one every so many steps.", show_default=False),
    ] = None,
    tagged: Annotated[
        bool,
        typer.Option(
            "--keep-tagged",
            help="Keep those with a tag, which stay anyway: by itself it keeps no others.",
        ),
    ] = False,
    to: Annotated[
        str | None,
        typer.Option(
            "--to",
            help="Delete the oldest until the store takes this: 50GB; else its budget.",
            show_default=False,
        ),
    ] = None,
    empty: Annotated[bool, typer.Option("--empty", help="Empty the trash.")] = False,
    yes: Yes = False,
    json: Json = False,
    store: StorePath = None,
) -> None:
    """Show which checkpoints are not kept, and what they free; with --yes, delete them."""
    from standfast.cli.commands.gc import collect, empty_trash, keep_wanted

    wanted = keep_wanted(last, best or [], every, tagged)
    if empty:
        if runs or wanted or to:
            raise typer.BadParameter("--empty takes no runs, and no --keep or --to")
        empty_trash(find_store(store), yes=yes, as_json=json)
        return
    raise typer.Exit(collect(find_store(store), runs or [], wanted, to, yes=yes, as_json=json))


@app.command(rich_help_panel=PANEL)
def du(json: Json = False, store: StorePath = None) -> None:
    """Show what runs take on the disk, and what was saved by writing nothing twice."""
    from standfast.cli.commands.du import print_usage

    raise typer.Exit(print_usage(find_store(store), as_json=json))


@app.command(rich_help_panel=PANEL)
def doctor(
    yes: Annotated[
        bool, typer.Option("--yes", help="Delete what crashes have left as well.")
    ] = False,
    json: Json = False,
    store: StorePath = None,
) -> None:
    """Examine every byte of a store, and mend what can be mended."""
    from standfast.cli.commands.doctor import examine_store

    raise typer.Exit(examine_store(find_store(store), yes=yes, as_json=json))
