"""The command line, and the exit codes that all commands share.

0: all is well. 1: damage was found, or `prove` found a difference. 2: wrong use, a file or
checkpoint that is missing, unreadable or of no known format, one with nothing to verify against,
tensors that a format cannot hold, what a store refuses, a program of which nothing can be proved.
3: `diff` found differences. 130: `train` was interrupted. 141: nobody reads the output.
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Sequence
from typing import Annotated, Any, NoReturn

import typer

from standfast import __version__
from standfast.cli.declarations import copies, files, packages, store, ui
from standfast.cli.pipes import end_with_readers
from standfast.display.output import exit_code, message_of
from standfast.errors import StandfastError, printable
from standfast.store.remote import wait

app = typer.Typer(
    name="standfast",
    help="Checkpoints that lose nothing, stall nothing, and prove it.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
app.add_typer(files.app)
app.add_typer(store.app)
app.add_typer(copies.app)
app.add_typer(packages.app)
app.add_typer(ui.app)


def _print_version(wanted: bool) -> None:
    if wanted:
        print(f"standfast {__version__}")
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, help="Print the version.")
    ] = False,
) -> None:
    pass


def main() -> None:
    """Run the command line of this process."""
    end_with_readers()
    wait.tell_of_silence = _tell_of_silence
    warnings.showwarning = _show_warning
    run()


def run(arguments: Sequence[str] | None = None) -> NoReturn:
    """Run a command, and leave with its exit code."""
    try:
        app(arguments)
    except StandfastError as error:
        print(f"standfast: {printable(message_of(error))}", file=sys.stderr)
        sys.exit(exit_code(error))
    sys.exit(0)


def _tell_of_silence(place: str) -> None:
    from standfast.store.remote.connection import TIMEOUT, timeout

    if wait.tell_of_silence is not None:
        wait.tell_of_silence = None  # once is enough
        print(
            f"standfast: {printable(place)} does not answer; it is asked again for up to "
            f"{timeout().total_seconds():.0f} seconds (${TIMEOUT})",
            file=sys.stderr,
        )


def _show_warning(message: Warning | str, *_: Any, **__: Any) -> None:
    print(f"standfast: {printable(str(message))}", file=sys.stderr)
