"""Files whose header is JSON, but the entry of a tensor is wrong, or where its bytes lie."""

from __future__ import annotations

from collections.abc import Iterator

from standfast.errors import (
    BadField,
    BadRange,
    LimitExceeded,
    SizeMismatch,
    TrailingBytes,
    TruncatedFile,
    UnknownDType,
)
from tests.formats.builders import Row
from tests.formats.safetensors.builders import entry, file_of, member, objects, one_tensor

WRONG_SIZES = {
    "float": "1.0",
    "float with an exponent": "1e0",
    "infinite float": "1e999",
    "negative number": "-1",
    "minus zero": "-0",
    "boolean": "true",
    "string": '"1"',
    "null": "null",
    "array": "[1]",
    "object": "{}",
}


def _wrong_sizes() -> Iterator[Row]:
    """Each wrong kind of number in each place that holds one."""
    for kind, text in WRONG_SIZES.items():
        # A minus zero must stand where a zero is right, or it is refused for its value.
        shape = "[1]" if text != "-0" else "[0]"
        offsets = "[0,1]" if text != "-0" else "[0,0]"
        data = b"x" if text != "-0" else b""
        places = {
            "a shape": (f"[{text}]", offsets),
            "a shape, second": (f"{shape[:-1]},{text}]", offsets),
            "an offset": (shape, f"[{text},{offsets[3]}]"),
            "an end": (shape, f"[0,{text}]"),
        }
        for place, (shape_text, offsets_text) in places.items():
            fields = entry(shape=shape_text, data_offsets=offsets_text)
            yield Row(f"{kind} in {place}", file_of(objects(member("a", fields)), data), BadField)


def _fields(*members: str) -> bytes:
    return file_of(objects(member("a", objects(*members))), b"x")


DTYPE, SHAPE, OFFSETS = '"dtype":"U8"', '"shape":[1]', '"data_offsets":[0,1]'

FIELDS = (
    Row("dtype missing", _fields(SHAPE, OFFSETS), BadField),
    Row("shape missing", _fields(DTYPE, OFFSETS), BadField),
    Row("data_offsets missing", _fields(DTYPE, SHAPE), BadField),
    Row("all fields missing", _fields(), BadField),
    Row("field in capitals", _fields('"Dtype":"U8"', SHAPE, OFFSETS), BadField),
    Row("unknown field", _fields(DTYPE, SHAPE, OFFSETS, '"strides":[1]'), BadField),
    Row(
        "unknown field that clears the screen",
        _fields(DTYPE, SHAPE, OFFSETS, r'"\u001b[2J":1'),
        BadField,
    ),
    Row("unknown dtype that clears the screen", one_tensor(dtype=r'"\u001b[2J"'), UnknownDType),
    Row(
        "wrong field of a tensor that clears the screen",
        file_of(objects(member(r"\u001b[2J", "1"))),
        BadField,
    ),
    Row("entry is an array", file_of('{"a":["U8",[1],[0,1]]}', b"x"), BadField),
    Row("entry is a string", file_of('{"a":"U8"}'), BadField),
    Row("entry is a number", file_of('{"a":1}'), BadField),
    Row("entry is null", file_of('{"a":null}'), BadField),
    Row("dtype is null", one_tensor(dtype="null"), BadField),
    Row("dtype is a number", one_tensor(dtype="8"), BadField),
    Row("dtype is an array", one_tensor(dtype='["U8"]'), BadField),
    Row("shape is null", one_tensor(shape="null"), BadField),
    Row("shape is a number", one_tensor(shape="1"), BadField),
    Row("shape is a string", one_tensor(shape='"1"'), BadField),
    Row("shape is an object", one_tensor(shape='{"0":1}'), BadField),
    Row("shape is an empty object", one_tensor(shape="{}"), BadField),
    Row(
        "shape is an empty object, behind an escaped name",
        file_of(objects(member("\\u0061", entry(shape="{}"))), b"x"),
        BadField,
    ),
    Row(
        "entry is a list of its fields",
        file_of('{"a":[["dtype","U8"],["shape",[1]],["data_offsets",[0,1]]]}', b"x"),
        BadField,
    ),
    Row("offsets are null", one_tensor(data_offsets="null"), BadField),
    Row("no offset", one_tensor(data_offsets="[]"), BadField),
    Row("one offset", one_tensor(data_offsets="[0]"), BadField),
    Row("three offsets", one_tensor(data_offsets="[0,1,1]"), BadField),
    Row(
        "wrong field in an entry whose name is escaped",
        file_of(objects(member("\\u0061", entry(shape="[1.0]"))), b"x"),
        BadField,
    ),
    Row(
        "wrong field in the last of several tensors",
        file_of(
            objects(
                *(member(f"t{i}", entry(data_offsets=f"[{i},{i + 1}]")) for i in range(9)),
                member("a", entry(shape="[null]", data_offsets="[9,10]")),
            ),
            bytes(10),
        ),
        BadField,
    ),
)

DTYPES = (
    Row("unknown dtype", one_tensor(dtype='"U7"'), UnknownDType),
    Row("lower-case dtype", one_tensor(dtype='"u8"'), UnknownDType),
    Row("empty dtype", one_tensor(dtype='""'), UnknownDType),
    Row("dtype with a space", one_tensor(dtype='"U8 "'), UnknownDType),
    Row("dtype of NumPy", one_tensor(dtype='"uint8"'), UnknownDType),
    Row("dtype of no bits", one_tensor(dtype='"U0"', shape="[0]"), UnknownDType),
    Row(
        "unknown dtype of an empty tensor",
        file_of(objects(member("a", entry('"V8"', "[0]", "[0,0]")))),
        UnknownDType,
    ),
    Row("long dtype", one_tensor(dtype='"' + "U" * 10_000 + '"'), UnknownDType),
    Row(
        "dtype that only other libraries have",
        file_of(objects(member("a", entry('"C128"', "[1]", "[0,16]"))), bytes(16)),
        UnknownDType,
    ),
)

HUGE = 2**60
WIDE = 2**32


def _empty(shape: str, dtype: str = '"U8"') -> bytes:
    return file_of(objects(member("a", entry(dtype, shape, "[0,0]"))))


SHAPES = (
    Row("65 dimensions", one_tensor(shape=str([1] * 65)), BadField),
    Row("a dimension of 2^60", one_tensor(shape=f"[{HUGE}]"), BadField),
    Row("a dimension of 2^64", one_tensor(shape=f"[{2**64}]"), BadField),
    Row("elements beyond 2^64", one_tensor(shape=f"[{WIDE},{WIDE},{WIDE}]"), SizeMismatch),
    Row("elements of just 2^64", _empty(f"[{WIDE},{WIDE}]"), SizeMismatch),
    Row("bytes of just 2^64", _empty(f"[{WIDE},{WIDE // 8}]", '"I64"'), SizeMismatch),
    Row("elements of 2^64 + 1", _empty(f"[{(2**64 + 1) // 274177},274177]"), SizeMismatch),
    Row("64 dimensions of 2^59", _empty(str([2**59] * 64)), SizeMismatch),
    Row("empty tensor, other dimensions absurd", _empty(f"[0,{2**59},{WIDE}]"), LimitExceeded),
    Row(
        "empty tensor, zero behind absurd dimensions", _empty(f"[{2**59},{WIDE},0]"), LimitExceeded
    ),
    Row("empty tensor, one dimension absurd", _empty(f"[0,{2**59 + 1}]"), BadField),
    Row("shape too small", one_tensor(shape="[0]"), SizeMismatch),
    Row("shape too large", one_tensor(shape="[2]"), SizeMismatch),
    Row("dtype too wide", one_tensor(dtype='"F64"'), SizeMismatch),
    Row("no elements and no zero", _empty("[]"), SizeMismatch),
    Row("F4, half a byte", one_tensor(dtype='"F4"'), SizeMismatch),
    Row("F4, 12 bits", one_tensor(dtype='"F4"', shape="[3]"), SizeMismatch),
    Row(
        "F4, 12 bits in two bytes",
        file_of(objects(member("a", entry('"F4"', "[3]", "[0,2]"))), b"xy"),
        SizeMismatch,
    ),
    Row("F6, 6 bits", one_tensor(dtype='"F6_E2M3"'), SizeMismatch),
    Row(
        "F6, 18 bits in three bytes",
        file_of(objects(member("a", entry('"F6_E3M2"', "[3]", "[0,3]"))), b"xyz"),
        SizeMismatch,
    ),
    Row(
        "size mismatch of a tensor that is called shape",
        file_of(
            objects(
                member("a", entry()), member("shape", entry(shape="[2]", data_offsets="[1,2]"))
            ),
            b"xy",
        ),
        SizeMismatch,
        tensor="shape",
    ),
    Row(
        "size mismatch of a tensor that is called as a metadata key",
        file_of('{"__metadata__":{"a":"a"},' + member("a", entry(shape="[2]")) + "}", b"x"),
        SizeMismatch,
    ),
)


def _two(first: str, second: str, data: bytes) -> bytes:
    """A file of the tensors `a` and `b` with these offsets, of as many bytes as they span."""
    members = []
    for name, offsets in (("a", first), ("b", second)):
        begin, end = map(int, offsets.split(","))
        members.append(member(name, entry(shape=f"[{end - begin}]", data_offsets=f"[{offsets}]")))
    return file_of(objects(*members), data)


RANGES = (
    Row("begin after end", one_tensor(data_offsets="[1,0]"), SizeMismatch),
    Row(
        "begin after end, by the right size",
        file_of(objects(member("a", entry(shape="[2]", data_offsets="[2,0]"))), b"xy"),
        SizeMismatch,
    ),
    Row("hole at the start", _two("1,2", "2,3", b"xyz"), BadRange),
    Row("hole between", _two("0,1", "2,3", b"xyz"), BadRange, tensor="b"),
    Row("hole, in the other order", _two("2,3", "0,1", b"xyz"), BadRange),
    Row("overlap by a byte", _two("0,2", "1,3", b"xyz"), BadRange, tensor="b"),
    Row("same range twice", _two("0,2", "0,2", b"xy"), BadRange),
    Row("range inside another", _two("0,3", "1,2", b"xyz"), BadRange, tensor="b"),
    Row("empty range inside another", _two("0,3", "1,1", b"xyz"), BadRange, tensor="b"),
    Row("empty range behind a hole", _two("0,1", "2,2", b"xy"), BadRange, tensor="b"),
    Row("empty range far outside", _two("0,1", "99,99", b"x"), BadRange, tensor="b"),
    Row("a byte trails", _two("0,1", "1,2", b"xyz"), TrailingBytes),
    Row("a megabyte trails", _two("0,1", "1,2", bytes(1 << 20)), TrailingBytes),
    Row("a byte trails and there is no tensor", file_of("{}", b"x"), TrailingBytes),
    Row(
        "a byte trails and all tensors are empty",
        file_of(objects(member("a", entry(shape="[0]", data_offsets="[0,0]"))), b"x"),
        TrailingBytes,
    ),
    Row("last byte missing", _two("0,1", "1,2", b"x"), TruncatedFile, tensor="b"),
    Row("all data missing", _two("0,1", "1,2", b""), TruncatedFile),
    Row("a petabyte missing", _two("0,1", f"1,{2**50}", b"x"), TruncatedFile, tensor="b"),
    Row(
        "offset of 2^59 behind a hole",
        _two("0,1", f"{2**59 - 1},{2**59}", b"x"),
        BadRange,
        tensor="b",
    ),
    Row("offset over 2^59", _two("0,1", f"{2**59},{2**59 + 1}", b"x"), BadField, tensor="b"),
    Row("offset of 2^63", one_tensor(data_offsets=f"[0,{2**63}]"), BadField),
    Row(
        "offset of 2^64 + 1, which would wrap to 1",
        one_tensor(data_offsets=f"[0,{2**64 + 1}]"),
        BadField,
    ),
)

LONG = "n" * 70_000

NAMES = (
    Row("name of 70,000 bytes", file_of(objects(member(LONG, entry())), b"x"), LimitExceeded),
    Row(
        "name of 70,000 bytes in 35,000 letters",
        lambda: file_of(objects(member("é" * 35_000, entry())), b"x"),
        LimitExceeded,
    ),
    Row(
        "name of 65,536 bytes", file_of(objects(member("n" * 65_536, entry())), b"x"), LimitExceeded
    ),
    Row(
        "long name before a hole",
        file_of(objects(member("n" * 60_000, entry(data_offsets="[1,2]"))), b"xy"),
        BadRange,
    ),
    Row("long name and truncated", file_of(objects(member("n" * 60_000, entry()))), TruncatedFile),
)

ROWS = (*_wrong_sizes(), *FIELDS, *DTYPES, *SHAPES, *RANGES, *NAMES)
