"""System calls for which Python has no function, or one that libc emulates where it is missing."""

from __future__ import annotations

import ctypes
import errno
import os
import struct
import sys
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Final

MISSING: Final = frozenset({errno.EINVAL, errno.ENOSYS, errno.ENOTSUP, errno.EOPNOTSUPP})
"""What a system or a file system answers that does not have one of these calls."""

CANNOT_MOVE: Final = (errno.EXDEV, errno.EBUSY)
"""What a rename of a folder gives that is a mount, or in a layer of a container image."""

_HERE: Final = -100 if sys.platform == "linux" else -2  # AT_FDCWD
_EXCLUSIVE: Final = 1 if sys.platform == "linux" else 4  # RENAME_NOREPLACE, RENAME_EXCL
_EXCHANGE: Final = 2  # RENAME_EXCHANGE, RENAME_SWAP
_PATHS: Final = (ctypes.c_int, ctypes.c_char_p, ctypes.c_int, ctypes.c_char_p, ctypes.c_uint)
_STATX: Final = (ctypes.c_int, ctypes.c_char_p, ctypes.c_int, ctypes.c_uint, ctypes.c_char_p)
_FORCE_SYNC: Final = 0x2000  # AT_STATX_FORCE_SYNC
_BASIC: Final = 0x7FF  # STATX_BASIC_STATS
_RANGE: Final = (ctypes.c_int, ctypes.c_int, ctypes.c_int64, ctypes.c_int64)


def exchange(one: Path, other: Path) -> None:
    """Exchange what is at two paths of one file system, atomically; raises OSError."""
    _rename(one, other, _EXCHANGE)


def rename_new(source: Path, target: Path) -> None:
    """Rename a file unless the target exists; raises OSError, FileExistsError for one."""
    _rename(source, target, _EXCLUSIVE)


def allocate(fd: int, size: int) -> None:
    """Allocate the first `size` bytes of a file, and extend it to them; raises OSError.

    Not `os.posix_fallocate`: where a file system has no such call, libc writes a zero byte to each
    page, also over data that another thread is writing.
    """
    while True:
        try:
            _call("fallocate", _RANGE)(fd, 0, 0, size)
            return
        except InterruptedError:
            continue


def changed(path: Path) -> tuple[int, int]:
    """When a file or folder last changed, in nanoseconds, and its inode; raises OSError.

    `os.stat` may tell what the kernel remembers of it, on FUSE from a second ago, on NFS from a
    minute. This asks the server.
    """
    found = ctypes.create_string_buffer(256)
    try:
        _call("statx", _STATX)(_HERE, os.fsencode(path), _FORCE_SYNC, _BASIC, found)
    except OSError as error:
        if error.errno not in {*MISSING, errno.EPERM}:  # a sandbox forbids what it does not know
            raise
        status = os.stat(path)
        return status.st_ctime_ns, status.st_ino
    (inode,) = struct.unpack_from("=Q", found, 32)
    seconds, rest = struct.unpack_from("=qI", found, 96)
    return seconds * 10**9 + rest, inode


def _rename(source: Path, target: Path, flag: int) -> None:
    # The same call with the same arguments, on Linux and on macOS.
    rename = _call("renameat2" if sys.platform == "linux" else "renameatx_np", _PATHS)
    try:
        rename(_HERE, os.fsencode(source), _HERE, os.fsencode(target), flag)
    except OSError as error:
        raise OSError(error.errno, error.strerror, str(source), None, str(target)) from None


@cache
def _call(name: str, types: tuple[type, ...]) -> Callable[..., None]:
    """A function of libc that raises OSError; ENOSYS where there is none of that name."""
    function = getattr(ctypes.CDLL(None, use_errno=True), name, None)
    if function is not None:
        function.argtypes = types

    def call(*arguments: object) -> None:
        if function is None or function(*arguments):
            number = errno.ENOSYS if function is None else ctypes.get_errno()
            raise OSError(number, os.strerror(number))

    return call
