"""Open a file: its names, specs and metadata at once, its tensors when they are asked for."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from types import TracebackType
from typing import Any, Self

import numpy as np

from holdfast.errors import DamagedFile, TensorNotFound
from holdfast.files.reader import Progress, Reader
from holdfast.files.source_file import SourceFile
from holdfast.formats import format_of_file
from holdfast.tensors import TensorSpec
from holdfast.tensors.sources import Bytes
from holdfast.verbs.slices import TensorSlice

Array = np.ndarray[Any, Any]


class TensorFile(Mapping[str, Array]):
    """An open file: a mapping of names to read-only NumPy arrays, and a context manager.

    Arrays taken from it stay valid after it is closed.

    >>> with holdfast.open("model.safetensors") as file:
    ...     bias = file["bias"]
    ...     rows = file.slice("weight")[10:20]
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        mapped: bool | None = None,
        writable: bool = False,
        verify: bool = True,
    ) -> None:
        self._writable = writable
        self._file = SourceFile(path)
        try:
            head = self._file.read(0, min(64, self._file.size))
            format = format_of_file(path, head, self._file.size)
            self._index = format.read_index(self._file.read, self._file.size, verify)
            self._reader = Reader(
                self._file, self._index, mapped=mapped, writable=writable, verify=verify
            )
        except DamagedFile as error:
            self._file.close()
            error.args = (f"{self._file.path}: {error}", *error.args[1:])
            raise
        except BaseException:
            self._file.close()
            raise

    @property
    def format(self) -> str:
        """The name of the file's format."""
        return self._index.format

    @property
    def metadata(self) -> dict[str, Any]:
        """The metadata as it was saved, with its types."""
        return dict(self._index.metadata)

    @property
    def has_digests(self) -> bool:
        """Whether the file's tensors are verified: it holds digests, and they were asked for."""
        return self._index.digests is not None

    def spec(self, name: str) -> TensorSpec:
        """A tensor's dtype and logical shape."""
        return self._index.spec(self._row(name))

    def slice(self, name: str) -> TensorSlice:
        """A tensor to take slices of, without reading the rest: `file.slice("weight")[10:20]`."""
        return TensorSlice(self._reader, self._row(name), self.spec(name))

    def arrays(self, progress: Progress | None = None) -> dict[str, Array]:
        """All tensors at once, read in the order of the file, on several threads."""
        rows = [int(row) for row in self._index.file_order]
        data = dict(zip(rows, self._reader.tensors(rows, progress), strict=True))
        return {name: self._array(row, data[row]) for name, row in self._index.rows.items()}

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

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        at: TracebackType | None,
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<{self.format} file {self._file.path!r} with {len(self)} tensors>"

    def _row(self, name: str) -> int:
        row = self._index.rows.get(name)
        if row is None:
            raise TensorNotFound(f"{self._file.path}: there is no tensor {name!r}")
        return row

    def _array(self, row: int, data: Bytes) -> Array:
        array = self._index.spec(row).view(data)
        array.flags.writeable = self._writable
        return array


def open(
    path: str | os.PathLike[str], *, mapped: bool | None = None, verify: bool = True
) -> TensorFile:
    """Open a file of tensors; only its header is read now.

    Arrays are read-only views of the mapped file. `mapped=False` reads them into memory instead;
    by default a file is mapped unless it lies on a network file system. Each tensor, or each
    chunk that a slice touches, is checked at its first use, unless `verify=False`.

    >>> with holdfast.open("model.safetensors") as file:
    ...     print(file.metadata, file.spec("bias"), file["bias"])
    """
    return TensorFile(path, mapped=mapped, verify=verify)
