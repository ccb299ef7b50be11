"""The command line; `docs/cli.md` is its page."""

from standfast.cli.app import main

__all__ = ["main"]
