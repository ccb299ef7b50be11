"""The header of NumPy's .npy format: a dtype and a shape, as a Python dict in text.

Only the dicts that NumPy writes are read, in any order and spacing, and without Python's own
parser, whose nesting an enemy could drive too deep.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from functools import lru_cache
from typing import Final

from standfast.errors import (
    BadField,
    BadHeader,
    DuplicateKey,
    LimitExceeded,
    TruncatedFile,
    UnknownDType,
    UnsupportedDType,
    UnsupportedFile,
    UnsupportedShape,
)
from standfast.tensors import DTYPES, TensorSpec

MAX_HEADER: Final = 64 << 10
"""NumPy itself reads 10,000 characters."""
MAX_RANK: Final = 64
MAX_DIMENSION: Final = 1 << 59
MAX_BYTES: Final = 1 << 62

DTYPE_OF: Final = {
    "b1": "bool",
    "u1": "uint8",
    "i1": "int8",
    "u2": "uint16",
    "i2": "int16",
    "u4": "uint32",
    "i4": "int32",
    "u8": "uint64",
    "i8": "int64",
    "f2": "float16",
    "f4": "float32",
    "f8": "float64",
    "c8": "complex64",
    "c16": "complex128",
}
"""Kind and bytes as NumPy writes them. For bfloat16 and fp8 it writes the kind V, void, which
does not come back, and for one of them f1, which it cannot read."""
CODE_OF: Final = {dtype: code for code, dtype in DTYPE_OF.items()}

_MAGIC: Final = b"\x93NUMPY"
_ALIGNMENT: Final = 64
_ROOM_TO_GROW: Final = 21
"""NumPy leaves room for the first dimension to grow to so many digits in its place."""
_FIELDS: Final = ("descr", "fortran_order", "shape")
_SPACE: Final = re.compile(r"[ \t\n\r\f]*")
_STRING: Final = re.compile(r"'[^'\\\n\r]*'|\"[^\"\\\n\r]*\"")
_BOOLEAN: Final = re.compile(r"(?:True|False)\b")
_NUMBER: Final = re.compile(r"(?:0|[1-9][0-9]*)(?![0-9])")
_PADDING: Final = re.compile(r" *\n")
_DESCR: Final = re.compile(r"([<>=|]?)([a-zA-Z][0-9]*)")


@dataclass(frozen=True, slots=True)
class ArrayHeader:
    """What a header says of the array behind it."""

    dtype: str
    shape: tuple[int, ...]
    fortran_order: bool
    """Whether the first dimension is the one whose elements lie together."""
    big_endian: bool
    """Whether each number (each half of a complex one) has its highest byte first."""
    size: int
    """How many bytes the header takes, from its magic to its padding."""


# Reading


def read_header(start: bytes) -> ArrayHeader:
    """The header at the start of these bytes; MAX_HEADER of them are always enough."""
    size = header_size(start)
    if size > len(start):
        raise TruncatedFile(f"header length (offset 8): {size:,} bytes, of {len(start):,} there")
    return _parse(start[:size])


def header_size(start: bytes) -> int:
    """How many bytes the header takes that starts with these."""
    if not start.startswith(_MAGIC):
        if _MAGIC.startswith(start):
            raise TruncatedFile(f"an array of {len(start)} bytes has no room for its header")
        raise BadHeader(f"offset 0: expected {_MAGIC!r}, found {start[: len(_MAGIC)]!r}")
    version = tuple(start[6:8])
    if len(version) == 2 and version not in ((1, 0), (2, 0), (3, 0)):
        raise UnsupportedFile(f"offset 6: version {version[0]}.{version[1]} of the .npy format")
    text_at = 10 if version == (1, 0) else 12
    if len(start) < text_at:
        raise TruncatedFile(f"the array's header ends after {len(start)} bytes")
    size = text_at + int.from_bytes(start[8:text_at], "little")
    if size > MAX_HEADER:
        raise LimitExceeded(f"header length (offset 8): {size:,} bytes, over {MAX_HEADER:,}")
    return size


@lru_cache(256)
def _parse(header: bytes) -> ArrayHeader:
    """The header out of its bytes; the arrays of a file mostly have the same few."""
    is_third = header[6] == 3
    text_at = 10 if header[6] == 1 else 12
    try:
        text = header[text_at:].decode("utf-8" if is_third else "latin-1")
    except UnicodeDecodeError as error:
        raise BadHeader(f"offset {text_at + error.start}: {error.reason}") from error
    return _Parser(text, text_at, has_longs=not is_third).header(len(header))


class _Parser:
    """Reads the text of a header from left to right."""

    def __init__(self, text: str, text_at: int, has_longs: bool) -> None:
        self._text = text
        self._text_at = text_at
        self._has_longs = has_longs
        self._at = 0

    def header(self, size: int) -> ArrayHeader:
        dtype, big_endian, fortran_order = "", False, False
        shape: tuple[int, ...] = ()
        missing = set(_FIELDS)
        # Here alone a line break would matter to Python, which indents by lines.
        self._at = len(self._text) - len(self._text.lstrip(" \t"))
        if not self._text.startswith("{", self._at):
            raise BadHeader(f"{self._place()}: expected '{{', found {self._ahead()}")
        self._expect("{")
        while not self._take("}"):
            field = self._string("a key")
            if field not in _FIELDS:
                raise BadField(f"{self._place()}: unknown field {field!r:.80}")
            if field not in missing:
                raise DuplicateKey(f"{self._place()}: field {field} stands twice")
            missing.remove(field)
            self._expect(":")
            if field == "descr":
                dtype, big_endian = self._dtype()
            elif field == "shape":
                shape = self._shape()
            else:
                fortran_order = self._boolean()
            if not self._take(","):
                self._expect("}")
                break
        if missing:
            raise BadField(f"field {min(missing)} is missing")
        if not _PADDING.fullmatch(self._text, self._at):
            raise BadHeader(f"{self._place()}: expected spaces and a newline to the header's end")
        if excess := _excess(dtype, shape):
            raise LimitExceeded(f"field shape: {excess}")
        return ArrayHeader(dtype, shape, fortran_order, big_endian, size)

    def _dtype(self) -> tuple[str, bool]:
        if self._take("[") or self._take("("):
            raise UnknownDType(
                f"{self._place()}: field descr: fields or subarrays: {self._ahead()}"
            )
        descr = self._string("field descr")
        parts = _DESCR.fullmatch(descr)
        dtype = DTYPE_OF.get(parts[2]) if parts else None
        if parts is None or dtype is None:
            raise UnknownDType(f"field descr: {descr!r:.80}{_reason(parts[2] if parts else '')}")
        return dtype, parts[1] == ">" and DTYPES[dtype].bits > 8

    def _boolean(self) -> bool:
        found = self._match(_BOOLEAN)
        if found is None:
            raise BadField(f"{self._place()}: field fortran_order: {self._ahead()} is no boolean")
        return found == "True"

    def _shape(self) -> tuple[int, ...]:
        if not self._take("("):
            raise BadField(f"{self._place()}: field shape: {self._ahead()} is no tuple")
        shape: list[int] = []
        while not self._take(")"):
            if len(shape) == MAX_RANK:
                raise LimitExceeded(f"field shape: over {MAX_RANK} dimensions")
            shape.append(self._dimension())
            if not self._take(","):
                self._expect(")")
                if len(shape) == 1:
                    raise BadField(
                        "field shape: a number in parentheses, where Python has no tuple"
                    )
                break
        return tuple(shape)

    def _dimension(self) -> int:
        digits = self._match(_NUMBER)
        if digits is None:
            raise BadField(f"{self._place()}: field shape: {self._ahead()} is no dimension")
        # Python 2 marked its long integers so.
        if self._has_longs:
            self._take("L")
        if len(digits) > len(str(MAX_DIMENSION)):
            raise LimitExceeded(f"field shape: a dimension of {len(digits):,} digits")
        return int(digits)

    def _string(self, what: str) -> str:
        quoted = self._match(_STRING)
        if quoted is None:
            raise BadHeader(f"{self._place()}: expected {what} in quotes, found {self._ahead()}")
        return quoted[1:-1]

    def _expect(self, mark: str) -> None:
        if not self._take(mark):
            raise BadHeader(f"{self._place()}: expected {mark!r}, found {self._ahead()}")

    def _take(self, mark: str) -> bool:
        self._skip_space()
        if not self._text.startswith(mark, self._at):
            return False
        self._at += len(mark)
        return True

    def _match(self, pattern: re.Pattern[str]) -> str | None:
        self._skip_space()
        found = pattern.match(self._text, self._at)
        if found is None:
            return None
        self._at = found.end()
        return found[0]

    def _skip_space(self) -> None:
        found = _SPACE.match(self._text, self._at)
        self._at = found.end() if found else self._at

    def _place(self) -> str:
        return f"offset {self._text_at + self._at}"

    def _ahead(self) -> str:
        return repr(self._text[self._at : self._at + 40])


def _reason(code: str) -> str:
    """Why a dtype is none of ours, as far as its kind tells."""
    if code.startswith("O"):
        return ": objects would need pickle, which is never loaded"
    if code.startswith("V"):
        return ": bytes without a type, as NumPy writes bfloat16 and fp8 too"
    return ""


# Writing


def write_header(spec: TensorSpec) -> bytes:
    """The header that NumPy writes for a little-endian array of this dtype, in C order."""
    code = CODE_OF.get(spec.dtype)
    if code is None:
        raise UnsupportedDType(f"NumPy's format has no dtype {spec.dtype}: it would not come back")
    if len(spec.shape) > MAX_RANK:
        raise UnsupportedShape(f"{len(spec.shape)} dimensions; NumPy has at most {MAX_RANK}")
    if excess := _excess(spec.dtype, spec.shape):
        raise UnsupportedShape(excess)
    order = "<" if spec.kind.bits > 8 else "|"
    text = f"{{'descr': '{order}{code}', 'fortran_order': False, 'shape': {spec.shape!r}, }}"
    if spec.shape:
        text += " " * (_ROOM_TO_GROW - len(repr(spec.shape[0])))
    # NumPy adds a whole line of padding where none is needed.
    unpadded = len(_MAGIC) + 2 + 2 + len(text) + 1
    text += " " * (_ALIGNMENT - unpadded % _ALIGNMENT) + "\n"
    return _MAGIC + bytes((1, 0)) + len(text).to_bytes(2, "little") + text.encode()


def _excess(dtype: str, shape: tuple[int, ...]) -> str | None:
    """What is too large about a shape, if something is."""
    for dimension in shape:
        if dimension >= MAX_DIMENSION:
            return f"a dimension of {dimension:,}, over {MAX_DIMENSION - 1:,}"
    size = math.prod(filter(None, shape)) * DTYPES[dtype].bits // 8
    return f"no array can have {list(shape)} elements of {dtype}" if size > MAX_BYTES else None
