"""Open a file: its names, specs and metadata at once, its tensors when they are asked for."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any, BinaryIO, Self

import numpy as np

from standfast.errors import (
    DamagedFile,
    RefusedPickle,
    TensorNotFound,
    UnsupportedFile,
)
from standfast.files.device_reader import Stretch
from standfast.files.digests import CHUNK, DIGEST
from standfast.files.forms import as_array
from standfast.files.input.file import SourceFile
from standfast.files.input.ranges import SourceRanges
from standfast.files.input.stream import SourceStream
from standfast.files.layout import Index, Row
from standfast.files.read_back import digests_on_disk
from standfast.files.reader import Progress, Reader
from standfast.formats import format_of_file
from standfast.formats.reader import Options
from standfast.formats.trees import with_leaves
from standfast.tensorfile.slices import ArraySlice, TensorSlice
from standfast.tensors import Source, TensorSpec
from standfast.tensors.sources import Bytes

Array = np.ndarray[Any, Any]


class TensorFile(Mapping[str, Array]):
    """An open file: a mapping of names to read-only NumPy arrays, and a context manager.

    Arrays taken from it stay valid after it is closed.

    >>> with standfast.open("model.safetensors") as file:
    ...     bias = file["bias"]
    ...     rows = file.slice("weight")[10:20]
    """

    def __init__(
        self,
        source: str | os.PathLike[str] | BinaryIO | SourceRanges,
        *,
        mapped: bool | None = None,
        writable: bool = False,
        verify: bool = True,
        names: Sequence[str] | None = None,
        tensors_only: bool = False,
    ) -> None:
        options = Options(verify, names, tensors_only)
        self._writable = writable
        self._file: SourceFile | SourceStream | SourceRanges
        if isinstance(source, SourceRanges):
            self._file = source
        elif isinstance(source, str | bytes | os.PathLike) or not hasattr(source, "read"):
            self._file = SourceFile(source)  # type: ignore[arg-type]
        else:
            self._file = SourceStream(source)
        try:
            self._index = _read_index(self._file, options)
            self._reader = Reader(
                self._file, self._index, mapped=mapped, writable=writable, verify=verify
            )
        except (DamagedFile, UnsupportedFile, RefusedPickle) as error:
            self._file.close()
            error.args = (f"{self._file.path}: {error}", *error.args[1:])
            raise
        except BaseException:
            self._file.close()
            raise

    @property
    def path(self) -> str:
        """Where the file lies, as it was given."""
        return self._file.path

    @property
    def format(self) -> str:
        """The name of the file's format."""
        return self._index.format

    @property
    def metadata(self) -> dict[str, Any]:
        """The metadata as it was saved, with its types."""
        return dict(self._index.metadata)

    @property
    def left_out(self) -> dict[str, str]:
        """What `tensors_only` left out, with all that is in it: the class's name by its path."""
        return dict(self._index.left_out)

    @property
    def metadata_text(self) -> bytes | None:
        """The metadata as it is written in the file, in formats where that says more."""
        return self._index.text

    @property
    def has_digests(self) -> bool:
        """Whether the file's tensors are verified: it holds digests, and they were asked for."""
        return self._index.digests is not None

    @property
    def has_crcs(self) -> bool:
        """Whether all that can be checked are the sums that NumPy and zip tools leave."""
        return not self.has_digests and self._index.crcs is not None

    @property
    def is_mapped(self) -> bool:
        """Whether arrays lie in the file itself, and take no memory of their own."""
        return self._reader.is_mapped

    def spec(self, name: str) -> TensorSpec:
        """A tensor's dtype and logical shape."""
        return self._index.spec(self._row(name))

    def outline(self) -> Any:
        """The tree, with arrays that take no memory, and are not read, in the place of its own."""
        specs = [self.spec(name) for name in self]
        blanks = [np.zeros((), spec.kind.numpy) for spec in specs]
        shapes = [spec.array_shape for spec in specs]
        return self.tree(dict(zip(self, map(np.broadcast_to, blanks, shapes), strict=True)))

    def slice(self, name: str) -> TensorSlice | ArraySlice:
        """A tensor to take slices of, without reading the rest: `file.slice("weight")[10:20]`."""
        row = self._row(name)
        if row in self._index.forms:
            return ArraySlice(self[name])
        return TensorSlice(self._reader, row, self.spec(name))

    def place(self, name: str) -> int | None:
        """Where the bytes of a tensor begin; None if they are not contiguous in the file."""
        row = self._row(name)
        return None if row in self._index.forms else int(self._index.starts[row])

    def tree(self, arrays: dict[str, Array] | None = None) -> Any:
        """The tree that the tensors hang on, with arrays as its leaves, those given or its own.

        It is what was saved where the format keeps trees (torch's does): dicts, lists, tuples
        and plain values. Elsewhere it is the dict of all tensors.
        """
        arrays = self.arrays() if arrays is None else arrays
        if self._index.tree is None:
            return arrays
        by_row = list(arrays.values())
        return with_leaves(
            self._index.tree[0], lambda leaf: by_row[leaf.row] if isinstance(leaf, Row) else leaf
        )

    def source(self, name: str) -> Source:
        """A tensor as a source of bytes, to be copied elsewhere piece by piece.

        What lies plainly in the file is not verified here: whoever copies it hashes it too.
        """
        return self._reader.source(self._row(name))

    def stored_digests(self) -> dict[str, bytes]:
        """The chunk digests that the file holds, of the tensors that lie in it plainly."""
        if self._index.digests is None:
            return {}
        digests = self._by_tensor(self._index.digests)
        forms = self._index.forms
        return {
            name: digests[name]
            for name, row in self._index.rows.items()
            if row not in forms or forms[row].record is not None
        }

    def data(self, name: str) -> Bytes:
        """The bytes of a tensor, verified, where they lie: they may be aligned to nothing."""
        return self._reader.tensor(self._row(name))

    def chunks(self, name: str) -> Callable[[int], Bytes] | None:
        """What gives the bytes of one chunk of a tensor, verified; None if it is read whole."""
        row = self._row(name)
        if self._index.digests is None or row in self._index.forms:
            return None
        size = int(self._index.sizes[row])

        def chunk(number: int) -> Bytes:
            start = number * CHUNK
            return self._reader.part(row, [(start, min(start + CHUNK, size))])[0]

        return chunk

    def reading(self, names: Iterable[str]) -> AbstractContextManager[None]:
        """Nothing to be done: the file is open."""
        return nullcontext()

    def _by_tensor(self, digests: bytes) -> dict[str, bytes]:
        ends = (self._index.first_chunks * DIGEST).tolist()
        return {n: digests[ends[row] : ends[row + 1]] for n, row in self._index.rows.items()}

    def check(self, name: str) -> None:
        """Verify a tensor against the digests in the file, without handing it out."""
        self._reader.check(self._row(name))

    def expect_in_order(self) -> None:
        """Let the system read far ahead of a caller who goes through the file front to back."""
        self._reader.expect_in_order()

    def give_back(self) -> None:
        """Let the memory go that verifying took; only before anybody writes to the arrays."""
        self._reader.give_back()

    def digests_on_disk(self) -> dict[str, bytes]:
        """The chunk digests of all tensors, as the disk gives their bytes back."""
        return self._by_tensor(digests_on_disk(Path(self.path), self._index))

    def check_unchanged(self) -> None:
        """Raise ChangedFile if the file was written to since it was opened."""
        self._file.check_unchanged()

    def check_in_place(self) -> None:
        """Raise ChangedFile if the path leads to another file by now."""
        if isinstance(self._file, SourceFile):
            self._file.check_in_place()

    def arrays(
        self, progress: Progress | None = None, names: Iterable[str] | None = None
    ) -> dict[str, Array]:
        """All tensors at once, or those of these names, read on several threads."""
        rows = [int(row) for row in self._index.file_order]
        if names is not None:
            wanted = {self._row(name) for name in names}
            rows = [row for row in rows if row in wanted]
        data = dict(zip(rows, self._reader.tensors(rows, progress), strict=True))
        return {
            n: self._array(row, data[row]) for n, row in self._index.rows.items() if row in data
        }

    def turns(self, most: int) -> Iterator[list[str]]:
        """The names of all tensors as they lie in the file, of up to `most` bytes at a time."""
        names, turn, size = list(self._index.rows), list[str](), 0
        for row in map(int, self._index.file_order):
            length = int(self._index.sizes[row])
            if turn and size + length > most:
                yield turn
                turn, size = [], 0
            turn.append(names[row])
            size += length
        yield turn

    def stretch(self, name: str, target: Any) -> Stretch | None:
        """All of a tensor, to be streamed into one on a device; None if it cannot be."""
        row = self._row(name)
        if not self._reader.streams(row):
            return None
        return Stretch(self._reader, row, target, 0, self._index.dtypes[row])

    def close(self) -> None:
        """Close the file; arrays taken from it stay valid."""
        self._file.close()

    def __getitem__(self, name: str) -> Array:
        row = self._row(name)
        return self._array(row, self._reader.tensor(row))

    def __iter__(self) -> Iterator[str]:
        return iter(self._index.rows)

    def __len__(self) -> int:
        return len(self._index.rows)

    def __contains__(self, name: object) -> bool:
        return name in self._index.rows

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<{self.format} file {self._file.path!r} with {len(self)} tensors>"

    def _row(self, name: str) -> int:
        row = self._index.rows.get(name)
        if row is None:
            raise TensorNotFound(f"{self._file.path}: there is no tensor {name!r}")
        return row

    def _array(self, row: int, data: Bytes) -> Array:
        try:
            array = as_array(data, self._index.spec(row), self._index.forms.get(row))
        except DamagedFile as error:
            error.args = (f"{self.path}: {error}", *error.args[1:])
            raise
        array.flags.writeable = self._writable
        return array


def _read_index(file: SourceFile | SourceStream | SourceRanges, options: Options) -> Index:
    if not isinstance(file, SourceStream):
        head = file.read(0, min(1024, file.size))
        format = format_of_file(file.path, head, file.size)
        return format.read_index(file.read, file.size, options)
    # Ten bytes tell the formats apart that can be read front to back; none is shorter.
    head = file.read(0, 10)
    format = format_of_file(file.path, head, 1 << 62)
    if not format.SEEKS:
        index = format.read_index(file.read, None, options)
        file.read_up_to(index.end)
        return index
    file.read_to_its_end()
    format = format_of_file(file.path, file.read(0, min(1024, file.size)), file.size)
    return format.read_index(file.read, file.size, options)


def open(
    source: str | os.PathLike[str] | BinaryIO,
    *,
    mapped: bool | None = None,
    verify: bool = True,
    names: Sequence[str] | None = None,
    tensors_only: bool = False,
) -> TensorFile:
    """Open a file of tensors; only its header is read now.

    Arrays are read-only views of the mapped file. `mapped=False` reads them into memory instead;
    by default a file is mapped unless it lies on a network file system. Each tensor, or each
    chunk that a slice touches, is checked at its first use, unless `verify=False`.

    A binary stream is read into memory, as far as its content reaches. `names` are for `.tenzor`
    files that hold only the hashes of names; `tensors_only` is for torch files that hold objects
    of other programs: they are left out rather than refused.

    >>> with standfast.open("model.safetensors") as file:
    ...     print(file.metadata, file.spec("bias"), file["bias"])
    """
    return TensorFile(source, mapped=mapped, verify=verify, names=names, tensors_only=tensors_only)
