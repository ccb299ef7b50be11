"""A package is read as one: what took its place meanwhile is read from the beginning."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Final, TypeVar

from holdfast.errors import ChangedFile, FileError, HoldfastError
from holdfast.files.held_folder import holding_folder

_TRIES: Final = 5

Result = TypeVar("Result")


def while_unchanged(home: Path, action: Callable[[], Result]) -> Result:
    """Do it, and do it again if the folder was exchanged for another one meanwhile.

    Raises ChangedFile if that goes on and on. What the action raises counts only if the folder is
    still the one that it looked at.
    """
    for _ in range(_TRIES):
        with ExitStack() as stack:
            try:
                is_there = stack.enter_context(holding_folder(home))
            except FileError:  # no folder, or none that can be read
                return action()
            try:
                result = action()
            except HoldfastError:
                if is_there():
                    raise
                continue
            if is_there():
                return result
    raise ChangedFile(f"{home} is replaced all the time while it is read: try again later")
