"""Legal content at random, and files of it as Standfast writes them."""

from __future__ import annotations

import io
import json
from collections.abc import Callable, Collection, Mapping
from random import Random
from typing import Any

import numpy as np
from blake3 import blake3

import standfast
from standfast.tensors import DTYPES
from tests import GOLDEN
from tests.formats.malformed import TABLES
from tests.fuzz.target import LARGEST_SEED

LETTERS = ["a", "b", "weight", "dtype", "shape", "é", "😀", '"', "\\", "\n", "/", ".", " ", "__"]
VALUES: list[Any] = [1, 1.5, "text", [1, [2]], {"x": None}, True, -3, [], "3", ""]

Array = np.ndarray[Any, Any]


def small(files: Collection[bytes]) -> list[bytes]:
    """Those of the files that are small."""
    return [file for file in files if len(file) <= LARGEST_SEED]


def malformed(format: str) -> list[bytes]:
    """Those of the malformed files that are small."""
    return small([row.content for row in TABLES[format].rows if not callable(row.data)])


def saved(
    format: str, tensors: Mapping[str, Any], metadata: Any = None, extras: bool = True
) -> bytes:
    """The bytes that `standfast.save` writes."""
    stream = io.BytesIO()
    standfast.save(stream, tensors, metadata, format=format, extras=extras)
    return stream.getvalue()


def random_name(random: Random) -> str:
    return "".join(random.choices(LETTERS, k=random.randrange(1, 4)))


def random_metadata(random: Random) -> dict[str, Any]:
    return {random_name(random): random.choice(VALUES) for _ in range(random.choice((0, 1, 3)))}


def random_tensors(random: Random, dtypes: Collection[str], rank: int = 4) -> dict[str, Array]:
    """A few tensors of these dtypes, in NumPy's order of elements or another."""
    tensors = {}
    for _ in range(random.randrange(5)):
        dtype = DTYPES[random.choice(sorted(name for name in dtypes if not DTYPES[name].packed))]
        shape = [random.choice((0, 1, 1, 2, 3, 8)) for _ in range(random.randrange(rank))]
        count = int(np.prod(shape)) * dtype.numpy.itemsize
        bits = random.randbytes(count)
        if dtype.name == "bool":
            bits = bytes(byte & 1 for byte in bits)
        tensors[random_name(random)] = np.frombuffer(bits, dtype.numpy).reshape(shape)
    return tensors


def random_saved(format: str, dtypes: Collection[str], rank: int = 4) -> Callable[[Random], bytes]:
    """Makes files of this format, with and without extras."""

    def random_file(random: Random) -> bytes:
        extras = random.random() < 0.6
        metadata = random_metadata(random) if extras else {}
        return saved(format, random_tensors(random, dtypes, rank), metadata, extras)

    return random_file


def quoted(random: Random, text: str) -> str:
    """The text as it may stand between quotes."""
    return json.dumps(text, ensure_ascii=random.random() < 0.5)[1:-1]


def golden(suffix: str) -> list[bytes]:
    """The files that the first implementation of a format wrote."""
    return [path.read_bytes() for path in sorted(GOLDEN.glob(f"*{suffix}"))]


def with_digest(file: bytes, at: int, before: bytes, after: bytes = b"") -> bytes:
    """The file with the right 64 digits at `at`, over `before` and `after` them."""
    if not 0 <= at <= at + 64 <= len(file):
        return file
    digits = blake3(before + b"0" * 64 + after).hexdigest().encode()
    return file[:at] + digits + file[at + 64 :]
