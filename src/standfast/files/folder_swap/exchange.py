"""Two folders change places in one step, which Python's `os` has no call for."""

from __future__ import annotations

import ctypes
import errno
import os
import sys
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Final

CANNOT_EXCHANGE: Final = (errno.EINVAL, errno.ENOSYS, errno.ENOTSUP)
"""What a system or a file system answers, such as NFS, that has no such step."""

CANNOT_MOVE: Final = (errno.EXDEV, errno.EBUSY)
"""What it answers for a folder that is a mount, or lies in a layer of a container image."""

_HERE: Final = -100 if sys.platform == "linux" else -2  # AT_FDCWD
_EXCHANGE: Final = 2  # RENAME_EXCHANGE of Linux and RENAME_SWAP of macOS
_CALLS: Final = ("renameat2", "renameatx_np")
"""The same call with the same arguments, on Linux and on macOS."""


def exchange(one: Path, other: Path) -> None:
    """Let what is at two paths of one file system change places; raises OSError."""
    call = _call()
    if call is None:
        raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS), str(one))
    if call(_HERE, os.fsencode(one), _HERE, os.fsencode(other), _EXCHANGE):
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number), str(one), None, str(other))


@cache
def _call() -> Callable[..., int] | None:
    library = ctypes.CDLL(None, use_errno=True)
    for name in _CALLS:
        if call := getattr(library, name, None):
            call.argtypes = (
                ctypes.c_int,
                ctypes.c_char_p,
                ctypes.c_int,
                ctypes.c_char_p,
                ctypes.c_uint,
            )
            call.restype = ctypes.c_int
            return call  # type: ignore[no-any-return]
    return None
