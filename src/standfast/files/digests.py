"""BLAKE3 digests of tensors, in chunks of 16 MiB.

A tensor is cut into chunks, each with a digest of its own, so that a slice can be verified by
the chunks it touches. An empty tensor has one chunk, the empty one. The digest of a tensor of
several chunks is the digest over its chunks' digests; that of one chunk is the chunk's own.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Final, NamedTuple

import numpy as np
from blake3 import blake3

from standfast.files.threads import Threads
from standfast.tensors import Source
from standfast.tensors.sources import PIECE

CHUNK: Final = 16 << 20
DIGEST: Final = 32


class Chunk(NamedTuple):
    """A part of a tensor: the tensor's number, and a range of its bytes."""

    tensor: int
    start: int
    stop: int


def worker_count(spare: int = 0) -> int:
    """How many threads may hash at once: the processors given to this process, less `spare`."""
    if hasattr(os, "sched_getaffinity"):
        processors = len(os.sched_getaffinity(0))
    else:
        processors = os.cpu_count() or 1
    return max(1, min(8, processors - spare))


def chunk_counts(sizes: np.ndarray[Any, Any]) -> np.ndarray[Any, np.dtype[np.int64]]:
    """How many chunks tensors of these sizes in bytes have."""
    counts: np.ndarray[Any, np.dtype[np.int64]] = np.maximum(1, -(-sizes // CHUNK))
    return counts


def chunks_of(tensor: int, size: int) -> Iterator[Chunk]:
    """The chunks of one tensor of `size` bytes."""
    for start in range(0, max(size, 1), CHUNK):
        yield Chunk(tensor, start, min(start + CHUNK, size))


def batches(chunks: Iterable[Chunk]) -> Iterator[list[Chunk]]:
    """Group chunks into batches of up to 16 MiB, so that small tensors share a thread's turn."""
    batch: list[Chunk] = []
    size = 0
    for chunk in chunks:
        length = chunk.stop - chunk.start
        if batch and (size + length > CHUNK or len(batch) == 4096):
            yield batch
            batch, size = [], 0
        batch.append(chunk)
        size += length
    if batch:
        yield batch


def digest(data: np.ndarray[Any, np.dtype[np.uint8]]) -> bytes:
    """The digest of some bytes, on the calling thread alone."""
    return blake3(data.data).digest()


def tensor_digest(chunk_digests: bytes) -> bytes:
    """The digest of a tensor, from those of its chunks."""
    return chunk_digests if len(chunk_digests) == DIGEST else blake3(chunk_digests).digest()


class Digesting:
    """Hashes all chunks of some sources, in order, on the threads of a pool.

    The bytes are hashed where they lie, before they are copied on their way to the disk, so
    that the digest covers that copy too.
    """

    def __init__(self, sources: Sequence[Source], pool: Threads) -> None:
        self._sources = sources
        self._batches = list(batches_of(sources))
        self._futures = [pool.submit(_digest_batch, sources, batch) for batch in self._batches]
        self._digests: bytes | None = None

    def in_order(self) -> Iterator[tuple[list[Chunk], bytes]]:
        """The chunks and their digests, batch by batch, each as soon as it is known.

        While a thread is at the batch that the caller waits for, the caller hashes others.
        """
        own: dict[int, bytes] = {}
        ahead = 0
        for i, batch in enumerate(self._batches):
            future = self._futures[i]
            if i not in own and future.cancel():
                own[i] = _digest_batch(self._sources, batch)
            while i not in own and not future.done() and ahead < len(self._futures):
                ahead = max(ahead, i + 1)
                if ahead < len(self._futures) and self._futures[ahead].cancel():
                    own[ahead] = _digest_batch(self._sources, self._batches[ahead])
                ahead += 1
            yield batch, own.pop(i) if i in own else future.result()

    def result(self) -> bytes:
        """The digests of all chunks.

        The caller, who has nothing else to do now, hashes what no thread has begun, from the end.
        """
        if self._digests is None:
            parts: dict[int, bytes] = {}
            for i in reversed(range(len(self._futures))):
                if self._futures[i].cancel():
                    parts[i] = _digest_batch(self._sources, self._batches[i])
            self._digests = b"".join(
                parts[i] if i in parts else future.result()
                for i, future in enumerate(self._futures)
            )
        return self._digests


def digests_in_order(sources: Sequence[Source]) -> Iterator[tuple[list[Chunk], bytes]]:
    """The same as `Digesting.in_order`, on the calling thread alone: for a few small tensors."""
    for batch in batches_of(sources):
        yield batch, _digest_batch(sources, batch)


def digest_all(sources: Sequence[Source]) -> bytes:
    """The digests of all chunks of the sources."""
    with Threads(worker_count(spare=1)) as pool:
        return Digesting(sources, pool).result()


def batches_of(sources: Sequence[Source]) -> Iterator[list[Chunk]]:
    """The work, in order; one thread goes through all of a source that is read in its order."""
    plain: list[Chunk] = []
    for i, source in enumerate(sources):
        size = source.spec.nbytes
        if source.sequential:
            yield from batches(plain)
            yield list(chunks_of(i, size))
            plain = []
        elif size <= CHUNK:
            plain.append(Chunk(i, 0, size))
        else:
            plain += chunks_of(i, size)
    yield from batches(plain)


def _digest_batch(sources: Sequence[Source], batch: list[Chunk]) -> bytes:
    return b"".join(_digest_chunk(sources[tensor], a, b) for tensor, a, b in batch)


def _digest_chunk(source: Source, start: int, stop: int) -> bytes:
    data = source.contiguous()
    if data is not None:
        return digest(data[start:stop])
    hasher = blake3()
    scratch = np.empty(min(PIECE, stop - start), np.uint8)
    for at in range(start, stop, PIECE):
        piece = scratch[: min(PIECE, stop - at)]
        source.copy_to(piece, at)
        hasher.update(piece.data)
    return hasher.digest()
