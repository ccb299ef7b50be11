"""What `standfast train` trains on: MNIST, or the small digits that scikit-learn ships."""

from __future__ import annotations

import errno
import gzip
import os
import struct
import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, Final

import numpy as np
from blake3 import blake3

from standfast.errors import (
    BadField,
    BadHeader,
    LimitExceeded,
    MissingFile,
    TrailingBytes,
    TruncatedFile,
    UnknownFramework,
    UnreadableFile,
    UnsupportedFile,
)
from standfast.files.paths import check_local

SIZE: Final = 28
"""The side of an image."""
DEFAULT: Final = "data/mnist"
NEEDED: Final = "pip install torch scikit-learn"

_FILES: Final = (
    "train-images-idx3-ubyte",
    "train-labels-idx1-ubyte",
    "t10k-images-idx3-ubyte",
    "t10k-labels-idx1-ubyte",
)
_VALIDATION: Final = 360
"""A fifth of the small digits."""

Array = np.ndarray[Any, Any]


@dataclass(frozen=True)
class Samples:
    """Images as float32 from 0 to 1, of shape (n, 1, 28, 28), and their labels as int64."""

    images: Array
    labels: Array


@dataclass(frozen=True)
class Digits:
    """Samples to train on and others to validate with."""

    name: str
    training: Samples
    validation: Samples

    def digest(self) -> str:
        """A digest over all images and labels, in their order."""
        whole = blake3()
        for samples in (self.training, self.validation):
            for array in (samples.images, samples.labels):
                whole.update(np.ascontiguousarray(array).reshape(-1).view(np.uint8).data)
        return whole.hexdigest()


def load_digits(named: str | Path | None) -> Digits:
    """MNIST out of the folder that was named.

    If none was: MNIST if it lies in `data/mnist`, else the digits of scikit-learn.
    """
    check_local(folder := Path(DEFAULT if named is None else named))
    found = [_find(folder, name) for name in _FILES]
    if named is None and not any(found):
        return _small_digits()
    missing = [name for name, path in zip(_FILES, found, strict=True) if path is None]
    if missing:
        raise MissingFile(
            errno.ENOENT,
            f"{folder} does not hold MNIST: there is no {' and no '.join(missing)} (or the same "
            "as .gz)",
        )
    images, labels, more_images, more_labels = (path for path in found if path is not None)
    training, validation = _mnist(images, labels), _mnist(more_images, more_labels)
    return Digits(f"MNIST in {folder}", training, validation)


def _find(folder: Path, name: str) -> Path | None:
    dotted = name.replace("-idx", ".idx")  # some unpackers write them so
    paths = (folder / f"{each}{suffix}" for each in (name, dotted) for suffix in ("", ".gz"))
    return next((path for path in paths if path.is_file()), None)


def _mnist(images_path: Path, labels_path: Path) -> Samples:
    images = read_idx(images_path, (SIZE, SIZE))
    labels = read_idx(labels_path, ())
    if len(images) != len(labels):
        raise BadField(
            f"{labels_path}: {len(labels):,} labels for the {len(images):,} images of {images_path}"
        )
    if labels.max() > 9:
        raise BadField(f"{labels_path}: a label of {labels.max()}; expected 0 to 9")
    return _samples(images, labels, brightest=255)


def _samples(images: Array, labels: Array, brightest: int) -> Samples:
    scaled = images.astype(np.float32) / np.float32(brightest)
    return Samples(scaled.reshape(-1, 1, SIZE, SIZE), labels.astype(np.int64))


def _small_digits() -> Digits:
    try:
        from sklearn import datasets
    except ImportError as error:
        raise UnknownFramework(
            f"there is no MNIST to train on, and the digits of scikit-learn cannot be loaded "
            f"({error}): {NEEDED}, or name a folder with MNIST by --data-dir"
        ) from error
    found = datasets.load_digits()
    # Each pixel becomes nine, and a frame of two goes around them: 28 is 2 + 3 times 8 + 2.
    images = np.pad(found.images.repeat(3, axis=1).repeat(3, axis=2), ((0, 0), (2, 2), (2, 2)))
    # They come sorted by who wrote them: mixed, and always in the same way.
    order = np.random.default_rng(0).permutation(len(images))
    mixed = _samples(images[order], found.target[order], brightest=16)
    training = Samples(mixed.images[_VALIDATION:], mixed.labels[_VALIDATION:])
    validation = Samples(mixed.images[:_VALIDATION], mixed.labels[:_VALIDATION])
    return Digits("the digits of scikit-learn", training, validation)


MAX_ITEMS: Final = 1_000_000
_BYTES: Final = 0x08
"""The type code of unsigned bytes, the only ones that MNIST has."""


def read_idx(path: Path, item: tuple[int, ...]) -> np.ndarray[Any, np.dtype[np.uint8]]:
    """The items of a file, each an array of the shape `item`; a `.gz` is decompressed.

    No more is read than the header says, nor more than a million items.
    """
    try:
        with gzip.open(path) if path.suffix == ".gz" else open(path, "rb") as file:
            return _read(file, path, item)
    except (OSError, EOFError, zlib.error) as error:
        reason = getattr(error, "strerror", None) or error
        if isinstance(error, EOFError | zlib.error | gzip.BadGzipFile):
            raise TruncatedFile(f"{path}: its compression is damaged: {reason}") from error
        raise UnreadableFile(getattr(error, "errno", None), f"{path}: {reason}") from error


def _read(
    file: BinaryIO | gzip.GzipFile, path: Path, item: tuple[int, ...]
) -> np.ndarray[Any, np.dtype[np.uint8]]:
    rank = 1 + len(item)
    header = struct.Struct(f">4B{rank}I")
    head = file.read(header.size)
    if len(head) < header.size:
        raise TruncatedFile(f"{path}: {header.size} bytes of header expected, {len(head)} found")
    zero, one, code, dimensions, count, *shape = header.unpack(head)
    if (zero, one) != (0, 0):
        raise BadHeader(f"{path}: no IDX file: it begins with {head[:4].hex(' ')}, not with 00 00")
    if code != _BYTES or dimensions != rank or tuple(shape) != item:
        raise UnsupportedFile(
            f"{path}: expected bytes of shape {[*item]} each, found type {code:#04x} with "
            f"{dimensions} dimensions of {[count, *shape]}"
        )
    if not 0 < count <= MAX_ITEMS:
        raise LimitExceeded(f"{path}: {count:,} items; expected 1 to {MAX_ITEMS:,}")
    size = count * int(np.prod(item, dtype=np.int64))
    if path.suffix != ".gz" and os.fstat(file.fileno()).st_size < header.size + size:
        raise TruncatedFile(f"{path}: it ends before its {count:,} items do")
    data = file.read(size)
    if len(data) < size:
        raise TruncatedFile(f"{path}: {size:,} bytes of items expected, {len(data):,} found")
    if file.read(1):
        raise TrailingBytes(f"{path}: it goes on after its {count:,} items")
    return np.frombuffer(data, np.uint8).reshape(count, *item)
