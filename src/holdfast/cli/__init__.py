"""The command line; `docs/cli.md` is its page."""

from holdfast.cli.app import main

__all__ = ["main"]
