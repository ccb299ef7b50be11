"""The weights in a checkpoint of a store: read, and verified, as they are asked for."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Final

import numpy as np

from holdfast.errors import RefNotFound, StateMismatch, shortened
from holdfast.files.digests import CHUNK
from holdfast.files.forms import LoadedSource
from holdfast.packages.architecture import HEAD, check_shapes, plain_name, plain_names
from holdfast.packages.config import Config
from holdfast.packages.saved import is_gpt
from holdfast.store import Checkpoint
from holdfast.store.view import CheckpointView
from holdfast.tensors import ArraySource, Source, TensorSpec
from holdfast.tensors.sources import Bytes

_EMBEDDING: Final = "wte.weight"
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

    def check(self, config: Mapping[str, Any]) -> None:
        """Raise StateMismatch unless these are the weights that a `config.json` asks for."""
        check_weights(
            {name: self._view.spec(stored) for name, stored in self._names.items()}, config
        )
        if is_gpt(config) and config.get("tie_word_embeddings", True):
            self._check_tied()

    def _check_tied(self) -> None:
        """Raise StateMismatch if leaving the output layer out would lose it."""
        digests = self._view.stored_digests()
        stored = {plain_name(name): digests.get(each) for name, each in self._names.items()}
        if HEAD in stored and (stored[HEAD] is None or stored[HEAD] != stored[_EMBEDDING]):
            raise StateMismatch(
                f"{HEAD!r} is another tensor than {_EMBEDDING!r}, and the configuration says that "
                "they are one: set tie_word_embeddings to false in it"
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


def check_weights(specs: Mapping[str, TensorSpec], config: Mapping[str, Any]) -> None:
    """Raise StateMismatch unless these are the tensors that a `config.json` asks for.

    Of models that are no GPT-2 nobody here knows what they consist of.
    """
    if is_gpt(config):
        known = Config.of_dict(config)
        names = plain_names(specs, known)
        check_shapes({plain: specs[name] for plain, name in names.items()}, known)


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
