"""The commands, and the exit codes that all of them share.

0: all is well. 1: damage was found. 2: wrong use, a file that is missing, unreadable or of no
known format, one with nothing to verify against, tensors that a format cannot hold. 3: `diff`
found differences.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from holdfast import __version__
from holdfast.cli.convert import convert_file
from holdfast.cli.diff import diff_files
from holdfast.cli.output import exit_code, message_of
from holdfast.cli.show import show_file
from holdfast.cli.verify import verify_files
from holdfast.errors import HoldfastError

app = typer.Typer(
    name="holdfast",
    help="Checkpoints that lose nothing, stall nothing, and prove it.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)

File = Annotated[Path, typer.Argument(help="A file of tensors.", show_default=False)]
Files = Annotated[list[Path], typer.Argument(help="Files of tensors.", show_default=False)]
Every = Annotated[bool, typer.Option("--all", help="List every tensor.")]
TensorsOnly = Annotated[
    bool, typer.Option("--tensors-only", help="Leave out objects that only code could build.")
]
Json = Annotated[bool, typer.Option("--json", help="Print JSON, for scripts.")]


def _print_version(wanted: bool) -> None:
    if wanted:
        print(f"holdfast {__version__}")
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, help="Print the version.")
    ] = False,
) -> None:
    pass


@app.command()
def show(
    file: File,
    json: Json = False,
    every: Every = False,
    tensors_only: TensorsOnly = False,
) -> None:
    """Show what a file holds: its metadata and its tensors."""
    show_file(file, as_json=json, every=every, tensors_only=tensors_only)


@app.command()
def verify(files: Files, json: Json = False) -> None:
    """Check every byte of files against the digests they hold."""
    raise typer.Exit(verify_files(files, as_json=json))


@app.command()
def convert(
    source: File,
    target: Annotated[Path, typer.Argument(help="The new file.", show_default=False)],
    format: Annotated[
        str | None, typer.Option(help="The new format, if the suffix does not name it.")
    ] = None,
    cast: Annotated[
        bool, typer.Option("--cast", help="Cast what the new format cannot hold, and list it.")
    ] = False,
    bare: Annotated[
        bool, typer.Option("--bare", help="Write no digests, and nothing else of ours.")
    ] = False,
    tensors_only: TensorsOnly = False,
    json: Json = False,
) -> None:
    """Convert a file to another format, and prove that both hold the same."""
    convert_file(
        source,
        target,
        format=format,
        cast=cast,
        extras=not bare,
        tensors_only=tensors_only,
        as_json=json,
    )


@app.command()
def diff(
    before: File,
    after: File,
    json: Json = False,
    every: Every = False,
    tensors_only: TensorsOnly = False,
) -> None:
    """Show which tensors differ between two files, and by how much, the worst first."""
    raise typer.Exit(
        diff_files(before, after, tensors_only=tensors_only, as_json=json, every=every)
    )


def main() -> None:
    """Run the command line."""
    try:
        app()
    except HoldfastError as error:
        print(f"holdfast: {message_of(error)}", file=sys.stderr)
        sys.exit(exit_code(error))
