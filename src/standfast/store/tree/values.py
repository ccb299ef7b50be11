"""Plain values as JSON that keeps their types and every bit, and back.

What JSON has stands as it is: null, booleans, text, finite floats, integers of 64 bits. All else
is an object of one member, whose key, the tag, begins with `$`.
"""

from __future__ import annotations

import math
import re
import struct
from base64 import b64encode
from binascii import a2b_base64
from collections.abc import Callable
from typing import Any, Final

import ml_dtypes
import numpy as np

from standfast.errors import BadField, printable, shortened
from standfast.store.schema.names import is_text

KEY_TYPES: Final = frozenset({str, int, float, bool, type(None)})
"""The types that a key of a dict may have."""

_DECIMAL_BITS: Final = 2048
"""Longer integers are written in hexadecimal digits: decimal ones take quadratic time."""
_DECIMAL_DIGITS: Final = 618
"""So many decimal digits, and a sign, those bits fill; Python reads 640 under any settings."""


def is_small(number: int) -> bool:
    """Whether the integer fits 64 bits, so that every reader of JSON has it."""
    return -(1 << 63) <= number < 1 << 63


def _itself(value: Any) -> Any:
    return value


def _from_int(value: int) -> Any:
    if is_small(value):
        return value
    return {"$int": str(value) if value.bit_length() <= _DECIMAL_BITS else hex(value)}


def _to_int(text: str) -> int:
    if text.startswith(("0x", "-0x")):
        return int(text, 16)
    if len(text) > _DECIMAL_DIGITS:
        raise ValueError(f"{len(text):,} decimal digits")
    return int(text)


def _from_float(value: float) -> Any:
    return value if math.isfinite(value) else {"$float": struct.pack(">d", value).hex()}


def _to_float(text: str) -> float:
    value: float = struct.unpack(">d", bytes.fromhex(text))[0]
    return value


def _from_complex(value: complex) -> Any:
    return {"$complex": [_from_float(value.real), _from_float(value.imag)]}


def _from_str(value: str) -> Any:
    return value if is_text(value) else {"$str": _base64(value.encode(errors="surrogatepass"))}


def _to_str(text: str) -> str:
    return a2b_base64(text).decode(errors="surrogatepass")


def _from_bytes(value: bytes) -> Any:
    return {"$bytes": _base64(value)}


def _base64(data: bytes) -> str:
    return b64encode(data).decode("ascii")


_NUMPY_NAMES: Final = (
    *("bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"),
    *("float16", "float32", "float64", "complex64", "complex128"),
    *("intc", "uintc", "long", "ulong", "longlong", "ulonglong"),
)
"""The last ones are types of their own where C has two types of one width."""

_LONG_DOUBLE: Final = np.finfo(np.longdouble).nmant
"""A long double is another number on each kind of machine: its mantissa tells which."""
_X87: Final = 63

_NUMPY_TYPES: Final[dict[str, type[np.generic]]] = {
    **{name: getattr(np, name) for name in reversed(_NUMPY_NAMES)},
    f"longdouble{_LONG_DOUBLE}": np.longdouble,
    f"clongdouble{_LONG_DOUBLE}": np.clongdouble,
    **{
        name: type_
        for name, type_ in vars(ml_dtypes).items()
        if isinstance(type_, type) and issubclass(type_, np.generic)
    },
}
_NAME_OF: Final = {type_: name for name, type_ in _NUMPY_TYPES.items()}
"""Of two names of one type it has the one that stands first in `_NUMPY_NAMES`."""

_TIME: Final = re.compile(r"(datetime64|timedelta64)(\[[1-9]?[0-9]{0,8}[a-zA-Z]{1,2}\])?")


def _from_numpy(value: np.generic) -> Any:
    data = np.array(value, value.dtype.newbyteorder("<"), ndmin=1).view(np.uint8)
    if _LONG_DOUBLE == _X87 and isinstance(value, np.longdouble | np.clongdouble):
        data.reshape(-1, np.dtype(np.longdouble).itemsize)[:, 10:] = 0  # whatever lay in memory
    name = _NAME_OF.get(type(value), value.dtype.name)
    return {"$numpy": [name, _base64(data.tobytes())]}


def _from_numpy_text(value: np.str_) -> Any:
    # Not of str(value), which leaves out zeros at the end.
    return {"$numpy": ["str", _base64(value.encode(errors="surrogatepass"))]}


def _from_numpy_bytes(value: np.bytes_) -> Any:
    return {"$numpy": ["bytes", _base64(bytes(value))]}


def _to_numpy(content: list[str]) -> np.generic:
    name, data = content[0], a2b_base64(content[1])
    if name == "str":
        return np.str_(data.decode(errors="surrogatepass"))
    if name == "bytes":
        return np.bytes_(data)
    if name not in _NUMPY_TYPES and not _TIME.fullmatch(name):
        raise ValueError("no scalar of NumPy is called so")
    dtype = np.dtype(_NUMPY_TYPES.get(name, name)).newbyteorder("<")
    if len(data) != dtype.itemsize:
        raise ValueError(f"{dtype.itemsize} bytes expected, {len(data):,} found")
    scalar: np.generic = np.frombuffer(data, dtype)[0]
    return scalar


FORMS: Final[dict[type, Callable[[Any], Any]]] = {
    type(None): _itself,
    bool: _itself,
    int: _from_int,
    float: _from_float,
    complex: _from_complex,
    str: _from_str,
    bytes: _from_bytes,
    **dict.fromkeys(_NAME_OF, _from_numpy),
    np.datetime64: _from_numpy,
    np.timedelta64: _from_numpy,
    np.str_: _from_numpy_text,
    np.bytes_: _from_numpy_bytes,
}
"""For each type of a plain value, exactly, what makes JSON of it."""

_READERS: Final[dict[str, Callable[[Any], Any]]] = {
    "$int": _to_int,
    "$float": _to_float,
    "$str": _to_str,
    "$bytes": a2b_base64,
    "$numpy": _to_numpy,
}
VALUE_TAGS: Final = frozenset(_READERS)


def read_value(tag: str, content: Any) -> Any:
    """The value that stands under a tag; raises BadField unless it stands as we write it."""
    texts = content if tag == "$numpy" and type(content) is list else [content]
    if len(texts) != (2 if tag == "$numpy" else 1) or any(type(text) is not str for text in texts):
        raise BadField(f"under {tag!r} stands a {type(content).__name__}, not its text")
    shown = " ".join(printable(shortened(text)) for text in texts)
    try:
        value = _READERS[tag](content)
    except (ValueError, TypeError, struct.error) as error:
        reason = printable(shortened(str(error)))
        raise BadField(f"{shown!r} is no value of {tag!r}: {reason}") from error
    # Whatever Python's own readers let pass (spaces, capitals, finite floats) ends here.
    if FORMS[type(value)](value) != {tag: content}:
        raise BadField(f"{shown!r} is not the one way in which {tag!r} writes this value")
    return value
