"""The bytes of a tensor as an array or as a source, however they lie in the file."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, Final

import numpy as np

from standfast.files.deflate import InflatingSource, inflate
from standfast.files.digests import worker_count
from standfast.files.layout import Form
from standfast.files.threads import Threads
from standfast.tensors import ArraySource, Source, TensorSpec
from standfast.tensors.sources import Bytes, aligned_bytes

Array = np.ndarray[Any, Any]


def as_array(data: Bytes, spec: TensorSpec, form: Form | None) -> Array:
    """The tensor as users see it: a view of the bytes wherever they can be seen as one."""
    if form is None:
        return spec.view(data)
    if form.record is not None:
        array = data.view(form.record)
        return array if array.flags.aligned else array.copy()
    if form.deflated:
        data = inflate(data, form.deflated)
    # What is copied are the bytes in the file: an expanded tensor claims far more than these.
    if form.big_endian:
        swapped = data.view(spec.kind.numpy.newbyteorder(">")).astype(spec.kind.numpy)
        return _as_it_lies(swapped.view(np.uint8), spec, replace(form, big_endian=False))
    array = _as_it_lies(data, spec, form)
    return array if array.flags.aligned else _as_it_lies(data.copy(), spec, form)


def as_source(data: Bytes, spec: TensorSpec, form: Form) -> Source:
    """The tensor as a source, in C order and little-endian, without a copy of it.

    A compressed tensor in another order than that cannot be streamed, and takes its size.
    """
    if form.deflated:
        if form.streams:
            return InflatingSource(data, form.deflated, spec)
        data = inflate(data, form.deflated)
    return ArraySource(_as_it_lies(data, spec, form), spec)


class LoadedSource:
    """A source that is made when a thread needs it, and let go when the thread needs another.

    For tensors that cannot be streamed: there is one of them in memory for each thread.
    """

    sequential = True

    def __init__(self, spec: TensorSpec, load: Callable[[], Source], held: threading.local) -> None:
        self.spec = spec
        self._load = load
        self._held = held

    def contiguous(self) -> Bytes | None:
        """They are not there all the time."""
        return None

    def copy_to(self, out: Bytes, start: int) -> None:
        """Fill `out` with the bytes that begin at `start`."""
        if getattr(self._held, "owner", None) is not self:
            self._held.source = None  # before the next one takes its memory
            self._held.source = self._load()
            self._held.owner = self
        self._held.source.copy_to(out, start)


def _as_it_lies(data: Bytes, spec: TensorSpec, form: Form) -> Array:
    dtype = spec.kind.numpy
    if form.big_endian:
        dtype = dtype.newbyteorder(">")
    if not data.size:
        return np.empty(spec.array_shape, dtype)
    return np.ndarray(spec.array_shape, dtype, data.data, 0, form.strides)


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
        with Threads(worker_count()) as pool:
            list(pool.map(copy, pieces))
    return memory
