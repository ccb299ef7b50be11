"""Every operation that changes a disk, in one place.

The layer above calls nothing else to change a file. Tests put another `Disk` in its place: one
that fails the n-th operation, or one that logs them all so that a power cut can be replayed.
"""

from __future__ import annotations

import errno
import fcntl
import os
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import numpy as np

from standfast.files import libc

ALIGNMENT: Final = 4096
"""Direct writes start and end at multiples of this, in the file and in memory."""

DIRECT: Final = getattr(os, "O_DIRECT", 0)
_FOLDER: Final = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC | os.O_NOFOLLOW


class Disk:
    """The local file system."""

    def create(self, path: Path, direct: bool = True) -> int:
        """Make a new file, locked by this process; `direct`: past the page cache where it can be.

        Raises FileExistsError if there is one, or if another process cleans it away this moment.
        """
        flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
        fd = os.open(path, flags, 0o666)
        try:
            # The lock, not the name, tells a save that goes on from one that was killed.
            # A cleaner may have come in between the two, and taken the file away.
            if not self._lock(fd) or os.fstat(fd).st_nlink == 0:
                raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), str(path))
            if DIRECT and direct:
                self._set_direct(fd)
        except BaseException:
            os.close(fd)
            path.unlink(missing_ok=True)
            raise
        return fd

    def reserve(self, fd: int, size: int) -> None:
        """Take the file's space now: writes go faster, and a full disk is found at once."""
        if size:
            try:
                libc.allocate(fd, size)
            except OSError as error:
                if error.errno not in libc.MISSING:
                    raise

    def write(self, fd: int, data: np.ndarray[Any, np.dtype[np.uint8]], offset: int) -> None:
        """Write all of `data` at `offset`."""
        view = data.data
        while view:
            direct = self._is_direct(fd)
            try:
                written = os.pwrite(fd, view, offset)
            except OSError as error:
                if error.errno != errno.EINVAL or not direct:
                    raise
                self._unset_direct(fd)  # another thread may have done so already
                continue
            offset += written
            view = view[written:]
            if view and written % ALIGNMENT:
                self._unset_direct(fd)

    def truncate(self, fd: int, size: int) -> None:
        """Set the file's size."""
        os.ftruncate(fd, size)

    def set_mode(self, fd: int, mode: int) -> None:
        """Set the file's permissions."""
        os.fchmod(fd, mode)

    def sync(self, fd: int) -> None:
        """Return when the file's content is on the disk."""
        if hasattr(fcntl, "F_FULLFSYNC"):  # macOS: fsync stops at the drive's own cache
            try:
                fcntl.fcntl(fd, fcntl.F_FULLFSYNC)
                return
            except OSError as error:
                # Some volumes cannot be asked to empty it; an error of the disk is one.
                if error.errno not in (errno.EINVAL, errno.ENOTSUP, errno.ENOTTY):
                    raise
        os.fsync(fd)

    def close(self, fd: int) -> None:
        """Close the file and give up its lock."""
        os.close(fd)

    def rename(self, source: Path, target: Path) -> None:
        """Put `source` in the place of `target`, at once."""
        os.replace(source, target)

    def rename_new(self, source: Path, target: Path) -> None:
        """Rename a file; FileExistsError if the target exists.

        Raises OSError with one of `libc.MISSING` where the file system cannot.
        """
        libc.rename_new(source, target)

    def exchange(self, source: Path, target: Path) -> None:
        """Exchange two folders, or files, atomically.

        Raises OSError with one of `libc.MISSING` where the file system cannot.
        """
        libc.exchange(source, target)

    def link(self, source: Path, target: Path) -> None:
        """Let the file `source` go by the name `target` too; FileExistsError if that is taken."""
        os.link(source, target)

    def make_folder(self, path: Path) -> None:
        """Make a folder in one that is there; FileExistsError if the name is taken."""
        os.mkdir(path)

    def lock_folder(self, path: Path) -> int:
        """Open a new folder and hold it locked, as `create` does a file, until it is closed.

        Raises FileExistsError if another process cleans it away this moment.
        """
        taken = FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), str(path))
        try:
            fd = os.open(path, _FOLDER)
        except FileNotFoundError:
            raise taken from None
        try:
            if not self._lock(fd) or not is_open_folder(path, fd):
                raise taken
        except BaseException:
            os.close(fd)
            raise
        return fd

    def remove_folder(self, path: Path) -> None:
        """Delete a folder that is empty; raises OSError if it is not."""
        os.rmdir(path)

    def sync_folder(self, folder: Path) -> None:
        """Return when the names in the folder are on the disk."""
        fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            Disk.sync(self, fd)
        except OSError as error:
            # Some network file systems have no such thing, and need none.
            if error.errno not in (errno.EINVAL, errno.ENOTSUP):
                raise
        finally:
            os.close(fd)

    def remove(self, path: Path) -> None:
        """Delete the file if it is there."""
        path.unlink(missing_ok=True)

    def open_lock(self, path: Path) -> int:
        """Open a file that is there to be locked, and make it if need be; it need not last."""
        flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
        return os.open(path, flags, 0o666)

    def free(self, folder: Path) -> int:
        """How many bytes this user can still write on the disk that the folder lies on."""
        status = os.statvfs(folder)
        return status.f_bavail * status.f_frsize

    def abandoned(self, folder: Path, prefix: str, suffix: str) -> Iterator[Path]:
        """The files with such names that no living process holds locked."""
        for name in _names(folder, prefix, suffix):
            try:
                # A pipe of such a name would block the open.
                flags = os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
                fd = os.open(folder / name, flags)
            except OSError:
                continue  # gone already, or not ours to open
            try:
                if stat.S_ISREG(os.fstat(fd).st_mode) and self._lock(fd, unsupported=False):
                    yield folder / name
            finally:
                os.close(fd)

    def abandoned_folders(
        self, folder: Path, prefix: str, suffix: str, unsupported: bool = False
    ) -> Iterator[Path]:
        """The folders with such names that no living process holds locked.

        `unsupported`: those too that lie on a file system without locks.
        """
        for name in _names(folder, prefix, suffix):
            try:
                fd = os.open(folder / name, _FOLDER)
            except OSError:
                continue  # gone already, a file or a link, or not ours to open
            try:
                if self._lock(fd, unsupported) and is_open_folder(folder / name, fd):
                    yield folder / name
            finally:
                os.close(fd)

    @staticmethod
    def _lock(fd: int, unsupported: bool = True) -> bool:
        """Whether the lock was taken; `unsupported` where the file system has no locks."""
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        except OSError:
            return unsupported
        return True

    @staticmethod
    def _set_direct(fd: int) -> None:
        try:
            fcntl.fcntl(fd, fcntl.F_SETFL, fcntl.fcntl(fd, fcntl.F_GETFL) | DIRECT)
        except OSError as error:
            if error.errno != errno.EINVAL:  # the file system has no direct writes
                raise

    @staticmethod
    def _is_direct(fd: int) -> bool:
        return bool(fcntl.fcntl(fd, fcntl.F_GETFL) & DIRECT)

    @staticmethod
    def _unset_direct(fd: int) -> None:
        fcntl.fcntl(fd, fcntl.F_SETFL, fcntl.fcntl(fd, fcntl.F_GETFL) & ~DIRECT)


def refuse_links(*paths: Path) -> None:
    """Raise OSError if one of the paths is a symbolic link: nothing in a store is changed by one.

    What it leads to may be another program's, or another user's.
    """
    for path in paths:
        if path.is_symlink():
            raise OSError(errno.ELOOP, f"{path} is a link, which is not followed")


def is_open_folder(path: Path, fd: int) -> bool:
    """Whether the folder at the path is the one that was opened as `fd`."""
    try:
        return os.path.samestat(os.lstat(path), os.fstat(fd))
    except FileNotFoundError:
        return False


def _names(folder: Path, prefix: str, suffix: str) -> list[str]:
    with os.scandir(folder) as entries:
        names = [entry.name for entry in entries]
    return sorted(name for name in names if name.startswith(prefix) and name.endswith(suffix))


LOCAL: Final = Disk()
