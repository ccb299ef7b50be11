"""Verify all that a store holds; what many checkpoints refer to is read once.

Every file that Standfast wrote and that is not what was written is damage. What is too new, or
cannot be read for another reason, is unverified.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np

from standfast.errors import (
    DigestMismatch,
    FileError,
    MissingFile,
    RefNotFound,
    StandfastError,
)
from standfast.files.layout import Index as FileIndex
from standfast.files.reader import Progress, Reader
from standfast.store.backends.backend import NO_ANSWER, Backend
from standfast.store.checkpoint import Checkpoint
from standfast.store.load.reading import read_record
from standfast.store.query.mirrors import NAME as MIRRORS
from standfast.store.query.mirrors import read_mirrors
from standfast.store.retention.retaining import said
from standfast.store.retention.usage import Inode, status_of
from standfast.store.schema import names
from standfast.store.schema.damage import is_damage, mark_damaged
from standfast.store.schema.extents import chunks_of
from standfast.store.schema.marks import marks_at
from standfast.store.schema.record import DataFile, Head, Record
from standfast.store.schema.run_file import read_run
from standfast.store.schema.settings import NAME as SETTINGS
from standfast.store.schema.settings import read_settings
from standfast.store.v3.companions import (
    check_data_state,
    read_architecture,
    read_config,
    recover_run,
)
from standfast.store.v3.torch_names import check_name

if TYPE_CHECKING:
    from standfast.store.store import Store

_AT_ONCE: Final = 1 << 28
"""Bytes that are read before the memory they may take is given back."""


class Damage(NamedTuple):
    """What is wrong with a checkpoint, or with a file that belongs to none."""

    message: str
    files: tuple[str, ...]
    """The files that are damaged or missing, by their names in the store."""
    tensors: tuple[str, ...] = ()


@dataclass
class Verification:
    """What was verified, and what is not as it was saved."""

    intact: list[str] = field(default_factory=list)
    """The checkpoints of which every byte is right."""
    damaged: dict[str, Damage] = field(default_factory=dict)
    """Checkpoints by `run@step`; other files by their names."""
    unverified: dict[str, str] = field(default_factory=dict)
    """What is too new or cannot be read, and why. It is no damage."""
    nbytes: int = 0
    """How many bytes were read."""

    @property
    def code(self) -> int:
        """The exit code that this is reported with."""
        return 1 if self.damaged else 2 if self.unverified else 0

    def add(
        self, what: str, error: StandfastError, *files: str, tensors: Sequence[str] = ()
    ) -> None:
        """Take in what is wrong; raises the error of a server that does not answer."""
        if is_wrong(error):
            self.damaged.setdefault(what, Damage(said(error), files or (what,), tuple(tensors)))
        else:
            self.unverified.setdefault(what, said(error))


def is_wrong(error: StandfastError) -> bool:
    """Whether a file is damaged or missing, rather than too new or not readable now.

    Raises the error of a server that does not answer: it says nothing about the file.
    """
    if isinstance(error, FileError) and error.errno in NO_ANSWER:
        raise error
    return isinstance(error, MissingFile) or is_damage(error)


_Wrong = dict[str, StandfastError]
"""What is wrong with files, by their names."""


class Piece(NamedTuple):
    """A chunk where it lies in a data file."""

    start: int
    size: int
    digest: bytes


def verify_store(store: Store, progress: Progress | None = None) -> Verification:
    """Check every byte that any checkpoint refers to."""
    found = Verification()
    seen: dict[Inode, dict[Piece, bool]] = {}
    store.index.refresh()
    for listed in store.index.runs():
        _RunCheck(store, listed.run, found, seen, progress).run()
        for name, error in wrong_beside(store.backend, listed.run).items():
            found.add(name, error)
    for name, error in wrong_of_all(store.backend).items():
        found.add(name, error)
    return found


def verify_oldest(
    store: Store, seconds: float | None, progress: Progress | None = None
) -> Verification:
    """Check every byte of the checkpoints that were not verified for the longest time.

    One after the other; after that number of seconds no other is begun. Chunks that an earlier one
    of them refers to as well are not read again. What is known to be damaged comes last. Records
    that cannot be read, which have no data to check, are always reported.
    """
    end = math.inf if seconds is None else time.monotonic() + seconds
    found = Verification()
    seen: dict[Inode, dict[Piece, bool]] = {}
    by_age = _by_age(store)
    for run, step, _ in store.index.unreadable():
        _RunCheck(store, run, found, seen, progress, step).run()
    for number, head in enumerate(by_age):
        if number and time.monotonic() >= end:
            break
        _RunCheck(store, head.run, found, seen, progress, head.step).run()
    return found


def _by_age(store: Store) -> list[Head]:
    """All checkpoints, the one that was verified longest ago first, or never.

    Last come those that are known to be damaged, and those whose check cannot be recorded: they
    would be the first each time.
    """
    store.index.refresh()
    damaged = store.index.damaged_files()
    unreadable = store.index.unreadable_marks()
    verified = {each.run: store.index.verified(each.run) for each in store.index.runs()}

    def age(head: Head) -> tuple[bool, str, int]:
        is_damaged = bool(damaged & {file.name for file in head.files})
        is_last = is_damaged or (head.run, head.step) in unreadable
        return is_last, verified[head.run].get(head.step, ""), head.sequence

    return sorted((listed.head for listed in store.index.newest()), key=age)


def wrong_of_all(backend: Backend) -> _Wrong:
    """What is wrong with the files that belong to no run, by their names."""
    found: dict[str, StandfastError] = {}
    for name, read in ((SETTINGS, read_settings), (MIRRORS, read_mirrors)):
        try:
            read(backend)
        except StandfastError as error:
            found[name] = error
    return found


def wrong_beside(backend: Backend, run: str) -> _Wrong:
    """What is wrong with the files of a run besides its records and data files, by their names.

    They are read, all of them: the index does not see a bit that flips.
    """
    folder, found = names.run_folder(run), _Wrong()
    named = [names.parse(name, run) for name, _ in backend.list(folder, ".json")]
    checks: dict[str, Callable[[], object]] = {
        names.run_file(run): lambda: read_run(backend, run),
        names.config_file(run): lambda: read_config(backend, run),
        names.data_state_file(run): lambda: check_data_state(backend, run),
        names.architecture_file(run): lambda: read_architecture(backend, run),
    }
    for each in named:
        if each is not None and each.kind == "marks":
            step = each.step
            checks[names.marks_file(run, step)] = partial(marks_at, backend, run, step)

    def check_all() -> None:
        found.clear()
        for name, check in checks.items():
            try:
                check()
            except StandfastError as error:
                if not (name.endswith(".marks.json") and isinstance(error, MissingFile)):
                    found[name] = error  # marks come and go

    check_all()
    missing = {name for name, error in found.items() if isinstance(error, MissingFile)}
    if missing:
        # It may have been deleted, and made again, while they were read. While it has a record, it
        # has all other files too: they are created before the first and deleted after the last.
        has_record = _has_record(backend, run)
        check_all()
        _excuse(backend, run, found, missing, has_record and _has_record(backend, run))
    return found


def _has_record(backend: Backend, run: str) -> bool:
    named = [names.parse(name, run) for name, _ in backend.list(names.run_folder(run), ".json")]
    return any(each is not None and each.kind == "record" for each in named)


def _excuse(backend: Backend, run: str, found: _Wrong, missing: set[str], recorded: bool) -> None:
    """Forget what is missing because a run need not have it, or is being created or deleted.

    So is one of which another file was missing a moment before.
    """
    file, described = None, names.architecture_file(run)
    with suppress(StandfastError):
        file = read_run(backend, run)
    known = file or recover_run(backend, run)
    if known is None or known.identity["model"] is None:
        missing.discard(described)
    if known is not None and known.incomplete:
        missing -= {described, names.data_state_file(run)}
    if not recorded and (file is None or names.run_file(run) in found):
        missing.clear()
    for name, error in [*found.items()]:
        if isinstance(error, MissingFile) and name not in missing:
            del found[name]


class _RunCheck:
    """The check of one run. Records are read twice rather than kept: there may be many."""

    def __init__(
        self,
        store: Store,
        run: str,
        found: Verification,
        seen: dict[Inode, dict[Piece, bool]],
        progress: Progress | None,
        step: int | None = None,
    ) -> None:
        self._store = store
        self._run = run
        self._step = step
        """The only one that is checked, if one is."""
        self._found = found
        self._seen = seen
        """The chunks that were read already, of files that will be asked for again."""
        self._progress = progress
        self._lost: dict[str, StandfastError] = {}
        """The data files that are not what their records say, and why."""
        self._heads: dict[int, Head] = {}
        """Of the records whose files were checked."""
        self._bad: set[tuple[str, int]] = set()
        """The chunks that are not what their digests say, by file and offset."""

    def run(self) -> None:
        files: dict[str, tuple[Checkpoint, DataFile]] = {}
        pieces: dict[str, set[Piece]] = {}
        for record in self._records():
            checkpoint = Checkpoint(self._store, record.head)
            self._heads[record.head.step] = record.head
            for file in record.head.files:
                files.setdefault(file.name, (checkpoint, file))
            for tensor in range(len(record.names)):
                for digest, extent in chunks_of(record, tensor):
                    piece = Piece(extent.start, extent.size, digest)
                    pieces.setdefault(extent.file, set()).add(piece)
        for name, (checkpoint, file) in files.items():
            try:
                checkpoint.check_header(file)
                self._check(name, sorted(pieces.get(name, ())))
            except StandfastError as error:
                self._lost[name] = error
        for name in {*self._lost, *(name for name, _ in self._bad)}:
            if name not in self._lost or is_damage(self._lost[name]):
                mark_damaged(self._store.backend, name, "found when it was verified")
        for record in self._records():
            if self._heads.get(record.head.step) == record.head:
                self._judge(record)
            else:
                self._verify(record.head)

    def _records(self) -> Iterator[Record]:
        steps = self._store.index.steps(self._run) if self._step is None else [self._step]
        for step in steps:
            try:
                yield read_record(self._store.backend, self._run, step)
            except RefNotFound:
                continue  # deleted just now
            except StandfastError as error:
                self._found.add(f"{self._run}@{step}", error, names.record_file(self._run, step))

    def _check(self, name: str, pieces: list[Piece]) -> None:
        """Check chunks of one file, except for those that were read already."""
        path = f"{names.run_folder(self._run)}/{name}"
        status = status_of(self._store.backend, path)
        known: dict[Piece, bool] = {}
        if status is not None and (status.links > 1 or self._step is not None):
            known = self._seen.setdefault(status.inode, {})
        fresh = [piece for piece in pieces if piece not in known]
        with closing(self._store.backend.open(path)) as file:
            reader = Reader(file, _index(fresh, file.size))
            for rows in _groups(fresh):
                self._bad |= {(name, fresh[row].start) for row in self._damaged(reader, rows)}
        self._found.nbytes += sum(piece.size for piece in fresh)
        self._bad |= {(name, piece.start) for piece, fine in known.items() if not fine}
        known |= {piece: (name, piece.start) not in self._bad for piece in fresh}

    def _damaged(self, reader: Reader, rows: range) -> list[int]:
        try:
            reader.tensors(rows, self._progress)
        except DigestMismatch as error:
            return [int(row) for row in error.tensors]
        return []

    def _judge(self, record: Record) -> None:
        ref, folder = f"{self._run}@{record.head.step}", names.run_folder(self._run)
        lost = [file.name for file in record.head.files if file.name in self._lost]
        tensors = {
            name: extent
            for number, name in enumerate(record.names)
            for _, extent in chunks_of(record, number)
            if extent.file in self._lost or extent[:2] in self._bad
        }
        files = dict.fromkeys([*lost, *(extent.file for extent in tensors.values())])
        paths = [f"{folder}/{name}" for name in files]
        if lost:
            error = next((e for f in lost if is_wrong(e := self._lost[f])), self._lost[lost[0]])
            self._found.add(ref, error, *paths, tensors=[*tensors])
        elif tensors:
            name, extent = next(iter(tensors.items()))
            more = f" and {len(tensors) - 1} more" if len(tensors) > 1 else ""
            message = f"tensor {name!r}{more} is damaged: {extent.file} at offset {extent.start:,}"
            self._found.damaged[ref] = Damage(message, tuple(paths), tuple(tensors))
        else:
            self._found.intact.append(ref)
            Checkpoint(self._store, record.head).mark_verified()
            self._check_name(record.head)

    def _check_name(self, head: Head) -> None:
        """Check the name that layout V3 has for a whole file, where that is a copy of it."""
        try:
            check_name(self._store.backend, head)
        except StandfastError as error:
            self._found.add(names.whole_file(head.run, head.step), error)

    def _verify(self, head: Head) -> None:
        """Verify a checkpoint that was saved or changed since the others were looked at."""
        checkpoint = Checkpoint(self._store, head)
        try:
            self._found.nbytes += checkpoint.verify().nbytes
        except RefNotFound:
            return  # deleted or changed just now
        except StandfastError as error:
            folder = names.run_folder(self._run)
            self._found.add(checkpoint.ref, error, *(f"{folder}/{f.name}" for f in head.files))
        else:
            self._found.intact.append(checkpoint.ref)


def _index(pieces: list[Piece], end: int) -> FileIndex:
    """An index that has each chunk as a tensor of its own, called by its number."""
    return FileIndex(
        format="safetensors",
        metadata={},
        rows={str(row): row for row in range(len(pieces))},
        dtypes=["uint8"] * len(pieces),
        shapes=[(piece.size,) for piece in pieces],
        starts=np.array([piece.start for piece in pieces], np.int64),
        sizes=np.array([piece.size for piece in pieces], np.int64),
        end=end,
        digests=b"".join(piece.digest for piece in pieces),
    )


def _groups(pieces: list[Piece]) -> Iterator[range]:
    """The rows in the order of the file, so many at a time that their bytes fit into memory."""
    first, size = 0, 0
    for row, piece in enumerate(pieces):
        size += piece.size
        if size >= _AT_ONCE or row == len(pieces) - 1:
            yield range(first, row + 1)
            first, size = row + 1, 0
