"""Files of lines: appended to durably, replaced as a whole, read line by line.

A line is whole once its end, a newline, is there. What follows the last end was left by a writer
that was killed: readers leave it out, and the next append cuts it off.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Final

import numpy as np

from standfast.errors import FileError, WriteFailed
from standfast.files.atomic import replacing
from standfast.files.disk import Disk, refuse_links
from standfast.files.folder_swap.swap import make_folders
from standfast.files.input.file import SourceFile
from standfast.files.paths import check_local

LONGEST: Final = 1 << 20
"""Bytes of the longest line that is read as it is."""
_BLOCK: Final = 1 << 20


def read_lines(path: str | os.PathLike[str]) -> Iterator[bytes]:
    """The whole lines of a file, without their ends.

    Of a line longer than LONGEST comes one byte more than that, and no more of it.
    """
    file = SourceFile(path)
    try:
        rest = b""
        for start in range(0, file.size, _BLOCK):
            block = file.read(start, min(_BLOCK, file.size - start))
            *whole, rest = (rest + block).split(b"\n")
            yield from (line[: LONGEST + 1] for line in whole)
            rest = rest[: LONGEST + 1]
    finally:
        file.close()


def append_lines(path: str | os.PathLike[str], lines: Iterable[bytes], disk: Disk) -> None:
    """Add lines to a file, which is made with its folders if need be; then they are durable.

    Neither the file nor its folder may be a link. If this raises WriteFailed, none of the lines is
    there, unless the disk failed to remove them too.
    """
    check_local(path)
    data = b"".join(line + b"\n" for line in lines)
    try:
        target = Path(path)
        refuse_links(target.parent, target)
        make_folders(target.parent, disk)
        fd = disk.open_lock(target)  # one that need not be there yet
        try:
            _append(fd, data, disk)
        finally:
            disk.close(fd)
        disk.sync_folder(target.parent)
    except (OSError, ValueError) as error:
        if isinstance(error, FileError):
            raise
        number = getattr(error, "errno", None) or errno.EINVAL
        reason = getattr(error, "strerror", None) or error
        hint = "; free some space" if number == errno.ENOSPC else ""
        raise WriteFailed(number, f"cannot append to {os.fspath(path)}: {reason}{hint}") from error


def replace_lines(path: str | os.PathLike[str], lines: Iterable[bytes], disk: Disk) -> None:
    """Put a file of these lines in the place of the one at the path, at once and durably."""
    _replace(path, _blocks(lines), disk)


def replace_bytes(path: str | os.PathLike[str], data: bytes, disk: Disk) -> None:
    """Put a file of these bytes in the place of the one at the path, at once and durably."""
    _replace(path, [data], disk)


def _replace(path: str | os.PathLike[str], blocks: Iterable[bytes], disk: Disk) -> None:
    with replacing(path, disk) as (_, fd):
        at = 0
        for block in blocks:
            disk.write(fd, np.frombuffer(block, np.uint8), at)
            at += len(block)


def _blocks(lines: Iterable[bytes]) -> Iterator[bytes]:
    block = bytearray()
    for line in lines:
        block += line + b"\n"
        if len(block) >= _BLOCK:
            yield bytes(block)
            block.clear()
    if block:
        yield bytes(block)


def _append(fd: int, data: bytes, disk: Disk) -> None:
    status = os.fstat(fd)
    if not stat.S_ISREG(status.st_mode):
        raise OSError(errno.EINVAL, "it exists and is not a file")
    end = _end_of_lines(fd, status.st_size)
    if end < status.st_size:
        disk.truncate(fd, end)
    try:
        disk.write(fd, np.frombuffer(data, np.uint8), end)
        disk.sync(fd)
    except BaseException:
        with suppress(OSError):  # so that a second try does not write some of them twice
            disk.truncate(fd, end)
        raise


def _end_of_lines(fd: int, size: int) -> int:
    """The offset after the last newline."""
    end = size
    while end:
        start = max(0, end - _BLOCK)
        found = os.pread(fd, end - start, start).rfind(b"\n")
        if found >= 0:
            return start + found + 1
        end = start
    return 0
