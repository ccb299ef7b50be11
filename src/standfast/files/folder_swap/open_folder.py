"""A folder that is read by its path, while another one may take its place there."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from standfast.errors import MissingFile, UnreadableFile


@contextmanager
def holding_folder(path: Path) -> Iterator[Callable[[], bool]]:
    """Give a function that says whether the folder is still the one that is at the path.

    The folder is held open, because the number of one that is removed may become another's.
    """
    try:
        fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except FileNotFoundError as error:
        raise MissingFile(error.errno, f"there is no folder {path}") from error
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        code = getattr(error, "errno", None) or errno.EINVAL
        raise UnreadableFile(code, f"cannot list {path}: {reason}") from error
    try:
        yield lambda: _is_at(path, fd)
    finally:
        os.close(fd)


def _is_at(path: Path, fd: int) -> bool:
    try:
        return os.path.samestat(os.stat(path), os.fstat(fd))
    except OSError:
        return False
