"""The commands that take files, and most of them checkpoints too.

What a command needs is imported when it is called: none waits for the libraries of others.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from standfast.cli.options import (
    Cast,
    Either,
    Every,
    Format,
    Json,
    Names,
    Replace,
    StorePath,
    TensorsOnly,
    names_in,
)
from standfast.cli.stores import find_store, is_file, is_package, resolve
from standfast.errors import UnknownFormat
from standfast.files.paths import check_local

app = typer.Typer()


@app.command()
def show(
    what: Either,
    json: Json = False,
    every: Every = False,
    tensors_only: TensorsOnly = False,
    names: Names = None,
    store: StorePath = None,
) -> None:
    """Show what a file, a model package or a checkpoint holds."""
    if store is None and is_package(what):
        from standfast.cli.commands.show.package import show_package

        code = show_package(what, as_json=json, every=every)
    elif is_file(what):
        from standfast.cli.commands.show.file import show_file

        code = show_file(
            Path(what),
            as_json=json,
            every=every,
            tensors_only=tensors_only,
            names=names_in(names),
        )
    else:
        from standfast.cli.commands.show.checkpoint import show_checkpoint

        code = show_checkpoint(resolve(what, store, reads=True), as_json=json, every=every)
    raise typer.Exit(code)


@app.command()
def verify(
    what: Annotated[
        list[str] | None,
        typer.Argument(help="Files, packages, or checkpoints of the store.", show_default=False),
    ] = None,
    every: Annotated[bool, typer.Option("--all", help="Every checkpoint of the store.")] = False,
    oldest: Annotated[
        bool,
        typer.Option("--oldest", help="The checkpoints that were not verified for longest."),
    ] = False,
    limit: Annotated[
        str | None,
        typer.Option("--for", help="With --oldest: begin none after this time (10m, 1h)."),
    ] = None,
    logical: Annotated[
        bool,
        typer.Option("--logical", help="One digest of a state, however ranks divide it."),
    ] = False,
    json: Json = False,
    store: StorePath = None,
) -> None:
    """Check every byte against the digests that were saved with it."""
    from standfast.cli.commands.verify import verify_all, verify_each

    if sum((bool(what), every, oldest)) != 1:
        raise typer.BadParameter(
            "name files or checkpoints, or give --all or --oldest for those of a store"
        )
    if limit is not None and not oldest:
        raise typer.BadParameter("--for goes with --oldest")
    if logical:
        from standfast.cli.commands.verify_logical import verify_logical

        if not what:
            raise typer.BadParameter("--logical takes the .sunc files of a state, or checkpoints")
        raise typer.Exit(verify_logical(what, store=store, as_json=json))
    if what:
        raise typer.Exit(verify_each(what, store=store, as_json=json))
    raise typer.Exit(verify_all(find_store(store), oldest=oldest, limit=limit, as_json=json))


@app.command()
def diff(
    before: Either,
    after: Either,
    json: Json = False,
    every: Every = False,
    tensors_only: TensorsOnly = False,
    store: StorePath = None,
) -> None:
    """Show what differs between two files, checkpoints or runs, and by how much."""
    from standfast.cli.commands.diff.files import diff_two

    raise typer.Exit(
        diff_two(before, after, store=store, tensors_only=tensors_only, as_json=json, every=every)
    )


@app.command()
def convert(
    source: Either,
    target: Annotated[str, typer.Argument(help="The new file.", show_default=False)],
    format: Format = None,
    cast: Cast = False,
    bare: Annotated[
        bool, typer.Option("--bare", help="Write no digests, and nothing else of ours.")
    ] = False,
    tensors_only: TensorsOnly = False,
    names: Names = None,
    yes: Replace = False,
    json: Json = False,
    store: StorePath = None,
) -> None:
    """Convert a file to another format, and prove that both hold the same."""
    from standfast.cli.commands.convert import convert_file

    if not is_file(source):
        raise UnknownFormat(
            f"{source} is no file: `standfast export {source} {target}` writes a checkpoint of the "
            f"store as one, and ./{source} is a file of that name"
        )

    check_local(target)
    convert_file(
        Path(source),
        Path(target),
        format=format,
        cast=cast,
        extras=not bare,
        tensors_only=tensors_only,
        names=names_in(names),
        replace=yes,
        as_json=json,
    )


@app.command(context_settings={"allow_interspersed_args": False})
def prove(
    command: Annotated[
        list[str], typer.Argument(help="A program that uses a Checkpointer.", show_default=False)
    ],
    kills: Annotated[int, typer.Option(min=1, help="How often it is killed.")] = 5,
    seed: Annotated[
        int | None, typer.Option(help="Draw the moments of another proof.", show_default=False)
    ] = None,
    keep: Annotated[
        Path | None,
        typer.Option(help="Keep both stores and all output in this folder.", show_default=False),
    ] = None,
    json: Json = False,
) -> None:
    """Run a program whole, run it with kills, and compare all that both have saved."""
    from standfast.cli.commands.prove import prove_command

    raise typer.Exit(prove_command(command, kills=kills, seed=seed, keep=keep, as_json=json))


@app.command()
def train(
    checkpoint: Annotated[
        Path | None, typer.Option(help="Save checkpoints into this folder.", show_default=False)
    ] = None,
    resume: Annotated[
        Path | None, typer.Option(help="Go on from this checkpoint.", show_default=False)
    ] = None,
    epochs: Annotated[
        int | None, typer.Option("-e", "--epochs", help="How many (10).", show_default=False)
    ] = None,
    batch_size: Annotated[
        int | None,
        typer.Option("-b", "--batch-size", help="Samples in a step (64).", show_default=False),
    ] = None,
    lr: Annotated[
        float | None,
        typer.Option("-l", "--lr", help="The learning rate (0.01).", show_default=False),
    ] = None,
    momentum: Annotated[
        float | None, typer.Option(help="That of SGD (0.9).", show_default=False)
    ] = None,
    scheduler: Annotated[
        str | None, typer.Option(help="cosine (the default), step, constant.", show_default=False)
    ] = None,
    warmup: Annotated[
        int | None, typer.Option(help="Steps of rising learning rate (0).", show_default=False)
    ] = None,
    patience: Annotated[
        int | None,
        typer.Option(
            help="Stop after so many epochs without a better one (0: never).", show_default=False
        ),
    ] = None,
    seed: Annotated[
        int | None,
        typer.Option("-s", "--seed", help="Of weights and order (42).", show_default=False),
    ] = None,
    data_dir: Annotated[
        str | None,
        typer.Option(
            "-d",
            "--data-dir",
            help="The folder of MNIST (data/mnist, or scikit-learn's digits without it).",
            show_default=False,
        ),
    ] = None,
    checkpoint_every: Annotated[
        int | None, typer.Option(help="Save every so many epochs (1).", show_default=False)
    ] = None,
    no_tui: Annotated[bool, typer.Option("--no-tui", help="Print plain lines.")] = False,
) -> None:
    """Train LeNet-5 on digits, with checkpoints from which it goes on bit for bit.

    Defaults are in brackets. On resuming, what is not given is as it was for the checkpoint.
    """
    from standfast.cli.commands.train.train import train_lenet

    flags = {
        "epochs": epochs,
        "batch_size": batch_size,
        "lr": lr,
        "momentum": momentum,
        "scheduler": scheduler,
        "warmup": warmup,
        "patience": patience,
        "seed": seed,
        "data_dir": data_dir,
        "checkpoint_every": checkpoint_every,
    }
    given = {name: value for name, value in flags.items() if value is not None}
    for path in (checkpoint, resume):
        if path is not None:
            check_local(path)
    train_lenet(given, folder=checkpoint, resume=resume, plain=no_tui)
