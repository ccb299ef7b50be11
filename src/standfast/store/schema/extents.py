"""Where the chunks of tensors lie: stretches of data files."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from typing import NamedTuple

import msgspec
import numpy as np

from standfast.files.digests import CHUNK, DIGEST
from standfast.store.schema.record import DataFile, Record


class Extent(NamedTuple):
    """A stretch of a data file in the run's folder."""

    file: str
    start: int
    size: int


def append(extents: list[Extent], new: Extent) -> None:
    """Add an extent, or let the last one grow if the new one follows it; an empty one is none."""
    if not new.size:
        return
    if extents:
        file, start, size = extents[-1]
        if file == new.file and start + size == new.start:
            extents[-1] = Extent(file, start, size + new.size)
            return
    extents.append(new)


def chunks_of(record: Record, tensor: int) -> Iterator[tuple[bytes, Extent]]:
    """The chunks of a tensor in their order: the digest of each, and where it lies."""
    files, digests, at = record.head.files, record.chunk_digests(tensor), 0
    for extent in range(record.first_extents[tensor], record.first_extents[tensor + 1]):
        file = files[record.files[extent]].name
        start = int(record.starts[extent])
        end = start + int(record.sizes[extent])
        for begin in range(start, end, CHUNK):
            yield digests[at : at + DIGEST], Extent(file, begin, min(CHUNK, end - begin))
            at += DIGEST


def extents_of(record: Record, tensor: int) -> list[Extent]:
    """Where a tensor lies."""
    first, end = record.first_extents[tensor], record.first_extents[tensor + 1]
    return [
        Extent(record.head.files[record.files[i]].name, int(record.starts[i]), int(record.sizes[i]))
        for i in range(first, end)
    ]


def used_bytes(extents: Iterable[Sequence[Extent]]) -> dict[str, int]:
    """How many bytes of each file are referred to, those twice referred to counted once."""
    ranges: dict[str, list[tuple[int, int]]] = {}
    for each in extents:
        for file, start, size in each:
            ranges.setdefault(file, []).append((start, start + size))
    return {file: _covered(each) for file, each in ranges.items()}


def _covered(ranges: list[tuple[int, int]]) -> int:
    each = np.array(sorted(ranges), np.int64)
    starts, ends = each[:, 0], np.maximum.accumulate(each[:, 1])
    before = np.concatenate((starts[:1], ends[:-1]))
    return int(np.maximum(0, each[:, 1] - np.maximum(starts, before)).sum())


class Columns(NamedTuple):
    """The extents of all tensors, column by column, and the files that they are in."""

    counts: np.ndarray[tuple[int], np.dtype[np.int64]]
    files: np.ndarray[tuple[int], np.dtype[np.int64]]
    starts: np.ndarray[tuple[int], np.dtype[np.int64]]
    sizes: np.ndarray[tuple[int], np.dtype[np.int64]]
    data_files: list[DataFile]


def columns(extents: Sequence[Sequence[Extent]], files: dict[str, DataFile]) -> Columns:
    """The extents of all tensors as a record has them; `files` says what each file is."""
    used = used_bytes(extents)
    numbers = {name: number for number, name in enumerate(used)}
    flat = [extent for each in extents for extent in each]
    return Columns(
        np.array([len(each) for each in extents], np.int64),
        np.array([numbers[extent.file] for extent in flat], np.int64),
        np.array([extent.start for extent in flat], np.int64),
        np.array([extent.size for extent in flat], np.int64),
        [msgspec.structs.replace(files[name], used=bytes) for name, bytes in used.items()],
    )


def with_extents(
    record: Record, extents: Sequence[Sequence[Extent]], files: dict[str, DataFile]
) -> Record:
    """The same checkpoint, with its bytes elsewhere."""
    new = columns(extents, files)
    return replace(
        record,
        head=msgspec.structs.replace(record.head, files=new.data_files),
        counts=new.counts,
        files=new.files,
        starts=new.starts,
        sizes=new.sizes,
    )
