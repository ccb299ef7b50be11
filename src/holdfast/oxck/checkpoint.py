"""A checkpoint in memory: metadata and tensors, in order."""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import BinaryIO, Self

import numpy as np

from holdfast.errors import FileError, UnsupportedDType, UnsupportedShape, shortened
from holdfast.files import disk
from holdfast.files.layout import Layout
from holdfast.files.writer import write_file, write_stream
from holdfast.formats import oxck
from holdfast.formats.oxck_metadata import to_text
from holdfast.formats.refusals import MAX_NAME
from holdfast.oxck.errors import Io, NameTooLong
from holdfast.oxck.reading import Content, Floats, read_file, read_stream
from holdfast.tensors import ArraySource, TensorSpec


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
    """Whether it is saved with Holdfast's digests; true of one that was loaded with them."""
    _text: tuple[bytes, dict[str, str]] | None = field(default=None, repr=False, compare=False)
    """The metadata's text as it was loaded, and what it meant."""

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
        checkpoint = cls(1, content.strings, tensors, content.digests)
        if not content.digests:
            checkpoint._text = content.text, dict(content.strings)
        return checkpoint

    def _layout(self) -> tuple[Layout, list[ArraySource]]:
        headers, sources = [], []
        for tensor in self.tensors:
            length = len(tensor.name.encode())
            if length > MAX_NAME:
                raise NameTooLong(length)
            if tensor.data.size != (math.prod(tensor.shape) if tensor.shape else tensor.data.size):
                raise UnsupportedShape(
                    f"tensor {shortened(tensor.name)!r}: {tensor.data.size:,} elements "
                    f"do not have the shape {tensor.shape}"
                )
            headers.append(oxck.tensor_header(tensor.name, tensor.shape, tensor.data.size))
            sources.append(ArraySource(tensor.data, TensorSpec("float32", tensor.data.shape)))
        sizes = [source.spec.nbytes for source in sources]
        if self.digests:
            return oxck.sealed_layout(self.metadata, headers, sizes), sources
        text = to_text(self.metadata).encode()
        if self._text is not None and self._text[1] == self.metadata:
            text = self._text[0]
        return oxck.bare_layout(text, headers, sizes), sources
