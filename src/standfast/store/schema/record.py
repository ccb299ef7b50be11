"""The record of a checkpoint: what commits it, and all that is needed to read it back.

`docs/format.md` is the page of its lines.
"""

from __future__ import annotations

import binascii
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Final

import msgspec
import numpy as np
from blake3 import blake3

from standfast.errors import (
    RefusedState,
)
from standfast.files.digests import CHUNK, DIGEST, chunk_counts
from standfast.store.schema.boxes import as_columns, count_chunks
from standfast.store.schema.seal import Sealed
from standfast.store.schema.seal import encode as encode_sealed
from standfast.store.tree.aliases import View
from standfast.tensors import TensorSpec
from standfast.tensors.shards import Box

FORMAT: Final = "standfast record 1"
MAX_HEAD: Final = 16 << 20
MAX_RECORD: Final = 2 << 30
STORAGE: Final = "storage"
"""The kind of what is no leaf of the tree: bytes that only views refer to."""

TAG: Final = f"blake3:{CHUNK}:"
END: Final = b'{"digest":"'

Numbers = np.ndarray[Any, np.dtype[np.int64]]


class Place(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One save of a step: what tells a checkpoint from all others, in any store."""

    run: str
    step: int
    sequence: int
    """Its number in the history of the store."""
    token: str
    """Chosen at random for each save; its data files have it in their names."""


class DataFile(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A file with tensors, in the folder of the run."""

    name: str
    size: int
    digest: str
    held: int
    """How many bytes of tensors are in it."""
    used: int
    """How many of these the checkpoint refers to."""


class Part(msgspec.Struct, frozen=True, array_like=True):
    """A part of the state, and its tensors by their numbers."""

    key: str | None
    label: str
    first: int
    count: int


class Head(Sealed, frozen=True):
    """All that lists need to know of a checkpoint."""

    run: str
    identity: dict[str, str | None]
    step: int
    epoch: int | None
    sequence: int
    token: str
    time: str
    best: bool
    metrics: dict[str, Any]
    """In the form of the tree."""
    parent: Place | None
    software: dict[str, str]
    tensors: int
    nbytes: int
    parts: list[Part]
    files: list[DataFile]
    dropped: list[str] = msgspec.field(default_factory=list)
    """The parts that were deleted from it since, by their keys."""
    needs: list[str] = msgspec.field(default_factory=list)
    """What a reader of the rest of the record must know; nothing in this version."""

    @property
    def place(self) -> Place:
        """What tells it from all other checkpoints."""
        return Place(self.run, self.step, self.sequence, self.token)


@dataclass(frozen=True)
class Record:
    """A checkpoint: its head, its tree as JSON, and its tensors column by column."""

    head: Head
    tree: bytes
    names: Sequence[str]
    kinds: Sequence[str]
    specs: Sequence[TensorSpec]
    counts: Numbers
    """How many extents each tensor has."""
    files: Numbers
    starts: Numbers
    sizes: Numbers
    """Of all extents: the file, the offset in it, the bytes."""
    digests: bytes
    """Of all chunks of all tensors that are no views."""
    views: Mapping[int, View]
    boxes: Mapping[int, Sequence[Box]] = field(default_factory=dict)
    """Of each tensor that is in several: its extents and chunks are theirs, box by box."""
    others: Mapping[str, bytes] = field(default_factory=dict)
    """The lines of columns that this version does not know, by name."""

    @cached_property
    def nbytes(self) -> Numbers:
        """What each tensor takes: nothing, if it is a view."""
        sizes = np.fromiter((spec.nbytes for spec in self.specs), np.int64, len(self.specs))
        if self.views:
            sizes[list(self.views)] = 0
        return sizes

    @cached_property
    def first_extents(self) -> Numbers:
        """The number of each tensor's first extent, and one more: the count of all."""
        return np.concatenate(([0], np.cumsum(self.counts)))

    @cached_property
    def first_chunks(self) -> Numbers:
        """The number of each tensor's first chunk, and one more: the count of all."""
        counts = chunk_counts(self.nbytes)
        for tensor, boxes in self.boxes.items():
            counts[tensor] = count_chunks(self.specs[tensor], boxes)
        if self.views:
            counts[list(self.views)] = 0
        return np.concatenate(([0], np.cumsum(counts)))

    def chunk_digests(self, tensor: int) -> bytes:
        """The digests of the chunks of one tensor."""
        first, last = self.first_chunks[tensor], self.first_chunks[tensor + 1]
        return self.digests[first * DIGEST : last * DIGEST]


def encode(record: Record) -> bytes:
    """The whole record."""
    kinds, kind_rows = _numbered(record.kinds)
    dtypes, dtype_rows = _numbered([spec.dtype for spec in record.specs])
    columns: list[tuple[str, Any]] = [
        ("names", record.names),
        ("kinds", {"values": kinds, "rows": kind_rows}),
        (
            "specs",
            {
                "dtypes": {"values": dtypes, "rows": dtype_rows},
                "shapes": [spec.shape for spec in record.specs],
            },
        ),
        (
            "extents",
            {
                "counts": record.counts.tolist(),
                "files": record.files.tolist(),
                "starts": record.starts.tolist(),
                "sizes": record.sizes.tolist(),
            },
        ),
        ("digests", TAG + binascii.b2a_base64(record.digests, newline=False).decode()),
        (
            "views",
            [[n, view.base, view.offset, view.strides] for n, view in record.views.items()],
        ),
    ]
    if record.boxes:
        columns.append(("boxes", as_columns(record.boxes)))
    lines = [encode_head(record.head), record.tree]
    lines += [msgspec.json.encode({name: values}) for name, values in columns]
    lines += record.others.values()
    text = b"".join(line + b"\n" for line in lines)
    if len(lines[0]) >= MAX_HEAD or len(text) >= MAX_RECORD:
        raise RefusedState(
            f"the record would take {len(text):,} bytes, {len(lines[0]):,} of them before the "
            f"tree: at most {MAX_RECORD:,} and {MAX_HEAD:,} can be read again; save fewer metrics "
            "or plain values"
        )
    return text + END + blake3(text).hexdigest().encode() + b'"}\n'


def encode_head(head: Head) -> bytes:
    """The first line, without the line break."""
    return encode_sealed(FORMAT, head)


def _numbered(values: Sequence[str]) -> tuple[list[str], list[int]]:
    """The distinct values, and each one's number."""
    numbers = {value: number for number, value in enumerate(dict.fromkeys(values))}
    return list(numbers), [numbers[value] for value in values]


def summary(head: Head) -> dict[str, Any]:
    """The head as JSON, for people and scripts."""
    fields: dict[str, Any] = msgspec.to_builtins(head)
    fields.pop("others", None)
    return {**fields, "parts": [part.key for part in head.parts]}
