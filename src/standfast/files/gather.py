"""Bytes brought together in memory of their own."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Final

import numpy as np

from standfast.files.digests import worker_count
from standfast.tensors.sources import Bytes, aligned_bytes

_PIECE: Final = 4 << 20
_FEW: Final = 4 << 20
"""Less than this is copied by the caller alone."""


def gathered(parts: Sequence[Bytes]) -> Bytes:
    """Parts one after the other, in fresh memory that is aligned.

    To touch memory for the first time takes longer than to copy, and threads share it.
    """
    ends = np.cumsum([part.size for part in parts]).tolist()
    memory = aligned_bytes(ends[-1] if ends else 0)

    def copy(piece: tuple[int, int]) -> None:
        part, start = piece
        source = parts[part][start : start + _PIECE]
        at = ends[part] - parts[part].size + start
        memory[at : at + source.size] = source

    pieces = [
        (number, start)
        for number, part in enumerate(parts)
        for start in range(0, part.size, _PIECE)
    ]
    if memory.size < _FEW:
        for piece in pieces:
            copy(piece)
    else:
        with ThreadPoolExecutor(worker_count(), "standfast-copy") as pool:
            list(pool.map(copy, pieces))
    return memory
