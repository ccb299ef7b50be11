"""Where everything lies in a file: what a format tells the writer, and what it tells the reader."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, NamedTuple, Protocol

import numpy as np

from standfast.files.digests import chunk_counts
from standfast.tensors import TensorSpec


class Sums(Protocol):
    """What is known of the tensors once they have gone by."""

    def digests(self) -> bytes:
        """The chunk digests of all tensors, in the order given; waits until they are known."""
        ...

    def crc(self, tensor: int) -> int:
        """The CRC-32 of a tensor that was written already."""
        ...


class Late(NamedTuple):
    """Bytes that depend on tensors: their number is known from the start, they are not."""

    size: int
    make: Callable[[Sums], bytes]


@dataclass(frozen=True, slots=True)
class Layout:
    """A file that is about to be written: a head, then the pieces of its body one by one."""

    body: Sequence[bytes | int | Late]
    """Bytes as they are, or tensors by their position among those given, or late bytes."""
    size: int
    """The size of the whole file."""
    head: Late | None = None
    """What stands first and is written last; a multiple of the disk's alignment in size."""
    digested: bool = False
    """Whether some late bytes ask for the digests."""
    crcs: Sequence[int] | None = None
    """Where the CRC-32 of each tensor starts, given what stands before it; None if not needed."""


@dataclass(frozen=True, slots=True)
class Form:
    """How a tensor lies in a file when it does not lie there in C order, little-endian."""

    strides: tuple[int, ...] | None = None
    """In bytes, for the array that holds the tensor; None for C order."""
    big_endian: bool = False
    record: np.dtype[Any] | None = None
    """The structure that users see, where the tensor itself is rows of bytes."""
    deflated: Deflated | None = None

    @property
    def streams(self) -> bool:
        """Whether a compressed tensor can be inflated piece by piece, in the order it is read."""
        return self.strides is None and not self.big_endian


@dataclass(frozen=True, slots=True)
class Deflated:
    """A tensor that lies in a file compressed."""

    size: int
    """Of the whole entry, once it is inflated."""
    skip: int
    """How many bytes of it precede the tensor."""
    crc: int
    name: str
    """Of the tensor, for messages."""


@dataclass(frozen=True)
class Index:
    """A file that was opened: its tensors, column by column, in the order of its header."""

    format: str
    metadata: Mapping[str, Any]
    rows: Mapping[str, int]
    """Each tensor's row in the columns below."""
    dtypes: Sequence[str]
    shapes: Sequence[tuple[int, ...]]
    starts: np.ndarray[Any, np.dtype[np.int64]]
    """Where each tensor lies, from the start of the file."""
    sizes: np.ndarray[Any, np.dtype[np.int64]]
    """How many bytes of the file it takes."""
    end: int
    """The size of the whole file."""
    digests: bytes | None
    """The digests of all chunks of all tensors, 32 bytes each; None if the file holds none."""
    crcs: Sequence[tuple[int, int]] | None = None
    """The CRC-32 of each tensor and what it starts from, where these are all there is."""
    forms: Mapping[int, Form] = field(default_factory=dict)
    """The rows that do not lie plainly."""
    left_out: Mapping[str, str] = field(default_factory=dict)
    """What the reader left out because it was told to, by its path."""
    text: bytes | None = None
    """The metadata as it is written there, without what is ours, where that can be kept."""
    tree: tuple[Any] | None = None
    """The tree that the tensors hang on, in a format that has one, with `Row`s for them.

    It stands in a tuple of one, for a tree may be None itself.
    """

    def spec(self, row: int) -> TensorSpec:
        """What the tensor of this row is."""
        return TensorSpec(self.dtypes[row], tuple(self.shapes[row]))

    @cached_property
    def first_chunks(self) -> np.ndarray[Any, np.dtype[np.int64]]:
        """The number of each tensor's first chunk, and one more: the count of all chunks."""
        return np.concatenate(([0], np.cumsum(chunk_counts(self.sizes))))

    @cached_property
    def file_order(self) -> np.ndarray[Any, np.dtype[np.int64]]:
        """The rows in the order in which they lie in the file."""
        return np.lexsort((self.sizes, self.starts))


class Row(NamedTuple):
    """A leaf of an index's tree: the tensor of this row."""

    row: int
