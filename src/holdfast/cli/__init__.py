"""The command line: `holdfast show`, `verify`, `convert`, `diff`."""

from holdfast.cli.app import main

__all__ = ["main"]
