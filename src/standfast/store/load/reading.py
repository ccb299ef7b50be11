"""A record and its data files become verified bytes."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any, NamedTuple, Self, TypeVar

import numpy as np

from standfast.errors import (
    DamagedFile,
    DigestMismatch,
    FileError,
    LimitExceeded,
    MissingData,
    MissingFile,
    RefNotFound,
    StandfastError,
    TooNew,
    TruncatedFile,
)
from standfast.files.device_reader import Stretch, stream
from standfast.files.digests import CHUNK, digest
from standfast.files.forms import gathered
from standfast.files.reader import Opened, Progress, Reader
from standfast.store.backends.backend import NO_ANSWER, Backend
from standfast.store.load.needed import FROM, Extents, bases_of, is_all_of, with_bases
from standfast.store.schema import names
from standfast.store.schema.boxes import (
    box_nbytes,
    cut_by,
    is_in_order,
    slices,
    whole_box,
)
from standfast.store.schema.damage import is_damage
from standfast.store.schema.decoder import decode
from standfast.store.schema.record import MAX_RECORD, Head, Record
from standfast.store.tree.aliases import view_array
from standfast.tensors import TensorSpec
from standfast.tensors.devices import Device, Incoming
from standfast.tensors.shards import Box
from standfast.tensors.sources import ALIGNMENT, Bytes, aligned_bytes

Array = np.ndarray[Any, Any]
Item = TypeVar("Item")


def read_record(backend: Backend, run: str, step: int) -> Record:
    """The record of a checkpoint; raises RefNotFound, TooNew or a DamagedFile."""
    name = names.record_file(run, step)
    try:
        size = backend.size(name)
        if size is not None and size > MAX_RECORD:
            raise LimitExceeded(f"{size:,} bytes, over {MAX_RECORD:,}")
        return decode(backend.read(name), run, step)
    except MissingFile as error:
        raise RefNotFound(f"run {run} has no checkpoint of step {step}") from error
    except (DamagedFile, TooNew) as error:
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
    except StandfastError:
        pass  # its record is damaged too
    return MissingData(
        f"{step}: its file {name} is not there; `standfast doctor` looks for another copy"
    )


def is_intact(file: Opened, start: int, size: int, expected: bytes) -> bool:
    """Whether a chunk of an open file is what its digest says."""
    if start < 0 or start + size > file.size:
        return False
    data = np.empty(size, np.uint8)
    try:
        file.read_into(data, start)
    except StandfastError as error:
        if isinstance(error, FileError) and error.errno in NO_ANSWER:
            raise
        return False
    return digest(data) == expected


class Arrival(NamedTuple):
    """All bytes of a tensor that is no view, on their way into one on a device."""

    tensor: int
    target: Any
    """A tensor of a framework, in C order."""
    dtype: str
    """What they are elements of, if they are cast; `uint8` if not."""
    box: int | None = None
    """If the tensor is in boxes and the target is to have only one of them, its number."""


class StoredBox(NamedTuple):
    """A box of a tensor as it lies in files: its bytes in C order, extent by extent."""

    box: Box
    extents: Sequence[tuple[Reader, int]]
    """The reader of the file and the row in its index of each."""


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
        self._extents = Extents(record, with_bases(record, tensors))
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

    def __exit__(self, *error: object) -> None:
        self._stack.close()

    def check(self, progress: Progress | None = None) -> None:
        """Verify everything; a DigestMismatch names all tensors that are damaged."""
        mismatches = []
        for number in self._readers:
            try:
                self._read(number, self._extents.rows(number), progress)
            except DigestMismatch as error:
                mismatches.append(error)
        if mismatches:
            names = [name for error in mismatches for name in error.tensors]
            raise DigestMismatch(str(mismatches[0]), whole_names(names))

    def _read(self, file: int, rows: Sequence[int], progress: Progress | None) -> list[Bytes]:
        """These rows of one file, verified."""
        with self._noting_damage(file):
            return self._readers[file].tensors(rows, progress)

    @contextmanager
    def _noting_damage(self, file: int) -> Iterator[None]:
        """Report a file as damaged if it turns out to be while it is read."""
        try:
            yield
        except StandfastError as error:
            if is_damage(error):
                self._damaged(self.record.head.files[file].name)
            raise

    def load(
        self, progress: Progress | None = None, tensors: Iterable[int] | None = None
    ) -> dict[int, Bytes]:
        """The bytes of tensors that are no views, by number, each verified; of all by default.

        They are mapped where they lie in one piece, aligned, and no other tensor shares it.
        """
        pieces, shared = self._extents.pieces, self._extents.shared
        wanted = pieces if tensors is None else dict.fromkeys(tensors)
        rows = self._extents.rows_of(wanted)
        found = {
            (file, row): data
            for file, each in rows.items()
            for row, data in zip(each, self._read(file, each, progress), strict=True)
        }
        loaded = {}
        for tensor in wanted:
            data = [found[place] for place in pieces[tensor]]
            if tensor in self.record.boxes:
                loaded[tensor] = self._put_together(tensor, data)
                continue
            own = len(data) == 1 and tensor not in shared
            loaded[tensor] = data[0] if own and _is_fit(data[0]) else gathered(data)
        return loaded

    def _put_together(self, tensor: int, data: Sequence[Bytes]) -> Bytes:
        """The bytes of a tensor that is in boxes, from those of its extents."""
        spec, boxes = self.record.specs[tensor], self.record.boxes[tensor]
        if is_in_order(spec, boxes):
            return gathered(data)
        whole = aligned_bytes(spec.nbytes)
        array = spec.view(whole)
        for box, each in zip(boxes, self._by_box(tensor, data), strict=True):
            part = each[0] if len(each) == 1 else gathered(each)
            array[slices(box)] = TensorSpec(spec.dtype, box.shape).view(part)
        return whole

    def _by_box(self, tensor: int, extents: Sequence[Item]) -> Iterator[list[Item]]:
        """What there is for each extent of a tensor that is in boxes, box by box."""
        record = self.record
        sizes = box_nbytes(record.specs[tensor], record.boxes[tensor])
        first, end = record.first_extents[tensor], record.first_extents[tensor + 1]
        for numbers in cut_by(sizes, record.sizes[first:end].tolist()):
            yield [extents[number] for number in numbers]

    def stream(self, device: Device, arrivals: Iterable[Arrival]) -> None:
        """Fill tensors on a device; each chunk is verified before it is copied there.

        A DigestMismatch names all tensors that were found damaged; some are filled by then.
        """
        arrivals, scattered = self._sorted(arrivals)
        for tensor, target, dtype, _ in scattered:
            data = self.load(tensors=[tensor])[tensor]
            device.copy_in([Incoming(data, target, 0, dtype)]).wait()
        files = {reader: file for file, reader in self._readers.items()}
        try:
            stream(
                device,
                [stretch for arrival in arrivals for stretch in self._stretches(arrival)],
                damaged=lambda reader: self._damaged(self.record.head.files[files[reader]].name),
            )
        except DigestMismatch as error:
            error.tensors = whole_names(error.tensors)
            raise

    def _sorted(self, arrivals: Iterable[Arrival]) -> tuple[list[Arrival], list[Arrival]]:
        """Those whose bytes lie in the files in the order of the target, and all others."""
        streamed: list[Arrival] = []
        scattered: list[Arrival] = []
        for arrival in arrivals:
            boxes = self.record.boxes.get(arrival.tensor)
            whole = boxes is None or arrival.box is not None
            spec = self.record.specs[arrival.tensor]
            is_fit = whole or is_in_order(spec, self.record.boxes[arrival.tensor])
            (streamed if is_fit else scattered).append(arrival)
        return streamed, scattered

    def _stretches(self, arrival: Arrival) -> Iterator[Stretch]:
        tensor, target, dtype, box = arrival
        start = 0
        pieces = self._extents.pieces[tensor]
        if box is not None:
            pieces = [*self._by_box(tensor, pieces)][box]
        for file, row in pieces:
            yield Stretch(self._readers[file], row, target, start, dtype)
            start += int(self._extents.indexes[file].sizes[row])

    def check_pieces(self, tensors: Iterable[int] | None = None) -> None:
        """Verify all that these need, or everything; what is not mapped is not kept in memory."""
        wanted = self._extents.pieces if tensors is None else bases_of(self.record, tensors)
        for file, rows in self._extents.rows_of(wanted).items():
            reader = self._readers[file]
            with self._noting_damage(file):
                if reader.is_mapped:
                    reader.tensors(rows)
                else:
                    for row in rows:
                        reader.check(row)

    def array(self, tensor: int) -> Array:
        """One tensor as an array, to be looked at and let go."""
        view = self.record.views.get(tensor)
        stored = tensor if view is None else view.base
        if self._last is None or self._last[0] != stored:  # several views may follow each other
            self._last = None  # before the next one takes its memory
            found = self._extents.pieces[stored]
            pieces = [self._readers[file].tensor(row) for file, row in found]
            if stored in self.record.boxes:
                self._last = stored, self._put_together(stored, pieces)
            else:
                self._last = stored, pieces[0] if len(pieces) == 1 else gathered(pieces)
        data = self._last[1]
        if view is None:
            return self.record.specs[tensor].view(data)
        return view_array(data, self.record.specs[tensor], view.offset, view.strides)

    def stored_boxes(self, tensor: int) -> list[StoredBox] | None:
        """The boxes that a tensor lies in; None for one that is a part of another."""
        view = self.record.views.get(tensor)
        if view is not None and not is_all_of(self.record, tensor):
            return None
        stored = tensor if view is None else view.base
        boxes = self.record.boxes.get(stored)
        pieces = self._extents.pieces[stored]
        if boxes is None:
            boxes, of_boxes = [whole_box(self.record.specs[tensor])], [pieces]
        else:
            of_boxes = [*self._by_box(stored, pieces)]
        return [
            StoredBox(box, [(self._readers[file], row) for file, row in extents])
            for box, extents in zip(boxes, of_boxes, strict=True)
        ]

    def found_damaged(self, reader: Reader) -> None:
        """A chunk of a file is not what was saved: nothing refers to it from now on."""
        file = next(file for file, each in self._readers.items() if each is reader)
        self._damaged(self.record.head.files[file].name)

    def check_unchanged(self) -> None:
        """Raise ChangedFile if a file was written to since it was opened."""
        for reader in self._readers.values():
            reader.check_unchanged()

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

    def arrays(
        self, progress: Progress | None = None, tensors: Iterable[int] | None = None
    ) -> dict[int, Array]:
        """Tensors as arrays, by number, and what they are views of; all by default.

        Those that were tied share their memory.
        """
        wanted = self._extents.tensors if tensors is None else with_bases(self.record, tensors)
        specs, views = self.record.specs, self.record.views
        loaded = self.load(progress, None if tensors is None else bases_of(self.record, wanted))
        arrays = {tensor: specs[tensor].view(data) for tensor, data in loaded.items()}
        for tensor in wanted:
            if tensor in views:
                view = views[tensor]
                base = arrays[view.base].reshape(-1).view(np.uint8)
                arrays[tensor] = view_array(base, specs[tensor], view.offset, view.strides)
        return arrays


def _is_fit(data: Bytes) -> bool:
    """Whether mapped bytes can be handed out as they are."""
    address: int = data.__array_interface__["data"][0]
    return data.flags.writeable and address % ALIGNMENT == 0


def whole_names(names: Iterable[str]) -> tuple[str, ...]:
    """The names of tensors, of which some are damaged in several of their extents."""
    return tuple(dict.fromkeys(name.partition(FROM)[0] for name in names))
