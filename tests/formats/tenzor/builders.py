"""Builds `.tenzor` files byte by byte, right ones and wrong ones, and looks tensors up in them."""

import struct
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import ml_dtypes
import numpy as np

from tests.formats import builders
from tests.formats.builders import Array, chunks, with_digest

DIGEST_AT = 64 + len('{"standfast.digest":"')
CODES = ("f4", "f2", ml_dtypes.bfloat16, "f8", "i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8")
"""The dtypes by their codes."""

HEADER = {
    "magic": (b"TENZOR\0\0", "8s"),
    "version": (1, "I"),
    "flags": (0, "I"),
    "tensor_count": (1, "I"),
    "padding": (0, "I"),
    "index_offset": (72, "Q"),
    "data_offset": (4096, "Q"),
    "metadata_size": (2, "I"),
    "reserved": (bytes(20), "20s"),
}
ENTRY = {
    "name_hash": (0xAF63DC4C8601EC8C, "Q"),
    "dtype": (8, "B"),
    "ndim": (1, "B"),
    "padding": (b"\0\0", "2s"),
    "shape": ((1, 0, 0, 0, 0), "5I"),
    "offset": (0, "Q"),
    "size": (1, "Q"),
}
"""By default the tensor `a`, one byte long."""


def fnv(name: bytes) -> int:
    """FNV-1a as its authors describe it."""
    value = 14695981039346656037
    for byte in name:
        value = ((value ^ byte) * 1099511628211) % 2**64
    return value


def _packed(fields: Mapping[str, tuple[Any, str]], changes: Mapping[str, Any]) -> bytes:
    assert set(changes) <= set(fields), changes
    values = {**{name: value for name, (value, _) in fields.items()}, **changes}
    flat: list[Any] = []
    for value in values.values():
        flat += value if isinstance(value, tuple) else [value]
    return struct.pack("<" + "".join(kind for _, kind in fields.values()), *flat)


def entry(**changes: Any) -> bytes:
    """An entry of the index; `shape` may be short."""
    if "shape" in changes:
        shape = tuple(changes["shape"])
        changes = {"ndim": len(shape), **changes, "shape": shape + (0,) * (5 - len(shape))}
    return _packed(ENTRY, changes)


def file_of(
    metadata: str | bytes = b"{}",
    entries: Sequence[bytes] | None = None,
    data: bytes = b"x",
    **changes: Any,
) -> bytes:
    """A file of this metadata, index and data; header fields that are given replace the right."""
    text = metadata if isinstance(metadata, bytes) else metadata.encode()
    index = b"".join([entry()] if entries is None else entries)
    index_at = 64 + -(-len(text) // 8) * 8
    data_at = -(-(index_at + len(index)) // 4096) * 4096
    right = {
        "tensor_count": len(index) // 48,
        "index_offset": index_at,
        "data_offset": data_at,
        "metadata_size": len(text),
    }
    head = (_packed(HEADER, right | changes) + text).ljust(index_at, b"\0") + index
    return head.ljust(data_at, b"\0") + data


def own_text(names: str = '["a"]', of: str | None = None, more: str = "") -> str:
    """The metadata of a file that we wrote, with zeros for the digest."""
    stored = chunks(b"x") if of is None else of
    return (
        f'{{"standfast.digest":"{"0" * 64}","standfast.chunks":"{stored}",'
        f'"standfast.names":{names}{more}}}'
    )


def trainer_text(loss: str = "0.5", name: str = "lenet", rate: str = "0.00870000") -> str:
    """What the original's trainer writes, with these parts as they are."""
    return (
        f'{{"epoch":5,"global_step":4685,"best_val_loss":{loss},"best_val_acc":0.963000,'
        f'"best_epoch":3,"learning_rate":{rate},"model_name":"{name}","timestamp":-1}}'
    )


def reseal(data: bytes) -> bytes:
    """The file with a digest that matches its head again, if it has one where it belongs."""
    end, size = int.from_bytes(data[32:40], "little"), int.from_bytes(data[40:44], "little")
    if not data.startswith(b'{"standfast.digest":"', 64) or size < 84 or end < 148:
        return data
    return with_digest(data, DIGEST_AT, data[:DIGEST_AT], data[DIGEST_AT + 64 : end])


saved = partial(builders.saved, "tenzor")
index_of = partial(builders.index_of, "tenzor")


def lookup(data: bytes, name: str) -> Array | None:
    """A tensor as the original finds it: by the hash of its name, in the index, in order."""
    count, index_at, data_at = struct.unpack_from("<I4xQQ", data, 16)
    for at in range(index_at, index_at + 48 * count, 48):
        found, code, ndim, *shape, start, size = struct.unpack_from("<QBB2x5IQQ", data, at)
        if found == fnv(name.encode()):
            raw = data[data_at + start : data_at + start + size]
            return np.frombuffer(raw, CODES[code]).reshape(shape[:ndim])
    return None


def metadata_text(data: bytes) -> bytes:
    """The metadata as the original reads it."""
    return data[64 : 64 + int.from_bytes(data[40:44], "little")]
