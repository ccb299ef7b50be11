"""The canonical bytes of single values, and how those of several are put together.

Each encoding says where it ends, and each kind starts with a letter of its own, so that no two
values look the same however they are joined. The page `docs/identity.md` has the table.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Collection, Iterable, Sequence
from functools import lru_cache

from standfast.tensors import TensorSpec

_NAN = bytes.fromhex("7ff8000000000000")


def none(value: None) -> bytes:
    """None."""
    return b"n"


def boolean(value: bool) -> bytes:
    """True or False."""
    return b"t" if value else b"f"


def integer(value: int) -> bytes:
    """An integer of any size, in hexadecimal: decimal digits would take quadratic time."""
    digits = b"%x" % value
    return b"i%d:%b" % (len(digits), digits)


def real(value: float) -> bytes:
    """A float by its bits, so that 0.0 and -0.0 differ; all NaNs are one."""
    return b"d" + _bits(value)


def imaginary(value: complex) -> bytes:
    """A complex number, as two floats."""
    return b"c" + _bits(value.real) + _bits(value.imag)


def text(value: str) -> bytes:
    """Text in UTF-8; a lone surrogate, as in a file name that is no text, has its three bytes."""
    try:
        data = value.encode()
    except UnicodeEncodeError:
        data = value.encode("utf-8", "surrogatepass")
    return b"s%d:%b" % (len(data), data)


def octets(value: bytes) -> bytes:
    """Bytes as they are."""
    return b"b%d:%b" % (len(value), value)


def sequence(items: Sequence[bytes]) -> bytes:
    """Encoded items, in their order."""
    return b"l%d:%b" % (len(items), b"".join(items))


def unordered(items: Collection[bytes]) -> bytes:
    """Encoded items, in whatever order."""
    return b"u%d:%b" % (len(items), _ordered(items))


def mapping(pairs: Collection[tuple[bytes, bytes]]) -> bytes:
    """Encoded keys, each with its value, in whatever order."""
    return b"m%d:%b" % (len(pairs), _ordered([key + value for key, value in pairs]))


def named(name: str) -> bytes:
    """A class or function, by its name."""
    return b"q" + text(name)


def member(kind: str, name: str | int) -> bytes:
    """A member of an enumeration."""
    return b"e" + text(kind) + (integer(name) if isinstance(name, int) else text(name))


def record(kind: str, fields: bytes) -> bytes:
    """An object: its class, and the mapping of its fields."""
    return b"o" + text(kind) + fields


def applied(function: bytes, arguments: bytes, keywords: bytes) -> bytes:
    """A function with arguments given in advance."""
    return b"p" + function + arguments + keywords


def tensor_spec(spec: TensorSpec) -> bytes:
    """What a tensor is, without its values."""
    return b"k" + _described(spec.dtype, tuple(spec.shape))


def tensor(spec: TensorSpec, digest: bytes) -> bytes:
    """What a tensor is, and the digest of its values."""
    return b"a" + _described(spec.dtype, tuple(spec.shape)) + digest


def _ordered(items: Iterable[bytes]) -> bytes:
    # The shorter first: what is of one length can be sorted as one block of memory.
    ordered = sorted(items)
    ordered.sort(key=len)
    return b"".join(ordered)


@lru_cache(maxsize=4096)  # the layers of a model repeat a few shapes
def _described(dtype: str, shape: tuple[int, ...]) -> bytes:
    return text(dtype) + sequence([integer(size) for size in shape])


def _bits(value: float) -> bytes:
    return _NAN if math.isnan(value) else struct.pack(">d", value)
