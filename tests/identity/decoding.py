"""A reader of canonical bytes: what can be read back in one way only is not ambiguous."""

from __future__ import annotations

import struct
from typing import Any


def decoded(data: bytes) -> Any:
    """The value of these canonical bytes, lists for tuples; all bytes must be used."""
    value, end = _value(data, 0)
    assert end == len(data)
    return value


def typed(value: Any) -> Any:
    """A value in which 1, 1.0 and True are not equal, and a NaN is equal to itself."""
    if isinstance(value, list | tuple):
        return "list", tuple(typed(item) for item in value)
    if isinstance(value, set | frozenset):
        return "set", frozenset(typed(item) for item in value)
    if isinstance(value, dict):
        return "dict", frozenset((typed(key), typed(item)) for key, item in value.items())
    if isinstance(value, float):
        return "float", "nan" if value != value else struct.pack(">d", value)
    if isinstance(value, complex):
        return "complex", typed(value.real), typed(value.imag)
    return type(value).__name__, value


def _value(data: bytes, at: int) -> tuple[Any, int]:
    kind = data[at : at + 1]
    at += 1
    if kind in b"ntf":
        return {b"n": None, b"t": True, b"f": False}[kind], at
    if kind == b"d":
        return struct.unpack_from(">d", data, at)[0], at + 8
    if kind == b"c":
        return complex(*struct.unpack_from(">dd", data, at)), at + 16
    colon = data.index(b":", at)
    count = int(data[at:colon])
    at = colon + 1
    if kind in b"isb":
        payload = data[at : at + count]
        assert len(payload) == count
        return _LENGTHS[kind](payload), at + count
    items = []
    for _ in range(count * (2 if kind == b"m" else 1)):
        item, at = _value(data, at)
        items.append(item)
    if kind == b"l":
        return items, at
    if kind == b"u":
        return frozenset(map(_hashable, items)), at
    return dict(zip(map(_hashable, items[::2]), items[1::2], strict=True)), at


def _hashable(value: Any) -> Any:
    return tuple(map(_hashable, value)) if isinstance(value, list) else value


_LENGTHS: dict[bytes, Any] = {
    b"i": lambda payload: int(payload, 16),
    b"s": lambda payload: payload.decode("utf-8", "surrogatepass"),
    b"b": bytes,
}
