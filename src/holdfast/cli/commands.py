"""The commands that take files, and most of them checkpoints too.

What a command needs is imported when it is called: none waits for the libraries of others.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from holdfast.cli.options import Cast, Either, Every, Format, Json, StorePath, TensorsOnly
from holdfast.cli.stores import find_store, is_file, resolve
from holdfast.errors import UnknownFormat

app = typer.Typer()


@app.command()
def show(
    what: Either,
    json: Json = False,
    every: Every = False,
    tensors_only: TensorsOnly = False,
    store: StorePath = None,
) -> None:
    """Show what a file or a checkpoint holds."""
    if is_file(what):
        from holdfast.cli.show import show_file

        show_file(Path(what), as_json=json, every=every, tensors_only=tensors_only)
    else:
        from holdfast.cli.show_checkpoint import show_checkpoint

        show_checkpoint(resolve(what, store), as_json=json, every=every)


@app.command()
def verify(
    what: Annotated[
        list[str] | None,
        typer.Argument(help="Files, or checkpoints of the store.", show_default=False),
    ] = None,
    every: Annotated[bool, typer.Option("--all", help="Every checkpoint of the store.")] = False,
    json: Json = False,
    store: StorePath = None,
) -> None:
    """Check every byte against the digests that were saved with it."""
    from holdfast.cli.verify import verify_all, verify_each

    if bool(what) == every:
        raise typer.BadParameter("name files or checkpoints, or give --all for a whole store")
    if what:
        raise typer.Exit(verify_each(what, store=store, as_json=json))
    raise typer.Exit(verify_all(find_store(store), as_json=json))


@app.command()
def diff(
    before: Either,
    after: Either,
    json: Json = False,
    every: Every = False,
    tensors_only: TensorsOnly = False,
    store: StorePath = None,
) -> None:
    """Show which tensors and values differ, and by how much, the worst first."""
    from holdfast.cli.diff import diff_two

    raise typer.Exit(
        diff_two(before, after, store=store, tensors_only=tensors_only, as_json=json, every=every)
    )


@app.command()
def convert(
    source: Either,
    target: Annotated[Path, typer.Argument(help="The new file.", show_default=False)],
    format: Format = None,
    cast: Cast = False,
    bare: Annotated[
        bool, typer.Option("--bare", help="Write no digests, and nothing else of ours.")
    ] = False,
    tensors_only: TensorsOnly = False,
    json: Json = False,
    store: StorePath = None,
) -> None:
    """Convert a file to another format, and prove that both hold the same."""
    from holdfast.cli.convert import convert_file

    if not is_file(source):
        raise UnknownFormat(
            f"{source} is no file: `holdfast export {source} {target}` writes a checkpoint of the "
            f"store as one, and ./{source} is a file of that name"
        )

    convert_file(
        Path(source),
        target,
        format=format,
        cast=cast,
        extras=not bare,
        tensors_only=tensors_only,
        as_json=json,
    )
