"""The weights in a checkpoint of a store: read, and verified, as they are asked for."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import numpy as np

from standfast.errors import RefNotFound
from standfast.files.digests import CHUNK
from standfast.files.forms import LoadedSource
from standfast.store import Checkpoint
from standfast.store.query.view import CheckpointView
from standfast.tensors import ArraySource, Source, TensorSpec
from standfast.tensors.sources import Bytes


@contextmanager
def stored_weights(checkpoint: Checkpoint, part: str | None) -> Iterator[dict[str, Source]]:
    """The tensors of one part of a checkpoint, to be read within the `with`.

    `part=None` is for a state that is the weights themselves. A damaged tensor raises when it is
    read.
    """
    view = _view(checkpoint, part)
    held = threading.local()
    with view.reading(view):
        yield {name: _source(view, name, held) for name in view}


def _source(view: CheckpointView, name: str, held: threading.local) -> Source:
    spec, chunk = view.spec(name), view.chunks(name)
    if chunk is not None:
        return _ChunkedSource(spec, chunk, held)
    # A view of another tensor, such as a transposed one.
    return LoadedSource(spec, lambda: ArraySource(view[name], spec), held)


class _ChunkedSource:
    """A tensor whose chunks are read, each of them verified, when a thread comes to them."""

    sequential = True

    def __init__(
        self, spec: TensorSpec, chunk: Callable[[int], Bytes], held: threading.local
    ) -> None:
        self.spec = spec
        self._chunk = chunk
        self._held = held
        """The chunk that each thread is at: what is not mapped is read once for all of it."""

    def contiguous(self) -> Bytes | None:
        """They are not all there at once."""
        return None

    def copy_to(self, out: Bytes, start: int) -> None:
        """Fill `out` with the bytes that begin at `start`."""
        done = 0
        while done < out.size:
            number, at = divmod(start + done, CHUNK)
            piece = self._read(number)[at : at + out.size - done]
            np.copyto(out[done : done + piece.size], piece)
            done += piece.size

    def _read(self, number: int) -> Bytes:
        if getattr(self._held, "place", None) != (self, number):
            self._held.place = self._held.chunk = None  # before the next one takes its memory
            self._held.chunk = self._chunk(number)
            self._held.place = self, number
        chunk: Bytes = self._held.chunk
        return chunk


def _view(checkpoint: Checkpoint, part: str | None) -> CheckpointView:
    try:
        return CheckpointView(checkpoint, part)
    except RefNotFound as error:
        is_flat = all(each.key is None for each in checkpoint.head.parts)
        advice = "part=None takes the state itself" if is_flat else "part= names the weights"
        raise RefNotFound(f"{error}: {advice}") from error
