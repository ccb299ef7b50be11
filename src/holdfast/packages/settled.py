"""A package is read as one: what took its place meanwhile is read from the beginning."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Final, TypeVar

from holdfast.errors import ChangedFile, HoldfastError

_TRIES: Final = 5

Result = TypeVar("Result")


def while_unchanged(home: Path, action: Callable[[], Result]) -> Result:
    """Do it, and do it again if the folder was exchanged for another one meanwhile.

    Raises ChangedFile if that goes on and on. What the action raises counts only if the folder is
    still the one that it looked at.
    """
    for _ in range(_TRIES):
        before = _identity(home)
        try:
            result = action()
        except HoldfastError:
            if _identity(home) == before:
                raise
            continue
        if _identity(home) == before:
            return result
    raise ChangedFile(f"{home} is replaced all the time while it is read: try again later")


def _identity(home: Path) -> tuple[int, int, int] | None:
    try:
        status = os.stat(home)
    except (OSError, ValueError):
        return None
    # The number of a folder that is gone is soon another's; the time is not.
    return status.st_dev, status.st_ino, status.st_ctime_ns
