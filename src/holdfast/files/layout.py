"""Where everything lies in a file: what a format tells the writer, and what it tells the reader."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from holdfast.files.digests import chunk_counts
from holdfast.tensors import TensorSpec


@dataclass(frozen=True, slots=True)
class Layout:
    """A file that is about to be written: a header, then tensors in one unbroken run."""

    order: Sequence[int]
    """The order in which the tensors lie in the file, as positions among those given."""
    header_size: int
    """Where the first tensor starts: a multiple of the disk's alignment."""
    size: int
    """The size of the whole file."""
    seal: Callable[[bytes], bytes]
    """Takes the chunk digests of all tensors, in the order given; returns the header.

    It has `header_size` bytes, whatever the digests are.
    """


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
    digests: bytes | None
    """The digests of all chunks of all tensors, 32 bytes each; None if the file holds none."""

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
