"""A whole tree as one torch file, in which tensors may share their storages."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from standfast.files.digests import DIGEST, chunk_counts
from standfast.files.layout import Layout
from standfast.formats.torch.file import FOLDER, OWN_ENTRY
from standfast.formats.torch.tensors import reach
from standfast.formats.torch.tree_writer import TreeTensor, write_tree
from standfast.formats.zip.tensors import ArchiveBuilder


class Window(NamedTuple):
    """A stretch of a storage."""

    storage: int
    start: int
    size: int


class TreeLayout(NamedTuple):
    """Where a tree goes that is one file."""

    layout: Layout
    """Of the storages. It asks for the digests of these, and then of the windows."""
    starts: list[int]
    """Where in the file each storage begins."""
    windows: list[Window]
    """The tensors that are a part of their storage only."""


def tree_layout(
    tree: Any, tensors: Sequence[TreeTensor], storages: Sequence[int], metadata: Mapping[str, Any]
) -> TreeLayout:
    """Where a tree goes, whose tensors are these, in its order, over storages of these sizes.

    The digests in the file are those of its tensors as they lie in the storages, as in any torch
    file of ours: together, those of a storage must span all of it. Raises RefusedState.
    """
    builder = ArchiveBuilder()
    builder.add(f"{FOLDER}/data.pkl", write_tree(tree, tensors))
    builder.add(f"{FOLDER}/byteorder", b"little")
    starts = [
        builder.add_tensor(f"{FOLDER}/data/{number}", b"", nbytes)
        for number, nbytes in enumerate(storages)
    ]
    builder.add(f"{FOLDER}/version", b"3\n")
    places = [each.stored for each in tensors]
    spans = [Window(int(place.storage), place.offset, reach(place)) for place in places]
    hashed = _Hashed(storages, spans)
    builder.add_own(f"{FOLDER}/{OWN_ENTRY}", metadata, True, hashed.of_spans, hashed.chunks)
    return TreeLayout(builder.layout(True), starts, hashed.windows)


class _Hashed:
    """What is hashed so that the digests of all spans are known."""

    def __init__(self, storages: Sequence[int], spans: Sequence[Window]) -> None:
        wholes = {Window(number, 0, nbytes): number for number, nbytes in enumerate(storages)}
        self.windows = list(dict.fromkeys(span for span in spans if span not in wholes))
        numbers = wholes | {span: len(wholes) + i for i, span in enumerate(self.windows)}
        sizes = np.array([*storages, *(window.size for window in self.windows)], np.int64)
        firsts = np.concatenate(([0], np.cumsum(chunk_counts(sizes)))).tolist()
        self._ranges = [(firsts[numbers[span]], firsts[numbers[span] + 1]) for span in spans]
        self.chunks: int = sum(last - first for first, last in self._ranges)

    def of_spans(self, digests: bytes) -> bytes:
        """The digests of all spans, out of those of storages and windows."""
        return b"".join(digests[first * DIGEST : last * DIGEST] for first, last in self._ranges)
