"""Verify all checkpoints of a store; what many of them refer to is read once."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np

from standfast.errors import DamagedFile, DigestMismatch, FileError, RefNotFound
from standfast.files.layout import Index as FileIndex
from standfast.files.reader import Progress, Reader
from standfast.store.checkpoint import Checkpoint
from standfast.store.load.reading import read_record
from standfast.store.retention.usage import Inode, status_of
from standfast.store.schema import names
from standfast.store.schema.extents import chunks_of
from standfast.store.schema.record import DataFile, Record

if TYPE_CHECKING:
    from standfast.store.store import Store

_AT_ONCE: Final = 1 << 28
"""Bytes that are read before the memory they may take is given back."""


class Damage(NamedTuple):
    """What is wrong with a checkpoint, a run file or marks."""

    message: str
    tensors: tuple[str, ...] = ()


@dataclass
class Verification:
    """What was verified, and what is not as it was saved."""

    intact: list[str] = field(default_factory=list)
    """The checkpoints of which every byte is right."""
    damaged: dict[str, Damage] = field(default_factory=dict)
    """Checkpoints by `run@step`; other files by their names."""
    nbytes: int = 0
    """How many bytes were read."""


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
    for name, problem in store.index.problems():
        folder, _, file = name.rpartition("/")
        named = names.parse(file, folder.rpartition("/")[2])
        if named is None or named.kind != "record":  # records were read themselves
            found.damaged.setdefault(name, Damage(problem))
    return found


class _RunCheck:
    """The check of one run. Records are read twice rather than kept: there may be many."""

    def __init__(
        self,
        store: Store,
        run: str,
        found: Verification,
        seen: dict[Inode, dict[Piece, bool]],
        progress: Progress | None,
    ) -> None:
        self._store = store
        self._run = run
        self._found = found
        self._seen = seen
        """The chunks that are known already, of files that go by several names."""
        self._progress = progress
        self._lost: dict[str, str] = {}
        """The data files that are not what their records say, and why."""
        self._bad: set[tuple[str, int]] = set()
        """The chunks that are not what their digests say, by file and offset."""

    def run(self) -> None:
        files: dict[str, tuple[Checkpoint, DataFile]] = {}
        pieces: dict[str, set[Piece]] = {}
        for record in self._records():
            checkpoint = Checkpoint(self._store, record.head)
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
            except (DamagedFile, FileError) as error:
                self._lost[name] = str(getattr(error, "strerror", None) or error)
        for record in self._records():
            self._judge(record)

    def _records(self) -> Iterator[Record]:
        for step in self._store.index.steps(self._run):
            try:
                yield read_record(self._store.backend, self._run, step)
            except RefNotFound:
                continue  # deleted this moment
            except (DamagedFile, FileError) as error:
                self._found.damaged[f"{self._run}@{step}"] = Damage(str(error))

    def _check(self, name: str, pieces: list[Piece]) -> None:
        """Check chunks of one file, but for those that were checked under another name of it."""
        path = f"{names.run_folder(self._run)}/{name}"
        status = status_of(self._store.backend, path)
        known: dict[Piece, bool] = {}
        if status is not None and status.links > 1:
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
        ref = f"{self._run}@{record.head.step}"
        lost = [self._lost[file.name] for file in record.head.files if file.name in self._lost]
        tensors = {
            name: extent
            for number, name in enumerate(record.names)
            for _, extent in chunks_of(record, number)
            if extent.file in self._lost or extent[:2] in self._bad
        }
        if lost:
            self._found.damaged[ref] = Damage(lost[0], tuple(tensors))
        elif tensors:
            name, extent = next(iter(tensors.items()))
            more = f" and {len(tensors) - 1} more" if len(tensors) > 1 else ""
            message = f"tensor {name!r}{more} is damaged: {extent.file} at offset {extent.start:,}"
            self._found.damaged[ref] = Damage(message, tuple(tensors))
        else:
            self._found.intact.append(ref)


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
