"""A folder with MNIST's files, small enough for tests."""

import gzip
import struct
from pathlib import Path
from typing import Any

import numpy as np


def idx_bytes(array: np.ndarray[Any, np.dtype[np.uint8]]) -> bytes:
    return struct.pack(f">4B{array.ndim}I", 0, 0, 8, array.ndim, *array.shape) + array.tobytes()


def write_digits(folder: Path, training: int = 96, validation: int = 32) -> Path:
    """Images of noise around a bright row, which tells the label."""
    folder.mkdir(parents=True, exist_ok=True)
    random = np.random.default_rng(7)
    for prefix, count in (("train", training), ("t10k", validation)):
        labels = random.integers(0, 10, count).astype(np.uint8)
        images = random.integers(0, 160, (count, 28, 28)).astype(np.uint8)
        images[np.arange(count), 2 * labels + 3] = 255
        (folder / f"{prefix}-labels-idx1-ubyte").write_bytes(idx_bytes(labels))
        (folder / f"{prefix}-images-idx3-ubyte.gz").write_bytes(gzip.compress(idx_bytes(images)))
    return folder
