"""A checkpoint in memory: metadata and tensors, in order."""

from __future__ import annotations

import math
import operator
import os
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import BinaryIO, Self

import numpy as np

from standfast.errors import (
    BadName,
    DamagedFile,
    FileError,
    RefusedMetadata,
    TooNew,
    UnsupportedDType,
    UnsupportedShape,
    shortened,
)
from standfast.files import disk
from standfast.files.layout import Layout
from standfast.files.writer import write_file, write_stream
from standfast.formats.limits import MAX_NAME
from standfast.formats.metadata import from_strings
from standfast.formats.oxck import file as oxck
from standfast.formats.oxck.metadata import to_text
from standfast.formats.seal import CHUNKS_KEY, KEY
from standfast.oxck.errors import Io, NameTooLong
from standfast.oxck.reader import Content, Floats, read_file, read_stream
from standfast.tensors import ArraySource, TensorSpec


@dataclass(frozen=True, slots=True)
class WeightTensor:
    """A named weight, as a model holds it."""

    name: str
    data: Floats
    shape: tuple[int, ...]


class CheckpointTensor:
    """A named tensor of float32 elements, flat, with their shape.

    Without a shape it is that of the data. Data of another dtype is refused unless `cast`.
    """

    def __init__(
        self,
        name: str,
        data: Floats | Sequence[float],
        shape: Sequence[int] | None = None,
        *,
        cast: bool = False,
    ) -> None:
        array = data if isinstance(data, np.ndarray) else np.asarray(data, np.float32)
        if array.dtype != np.float32 and not cast:
            raise UnsupportedDType(
                f"tensor {name!r}: OXCK holds only float32, not {array.dtype}; cast=True converts"
            )
        self.name = name
        self.shape = list(array.shape if shape is None else shape)
        self.data: Floats = np.ascontiguousarray(array, np.float32).reshape(-1)

    def element_count(self) -> int:
        """The product of the shape; as in the original, 0 for a shape without dimensions."""
        return math.prod(self.shape) if self.shape else 0

    def size_bytes(self) -> int:
        """Four bytes an element, by `element_count`."""
        return 4 * self.element_count()

    @classmethod
    def from_weight_tensor(cls, weight: WeightTensor) -> Self:
        """A copy of a model's weight."""
        return cls(weight.name, weight.data.copy(), weight.shape)

    def to_weight_tensor(self) -> WeightTensor:
        """A copy for a model."""
        return WeightTensor(self.name, self.data.copy(), tuple(self.shape))


@dataclass
class Checkpoint:
    """Metadata and tensors, in the order in which they were added."""

    version: int = 1
    metadata: dict[str, str] = field(default_factory=dict)
    tensors: list[CheckpointTensor] = field(default_factory=list)
    digests: bool = False
    """Whether it is saved with Standfast's digests; true of one that was loaded with them."""
    _loaded: Content | None = field(default=None, repr=False, compare=False)
    """What it was loaded from: metadata that has not changed since is written as it stood there."""

    def add_tensor(self, tensor: CheckpointTensor) -> None:
        """Append a tensor; its name may be one that is there already."""
        self.tensors.append(tensor)

    def set_metadata(self, key: str, value: str) -> None:
        """Set a metadata value."""
        self.metadata[key] = value

    def get_metadata(self, key: str) -> str | None:
        """A metadata value, or None."""
        return self.metadata.get(key)

    def get_tensor(self, name: str) -> CheckpointTensor | None:
        """The first tensor of this name, or None."""
        return next((tensor for tensor in self.tensors if tensor.name == name), None)

    def total_bytes(self) -> int:
        """The sum of `size_bytes` over all tensors."""
        return sum(tensor.size_bytes() for tensor in self.tensors)

    def num_params(self) -> int:
        """The sum of `element_count` over all tensors."""
        return sum(tensor.element_count() for tensor in self.tensors)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Save to a file, durably; until then whatever stood at the path stays as it was."""
        layout, sources = self._layout()
        try:
            write_file(path, layout, sources, disk.LOCAL)
        except FileError as error:
            raise Io(error.errno, error.strerror) from error

    def write_to(self, writer: BinaryIO) -> None:
        """Write to a stream, which is not flushed."""
        layout, sources = self._layout()
        try:
            write_stream(writer, layout, sources)
        except FileError as error:
            raise Io(error.errno, error.strerror) from error

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Self:
        """Load a file, which must end after the last tensor."""
        return cls._of(read_file(path))

    @classmethod
    def read_from(cls, reader: BinaryIO) -> Self:
        """Read from a stream, in bounded pieces, and stop after the last tensor."""
        return cls._of(read_stream(reader))

    @classmethod
    def _of(cls, content: Content) -> Self:
        tensors = [CheckpointTensor(e.name, e.data, e.shape) for e in content.tensors]
        # Of the content all is kept but the tensors, which users may want to be rid of.
        loaded = replace(content, tensors=[])
        return cls(1, dict(content.strings), tensors, content.digests, loaded)

    def _layout(self) -> tuple[Layout, list[ArraySource]]:
        headers = [_checked_header(tensor) for tensor in self.tensors]
        sources = [
            ArraySource(tensor.data, TensorSpec("float32", tensor.data.shape))
            for tensor in self.tensors
        ]
        sizes = [source.spec.nbytes for source in sources]
        loaded = self._loaded
        if loaded is None or loaded.strings != self.metadata:
            _refuse_metadata(self.metadata)
            loaded = None
        if self.digests:
            return oxck.sealed_layout(self.metadata, headers, sizes), sources
        if loaded is None or loaded.digests:
            return oxck.bare_layout(to_text(self.metadata).encode(), headers, sizes), sources
        return oxck.bare_layout(loaded.text, headers, sizes), sources


def _checked_header(tensor: CheckpointTensor) -> bytes:
    """What precedes a tensor in the file, if it is one that can be read again."""
    try:
        length = len(tensor.name.encode())
    except (AttributeError, UnicodeEncodeError) as error:
        raise BadName(f"tensor {tensor.name!r}: the name is no valid Unicode string") from error
    if length > MAX_NAME:
        raise NameTooLong(length)
    where = f"tensor {shortened(tensor.name)!r}"
    if not isinstance(tensor.data, np.ndarray) or tensor.data.dtype != np.float32:
        raise UnsupportedDType(f"{where}: its data must be an array of float32")
    try:
        shape = [operator.index(n) for n in tensor.shape]
    except TypeError as error:
        raise UnsupportedShape(f"{where}: the shape {tensor.shape!r} is none: {error}") from error
    most = math.prod(filter(None, shape))
    if len(shape) > oxck.MAX_RANK or any(n < 0 for n in shape) or most > oxck.MAX_ELEMENTS:
        raise UnsupportedShape(f"{where}: no array can have the shape {shape[:64]}")
    size = tensor.data.size
    # A shape of no dimensions has one element, or none: both are legal.
    if size != math.prod(shape) if shape else size > 1:
        raise UnsupportedShape(f"{where}: {size:,} elements do not have the shape {shape}")
    return oxck.tensor_header(tensor.name, shape, size)


def _refuse_metadata(metadata: dict[str, str]) -> None:
    """Raise RefusedMetadata for what would not come back, or would make the file unreadable."""
    for key, value in metadata.items():
        for text in (key, value):
            try:
                text.encode()
            except (AttributeError, UnicodeEncodeError) as error:
                raise RefusedMetadata(
                    f"metadata {key!r}: keys and values must be strings of valid Unicode"
                ) from error
        if key in (KEY, CHUNKS_KEY):
            raise RefusedMetadata(f"metadata {key!r}: Standfast writes it; set `digests` instead")
    try:
        from_strings(metadata)
    except (DamagedFile, TooNew) as error:
        raise RefusedMetadata(f"{error}: standfast.open would refuse the file") from error
