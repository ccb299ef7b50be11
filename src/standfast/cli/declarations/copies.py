"""The commands by which checkpoints leave a store, or come into one.

What a command needs is imported when it is called: none waits for the libraries of others.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from standfast.cli.declarations.store import PANEL
from standfast.cli.options import Cast, Format, Json, Ref, Replace, StorePath
from standfast.cli.stores import find_store, open_store, resolve
from standfast.files.paths import check_local

app = typer.Typer()

EveryOne = Annotated[
    bool, typer.Option("--all", help="All checkpoints of the run REF, the oldest first.")
]
ReadBack = Annotated[
    bool, typer.Option("--verify", help="Read every byte back from where it was copied to.")
]


@app.command(rich_help_panel=PANEL)
def export(
    ref: Ref,
    target: Annotated[
        str,
        typer.Argument(
            help="A file of any format, or a folder; of a package, a URL too.", show_default=False
        ),
    ],
    part: Annotated[
        str | None,
        typer.Option(help="Only this part of the state: model, optimizer, …", show_default=False),
    ] = None,
    format: Format = None,
    cast: Cast = False,
    package: Annotated[
        bool,
        typer.Option("--package", help="A folder with weights, config.json and tokenizer.json."),
    ] = False,
    config: Annotated[
        str | None,
        typer.Option(
            help="The package's config.json, if the checkpoint has none.", show_default=False
        ),
    ] = None,
    tokenizer: Annotated[
        str | None,
        typer.Option(help="Its tokenizer.json, likewise.", show_default=False),
    ] = None,
    max_shard_size: Annotated[
        str | None,
        typer.Option(help="Its weights in files of up to this size; else 5GB.", show_default=False),
    ] = None,
    quantize: Annotated[
        str | None,
        typer.Option(help="int8: its weights at a quarter of the size.", show_default=False),
    ] = None,
    yes: Replace = False,
    json: Json = False,
    store: StorePath = None,
) -> None:
    """Write a checkpoint as one file, as a folder of files, or as a model package."""
    from standfast.cli.commands.export import export_checkpoint

    if package:
        from standfast.cli.commands.export_package import export_package

        if format is not None or cast:
            raise typer.BadParameter(
                "a --package has a format of its own: leave --format and --cast"
            )
        export_package(
            resolve(ref, store),
            target,
            part=part,
            config=config,
            tokenizer=tokenizer,
            max_shard_size=max_shard_size,
            quantize=quantize,
            replace=yes,
            as_json=json,
        )
        return
    if config or tokenizer or max_shard_size or quantize:
        raise typer.BadParameter(
            "--config, --tokenizer, --max-shard-size and --quantize are for --package"
        )
    check_local(target)
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
            help="A folder of torch, Transformers or Lightning checkpoints, or weightslab's root.",
            show_default=False,
        ),
    ],
    name: Annotated[
        str | None, typer.Option(help="The run's name; else the folder's.", show_default=False)
    ] = None,
    json: Json = False,
    store: StorePath = None,
) -> None:
    """Save a folder of checkpoints into a run; steps that it has are skipped."""
    from standfast.cli.commands.imports import import_run, import_runs
    from standfast.store.v3.foreign import is_foreign

    into = find_store(store, new=True)
    if is_foreign(folder):
        raise typer.Exit(import_runs(into, folder, name, as_json=json))
    import_run(into, folder, name, as_json=json)


@app.command(rich_help_panel=PANEL)
def push(
    ref: Ref,
    to: Annotated[
        str,
        typer.Argument(
            metavar="STORE",
            help="Where it goes: s3://bucket/prefix, or a folder.",
            show_default=False,
        ),
    ],
    every: EveryOne = False,
    verify: ReadBack = False,
    json: Json = False,
    store: StorePath = None,
) -> None:
    """Copy a checkpoint, or a run, to another store: what that lacks, and verified."""
    from standfast.cli.commands.push import copy_all

    source, target = find_store(store), open_store(to, new=True)
    raise typer.Exit(copy_all(source, ref, target, "push", every, verify, as_json=json))


@app.command(rich_help_panel=PANEL)
def pull(
    ref: Ref,
    origin: Annotated[
        str,
        typer.Argument(
            metavar="STORE",
            help="Where it is: s3://bucket/prefix, or a folder.",
            show_default=False,
        ),
    ],
    every: EveryOne = False,
    verify: ReadBack = False,
    json: Json = False,
    store: StorePath = None,
) -> None:
    """Copy a checkpoint, or a run, out of another store: what is not here yet, and verified."""
    from standfast.cli.commands.push import copy_all

    source, target = open_store(origin), find_store(store, new=True)
    raise typer.Exit(copy_all(source, ref, target, "pull", every, verify, as_json=json))
