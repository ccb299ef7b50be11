"""What the tensors of a file should be, by a way that shares nothing with the reader's."""

from __future__ import annotations

import zlib
from typing import Any

import numpy as np
from blake3 import blake3

from standfast.files.layout import Index
from standfast.formats.reader import Options

LARGEST_ARRAY = 1 << 20
"""A short file can hold a tensor of a petabyte, all of it one number; that is not compared."""

Array = np.ndarray[Any, Any]


def damaged_tensors(data: bytes, index: Index, options: Options) -> tuple[str, ...]:
    """The tensors whose bytes do not match their digests, in the order of the file."""
    if not options.verify:
        return ()
    names = list(index.rows)
    rows = sorted(range(len(names)), key=lambda row: (index.starts[row], index.sizes[row]))
    return tuple(names[row] for row in rows if _is_damaged(data, index, row))


def _is_damaged(data: bytes, index: Index, row: int) -> bool:
    stored = data[index.starts[row] :][: index.sizes[row]]
    if index.digests is not None:
        # Inputs are small, so that each tensor has one chunk.
        return blake3(stored).digest() != index.digests[32 * row : 32 * row + 32]
    if index.crcs is None or (row in index.forms and index.forms[row].deflated is not None):
        return False
    before, expected = index.crcs[row]
    return zlib.crc32(stored, before) != expected


def expected_array(data: bytes, index: Index, row: int) -> Array | None:
    """A tensor as it should be; None if its bytes cannot be inflated, or are far too many."""
    spec, form = index.spec(row), index.forms.get(row)
    stored = data[index.starts[row] :][: index.sizes[row]]
    if form is None:
        return np.frombuffer(stored, spec.kind.numpy).reshape(spec.array_shape)
    if form.record is not None:
        return np.frombuffer(stored, form.record)
    if spec.nbytes > LARGEST_ARRAY:
        return None
    if form.deflated is not None:
        inflated = inflate(stored, form.deflated.size, form.deflated.crc)
        if inflated is None:
            return None
        stored = inflated[form.deflated.skip :]
    dtype = spec.kind.numpy.newbyteorder(">" if form.big_endian else "<")
    if not stored:
        return np.empty(spec.array_shape, spec.kind.numpy)
    return np.ndarray(spec.array_shape, dtype, stored, 0, form.strides).astype(spec.kind.numpy)


def inflate(stored: bytes, size: int, crc: int) -> bytes | None:
    """The inflated bytes; None unless they are of this size and checksum."""
    inflater = zlib.decompressobj(-15)
    try:
        inflated = inflater.decompress(stored, size + 1)
    except zlib.error:
        return None
    whole = inflater.eof or (len(inflated) == size and _ends(inflater))
    sound = len(inflated) == size and zlib.crc32(inflated) == crc and not inflater.unused_data
    return inflated if whole and sound else None


def _ends(inflater: Any) -> bool:
    """Whether nothing but the end follows; zlib looks for it only when asked for more."""
    try:
        return not inflater.decompress(inflater.unconsumed_tail, 1) and bool(inflater.eof)
    except zlib.error:
        return False


def broken_tensors(data: bytes, index: Index) -> list[str]:
    """The compressed tensors that cannot be inflated to what the file says of them."""
    return [
        name
        for name, row in index.rows.items()
        if row in index.forms and index.forms[row].deflated is not None
        if index.spec(row).nbytes <= LARGEST_ARRAY and expected_array(data, index, row) is None
    ]
