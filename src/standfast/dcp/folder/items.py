"""The items of a torch.distributed.checkpoint folder: files of torch inside of bigger files."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Final

import numpy as np
from isal.isal_zlib import crc32

from standfast.dcp.folder.contents import Chunk, Item
from standfast.errors import (
    BadField,
    ChangedFile,
    ClosedFile,
    DamagedFile,
    DigestMismatch,
    MissingData,
    RefusedPickle,
    TruncatedFile,
    UnsupportedFile,
    shortened,
)
from standfast.files.forms import as_array
from standfast.files.input.file import SourceFile
from standfast.files.layout import Index, Row
from standfast.files.mapping import as_bytes, map_file, on_network
from standfast.files.reader import check_verify
from standfast.formats.reader import Options, Read
from standfast.formats.torch import file as torch_files
from standfast.formats.trees import ROOT, with_leaves
from standfast.formats.zip.archive import read_archive
from standfast.tensors import TensorSpec
from standfast.tensors.sources import Bytes, aligned_bytes

Array = np.ndarray[Any, Any]
MAX_OPEN: Final = 64
"""Files that are open at once: thousands of ranks leave thousands of them."""


class ItemFiles:
    """The files of a folder, opened as they are needed; `ends` has the bytes that each must have.

    `mapped=None` maps a file unless it lies on a network file system.
    """

    def __init__(
        self,
        folder: str,
        ends: Mapping[str, int],
        mapped: bool | None,
        verify: bool,
        tensors_only: bool,
    ) -> None:
        check_verify(verify)
        self._folder = folder
        self._ends = ends
        self._mapped = mapped
        self._verify = verify
        self._options = Options(verify=False, tensors_only=tensors_only)
        self._open: dict[str, tuple[SourceFile, Bytes | None]] = {}
        self._is_closed = False
        for name, end in ends.items():
            _check_end(os.path.join(folder, name), end)

    def array(self, name: str, chunk: Chunk, dtype: str) -> Array:
        """The chunk of a tensor, to copy from: it lies in the file, and is aligned to nothing."""
        with self._reading(name, chunk.item):
            data, index = self._read(name, chunk.item)
            assert index.tree is not None
            expected = TensorSpec(dtype, chunk.box.shape)
            if not isinstance(index.tree[0], Row):
                raise BadField("it is not one tensor, as .metadata has it")
            if index.spec(0) != expected:
                raise BadField(f"it is {index.spec(0)}, but .metadata has {expected}")
            if index.forms:
                return _array(data, index, 0)
            return _part(data, index, 0).view(expected.kind.numpy).reshape(expected.array_shape)

    def value(self, name: str, item: Item, tensor: Callable[[Array, TensorSpec], Any]) -> Any:
        """A plain value; tensors in it, which `tensor` makes, share memory as they did."""
        with self._reading(name, item):
            data, index = self._read(name, item)
            assert index.tree is not None
            if index.rows:
                mapped, data = data, aligned_bytes(data.size)
                data[:] = mapped
            return with_leaves(
                index.tree[0],
                lambda leaf: (
                    tensor(_array(data, index, leaf.row), index.spec(leaf.row))
                    if isinstance(leaf, Row)
                    else leaf
                ),
            )

    def left_out(self, name: str, item: Item) -> dict[str, str]:
        """What `tensors_only` leaves out of a value: the class's name by its path."""
        with self._reading(name, item):
            _, index = self._read(name, item)
        return {
            name if path == ROOT else f"{name}.{path}": what
            for path, what in index.left_out.items()
        }

    def close(self) -> None:
        """Close all files; arrays taken from them stay valid."""
        self._is_closed = True
        for file, _ in self._open.values():
            file.close()
        self._open.clear()

    @contextmanager
    def _reading(self, name: str, item: Item) -> Iterator[None]:
        """Tells of what goes wrong which item it is in."""
        try:
            yield
        except (DamagedFile, UnsupportedFile, RefusedPickle) as error:
            where = f"{os.path.join(self._folder, item.file)}: item {shortened(name)!r}"
            error.args = (f"{where} (offset {item.start:,}): {error}", *error.args[1:])
            raise

    def _read(self, name: str, item: Item) -> tuple[Bytes, Index]:
        data = self._bytes(item)

        def read(start: int, length: int) -> bytes:
            if start + length > data.size:
                raise ChangedFile(f"it has {data.size:,} bytes, no more")
            return data[start : start + length].tobytes()

        if self._verify:
            _check_sums(read, data, name)
        return data, torch_files.read_index(read, data.size, self._options)

    def _bytes(self, item: Item) -> Bytes:
        file, memory = self._file(item.file)
        file.check_unchanged()
        if memory is not None:
            return memory[item.start : item.stop]
        data = aligned_bytes(item.length)
        file.read_into(data, item.start)
        return data

    def _file(self, name: str) -> tuple[SourceFile, Bytes | None]:
        if self._is_closed:
            raise ClosedFile(f"{self._folder}: the folder was closed")
        if name in self._open:
            return self._open[name]
        path = os.path.join(self._folder, name)
        _check_end(path, self._ends[name])
        file = SourceFile(path)
        is_mapped = not on_network(file.fd) if self._mapped is None else self._mapped
        memory = as_bytes(map_file(file.fd, file.size, writable=False)) if is_mapped else None
        while len(self._open) >= MAX_OPEN:
            self._open.pop(next(iter(self._open)))[0].close()
        self._open[name] = file, memory
        return file, memory


def _check_end(path: str, end: int) -> None:
    """Raise unless there is a file of this many bytes."""
    try:
        size = os.stat(path).st_size
    except (OSError, ValueError):
        raise MissingData(
            f"{path}: the file is not there, and .metadata has items in it: fetch it from where "
            "the checkpoint was written"
        ) from None
    if size < end:
        raise TruncatedFile(f"{path}: its items end at {end:,}, but the file has {size:,} bytes")


def _array(data: Bytes, index: Index, row: int) -> Array:
    return as_array(_part(data, index, row), index.spec(row), index.forms.get(row))


def _part(data: Bytes, index: Index, row: int) -> Bytes:
    start = int(index.starts[row])
    return data[start : start + int(index.sizes[row])]


def _check_sums(read: Read, data: Bytes, name: str) -> None:
    """Check the CRC-32 of every entry; what is compressed is never handed out."""
    for entry in read_archive(read, data.size).entries:
        content = data[entry.data_at : entry.data_at + entry.stored_size]
        if not entry.deflated and crc32(content.data) != entry.crc:
            raise DigestMismatch(
                f"entry {shortened(entry.name)!r} does not match its CRC-32: restore the file from "
                "a copy, or read what is left with verify=False",
                (name,),
            )
