"""Examine a store: make its views again, find what is wrong, and mend what can be mended.

A chunk that is damaged or gone is restored from another copy of the same digest: its record is
committed again, referring to that copy. The run file and its config are restored from each other.
What is written depends only on what was read under the lock of the run's changes. Files that
nothing refers to are listed, and `clean` deletes those of them that are ours.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, suppress
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from standfast.errors import (
    DamagedFile,
    DigestMismatch,
    FileError,
    MissingFile,
    RefNotFound,
    RunBusy,
    StandfastError,
    TooNew,
    UnreadableFile,
    WriteFailed,
)
from standfast.files.digests import worker_count
from standfast.files.reader import Opened
from standfast.files.threads import Threads
from standfast.store.backends.backend import Backend
from standfast.store.index.index import Index
from standfast.store.index.manifest import write_manifest
from standfast.store.load.reading import is_intact, read_record
from standfast.store.maintenance.verify import is_wrong, wrong_beside, wrong_of_all
from standfast.store.retention.removal import orphans, sweep
from standfast.store.retention.retaining import said
from standfast.store.save.changing import change_of
from standfast.store.save.taken import changing
from standfast.store.schema import names
from standfast.store.schema.damage import mark_damaged, trust
from standfast.store.schema.decoder import encode_checked
from standfast.store.schema.extents import Extent, append, chunks_of, with_extents
from standfast.store.schema.headers import check_header
from standfast.store.schema.record import DataFile, Record
from standfast.store.schema.run_file import RunFile, read_run
from standfast.store.v3.companions import recover_run, write_run
from standfast.store.v3.foreign import is_foreign_store
from standfast.store.v3.torch_names import SUFFIX as WHOLE
from standfast.store.v3.torch_names import check_name, name_whole_files, our_names, whole_of

_REFUSALS: Final = (RunBusy, WriteFailed, UnreadableFile, TooNew)
"""Why something cannot be mended now."""
Progress = Callable[[int], None]


@dataclass
class Diagnosis:
    """What was found, and what was done about it."""

    runs: int = 0
    checkpoints: int = 0
    damaged: dict[str, str] = field(default_factory=dict)
    """Checkpoints and files that are not what was written, and why."""
    unverified: dict[str, str] = field(default_factory=dict)
    """What is too new or cannot be read, and why. It is no damage, and stays as it is."""
    restored: dict[str, str] = field(default_factory=dict)
    """What was mended, and how."""
    orphans: dict[str, int] = field(default_factory=dict)
    """Data files that no record refers to, with their sizes."""
    foreign: list[str] = field(default_factory=list)
    """Files that are none of ours; they are let be."""
    nbytes: int = 0
    """How many bytes were read and checked."""

    @property
    def sound(self) -> bool:
        """Whether everything is what was written, now that some of it was mended."""
        return self.code == 0

    @property
    def code(self) -> int:
        """The exit code that this is reported with."""
        return 1 if self.damaged else 2 if self.unverified else 0

    def add(self, what: str, error: StandfastError) -> None:
        """Take in what is wrong; raises the error of a server that does not answer."""
        (self.damaged if is_wrong(error) else self.unverified).setdefault(what, said(error))


def examine(backend: Backend, index: Index, progress: Progress | None = None) -> Diagnosis:
    """Look at everything in a store, every byte of its data files included."""
    found = Diagnosis()
    index.rebuild()
    for listed in index.runs(empty=True):
        found.runs += 1
        _Examination(backend, index, listed.run, found, progress).run()
    for name, error in wrong_of_all(backend).items():
        found.add(name, error)
    index.refresh()
    write_manifest(backend, index)
    return found


def clean(backend: Backend, index: Index) -> None:
    """Delete what crashes have left in the runs that nobody writes into."""
    if is_foreign_store(backend):
        return
    index.refresh()
    for listed in index.runs(empty=True):
        folder = backend.path(names.run_folder(listed.run))
        if folder is not None and folder.is_symlink():
            continue  # nothing is changed through a link
        lock = backend.lock(listed.run)
        if lock is not None:
            with suppress(TooNew), lock, change_of(backend, listed.run):
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
        for record in self._records(self._run):
            self._found.checkpoints += 1
            files |= {file.name: file for file in record.head.files}
            for digest_, extent in _chunks(record):
                chunks.setdefault(extent.file, set()).add((extent, digest_))
        self._check_beside()
        for name, file in files.items():
            found = sorted(chunks.get(name, ()))
            bad = self._bad_chunks(file, found) and self._still_bad(file, found)
            if bad and not self._relink(file, found):
                mark_damaged(self._backend, name, next(iter(bad.values())))
                for (extent, digest_), why in bad.items():
                    self._bad[extent] = why
                    self._lost.setdefault(digest_, [])
        if self._bad:
            self._find_copies()
            for record in self._records(self._run):
                if any(extent in self._bad for _, extent in _chunks(record)):
                    self._mend(record.head.step)
        self._name_whole_files()
        self._list_files()

    def _records(self, run: str) -> Iterator[Record]:
        for step in self._index.steps(run):
            try:
                yield read_record(self._backend, run, step)
            except RefNotFound:
                continue  # deleted just now
            except StandfastError as error:
                is_wrong(error)  # raises that of a server that does not answer
                if run == self._run:
                    self._found.add(names.record_file(run, step), error)

    def _check_beside(self) -> None:
        """Check the files besides records and data; restore the run file, or its config."""
        wrong, run = wrong_beside(self._backend, self._run), self._run
        copies = {names.run_file(run): "its config", names.config_file(run): "the run file"}
        restored, problem = False, ", and there is no other copy of it"
        if any(is_wrong(error) for name, error in wrong.items() if name in copies):
            try:
                with changing(self._backend, self._index, run):  # none deletes or restores it now
                    wrong = wrong_beside(self._backend, run)
                    if any(is_wrong(error) for name, error in wrong.items() if name in copies):
                        restored = self._write_run()
                self._index.refresh()
            except _REFUSALS as refusal:
                problem = f"; it was not restored: {said(refusal)}"
        for name, error in wrong.items():
            if restored and name in copies:
                self._found.restored[name] = f"made again from {copies[name]}"
            elif name in copies and is_wrong(error):
                self._found.damaged[name] = said(error) + problem
            else:
                self._found.add(name, error)

    def _write_run(self) -> bool:
        """Write the run file and its config again, from the one that is sound, if one is."""
        try:
            file: RunFile | None = read_run(self._backend, self._run)
        except (MissingFile, DamagedFile):
            file = recover_run(self._backend, self._run)
        except StandfastError:  # a newer release may have written it
            return False
        if file is not None:
            write_run(self._backend, file)
        return file is not None

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
        if not self._backend.list(self._folder, WHOLE):
            return
        try:
            with changing(self._backend, self._index, self._run):
                self._delete_damaged_names()
                for name in name_whole_files(self._backend, self._index, self._run):
                    self._found.restored[name] = "the name of a whole file, put right by its record"
        except _REFUSALS as error:
            self._found.unverified[self._folder] = (
                f"the names of whole files in {self._folder} were not checked: {said(error)}"
            )

    def _delete_damaged_names(self) -> None:
        """Delete the V3 names that are damaged copies of sound files; they are made again."""
        damaged = {extent.file for extent in self._bad}
        damaged |= {path.rpartition("/")[2] for path in self._found.damaged}
        for listed in self._index.newest(self._run):
            file = whole_of(listed.head)
            if file is None or file.name in damaged:
                continue
            try:
                check_name(self._backend, listed.head)
            except DigestMismatch:
                self._backend.delete([names.whole_file(self._run, listed.step)])
            except FileError as error:
                is_wrong(error)  # deleted just now, or damaged since it was looked at

    # Data files

    def _bad_chunks(
        self, file: DataFile, chunks: list[tuple[Extent, bytes]]
    ) -> dict[tuple[Extent, bytes], str]:
        """The chunks in a file, of those that records refer to, that are damaged, and how."""
        path = f"{self._folder}/{file.name}"
        try:
            opened = self._backend.open(path)
        except FileError as error:
            if not is_wrong(error):
                self._found.unverified[path] = said(error)
                return {}
            why = "is not there" if isinstance(error, MissingFile) else said(error)
            return dict.fromkeys(chunks, f"{file.name} {why}")
        if opened.size != file.size:
            opened.close()
            return dict.fromkeys(
                chunks, f"{file.name} has {opened.size:,} bytes, not {file.size:,}"
            )
        with closing(opened), Threads(worker_count()) as pool:
            intact = pool.map(lambda chunk: self._is_intact(opened, *chunk), chunks)
            bad = {
                chunk: f"{file.name} is damaged at offset {chunk[0].start:,}"
                for chunk, fine in zip(chunks, intact, strict=True)
                if not fine
            }
        if not bad:
            self._check_header(path, file)
        return bad

    def _still_bad(
        self, file: DataFile, chunks: list[tuple[Extent, bytes]]
    ) -> dict[tuple[Extent, bytes], str]:
        """Check again under the lock: a file that was deleted meanwhile is not damaged.

        If the lock cannot be taken, because the store is read-only or another process holds it,
        check without it: the damage is reported, although it cannot be repaired.
        """
        with ExitStack() as held:
            with suppress(*_REFUSALS):
                held.enter_context(change_of(self._backend, self._run))
            self._index.refresh()
            is_used = file.name in self._index.files(self._run)
            return self._bad_chunks(file, chunks) if is_used else {}

    def _relink(self, file: DataFile, chunks: list[tuple[Extent, bytes]]) -> bool:
        """Put another run's intact file of the same name in the place of a damaged one.

        There is one where a store was copied without its links.
        """
        target = f"{self._folder}/{file.name}"
        for other in self._index.runs():
            source = f"{names.run_folder(other.run)}/{file.name}"
            if other.run == self._run or self._backend.size(source) != file.size:
                continue
            try:
                with closing(self._backend.open(source)) as opened:
                    intact = all(
                        is_intact(opened, extent.start, extent.size, expected)
                        for extent, expected in chunks
                    )
                if intact and self._link(source, file):
                    self._found.restored[target] = f"linked to that of run {other.run}"
                    return True
            except MissingFile:
                continue  # deleted just now
            except _REFUSALS as error:
                self._found.damaged[target] = f"it was not restored: {said(error)}"
        return False

    def _link(self, source: str, file: DataFile) -> bool:
        """Link another run's file into this one, if a record of this one still refers to it."""
        target = f"{self._folder}/{file.name}"
        with changing(self._backend, self._index, self._run):
            if file.name not in self._index.files(self._run):
                return False
            if not self._backend.link(source, target, over=True):
                return False
            self._backend.sync(self._folder)
            trust(self._backend, self._run, file.name)
        return True

    def _is_intact(self, file: Opened, extent: Extent, expected: bytes) -> bool:
        fine = is_intact(file, extent.start, extent.size, expected)
        self._found.nbytes += extent.size
        self._progress(extent.size)
        return fine

    def _check_header(self, path: str, file: DataFile) -> None:
        try:
            check_header(self._backend, self._run, file)
        except MissingFile:
            return  # deleted since its chunks were read
        except StandfastError as error:
            self._found.add(path, error)
            if path in self._found.damaged:
                self._found.damaged[path] += "; the store reads its tensors, other programs do not"

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

    def _mend(self, step: int) -> None:
        """Let a record refer to other copies of its chunks that are damaged.

        It is read under the lock: what others change before is not undone.
        """
        ref = f"{self._run}@{step}"
        try:
            with changing(self._backend, self._index, self._run):
                self._mend_record(ref, read_record(self._backend, self._run, step))
        except RefNotFound:
            return  # deleted just now
        except _REFUSALS as error:
            self._found.damaged[ref] = f"it was not mended: {said(error)}"
        except DamagedFile as error:
            self._found.add(names.record_file(self._run, step), error)

    def _mend_record(self, ref: str, record: Record) -> None:
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
        self._backend.sync(self._folder)  # links that were made must be there before it
        new = encode_checked(with_extents(record, extents, files))
        self._backend.replace(names.record_file(self._run, record.head.step), new)


class Copy(NamedTuple):
    """Where a chunk may be found."""

    run: str
    extent: Extent
    file: DataFile


def _chunks(record: Record) -> Iterator[tuple[bytes, Extent]]:
    for tensor in range(len(record.names)):
        yield from chunks_of(record, tensor)
