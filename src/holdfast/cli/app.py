"""The commands, and the exit codes that all of them share.

0: all is well. 1: damage was found. 2: wrong use, a file that is missing, unreadable or of no
known format, or one with nothing to verify against.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from holdfast import __version__
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
    every: Annotated[bool, typer.Option("--all", help="List every tensor.")] = False,
) -> None:
    """Show what a file holds: its metadata and its tensors."""
    show_file(file, as_json=json, every=every)


@app.command()
def verify(files: Files, json: Json = False) -> None:
    """Check every byte of files against the digests they hold."""
    raise typer.Exit(verify_files(files, as_json=json))


def main() -> None:
    """Run the command line."""
    try:
        app()
    except HoldfastError as error:
        print(f"holdfast: {message_of(error)}", file=sys.stderr)
        sys.exit(exit_code(error))
