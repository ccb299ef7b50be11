"""Examine a store: make its views again, find what is wrong, and mend what can be mended.

A chunk that is damaged or gone is restored from another copy of the same digest: its record is
committed again, referring to that copy. Nothing is moved or deleted here but a record's own
place; files that nothing refers to are listed, and `clean` deletes those of them that are ours.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, suppress
from dataclasses import dataclass, field
from typing import NamedTuple

from standfast.errors import (
    DamagedFile,
    FileError,
    MissingFile,
    RefNotFound,
    StandfastError,
    UnreadableFile,
)
from standfast.files.digests import worker_count
from standfast.files.reader import Opened
from standfast.store.backends.backend import NO_ANSWER, Backend
from standfast.store.index.index import Index
from standfast.store.index.manifest import write_manifest
from standfast.store.load.reading import is_intact, read_record
from standfast.store.retention.removal import orphans, sweep
from standfast.store.save.changing import change_of
from standfast.store.schema import names
from standfast.store.schema.extents import Extent, append, chunks_of, with_extents
from standfast.store.schema.headers import check_header
from standfast.store.schema.record import DataFile, Head, Record, encode
from standfast.store.schema.run_file import encode as encode_run
from standfast.store.schema.run_file import known_from, read_run
from standfast.store.schema.settings import NAME as SETTINGS
from standfast.store.schema.settings import read_settings
from standfast.store.v3.foreign import is_foreign_store
from standfast.store.v3.torch_names import SUFFIX as WHOLE
from standfast.store.v3.torch_names import name_whole_files, our_names

Progress = Callable[[int], None]


@dataclass
class Diagnosis:
    """What was found, and what was done about it."""

    runs: int = 0
    checkpoints: int = 0
    damaged: dict[str, str] = field(default_factory=dict)
    """Checkpoints, run files and marks that are not what they were, and why."""
    restored: dict[str, str] = field(default_factory=dict)
    """What was mended, and how."""
    headers: dict[str, str] = field(default_factory=dict)
    """Data files whose headers are damaged: the store reads them, other programs do not."""
    orphans: dict[str, int] = field(default_factory=dict)
    """Data files that no record refers to, with their sizes."""
    foreign: list[str] = field(default_factory=list)
    """Files that are none of ours; they are let be."""
    nbytes: int = 0
    """How many bytes were read and checked."""

    @property
    def sound(self) -> bool:
        """Whether nothing is damaged that could not be mended."""
        return not self.damaged


def examine(backend: Backend, index: Index, progress: Progress | None = None) -> Diagnosis:
    """Look at everything in a store, every byte of its data files included."""
    found = Diagnosis()
    index.rebuild()
    for listed in index.runs(empty=True):
        found.runs += 1
        _Examination(backend, index, listed.run, found, progress).run()
    for name, problem in index.problems():
        found.damaged.setdefault(name, problem)
    try:
        read_settings(backend)
    except (DamagedFile, FileError) as error:
        found.damaged[SETTINGS] = str(error)
    index.refresh()
    write_manifest(backend, index)
    return found


def clean(backend: Backend, index: Index) -> None:
    """Delete what crashes have left in the runs that nobody writes into."""
    if is_foreign_store(backend):
        return
    index.refresh()
    for listed in index.runs(empty=True):
        lock = backend.lock(listed.run)
        if lock is not None:
            with lock, change_of(backend, listed.run):
                sweep(backend, index, listed.run)


class _Examination:
    """The examination of one run. Records are read twice rather than kept: there may be many."""

    def __init__(
        self,
        backend: Backend,
        index: Index,
        run: str,
        found: Diagnosis,
        progress: Progress | None,
    ) -> None:
        self._backend = backend
        self._index = index
        self._run = run
        self._folder = names.run_folder(run)
        self._found = found
        self._progress = progress or (lambda nbytes: None)
        self._bad: dict[Extent, str] = {}
        """The chunks that are not what their digests say, and why."""
        self._lost: dict[bytes, list[Copy]] = {}
        """The digests of these, and where else there may be such a chunk."""

    def run(self) -> None:
        files: dict[str, DataFile] = {}
        chunks: dict[str, set[tuple[Extent, bytes]]] = {}
        first = None
        for record in self._records(self._run):
            first = first or record.head
            self._found.checkpoints += 1
            files |= {file.name: file for file in record.head.files}
            for digest_, extent in _chunks(record):
                chunks.setdefault(extent.file, set()).add((extent, digest_))
        if first is not None:
            self._restore_run_file(first)
        self._name_whole_files()
        self._list_files()
        for name, file in files.items():
            found = sorted(chunks.get(name, ()))
            bad = self._bad_chunks(file, found)
            if bad and not self._relink(file, found):
                self._index.distrust(self._run, name)
                for (extent, digest_), why in bad.items():
                    self._bad[extent] = why
                    self._lost.setdefault(digest_, [])
        if self._bad:
            self._find_copies()
            for record in self._records(self._run):
                with change_of(self._backend, self._run):
                    self._mend(record)

    def _records(self, run: str) -> Iterator[Record]:
        for step in self._index.steps(run):
            try:
                yield read_record(self._backend, run, step)
            except RefNotFound:
                continue  # deleted this moment
            except (DamagedFile, FileError) as error:
                if isinstance(error, FileError) and error.errno in NO_ANSWER:
                    raise
                if run == self._run:
                    self._found.damaged[names.record_file(run, step)] = str(error)

    def _restore_run_file(self, head: Head) -> None:
        name = names.run_file(self._run)
        try:
            read_run(self._backend, self._run)
            return
        except (MissingFile, DamagedFile):
            pass
        except StandfastError:  # a newer release may have written it: it is listed as it is
            return
        self._backend.replace(name, encode_run(known_from(head)))
        self._index.refresh()
        self._found.restored[name] = "made again from a record, without a name"

    def _list_files(self) -> None:
        for name in orphans(self._backend, self._index, self._run):
            path = f"{self._folder}/{name}"
            self._found.orphans[path] = self._backend.size(path) or 0
        ours = our_names(self._backend, self._run)
        for name, _ in self._backend.list(self._folder):
            named = names.parse(name, self._run)
            if named is None or (named.kind == "name" and name not in ours):
                self._found.foreign.append(f"{self._folder}/{name}")

    def _name_whole_files(self) -> None:
        if self._backend.list(self._folder, WHOLE):
            with change_of(self._backend, self._run):
                self._index.refresh()
                for name in name_whole_files(self._backend, self._index, self._run):
                    self._found.restored[name] = "the name of a whole file, put right by its record"

    # Data files

    def _bad_chunks(
        self, file: DataFile, chunks: list[tuple[Extent, bytes]]
    ) -> dict[tuple[Extent, bytes], str]:
        """The chunks in a file, of those that records refer to, that are damaged, and how."""
        path = f"{self._folder}/{file.name}"
        try:
            opened = self._backend.open(path)
        except FileError as error:
            if error.errno in NO_ANSWER:
                raise
            why = "is not there" if isinstance(error, MissingFile) else str(error)
            return dict.fromkeys(chunks, f"{file.name} {why}")
        if opened.size != file.size:
            opened.close()
            return dict.fromkeys(
                chunks, f"{file.name} has {opened.size:,} bytes, not {file.size:,}"
            )
        with closing(opened), ThreadPoolExecutor(worker_count(), "standfast-doctor") as pool:
            self._check_header(path, file)
            intact = pool.map(lambda chunk: self._is_intact(opened, *chunk), chunks)
            return {
                chunk: f"{file.name} is damaged at offset {chunk[0].start:,}"
                for chunk, fine in zip(chunks, intact, strict=True)
                if not fine
            }

    def _relink(self, file: DataFile, chunks: list[tuple[Extent, bytes]]) -> bool:
        """Put another run's intact file of the same name in the place of a damaged one.

        There is one where a store was copied without its links.
        """
        target = f"{self._folder}/{file.name}"
        for other in self._index.runs():
            source = f"{names.run_folder(other.run)}/{file.name}"
            if other.run == self._run or self._backend.size(source) != file.size:
                continue
            with closing(self._backend.open(source)) as opened:
                intact = all(
                    is_intact(opened, extent.start, extent.size, expected)
                    for extent, expected in chunks
                )
            if not intact:
                continue
            with change_of(self._backend, self._run):
                if self._backend.link(source, target, over=True):
                    self._backend.sync(self._folder)
                    self._index.trust(self._run, file.name)
                    self._found.headers.pop(target, None)
                    self._found.restored[target] = f"linked to that of run {other.run}"
                    return True
        return False

    def _is_intact(self, file: Opened, extent: Extent, expected: bytes) -> bool:
        fine = is_intact(file, extent.start, extent.size, expected)
        self._found.nbytes += extent.size
        self._progress(extent.size)
        return fine

    def _check_header(self, path: str, file: DataFile) -> None:
        try:
            check_header(self._backend, self._run, file)
        except StandfastError as error:
            if isinstance(error, FileError) and error.errno in NO_ANSWER:
                raise
            self._found.headers[path] = str(error)

    # Records

    def _find_copies(self) -> None:
        """Look through all records of the store for other places of the chunks that are lost."""
        runs = [self._run, *(each.run for each in self._index.runs() if each.run != self._run)]
        for run in runs:
            for record in self._records(run):
                files = {file.name: file for file in record.head.files}
                for digest_, extent in _chunks(record):
                    if digest_ in self._lost and (run != self._run or extent not in self._bad):
                        self._lost[digest_].append(Copy(run, extent, files[extent.file]))

    def _mend(self, record: Record) -> None:
        """Let a record refer to other copies of its chunks that are damaged."""
        ref = f"{self._run}@{record.head.step}"
        files = {file.name: file for file in record.head.files}
        copies: dict[bytes, Extent] = {}
        why = ""
        for tensor, name in enumerate(record.names):
            for digest_, extent in chunks_of(record, tensor):
                if extent not in self._bad or digest_ in copies:
                    continue
                why = f"{self._bad[extent]} (tensor {name!r})"
                copy = self._intact_copy(digest_)
                if copy is None:
                    self._found.damaged[ref] = f"{why}, and there is no other copy of it"
                    return
                copies[digest_] = copy.extent
                files.setdefault(copy.file.name, copy.file)
        if copies:
            self._redirect(record, copies, files)
            self._found.restored[ref] = f"{why}: found in another file"

    def _intact_copy(self, digest_: bytes) -> Copy | None:
        """A copy that is what it should be, in a file that is in this run's folder by now."""
        for copy in self._lost[digest_]:
            source = f"{names.run_folder(copy.run)}/{copy.file.name}"
            target = f"{self._folder}/{copy.file.name}"
            with (
                suppress(MissingFile, UnreadableFile),
                closing(self._backend.open(source)) as opened,
            ):
                extent = copy.extent
                if is_intact(opened, extent.start, extent.size, digest_) and (
                    copy.run == self._run or self._backend.link(source, target)
                ):
                    return copy
        return None

    def _redirect(
        self, record: Record, copies: dict[bytes, Extent], files: dict[str, DataFile]
    ) -> None:
        """Commit the record again, with the copies in the place of what is damaged."""
        extents: list[list[Extent]] = []
        for tensor in range(len(record.names)):
            extents.append([])
            for digest_, extent in chunks_of(record, tensor):
                new_extent = copies[digest_] if extent in self._bad else extent
                if tensor in record.boxes:  # no extent goes from one box into the next
                    extents[-1].append(new_extent)
                else:
                    append(extents[-1], new_extent)
        step = record.head.step
        if read_record(self._backend, self._run, step).head.place != record.head.place:
            return  # replaced meanwhile
        self._backend.sync(self._folder)  # links that were made must be there before it
        new = encode(with_extents(record, extents, files))
        self._backend.replace(names.record_file(self._run, step), new)


class Copy(NamedTuple):
    """Where a chunk may be found."""

    run: str
    extent: Extent
    file: DataFile


def _chunks(record: Record) -> Iterator[tuple[bytes, Extent]]:
    for tensor in range(len(record.names)):
        yield from chunks_of(record, tensor)
