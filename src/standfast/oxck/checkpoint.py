"""A checkpoint in memory, and its way into files and streams and back.

The errors come first, then the tensors, then the checkpoint, then what reads it.
"""

from __future__ import annotations

import math
import operator
import os
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from numbers import Integral, Real
from typing import Any, BinaryIO, Final, Self

import numpy as np

from standfast.errors import (
    BadField,
    BadHeader,
    BadName,
    DamagedFile,
    DigestMismatch,
    FileError,
    RefusedMetadata,
    RefusedTensor,
    StandfastError,
    TooNew,
    TrailingBytes,
    TruncatedFile,
    UnsupportedDType,
    UnsupportedFile,
    UnsupportedShape,
    UnsupportedTensor,
    shortened,
)
from standfast.files import disk
from standfast.files.digests import DIGEST, chunk_counts, digest_all
from standfast.files.input.file import SourceFile
from standfast.files.input.stream import read_some
from standfast.files.layout import Layout
from standfast.files.writer import write_file, write_stream
from standfast.formats.limits import MAX_NAME, MAX_RANK
from standfast.formats.metadata import from_strings
from standfast.formats.oxck import file as oxck
from standfast.formats.reader import MAX_SIZE, Start
from standfast.formats.seal import CHUNKS_KEY, KEY, check_seal, parse_chunks
from standfast.tensors import ArraySource, TensorSpec, source_of
from standfast.tensors.cast import CastSource, fitting

Floats = np.ndarray[Any, np.dtype[np.float32]]

_PIECE: Final = 16 << 20
"""Memory grows with the bytes that have arrived, not with what a header claims."""


class CheckpointError(StandfastError):
    """The base of the original's six errors; each is also the one that `standfast` raises."""


class Io(CheckpointError, FileError):
    """The file or the stream could not be read or written."""


class InvalidMagic(CheckpointError, BadHeader):
    """The file does not begin with `OXCK`."""

    def __init__(self, got: bytes) -> None:
        super().__init__(f"invalid magic bytes: expected b'OXCK', got {got!r}")
        self.got = got


class UnsupportedVersion(CheckpointError, UnsupportedFile):
    """The file has a version other than 1."""

    def __init__(self, version: int) -> None:
        super().__init__(f"unsupported checkpoint version: {version}")
        self.version = version


class MetadataParse(CheckpointError, BadField):
    """The metadata, or a name, is not the text that it should be."""

    def __init__(self, reason: str) -> None:
        super().__init__(f"metadata parse error: {reason}")
        self.reason = reason


class TruncatedData(CheckpointError, TruncatedFile):
    """The bytes end before the checkpoint does."""

    def __init__(self, expected: int, got: int) -> None:
        super().__init__(f"truncated data: expected {expected:,} bytes, got {got:,}")
        self.expected = expected
        self.got = got


class NameTooLong(CheckpointError, BadName):
    """A tensor's name has more than 65,535 bytes."""

    def __init__(self, length: int) -> None:
        super().__init__(f"tensor name too long: {length:,} bytes (at most {MAX_NAME:,})")
        self.length = length


@contextmanager
def _errors_of(path: str | os.PathLike[str] | None) -> Iterator[None]:
    """Give errors of the file system the original's name, and all others that of the file."""
    try:
        yield
    except FileError as error:
        if isinstance(error, Io):
            raise
        raise Io(error.errno, error.strerror) from error
    except (DamagedFile, UnsupportedFile, RefusedTensor, RefusedMetadata) as error:
        if path is not None and os.fsdecode(path) not in str(error):
            error.args = (f"{os.fsdecode(path)}: {error}", *error.args[1:])
        raise


class _Tensor:
    name: str
    data: Floats
    shape: Sequence[int]

    def __eq__(self, other: object) -> bool:
        """Whether name, shape and bits are the same."""
        if not isinstance(other, _Tensor) or type(other) is not type(self):
            return NotImplemented
        if (self.name, list(self.shape)) != (other.name, list(other.shape)):
            return False
        one, two = (np.ascontiguousarray(each.data, "<f4") for each in (self, other))
        return np.array_equal(one.reshape(-1).view("u4"), two.reshape(-1).view("u4"))

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        data = np.array2string(np.asarray(self.data), threshold=6, separator=", ")
        name = shortened(repr(self.name))
        return f"{type(self).__name__}({name}, {data}, {list(self.shape)})"


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class WeightTensor(_Tensor):
    """A named weight, as a model holds it."""

    name: str
    data: Floats
    shape: tuple[int, ...]


class CheckpointTensor(_Tensor):
    """A named tensor: a flat array of float32 in memory of its own, and a shape.

    `data` is an array or tensor of float32 of any framework, byte order and layout, or a list of
    numbers, which are rounded as float32 literals are. Without `shape`, that of the data is used.
    Raises UnsupportedDType, with the tensor's name, for another dtype and for numbers beyond
    float32, unless `allow_cast`; complex numbers are never cast.

    >>> CheckpointTensor("layer.0.weight", [0.5] * 6, [2, 3])
    >>> CheckpointTensor("layer.0.weight", model[0].weight)
    """

    def __init__(
        self, name: str, data: Any, shape: Sequence[int] | None = None, *, allow_cast: bool = False
    ) -> None:
        with _errors_of(f"tensor {shortened(str(name))!r}"):
            if isinstance(data, Sequence | Real):
                array = _rounded(data, allow_cast)
            else:
                array = _copied(data, allow_cast)
            self.shape = _as_shape(array.shape if shape is None else shape)
        self.name = name
        self.data = array.reshape(-1)

    def element_count(self) -> int:
        """The product of the shape; as in the original, 0 for a shape without dimensions."""
        return math.prod(self.shape) if self.shape else 0

    def size_bytes(self) -> int:
        """Four bytes an element, by `element_count`."""
        return 4 * self.element_count()

    @classmethod
    def from_weight_tensor(cls, weight: WeightTensor) -> Self:
        """A copy of a model's weight."""
        return cls(weight.name, weight.data, weight.shape)

    def to_weight_tensor(self) -> WeightTensor:
        """A copy for a model."""
        return WeightTensor(self.name, self.data.copy(), tuple(self.shape))


def _as_shape(shape: Any) -> list[int]:
    try:
        return [operator.index(n) for n in shape]
    except TypeError as error:
        raise UnsupportedShape(f"{shape!r} is not a shape: {error}") from error


def _copied(data: Any, allow_cast: bool) -> Floats:
    """A copy of an array or tensor, in C order."""
    source = source_of(data)
    if source.spec.dtype != "float32":
        after = fitting(source.spec, ("float32",), MAX_RANK) if allow_cast else None
        if after is None:
            raise UnsupportedDType(
                f"OXCK holds only float32, not {source.spec.dtype}; "
                "allow_cast=True converts real numbers"
            )
        source = CastSource(source, after)
    out = np.empty(source.spec.nbytes, np.uint8)
    source.copy_to(out, 0)
    return out.view("<f4").reshape(source.spec.shape)


def _rounded(data: Any, allow_cast: bool) -> Floats:
    """An array of plain numbers, each rounded to the nearest float32."""
    try:
        given = np.array(data, object)
    except (RuntimeError, TypeError, ValueError) as error:  # of tensors that NumPy cannot read
        raise UnsupportedTensor(f"not a list of numbers: {shortened(str(error))}") from error
    values = given.reshape(-1).tolist()
    for value in values:
        if not isinstance(value, Real):
            raise UnsupportedTensor(f"{shortened(repr(value))} is not a real number")
    with np.errstate(over="ignore"):
        array = np.array([_as_float(value) for value in values]).astype("<f4")
    for value, rounded in zip(values, array.tolist(), strict=True):
        if not (allow_cast or _is_near(value, rounded)):
            raise UnsupportedDType(
                f"{shortened(repr(value))} is {rounded} in float32; allow_cast=True accepts that"
            )
    return array.reshape(given.shape)


def _as_float(value: Any) -> float:
    try:
        return float(value)
    except OverflowError:  # an integer beyond float64
        return math.inf if value > 0 else -math.inf


def _is_near(value: Any, rounded: float) -> bool:
    """Whether a number lost only digits, and an integer nothing."""
    if isinstance(value, Integral):
        return int(value) == rounded
    number = _as_float(value)
    return math.isinf(number) == math.isinf(rounded) and bool(number) == bool(rounded)


@dataclass
class Checkpoint:
    """Metadata and tensors, in the order in which they were added."""

    version: int = 1
    metadata: dict[str, str] = field(default_factory=dict)
    tensors: list[CheckpointTensor] = field(default_factory=list)
    digests: bool = False
    """Whether it is saved with Standfast's digests; true of one that was loaded with them."""
    _loaded: tuple[dict[str, str], bytes | None] | None = field(
        default=None, repr=False, compare=False
    )
    """The metadata that was loaded, and its text: it is written again if nothing has changed."""

    def add_tensor(self, tensor: CheckpointTensor) -> None:
        """Append a tensor; its name may be one that is there already."""
        if not isinstance(tensor, CheckpointTensor):
            raise UnsupportedTensor(f"a {type(tensor).__name__} is not a CheckpointTensor")
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
        """Save to a file, durably; if this raises, a file at the path is as it was."""
        with _errors_of(path):
            write_file(path, *self._layout(), disk.LOCAL)

    def write_to(self, writer: BinaryIO) -> None:
        """Write to a stream, which is not flushed."""
        with _errors_of(None):
            write_stream(writer, *self._layout())

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Self:
        """Load a file, which must end after the last tensor."""
        with _errors_of(path), closing(SourceFile(path)) as file:
            checkpoint, end = cls._read(_FileStart(file))
            if end < file.size:
                raise TrailingBytes(f"{file.size - end:,} bytes follow the last tensor")
            return checkpoint

    @classmethod
    def read_from(cls, reader: BinaryIO) -> Self:
        """Read from a stream, in bounded pieces, and stop after the last tensor."""
        with _errors_of(None):
            return cls._read(_StreamStart(reader))[0]

    @classmethod
    def _read(cls, start: _FileStart | _StreamStart) -> tuple[Self, int]:
        """The checkpoint, and the number of bytes that it takes."""
        head, count = _read_head(start)
        try:
            strings = oxck.from_text(head[oxck.START_SIZE :])
        except BadField as error:
            raise MetadataParse(str(error)) from error
        headers, tensors = [], []
        end = len(head)
        for entry in _entries(start, end, count):
            headers.append(entry.header)
            tensor = CheckpointTensor(entry.name, (), entry.shape)
            tensor.data = start.floats(entry.start, entry.elements)  # which needs no copy
            tensors.append(tensor)
            end = entry.start + 4 * entry.elements
        ours = {key: strings.pop(key) for key in (KEY, CHUNKS_KEY) if key in strings}
        if ours:
            check_seal(ours.get(KEY), head, oxck.digest_at(head), after=[b"".join(headers)])
            _verify(tensors, ours.get(CHUNKS_KEY))
        text = None if ours else head[oxck.START_SIZE :]
        return cls(1, strings, tensors, bool(ours), (dict(strings), text)), end

    def _layout(self) -> tuple[Layout, list[ArraySource]]:
        headers = [_checked_header(tensor) for tensor in self.tensors]
        sources = [
            ArraySource(tensor.data, TensorSpec("float32", tensor.data.shape))
            for tensor in self.tensors
        ]
        sizes = [source.spec.nbytes for source in sources]
        loaded, text = self._loaded or (None, None)
        if loaded != self.metadata:
            _refuse_metadata(self.metadata)
            text = None
        if self.digests:
            return oxck.sealed_layout(self.metadata, headers, sizes), sources
        if text is None:
            text = oxck.to_text(self.metadata).encode()
        return oxck.bare_layout(text, headers, sizes), sources


def _checked_header(tensor: CheckpointTensor) -> bytes:
    """What precedes a tensor in the file, if it is one that can be read again."""
    try:
        length = len(tensor.name.encode())
    except (AttributeError, UnicodeEncodeError) as error:
        raise BadName(
            f"tensor {tensor.name!r}: the name is not a string of valid Unicode"
        ) from error
    if length > MAX_NAME:
        raise NameTooLong(length)
    where = f"tensor {shortened(tensor.name)!r}"
    if not isinstance(tensor.data, np.ndarray) or tensor.data.dtype.newbyteorder("=") != np.float32:
        raise UnsupportedDType(f"{where}: its data must be an array of float32")
    with _errors_of(where):
        shape = _as_shape(tensor.shape)
    most = math.prod(filter(None, shape))
    if len(shape) > oxck.MAX_RANK or any(n < 0 for n in shape) or most > oxck.MAX_ELEMENTS:
        raise UnsupportedShape(f"{where}: no array can have the shape {shape[:64]}")
    size = tensor.data.size
    # A shape without dimensions may have one element or none.
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


def _read_head(start: Start) -> tuple[bytes, int]:
    # Field by field: a stream of something else is known by its first four bytes.
    magic = start.take(0, 4, "the magic")
    if magic != oxck.MAGIC:
        raise InvalidMagic(magic)
    version = start.take(4, 4, "the version")
    if version != b"\1\0\0\0":
        raise UnsupportedVersion(int.from_bytes(version, "little"))
    return oxck.read_start(start, magic + version)


def _entries(start: Start, at: int, count: int) -> Iterator[oxck.Entry]:
    try:
        yield from oxck.read_entries(start, at, count)
    except BadHeader as error:  # a name that is not UTF-8
        raise MetadataParse(str(error)) from error


def _verify(tensors: list[CheckpointTensor], chunks: Any) -> None:
    sources = [ArraySource(t.data, TensorSpec("float32", t.data.shape)) for t in tensors]
    sizes = np.fromiter((source.spec.nbytes for source in sources), np.int64)
    stored, found = parse_chunks(chunks, sizes), digest_all(sources)
    if stored == found:
        return
    ends = (np.cumsum(chunk_counts(sizes)) * DIGEST).tolist()
    damaged = [
        tensor.name
        for tensor, a, b in zip(tensors, [0, *ends], ends, strict=False)
        if stored[a:b] != found[a:b]
    ]
    more = f" and {len(damaged) - 1} more" if len(damaged) > 1 else ""
    raise DigestMismatch(
        f"tensor {shortened(damaged[0])!r}{more} is damaged: its bytes do not match the digest "
        "that was saved with them",
        tuple(damaged),
    )


class _FileStart(Start):
    """A file whose size is known."""

    def __init__(self, file: SourceFile) -> None:
        super().__init__(file.read, file.size)
        self._file = file

    def check(self, start: int, length: int, what: str) -> None:
        if start + length > self._file.size:
            raise TruncatedData(length, max(0, self._file.size - start))

    def floats(self, start: int, count: int) -> Floats:
        out = np.empty(4 * count, np.uint8)
        self._file.read_into(out, start)
        return out.view("<f4")


class _StreamStart(Start):
    """A stream, of which one stretch after the other is asked for: what was read is gone."""

    def __init__(self, reader: BinaryIO) -> None:
        super().__init__(lambda start, length: bytes(self._next(length)), None)
        self._reader = reader

    def check(self, start: int, length: int, what: str) -> None:
        if start + length > MAX_SIZE:
            raise TruncatedData(length, 0)

    def floats(self, start: int, count: int) -> Floats:
        return np.frombuffer(self._next(4 * count), "<f4")

    def _next(self, length: int) -> bytearray:
        data = bytearray()
        while len(data) < length:
            piece = read_some(self._reader, min(_PIECE, length - len(data)))
            if not piece:
                raise TruncatedData(length, len(data))
            data += piece
        return data
