"""The one writer: a layout and its sources become a durable file.

Two things run side by side: threads that hash the sources, and the caller, who copies them
block by block into a ring of aligned blocks that other threads write past the page cache. The
header holds the digests, so it goes in last, into the space that the layout reserved for it.
"""

from __future__ import annotations

import errno
import io
import os
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import BinaryIO

import numpy as np

from holdfast.errors import WriteFailed
from holdfast.files.atomic import replacing
from holdfast.files.digests import start_digesting, worker_count
from holdfast.files.disk import Disk
from holdfast.files.layout import Layout
from holdfast.files.ring import Ring
from holdfast.tensors import ArraySource, Source, TensorSpec


def write_file(
    path: str | os.PathLike[str],
    layout: Layout,
    sources: Sequence[Source],
    disk: Disk,
) -> None:
    """Write a file; when this returns it is durable, and until then the old one stands."""
    with (
        replacing(path, disk) as fd,
        # One processor is left to the copying: a disk that waits for it costs more than a hash.
        ThreadPoolExecutor(worker_count(spare=1), "holdfast-digest") as hashers,
    ):
        digests = start_digesting(sources, hashers)
        try:
            disk.reserve(fd, layout.size)
            with Ring(fd, disk) as ring:
                ring.seek(layout.header_size)
                for i in layout.order:
                    ring.put(sources[i])
                ring.seek(0)
                ring.put(_header_source(layout, digests))
            disk.truncate(fd, layout.size)
        except BaseException:
            hashers.shutdown(cancel_futures=True)
            raise


def write_stream(stream: BinaryIO, layout: Layout, sources: Sequence[Source]) -> None:
    """Write a file's bytes to a stream, in two passes over the tensors: hash, then write."""
    with ThreadPoolExecutor(worker_count(), "holdfast-digest") as hashers:
        header = _header_source(layout, start_digesting(sources, hashers))
    scratch = np.empty(1 << 20, np.uint8)
    for source in (header, *(sources[i] for i in layout.order)):
        for start in range(0, source.spec.nbytes, scratch.size):
            piece = scratch[: source.spec.nbytes - start]
            source.copy_to(piece, start)
            _write_all(stream, piece.data)


def _write_all(stream: BinaryIO, data: memoryview) -> None:
    try:
        while data:
            written = stream.write(data)
            if not written and isinstance(stream, io.RawIOBase):
                raise BlockingIOError(errno.EAGAIN, "it does not block, and takes no more")
            # A raw stream may take a part; some that are not from `io` return nothing.
            data = data[len(data) if written is None else written :]
    except OSError as error:
        raise WriteFailed(
            error.errno, f"cannot write to the stream: {error.strerror or error}"
        ) from error


def _header_source(layout: Layout, digests: list[Future[bytes]]) -> Source:
    header = layout.seal(b"".join(future.result() for future in digests))
    return ArraySource(np.frombuffer(header, np.uint8), TensorSpec("uint8", (len(header),)))
