"""A store in a folder of this machine, or of one that it has mounted."""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from itertools import takewhile
from pathlib import Path
from typing import Final

from blake3 import blake3

from standfast.errors import FileError, MissingFile, UnreadableFile, WriteFailed
from standfast.files import disk
from standfast.files.input.file import SourceFile
from standfast.files.libc import changed
from standfast.files.mapping import on_network
from standfast.store.backends import locks
from standfast.store.backends.backend import Entry, Version, checked
from standfast.store.backends.new_file import (
    NO_LINKS,
    SUFFIX,
    Aside,
    aside_name,
    is_aside,
    taken,
    writing,
)
from standfast.store.schema.names import is_text

_OWN: Final = ".standfast"
"""The folder for the cache and the locks."""
_LOCK: Final = ".lock"

_NOTHING_THERE: Final = frozenset({errno.ENOENT, errno.ENOTDIR, errno.ELOOP, errno.ENAMETOOLONG})


class LocalBackend:
    """The objects of a store as the files of a folder, which need not be there yet.

    The folder may be a link. A link in it is read through, so that tools can keep data files
    elsewhere; nothing is written or deleted through one.
    """

    in_order = False
    links = True
    width = 1

    def __init__(self, root: Path) -> None:
        self._root = Path(os.path.abspath(root))
        self._durable: set[Path] = set()
        """Folders whose names are on the disk for certain, if they are there."""
        self._exclusive = False
        """Whether the file system is known to create names exclusively."""

    @property
    def url(self) -> str:
        """The path of the folder."""
        return str(self._root)

    @property
    def cache(self) -> Path | None:
        """In the folder itself, or the user's own if that is read-only or on a network."""
        try:
            root = os.open(self._root, os.O_RDONLY | os.O_CLOEXEC)
        except OSError:
            return None
        try:
            remote = on_network(root)
        finally:
            os.close(root)
        own = self._root / _OWN
        elsewhere = remote or own.is_symlink()
        if not elsewhere and _is_writable(own):
            return own
        return user_cache(os.path.realpath(self._root))

    def path(self, name: str) -> Path:
        """Where an object lies."""
        return self._root / checked(name)

    def exists(self, name: str) -> bool:
        """Whether there is a file, or a folder with something in it, of this name."""
        path = self._folder(name)
        status = _status(path)
        if status is None or not stat.S_ISDIR(status.st_mode):
            return status is not None
        return any(_entries(path))

    def size(self, name: str) -> int | None:
        """A file's size; None if there is no such file."""
        status = _status(self.path(name))
        return status.st_size if status is not None and stat.S_ISREG(status.st_mode) else None

    def read(self, name: str, limit: int | None = None) -> bytes:
        """A small file, or the first `limit` bytes of it."""
        file = self.open(name)
        try:
            return file.read(0, file.size if limit is None else min(limit, file.size))
        finally:
            file.close()

    def open(self, name: str) -> SourceFile:
        """A file to be mapped or read in parts; it stays readable after it was deleted."""
        return SourceFile(self.path(name))

    def list(self, folder: str, suffix: str = "") -> list[Entry]:
        """What is no folder in a folder, with such a name: also what links or pipes stand there."""
        path = self._folder(folder)
        found = []
        with _reading(path):
            for entry in _entries(path):
                if entry.name.endswith(suffix) and not entry.is_dir(follow_symlinks=False):
                    with suppress(FileNotFoundError):  # deleted in between
                        found.append(Entry(entry.name, _stamp(entry.stat(follow_symlinks=False))))
        return found

    def sizes(self, folder: str) -> dict[str, int]:
        """The sizes of the files in a folder, by name."""
        path = self._folder(folder)
        found = {}
        with _reading(path):
            for entry in _entries(path):
                with suppress(FileNotFoundError):  # deleted in between
                    if entry.is_file():
                        found[entry.name] = entry.stat().st_size
        return found

    def folders(self, folder: str) -> dict[str, Version]:
        """The folders in a folder, each with its version; a link to one is one too."""
        path = self._folder(folder)
        versions: dict[str, Version] = {}
        with _reading(path):
            for entry in _entries(path):
                if entry.is_dir():
                    with suppress(FileNotFoundError):  # deleted in between
                        versions[entry.name] = changed(path / entry.name)
        return versions

    def version(self, folder: str) -> Version | None:
        """The time at which the names in a folder last changed, and its inode."""
        path = self._folder(folder)
        with _reading(path), suppress(FileNotFoundError, NotADirectoryError):
            return changed(path) if path.is_dir() else None
        return None

    def new(self, name: str) -> Aside:
        """Begin a file aside, in the folder that it will be in."""
        path = self._own(name)
        with writing(path):
            return self._aside(path)

    def create(self, name: str, data: bytes) -> None:
        """Write a small file, durably and exclusively, never over another one."""
        path = self._own(name)
        with writing(path):
            if os.path.lexists(path):
                raise taken(path)
            with self._aside(path, direct=False) as aside:
                aside.fill(data)
                aside.place()
        _sync_placed(path)

    def replace(self, name: str, data: bytes) -> None:
        """Write a small file, durably, by a rename over the old one."""
        path = self._own(name)
        with writing(path), self._aside(path, direct=False) as aside:
            aside.fill(data)
            aside.place(over=True)
        _sync_placed(path)

    def delete(self, names: Iterable[str]) -> None:
        """Delete files; those that are gone already are no error."""
        for name in names:
            path = self._own(name, "delete")
            with writing(path, "delete"), suppress(NotADirectoryError):
                disk.LOCAL.remove(path)

    def delete_folder(self, folder: str) -> None:
        """Delete a folder if nothing is in it; one that is not empty stays."""
        path = self._own(folder, "delete")
        with writing(path, "delete"):
            try:
                disk.LOCAL.remove_folder(path)
            except OSError as error:
                if error.errno not in (errno.ENOENT, errno.ENOTEMPTY, errno.EEXIST):
                    raise

    def sync(self, folder: str) -> None:
        """Return when the names in a folder, as they are now, are durable."""
        path = self._folder(folder)
        with writing(path, "sync the folder"):
            disk.LOCAL.sync_folder(path)

    def link(self, source: str, target: str, over: bool = False) -> bool:
        """Let a file go by a second name; False where links are impossible or the name is taken."""
        old, new = self.path(source), self._own(target)
        status = _status(old, follow=False)
        if status is None:
            raise _nothing_to_link(old, new)
        if not stat.S_ISREG(status.st_mode) or self._has_links(old):
            return False
        with writing(new):
            self._make_ready(new.parent)
            try:
                return _is_linked(old, new, over)
            except FileNotFoundError as error:
                raise _nothing_to_link(old, new) from error
            except OSError as error:
                if error.errno not in NO_LINKS:
                    raise
                return False

    def lock(self, name: str, wait: float = 0.0, *, passing: bool = False) -> locks.FileLock | None:
        """Take the lock of this name; None if somebody has it for `wait` seconds more."""
        path = self._lock_file(name)
        with writing(path, "lock"):
            self._refuse_links(path)
            self._make_ready(self._root)
            _make_all(path.parent)
        return locks.take(path, wait, passing=passing)

    def locked(self, prefix: str) -> Sequence[str]:
        """The names of the locks that somebody holds now; files that dead ones left are deleted."""
        any_lock = self._lock_file("any")
        folder = any_lock.parent
        with _reading(folder):
            self._refuse_links(any_lock)
            found = [entry.name for entry in _entries(folder) if entry.name.startswith(prefix)]
        return [
            name.removesuffix(_LOCK)
            for name in found
            if name.endswith(_LOCK) and locks.is_held(folder / name)
        ]

    def holder(self, name: str) -> str | None:
        """The process and the machine that took the lock last and did not release it."""
        return locks.holder(self._lock_file(name))

    def free(self) -> int | None:
        """How many bytes this user can still write; None if nobody knows."""
        try:
            nearest = next(
                folder for folder in (self._root, *self._root.parents) if folder.is_dir()
            )
            return disk.LOCAL.free(nearest)
        except OSError:
            return None

    def sweep(self, folder: str) -> int:
        """Delete what dead processes left in a folder unplaced; returns how many files it was."""
        path = self._folder(folder)
        removed = 0
        with writing(path, "clean"), suppress(FileNotFoundError, NotADirectoryError):
            if folder and (path.is_symlink() or self._has_links(path)):
                return 0
            for leftover in disk.LOCAL.abandoned(path, ".", SUFFIX):
                if is_aside(leftover.name):
                    with suppress(PermissionError):  # another user's is not ours to clean up
                        disk.LOCAL.remove(leftover)
                        removed += 1
        return removed

    def in_doubt(self, folder: str) -> bool:
        """Never: what failed is over."""
        return False

    def tidy(self) -> None:
        """Do nothing: there is nothing of its own."""

    def close(self) -> None:
        """Do nothing: all is done by the calls."""

    def _own(self, name: str, verb: str = "write") -> Path:
        """Where an object lies that is to be changed; raises WriteFailed if links lead there."""
        path = self.path(name)
        with writing(path, verb):
            self._refuse_links(path)
        return path

    def _refuse_links(self, path: Path) -> None:
        disk.refuse_links(*self._above(path))

    def _has_links(self, path: Path) -> bool:
        return any(folder.is_symlink() for folder in self._above(path))

    def _above(self, path: Path) -> Iterator[Path]:
        """The folders of the store that lead to a path in it, without the store's own."""
        return takewhile(lambda folder: folder != self._root, path.parents)

    def _folder(self, folder: str) -> Path:
        return self.path(folder) if folder else self._root

    def _lock_file(self, name: str) -> Path:
        return self._root / _OWN / "locks" / f"{checked(name)}{_LOCK}"

    def _aside(self, path: Path, direct: bool = True) -> Aside:
        """A new file for a folder, which is made if need be."""
        self._make_ready(path.parent)
        aside = Aside(path, direct)
        if not self._exclusive:
            try:
                aside.check_exclusive()
            except BaseException:
                aside.discard()
                raise
            self._exclusive = True
        return aside

    def _make_ready(self, folder: Path) -> None:
        """Make a folder and those above it, and let all their names be durable.

        Also those that are there already, once: who made them may have been killed before the
        sync, and what is put into them would be lost with them.
        """
        is_there = folder.exists()
        within = folder.is_relative_to(self._root)
        if is_there and (folder in self._durable or not within):
            return
        self._make_ready(folder.parent)
        if not is_there:
            with suppress(FileExistsError):  # somebody else was faster
                disk.LOCAL.make_folder(folder)
        try:
            disk.LOCAL.sync_folder(folder.parent)
        except PermissionError:
            if not is_there or folder != self._root:  # what is above it may not be ours to open
                raise
        self._durable.add(folder)


def _sync_placed(path: Path) -> None:
    """Make the name of a file that is in place durable."""
    try:
        disk.LOCAL.sync_folder(path.parent)
    except OSError as error:
        raise WriteFailed(
            error.errno,
            f"{path} is in place and whole, but may not survive a power cut: its folder could not "
            f"be synced ({error.strerror or error})",
        ) from error


def _is_linked(old: Path, new: Path, over: bool) -> bool:
    """Whether a file has a second name now; a taken name is replaced if `over`."""
    try:
        disk.LOCAL.link(old, new)
    except FileExistsError:
        if over and not _is_same(old, new):
            _link_over(old, new)
        return _is_same(old, new)
    return True


def _link_over(old: Path, new: Path) -> None:
    aside = new.parent / aside_name()
    disk.LOCAL.link(old, aside)
    try:
        disk.LOCAL.rename(aside, new)
    except BaseException:
        disk.LOCAL.remove(aside)
        raise


def _nothing_to_link(old: Path, new: Path) -> MissingFile:
    return MissingFile(errno.ENOENT, f"cannot link {old} to {new}: there is no file {old}")


def _entries(folder: Path) -> Iterator[os.DirEntry[str]]:
    """What lies in a folder, less what is hidden; nothing if there is no such folder."""
    with _reading(folder):
        try:
            with os.scandir(folder) as entries:
                for entry in entries:
                    # A name that is no text is none of ours, and cannot be printed.
                    if not entry.name.startswith(".") and is_text(entry.name):
                        yield entry
        except (FileNotFoundError, NotADirectoryError):
            return


def _status(path: Path, follow: bool = True) -> os.stat_result | None:
    with _reading(path):
        try:
            return os.stat(path, follow_symlinks=follow)
        except OSError as error:
            if error.errno not in _NOTHING_THERE:
                raise
            return None


@contextmanager
def _reading(path: Path) -> Iterator[None]:
    try:
        yield
    except FileError:
        raise
    except OSError as error:
        raise UnreadableFile(
            error.errno, f"cannot read {path}: {error.strerror or error}"
        ) from error


def _stamp(status: os.stat_result) -> int:
    """Which content a name has: a disk gives the number of a deleted file to a new one."""
    return hash((status.st_ino, status.st_mtime_ns, status.st_size))


def _is_same(a: Path, b: Path) -> bool:
    first, second = _status(a, follow=False), _status(b, follow=False)
    return first is not None and second is not None and os.path.samestat(first, second)


def _make_all(folder: Path) -> None:
    """Make a folder for what may vanish at any time, and those above it."""
    if not folder.is_dir():
        _make_all(folder.parent)
        with suppress(FileExistsError):
            disk.LOCAL.make_folder(folder)


def _is_writable(folder: Path) -> bool:
    """Whether files can be made in a folder, which is made if need be."""
    try:
        _make_all(folder)
        return folder.is_dir() and os.access(folder, os.W_OK | os.X_OK)
    except OSError:
        return False


def user_cache(store: str) -> Path | None:
    """The user's own folder for what is known of a store, if the user has a home."""
    for above in (os.environ.get("XDG_CACHE_HOME", ""), os.path.expanduser("~/.cache")):
        if os.path.isabs(above):
            folder = Path(above, "standfast", blake3(os.fsencode(store)).hexdigest(8))
            return folder if _is_writable(folder) else None
    return None
