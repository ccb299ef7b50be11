"""Chunks that need not be written again: where in the store they lie, and whether they may be used.

Whatever is found is a hint until its file was seen, in the run's own folder, with the size that
it had when it was written. Data files never change and their names are not used twice.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from contextlib import closing, suppress
from functools import cached_property
from typing import Final

from standfast.errors import FileError, MissingFile, StandfastError
from standfast.store.backends.backend import Backend
from standfast.store.index.index import Index
from standfast.store.load.reading import is_intact, read_record
from standfast.store.schema import names
from standfast.store.schema.extents import Extent, chunks_of
from standfast.store.schema.record import Record

MOST_FILES: Final = 128
"""A checkpoint in more files than these takes too many of what a process may have open."""
SMALL: Final = 64 << 10
"""Tensors of less than this are always written: to refer to them costs more than it saves."""


class Known:
    """The chunks that one save may refer to."""

    def __init__(self, backend: Backend, index: Index, run: str, parent: Record | None) -> None:
        self._backend = backend
        self._index = index
        self._run = run
        self._here = dict(shareable(parent)) if parent else {}
        self.files = index.files(run)
        """What is known of the data files that may be referred to."""
        self._usable: dict[str, bool] = dict.fromkeys(index.damaged_files(), False)
        self._give_up_small_files(parent)
        self._given_up: tuple[str, str] | None = None
        self.linked: list[str] = []
        """The files of other runs that were linked in, by their names here."""

    def _size(self, name: str) -> int | None:
        if self._backend.width > 1:
            return self._sizes.get(name)
        return self._backend.size(f"{names.run_folder(self._run)}/{name}")

    @cached_property
    def _sizes(self) -> Mapping[str, int]:
        """All at once; what is deleted meanwhile shows before the commit."""
        return self._backend.sizes(names.run_folder(self._run))

    def find(self, digest: bytes, size: int) -> Extent | None:
        """Where such a chunk lies in the run's folder; other runs' files are linked in for it."""
        extent = self._here.get(digest)
        if extent is not None and extent.size == size and self._is_usable(extent.file):
            return extent
        hint = self._index.find_chunk(digest, size)
        if hint is None or self._is_given_up(hint.name):
            return None
        if hint.run != self._run and hint.name not in self._usable:
            self._usable[hint.name] = self._link(hint.run, hint.name)
        found = Extent(hint.name, hint.start, size)
        if not self._is_usable(hint.name) or not self._is_there(found, digest):
            return None
        return found

    def _is_there(self, extent: Extent, digest: bytes) -> bool:
        """Whether the index is right: the record that it knows this from may be another by now."""
        try:
            file = self._backend.open(f"{names.run_folder(self._run)}/{extent.file}")
        except FileError:
            return False
        with closing(file):
            return is_intact(file, extent.start, extent.size, digest)

    def _give_up_small_files(self, parent: Record | None) -> None:
        """Write again what lies in the files that are used least, if there are very many."""
        files = sorted(parent.head.files, key=lambda file: -file.used) if parent else []
        if len(files) > MOST_FILES:
            self._usable |= {file.name: False for file in files[MOST_FILES // 2 :]}

    def give_up(self, beginning: str, end: str) -> None:
        """Refer to no file whose name begins and ends so, in no run's folder."""
        self._given_up = (beginning, end)

    def _is_given_up(self, name: str) -> bool:
        if self._given_up is None:
            return False
        beginning, end = self._given_up
        return name.startswith(beginning) and name.endswith(end)

    def add(self, digest: bytes, extent: Extent) -> None:
        """A chunk that was written just now."""
        self._here[digest] = extent
        self._usable[extent.file] = True

    def _is_usable(self, name: str) -> bool:
        if name not in self._usable:
            file = self.files.get(name)
            self._usable[name] = (
                file is not None
                and not self._is_given_up(name)
                # A file of which less than half is used is given up, so that its space comes
                # back once the checkpoints that still use it are deleted.
                and 2 * file.used >= file.held
                and self._size(name) == file.size
            )
        return self._usable[name]

    def _link(self, run: str, name: str) -> bool:
        """Let a file of another run be one of ours too."""
        file = self._index.files(run).get(name)
        source = f"{names.run_folder(run)}/{name}"
        target = f"{names.run_folder(self._run)}/{name}"
        if file is None or self._backend.size(source) != file.size:
            return False
        already = self._backend.size(target) is not None
        try:
            if not self._backend.link(source, target):
                return False
        except MissingFile:
            return False
        if not already:
            self.linked.append(name)
        self.files.setdefault(name, file)
        return True

    def learn(self, runs: int = 64) -> None:
        """Take the newest checkpoints of other runs into an index that knows none of their chunks.

        So it is after the index was lost. What they cannot tell is written once more, no worse.
        """
        have = self._index.learned()
        for listed in self._index.runs()[:runs]:
            if listed.run in have:
                continue
            newest = next(self._index.newest(listed.run), None)
            if newest is not None:
                with suppress(StandfastError):  # damaged, or deleted meanwhile: no use to us
                    remember(self._index, read_record(self._backend, newest.run, newest.step))


def shareable(record: Record) -> Iterator[tuple[bytes, Extent]]:
    """The chunks of a checkpoint that are worth referring to, by their digests."""
    for tensor in (record.nbytes >= SMALL).nonzero()[0].tolist():
        yield from chunks_of(record, tensor)


def remember(index: Index, record: Record, files: Collection[str] | None = None) -> None:
    """Let other runs, and later checkpoints, find the chunks of this one, or of some files."""
    run = record.head.run
    index.add_chunks(
        run,
        [
            (digest, extent.size, run, extent.file, extent.start)
            for digest, extent in shareable(record)
            if files is None or extent.file in files
        ],
    )
