"""Where a store keeps its objects: the one seam between a store and whatever lies below it.

Names are relative paths with `/` between their parts, `models/0123…/0123…_step_000100.json`. A
folder needs no making: it is there when something is in it, and the outermost one is called "".
A part of a name that begins with a dot is hidden from lists. The suite in
`tests/store/backends/backend_suite.py` is what every backend must pass.
"""

from __future__ import annotations

import errno
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Final, NamedTuple, Protocol, Self

from standfast.errors import BadLabel, shortened
from standfast.files.input.file import SourceFile
from standfast.files.input.memory import SourceMemory
from standfast.files.input.ranges import SourceRanges
from standfast.store.schema.names import is_text
from standfast.tensors.sources import Bytes

NO_ANSWER = frozenset({errno.ETIMEDOUT, errno.ECONNABORTED})
"""The errors by which nothing can be said of what a store holds: its server does not answer."""

Version = tuple[int, ...]
"""Of a folder: another one whenever a name in it was added, removed or replaced.

On a disk the first number is the time of that change, in nanoseconds, as coarse as the disk's
clock: two changes in the same tick, of a few milliseconds, leave the same version. Take it before
the list that it stands for, and do not trust one that young.
"""

UNTRUSTED: Final = 1 << 62
"""The first number of a version that says nothing: the folder may have changed all the same."""


class Entry(NamedTuple):
    """A file in a folder; another `stamp` under the same name is another file."""

    name: str
    stamp: int


def checked(name: str) -> str:
    """A name that stays within the store, as it was given; raises BadLabel."""
    if not {"", ".", ".."}.isdisjoint(name.split("/")) or "\0" in name or not is_text(name):
        raise BadLabel(
            f"{shortened(ascii(name))} cannot be the name of an object: it must be a relative path "
            "without empty parts, '.', '..' and NUL"
        )
    return name


class NewFile(Protocol):
    """A file on its way in: nobody sees it before it is placed, and a crash leaves none of it.

    `write` … `finish` → `place`, or `discard` at any time. Leaving the `with` discards what was
    not placed.
    """

    def reserve(self, size: int) -> None:
        """Take this much space now, where that is possible; raises WriteFailed if there is none."""
        ...

    def write(self, data: Bytes, offset: int) -> None:
        """Write a block; from any thread. Offsets and lengths are multiples of the alignment."""
        ...

    def finish(self, size: int) -> None:
        """Cut the file to its size and make its content durable."""
        ...

    def place(self) -> None:
        """Give the file its name; raises AlreadyExists if that is taken.

        `Backend.sync` makes the name durable.
        """
        ...

    def discard(self) -> None:
        """Forget the file, if it was not placed. May be called several times."""
        ...

    def __enter__(self) -> Self: ...

    def __exit__(self, *error: object) -> None: ...


class Lock(Protocol):
    """A lock that is held; it dies with its process, whatever the process has forked."""

    def is_held(self) -> bool:
        """Whether it still keeps others out: somebody may have deleted what it rests on."""
        ...

    def release(self) -> None:
        """Let others have it. May be called several times."""
        ...

    def __enter__(self) -> Self: ...

    def __exit__(self, *error: object) -> None: ...


class Reads(Protocol):
    """What small files are read from: a backend, or what was read of one ahead."""

    def read(self, name: str, limit: int | None = None) -> bytes:
        """A small file, or the first `limit` bytes of it."""
        ...

    def list(self, folder: str, suffix: str = "") -> Sequence[Entry]:
        """The files in a folder whose names end so."""
        ...


class Backend(Protocol):
    """Objects by name; may be used from several threads.

    What it raises is a FileError: MissingFile where there is none, UnreadableFile, WriteFailed. A
    name that is none is refused with BadLabel.
    """

    @property
    def url(self) -> str:
        """Where it is, for people."""
        ...

    @property
    def in_order(self) -> bool:
        """Whether a file is best written from its first byte to its last."""
        ...

    @property
    def links(self) -> bool:
        """Whether files can have second names, as far as that is known before it is tried."""
        ...

    @property
    def width(self) -> int:
        """How many small files are best read at a time."""
        ...

    @property
    def cache(self) -> Path | None:
        """A folder for what may vanish at any time; None if there is none that can be written."""
        ...

    def path(self, name: str) -> Path | None:
        """Where an object lies on this machine; None if it does not."""
        ...

    def exists(self, name: str) -> bool:
        """Whether there is a file, or a folder with something in it, of this name."""
        ...

    def size(self, name: str) -> int | None:
        """A file's size; None if there is no such file."""
        ...

    def read(self, name: str, limit: int | None = None) -> bytes:
        """A small file, or the first `limit` bytes of it."""
        ...

    def open(self, name: str) -> SourceFile | SourceMemory | SourceRanges:
        """A file to be mapped or read in parts.

        It stays readable after it was deleted or replaced, or says so: MissingFile, ChangedFile.
        """
        ...

    def list(self, folder: str, suffix: str = "") -> Sequence[Entry]:
        """The files in a folder whose names end so, in no order; none if there is no such folder.

        Files of this backend's own, such as those not yet placed, are not among them.
        """
        ...

    def sizes(self, folder: str) -> Mapping[str, int]:
        """The sizes of the files in a folder, by name; none if there is no such folder."""
        ...

    def folders(self, folder: str) -> Mapping[str, Version]:
        """The folders in a folder, by name, each with its version; none if there is no such folder.

        Some of them may be empty.
        """
        ...

    def version(self, folder: str) -> Version | None:
        """The version of one folder; None if there is none."""
        ...

    def new(self, name: str) -> NewFile:
        """Begin a file. Names of such files are never used twice."""
        ...

    def create(self, name: str, data: bytes) -> None:
        """Write a small file, durably and exclusively: raises AlreadyExists if there is one.

        When this raises anything else, the file is there or it is not, but whole.
        """
        ...

    def replace(self, name: str, data: bytes) -> None:
        """Write a small file, durably, in the place of the old one, if there is one, at once."""
        ...

    def delete(self, names: Iterable[str]) -> None:
        """Delete files; those that are gone already are no error. `sync` makes it durable."""
        ...

    def delete_folder(self, folder: str) -> None:
        """Delete a folder if nothing is in it; one that is not empty stays."""
        ...

    def sync(self, folder: str) -> None:
        """Return when the names in a folder, as they are now, are durable."""
        ...

    def link(self, source: str, target: str, over: bool = False) -> bool:
        """Let a file go by a second name, which `sync` makes durable; False where it cannot be.

        Another file of that name is let be, or with `over` replaced at once. True if the target
        is that very file already. Raises MissingFile if there is no source.
        """
        ...

    def lock(self, name: str, wait: float = 0.0, *, passing: bool = False) -> Lock | None:
        """Take the lock of this name; None if another process has it for `wait` seconds more.

        Where a lock may outlive its process, one is waited for longer that may have, if any time
        is given at all. Within a process, too, a lock is held once. One that is `passing` leaves
        nothing behind.
        """
        ...

    def locked(self, prefix: str) -> Sequence[str]:
        """The names of the locks that somebody holds now, of those that begin so."""
        ...

    def holder(self, name: str) -> str | None:
        """Who took the lock of this name last and did not release it, for a message, if known."""
        ...

    def free(self) -> int | None:
        """How many bytes can still be written; None if nobody knows."""
        ...

    def sweep(self, folder: str) -> int:
        """Delete what dead processes left in a folder unplaced; returns how many files it was."""
        ...

    def in_doubt(self, folder: str) -> bool:
        """Whether a write into a folder, which failed here, may yet be carried out there."""
        ...

    def tidy(self) -> None:
        """Delete things of the backend's own that are of no use any more."""
        ...

    def close(self) -> None:
        """Finish what is done beside the calls; the next call goes on as before."""
        ...
