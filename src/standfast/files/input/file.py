"""A file opened for reading, and the proof that it stays the one that was opened."""

from __future__ import annotations

import errno
import os
import stat

from standfast.errors import ChangedFile, ClosedFile, MissingFile, UnreadableFile, shortened
from standfast.files.disk import ALIGNMENT
from standfast.files.input.direct import LARGE, DirectReads
from standfast.files.paths import check_local
from standfast.tensors.sources import Bytes

_MOST: int = 1 << 30
"""Linux reads at most 2 GiB at once."""
_WINDOW: int = 4096
"""Small reads are served from one of this size: headers are read field by field."""


class SourceFile:
    """A regular file, open for reading."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self._fd = -1
        self._direct: DirectReads | None = None
        try:
            self.path = os.fsdecode(path)
        except TypeError as error:
            raise UnreadableFile(errno.EINVAL, f"{path!r} is no path") from error
        check_local(path)
        try:
            # A pipe at this path would block the open; as a file it is refused below.
            self._fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
            status = os.fstat(self._fd)
        except FileNotFoundError as error:
            raise MissingFile(error.errno, f"there is no file {shortened(self.path)}") from error
        except (OSError, ValueError) as error:
            self.close()
            reason = getattr(error, "strerror", None) or error
            number = getattr(error, "errno", None) or errno.EINVAL
            raise UnreadableFile(number, f"cannot open {shortened(self.path)}: {reason}") from error
        if not stat.S_ISREG(status.st_mode):
            self.close()
            what = "a folder" if stat.S_ISDIR(status.st_mode) else "not a regular file"
            raise UnreadableFile(errno.EINVAL, f"cannot read {self.path}: it is {what}")
        self.size = status.st_size
        self._modified = status.st_mtime_ns
        self._window = b""
        self._window_at = 0
        self._direct = DirectReads(self._fd, self.size)

    memory = None
    """The content, where it lies in memory already."""

    @property
    def fd(self) -> int:
        """The open file; raises ClosedFile if it is open no more."""
        if self._fd < 0:
            raise ClosedFile(f"{self.path}: the file was closed")
        return self._fd

    def close(self) -> None:
        """Close the file; mappings of it stay."""
        if self._fd >= 0:
            if self._direct is not None:
                self._direct.close()
            os.close(self._fd)
            self._fd = -1

    def __del__(self) -> None:
        self.close()

    def read(self, start: int, length: int) -> bytes:
        """Exactly these bytes."""
        at = start - self._window_at
        if at >= 0 and at + length <= len(self._window):
            return self._window[at : at + length]
        data = self._pread(start, max(length, _WINDOW))
        if len(data) < length:
            raise self._cut(start + len(data))
        if length < _WINDOW:
            self._window, self._window_at = data, start
        return data[:length]

    def _pread(self, start: int, length: int) -> bytes:
        try:
            return os.pread(self.fd, length, start)
        except OSError as error:
            raise self._unreadable(start, error) from error

    def read_into(self, out: Bytes, start: int) -> None:
        """Fill `out` with the bytes that begin at `start`."""
        done = self._direct.read_into(out, start) if self._direct and out.size >= LARGE else 0
        self._read_plainly(out[done:], start + done)

    def read_block(self, block: Bytes, start: int, size: int) -> Bytes:
        """Some bytes, in a block that begins on a page and has two pages more than they need."""
        skip = start % ALIGNMENT
        out = block[skip : skip + size]
        done = self._direct.read_block(block, start, size) if self._direct and size >= LARGE else 0
        self._read_plainly(out[done:], start + done)
        return out

    def _read_plainly(self, out: Bytes, start: int) -> None:
        view = out.data
        while view:
            try:
                count = os.preadv(self.fd, [view[:_MOST]], start)
            except OSError as error:
                raise self._unreadable(start, error) from error
            if count == 0:
                raise self._cut(start)
            view = view[count:]
            start += count

    def check_unchanged(self) -> None:
        """Raise ChangedFile if the file was written to or cut since it was opened.

        A mapped page beyond the end of a file that shrank would kill the process.
        """
        status = os.fstat(self.fd)
        if status.st_size != self.size or status.st_mtime_ns != self._modified:
            raise ChangedFile(
                f"{self.path}: it was written to while it was open "
                f"({self.size:,} bytes then, {status.st_size:,} now); open it again"
            )

    def check_in_place(self) -> None:
        """Raise ChangedFile if the path leads to another file by now, or to none."""
        try:
            is_same = os.path.samestat(os.stat(self.path), os.fstat(self.fd))
        except OSError:
            is_same = False
        if not is_same:
            raise ChangedFile(f"{self.path}: another file took its place while it was open")

    def unreadable(self) -> UnreadableFile | ChangedFile:
        """Why a part of the file could not be brought into memory."""
        try:
            self.check_unchanged()
        except ChangedFile as error:
            return error
        return UnreadableFile(errno.EIO, f"{self.path}: a part of it cannot be read")

    def _unreadable(self, at: int, error: OSError) -> UnreadableFile:
        return UnreadableFile(
            error.errno, f"{self.path}: cannot read at offset {at:,}: {error.strerror}"
        )

    def _cut(self, at: int) -> ChangedFile:
        return ChangedFile(
            f"{self.path}: it had {self.size:,} bytes when it was opened and now ends at {at:,}"
        )
