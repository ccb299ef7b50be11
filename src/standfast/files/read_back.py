"""What the disk has of a file, past the page cache: the proof that it was written."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from blake3 import blake3

from standfast.files.digests import Chunk, batches, chunks_of, worker_count
from standfast.files.disk import ALIGNMENT, DIRECT
from standfast.files.layout import Index
from standfast.files.ring import BLOCK, BLOCKS, borrowed_block
from standfast.files.threads import Threads


def digests_on_disk(path: Path, index: Index) -> bytes:
    """The digests of all chunks of all tensors, as the disk gives their bytes back.

    Reads go into a few blocks that are used again and again: fresh memory for the whole file
    would take longer than the disk does.
    """
    row_of = index.file_order.tolist()
    chunks = [
        Chunk(row, a, b) for row in row_of for _, a, b in chunks_of(row, int(index.sizes[row]))
    ]
    window = _open(path)
    try:
        with Threads(min(BLOCKS, worker_count(spare=-1))) as pool:
            found = pool.map(lambda batch: list(_digest(window, batch, index)), batches(chunks))
            digests = {chunk: digest for part in found for chunk, digest in part}
    finally:
        os.close(window)
    rows = range(len(row_of))
    return b"".join(digests[c] for row in rows for c in chunks_of(row, int(index.sizes[row])))


def _open(path: Path) -> int:
    try:
        return os.open(path, os.O_RDONLY | os.O_CLOEXEC | DIRECT)
    except OSError as error:
        if error.errno != errno.EINVAL:  # the file system has no direct reads
            raise
        return os.open(path, os.O_RDONLY | os.O_CLOEXEC)


def _digest(fd: int, batch: list[Chunk], index: Index) -> Iterator[tuple[Chunk, bytes]]:
    """The digest of each chunk of a batch, which lie in the order of the file."""
    last = batch[-1]
    end = int(index.starts[last.tensor]) + last.stop
    with borrowed_block() as block:
        filled = range(0)  # the stretch of the file that the block holds
        for chunk in batch:
            hasher = blake3()
            at = int(index.starts[chunk.tensor]) + chunk.start
            stop = at + chunk.stop - chunk.start
            while at < stop:
                if at not in filled:
                    filled = _fill(fd, block, at, end)
                part = block[at - filled.start : min(stop, filled.stop) - filled.start]
                hasher.update(part.data)
                at += part.size
            yield chunk, hasher.digest()


def _fill(fd: int, block: np.ndarray[tuple[int], np.dtype[np.uint8]], at: int, end: int) -> range:
    """Read what fits of the file from `at` to `end`; both ends of a direct read are aligned."""
    start = at - at % ALIGNMENT
    length = min(BLOCK, -(-(end - start) // ALIGNMENT) * ALIGNMENT)
    count = os.preadv(fd, [block[:length].data], start)
    if start + count <= at:
        raise OSError(errno.EIO, "the new file is shorter than what was written to it")
    return range(start, start + count)
