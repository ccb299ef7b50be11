"""The weights in a checkpoint of a store: read, and verified, as they are asked for."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final

import numpy as np

from holdfast.errors import RefNotFound, StateMismatch, shortened
from holdfast.files.digests import CHUNK
from holdfast.files.forms import LoadedSource
from holdfast.store import Checkpoint
from holdfast.store.view import CheckpointView
from holdfast.tensors import ArraySource, Source, TensorSpec
from holdfast.tensors.sources import Bytes

_WRAPPERS: Final = frozenset({"module", "_orig_mod"})
"""What parallel and compiled modules put into the names of the model that they are around."""


class StoredWeights:
    """The tensors of one part of a checkpoint, by the names that they have in the model.

    `part=None` is for a state that is the weights themselves.
    """

    def __init__(self, checkpoint: Checkpoint, part: str | None) -> None:
        self._view = _view(checkpoint, part)
        self._names: dict[str, str] = {}
        for name in self._view:
            known = self._names.setdefault(unwrapped_name(name), name)
            if known != name:
                raise StateMismatch(
                    f"{checkpoint.ref}: the tensors {shortened(known)!r} and {shortened(name)!r} "
                    "are the same one of a model: save its state under one set of names"
                )

    @contextmanager
    def sources(self) -> Iterator[dict[str, Source]]:
        """All tensors, to be read within the `with`; a damaged one raises when it is."""
        held = threading.local()
        with self._view.reading(self._names.values()):
            yield {name: self._source(name, held) for name in self._names}

    def _source(self, name: str, held: threading.local) -> Source:
        stored = self._names[name]
        spec = self._view.spec(stored)
        chunk = self._view.chunks(stored)
        if chunk is not None:
            return _ChunkedSource(spec, chunk, held)
        # A view of another tensor, such as a transposed one.
        return LoadedSource(spec, lambda: ArraySource(self._view[stored], spec), held)


def unwrapped_name(name: str) -> str:
    """A tensor's name in the model, without what modules around it have added."""
    return ".".join(each for each in name.split(".") if each not in _WRAPPERS)


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
