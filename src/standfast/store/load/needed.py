"""Which bytes of which data files the tensors of a checkpoint need."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Final

import numpy as np

from standfast.files.digests import CHUNK, DIGEST
from standfast.files.layout import Index
from standfast.store.schema.record import Record
from standfast.store.tree.aliases import c_order

FROM: Final = " from byte "
"""Between the name of a tensor and where in it a later extent begins."""


class Extents:
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

    def rows(self, file: int) -> Sequence[int]:
        """All rows of a file's index."""
        return range(len(self.indexes[file].rows))

    def rows_of(self, tensors: Iterable[int]) -> dict[int, list[int]]:
        """What tensors that are no views need of each file."""
        rows: dict[int, list[int]] = {}
        for tensor in tensors:
            for file, row in self.pieces[tensor]:
                rows.setdefault(file, []).append(row)
        return rows


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
    chunks, first = record.chunk_digests(tensor), 0
    name, done = record.names[tensor], 0
    for extent in range(record.first_extents[tensor], record.first_extents[tensor + 1]):
        file, size = int(record.files[extent]), int(record.sizes[extent])
        end = first + -(-size // CHUNK) * DIGEST
        digests, first = chunks[first:end], end
        label = f"{name}{FROM}{done:,}" if done else name
        each = rows.setdefault(file, _Rows())
        yield file, each.add(int(record.starts[extent]), size, label, digests, tensor)
        done += size


def with_bases(record: Record, tensors: Iterable[int] | None) -> Sequence[int]:
    """The tensors asked for, all by default, and the bases of those that are views."""
    if tensors is None:
        return range(len(record.names))
    wanted = dict.fromkeys(tensors)
    wanted.update(dict.fromkeys(record.views[t].base for t in [*wanted] if t in record.views))
    return list(wanted)


def bases_of(record: Record, tensors: Iterable[int]) -> list[int]:
    """The tensors that have the bytes of these: themselves, or what they are views of."""
    views = record.views
    return list(dict.fromkeys(views[t].base if t in views else t for t in tensors))


def is_all_of(record: Record, tensor: int) -> bool:
    """Whether a view is the same as what it is a view of."""
    view = record.views[tensor]
    spec = record.specs[tensor]
    return spec == record.specs[view.base] and (view.offset, view.strides) == (0, c_order(spec))
