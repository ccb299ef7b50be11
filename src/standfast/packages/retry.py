"""A package is read as one: what took its place meanwhile is read from the beginning."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from typing import Final, TypeVar

from standfast.errors import ChangedFile, FileError, StandfastError
from standfast.files.folder_swap.open_folder import holding_folder
from standfast.packages.remote.folder import RemoteFile, RemoteFolder
from standfast.packages.remote.places import File, Folder

_TRIES: Final = 5

Result = TypeVar("Result")


def while_unchanged(home: Folder | File, action: Callable[[], Result]) -> Result:
    """Do it, and do it again if the folder was exchanged for another one meanwhile.

    Raises ChangedFile if that goes on and on. What the action raises counts only if the folder is
    still the one that it looked at.
    """
    if isinstance(home, RemoteFile):  # which is read as it was, or not at all
        return action()
    if isinstance(home, RemoteFolder):
        return _while_as_listed(home, action)
    for _ in range(_TRIES):
        with ExitStack() as stack:
            try:
                is_there = stack.enter_context(holding_folder(home))
            except FileError:  # no folder, or none that can be read
                return action()
            try:
                result = action()
            except StandfastError:
                if is_there():
                    raise
                continue
            if is_there():
                return result
    raise _restless(home)


def _while_as_listed(home: RemoteFolder, action: Callable[[], Result]) -> Result:
    """The same at a URL: what is read there is read as it was listed, or not at all."""
    for _ in range(_TRIES):
        try:
            home.look_again()
        except FileError:  # which the action will tell of
            return action()
        try:
            result = action()
        except StandfastError:
            if not home.met_a_change and home.is_as_listed():
                raise
            continue
        if not home.met_a_change:
            return result
    raise _restless(home)


def _restless(home: Folder) -> ChangedFile:
    return ChangedFile(f"{home} is replaced all the time while it is read: try again later")
