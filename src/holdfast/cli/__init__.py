"""The command line: `holdfast show`, `holdfast verify`."""

from holdfast.cli.app import main

__all__ = ["main"]
