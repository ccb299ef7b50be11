"""A record and its data files become verified bytes."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack
from types import TracebackType
from typing import Any, Final, Self

import numpy as np

from holdfast.errors import (
    DamagedFile,
    DigestMismatch,
    HoldfastError,
    LimitExceeded,
    MissingData,
    MissingFile,
    RefNotFound,
    TruncatedFile,
)
from holdfast.files.copying import gathered
from holdfast.files.digests import CHUNK, DIGEST, digest
from holdfast.files.layout import Index
from holdfast.files.reader import Progress, Reader
from holdfast.files.source_file import SourceFile
from holdfast.files.source_memory import SourceMemory
from holdfast.store import names
from holdfast.store.aliases import view_array
from holdfast.store.backend import Backend
from holdfast.store.decoding import decode
from holdfast.store.record import MAX_RECORD, Head, Record
from holdfast.tensors.sources import ALIGNMENT, Bytes

Array = np.ndarray[Any, Any]
_FROM: Final = " from byte "


def read_record(backend: Backend, run: str, step: int) -> Record:
    """The record of a checkpoint; raises RefNotFound, or a DamagedFile that says what is wrong."""
    name = names.record_file(run, step)
    try:
        size = backend.size(name)
        if size is not None and size > MAX_RECORD:
            raise LimitExceeded(f"{size:,} bytes, over {MAX_RECORD:,}")
        return decode(backend.read(name), run, step)
    except MissingFile as error:
        raise RefNotFound(f"run {run} has no checkpoint of step {step}") from error
    except DamagedFile as error:
        error.args = (f"{name}: {error}", *error.args[1:])
        raise


def gone(backend: Backend, head: Head, name: str) -> MissingData | RefNotFound:
    """The error for a data file that is not there: lost, or deleted with its checkpoint."""
    step = f"step {head.step} of run {head.run}"
    try:
        if read_record(backend, head.run, head.step).head != head:
            return RefNotFound(f"{step} was replaced meanwhile: resolve it again")
    except RefNotFound:
        return RefNotFound(f"{step} was deleted meanwhile")
    except HoldfastError:
        pass  # its record is damaged too
    return MissingData(
        f"{step}: its file {name} is not there; `holdfast doctor` looks for another copy"
    )


def is_intact(file: SourceFile | SourceMemory, start: int, size: int, expected: bytes) -> bool:
    """Whether a chunk of an open file is what its digest says."""
    if start < 0 or start + size > file.size:
        return False
    data = np.empty(size, np.uint8)
    try:
        file.read_into(data, start)
    except HoldfastError:
        return False
    return digest(data) == expected


class Data:
    """The data files of a checkpoint, open.

    All that will be read is opened at once: a file that is deleted afterwards stays readable.
    Bytes that are handed out are private to the caller, who may change them.
    """

    def __init__(
        self,
        backend: Backend,
        record: Record,
        *,
        tensors: Iterable[int] | None = None,
        verify: bool = True,
        mapped: bool | None = None,
        damaged: Callable[[str], None] | None = None,
    ) -> None:
        """The tensors by number, all by default; `damaged` is told of files that are."""
        self.record = record
        self._damaged = damaged or (lambda name: None)
        self._last: tuple[int, Bytes] | None = None
        self._extents = _Extents(record, _with_bases(record, tensors))
        self._readers: dict[int, Reader] = {}
        self._stack = ExitStack()
        folder = names.run_folder(record.head.run)
        with self._stack:
            for number, index in self._extents.indexes.items():
                expected = record.head.files[number]
                try:
                    file = backend.open(f"{folder}/{expected.name}")
                except MissingFile as error:
                    raise gone(backend, record.head, expected.name) from error
                self._stack.callback(file.close)
                if file.size != expected.size:
                    raise TruncatedFile(
                        f"{file.path}: it has {file.size:,} bytes; the record of step "
                        f"{record.head.step} says {expected.size:,}"
                    )
                self._readers[number] = Reader(
                    file, index, mapped=mapped, writable=True, verify=verify
                )
            self._stack = self._stack.pop_all()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        at: TracebackType | None,
    ) -> None:
        self._stack.close()

    def check(self, progress: Progress | None = None) -> None:
        """Verify everything; a DigestMismatch names all tensors that are damaged."""
        mismatches = []
        for number in self._readers:
            try:
                self._read(number, progress)
            except DigestMismatch as error:
                mismatches.append(error)
        if mismatches:
            names = dict.fromkeys(
                name.partition(_FROM)[0] for error in mismatches for name in error.tensors
            )
            raise DigestMismatch(str(mismatches[0]), tuple(names))

    def _read(self, file: int, progress: Progress | None) -> list[Bytes]:
        """All that is wanted of one file, verified."""
        try:
            rows = range(len(self._extents.indexes[file].rows))
            return self._readers[file].tensors(rows, progress)
        except DigestMismatch:
            self._damaged(self.record.head.files[file].name)
            raise

    def load(self, progress: Progress | None = None) -> dict[int, Bytes]:
        """The bytes of all tensors that are no views, by number, each verified.

        They are mapped where they lie in one piece, aligned, and no other tensor shares it.
        """
        found = {file: self._read(file, progress) for file in self._readers}
        loaded = {}
        for tensor, pieces in self._extents.pieces.items():
            data = [found[file][row] for file, row in pieces]
            own = len(data) == 1 and tensor not in self._extents.shared
            loaded[tensor] = data[0] if own and _is_fit(data[0]) else gathered(data)
        return loaded

    def check_pieces(self) -> None:
        """Verify everything, and keep nothing of it in memory that is not mapped."""
        for file, reader in self._readers.items():
            try:
                if reader.is_mapped:
                    self._read(file, None)
                else:
                    for row in range(len(self._extents.indexes[file].rows)):
                        reader.check(row)
            except DigestMismatch:
                self._damaged(self.record.head.files[file].name)
                raise

    def array(self, tensor: int) -> Array:
        """One tensor as an array, to be looked at and let go."""
        view = self.record.views.get(tensor)
        stored = tensor if view is None else view.base
        if self._last is None or self._last[0] != stored:  # several views may follow each other
            self._last = None  # before the next one takes its memory
            found = self._extents.pieces[stored]
            pieces = [self._readers[file].tensor(row) for file, row in found]
            self._last = stored, pieces[0] if len(pieces) == 1 else gathered(pieces)
        data = self._last[1]
        if view is None:
            return self.record.specs[tensor].view(data)
        return view_array(data, self.record.specs[tensor], view.offset, view.strides)

    def chunk(self, tensor: int, number: int) -> Bytes:
        """One chunk of a tensor that is no view; nothing else is read, or verified."""
        at, size = number * CHUNK, int(self.record.nbytes[tensor])
        for file, row in self._extents.pieces[tensor]:
            length = int(self._extents.indexes[file].sizes[row])
            if at < length:  # an extent begins with a chunk, and ends with one or with the tensor
                break
            at -= length
        try:
            stop = at + min(CHUNK, size - number * CHUNK)
            return self._readers[file].part(row, [(at, stop)])[0]
        except DigestMismatch:
            self._damaged(self.record.head.files[file].name)
            raise

    def arrays(self, progress: Progress | None = None) -> dict[int, Array]:
        """All tensors asked for as arrays, by number; those that were tied share their memory."""
        loaded = self.load(progress)
        specs, views = self.record.specs, self.record.views
        arrays = {tensor: specs[tensor].view(data) for tensor, data in loaded.items()}
        for tensor in self._extents.tensors:
            if tensor in views:
                view = views[tensor]
                base = arrays[view.base].reshape(-1).view(np.uint8)
                arrays[tensor] = view_array(base, specs[tensor], view.offset, view.strides)
        return arrays


def _is_fit(data: Bytes) -> bool:
    """Whether mapped bytes can be handed out as they are."""
    address: int = data.__array_interface__["data"][0]
    return data.flags.writeable and address % ALIGNMENT == 0


class _Extents:
    """Which bytes of which files the tensors need, as an index for the reader of each file."""

    def __init__(self, record: Record, tensors: Sequence[int]) -> None:
        self.tensors = tensors
        self.pieces: dict[int, list[tuple[int, int]]] = {}
        """Of each tensor, the file and the row in the file's index of each of its extents."""
        rows: dict[int, _Rows] = {}
        for tensor in tensors:
            if tensor not in record.views:
                self.pieces[tensor] = list(_place(record, tensor, rows))
        self.indexes = {
            file: each.index(record.head.files[file].size) for file, each in rows.items()
        }
        self.shared = {tensor for each in rows.values() for tensor in each.shared()}
        """The tensors that were separate, and whose bytes in the file another one has too."""


class _Rows:
    """The extents of one file."""

    def __init__(self) -> None:
        self.starts: list[int] = []
        self.sizes: list[int] = []
        self.names: list[str] = []
        self.digests: list[bytes] = []
        self.owners: list[int] = []

    def add(self, start: int, size: int, name: str, digests: bytes, owner: int) -> int:
        self.starts.append(start)
        self.sizes.append(size)
        self.names.append(name)
        self.digests.append(digests)
        self.owners.append(owner)
        return len(self.starts) - 1

    def index(self, end: int) -> Index:
        rows: dict[str, int] = {}
        for row, name in enumerate(self.names):
            while name in rows:  # a tensor is called what a stretch of another is
                name += f" (row {row})"
            rows[name] = row
        return Index(
            format="safetensors",
            metadata={},
            rows=rows,
            dtypes=["uint8"] * len(self.sizes),
            shapes=[(size,) for size in self.sizes],
            starts=np.array(self.starts, np.int64),
            sizes=np.array(self.sizes, np.int64),
            end=end,
            digests=b"".join(self.digests),
        )

    def shared(self) -> Iterator[int]:
        """The tensors that have bytes which one before them has."""
        starts, sizes = np.array(self.starts), np.array(self.sizes)
        order = np.lexsort((-sizes, starts))
        ends = np.maximum.accumulate((starts + sizes)[order])
        overlaps = np.flatnonzero(starts[order][1:] < ends[:-1]) + 1
        yield from (self.owners[row] for row in order[overlaps])


def _place(record: Record, tensor: int, rows: dict[int, _Rows]) -> Iterator[tuple[int, int]]:
    """Enter the extents of one tensor into the rows of their files."""
    chunks = record.chunk_digests(tensor)
    name, done = record.names[tensor], 0
    for extent in range(record.first_extents[tensor], record.first_extents[tensor + 1]):
        file, size = int(record.files[extent]), int(record.sizes[extent])
        first = done // CHUNK * DIGEST
        digests = chunks[first : first + -(-size // CHUNK) * DIGEST]
        label = f"{name}{_FROM}{done:,}" if done else name
        each = rows.setdefault(file, _Rows())
        yield file, each.add(int(record.starts[extent]), size, label, digests, tensor)
        done += size


def _with_bases(record: Record, tensors: Iterable[int] | None) -> Sequence[int]:
    """The tensors asked for, all by default, and the bases of those that are views."""
    if tensors is None:
        return range(len(record.names))
    wanted = dict.fromkeys(tensors)
    wanted.update(dict.fromkeys(record.views[t].base for t in [*wanted] if t in record.views))
    return list(wanted)
