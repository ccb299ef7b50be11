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
from tests.formats.safetensors.builders import Case, entry, file_of, member, objects, one_tensor

HERE = r"tensor 'a' \(offset 9\).*"
"""The one tensor of most files here, and where its entry stands."""

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


def _wrong_sizes() -> Iterator[Case]:
    """Each wrong kind of number in each place that holds one."""
    for kind, text in WRONG_SIZES.items():
        # A minus zero must stand where a zero is right, or it is refused for its value.
        shape = "[1]" if text != "-0" else "[0]"
        offsets = "[0,1]" if text != "-0" else "[0,0]"
        data = b"x" if text != "-0" else b""
        places = {
            "a shape": (f"[{text}]", offsets, r"shape\[0\]"),
            "a shape, second": (f"{shape[:-1]},{text}]", offsets, r"shape\[1\]"),
            "an offset": (shape, f"[{text},{offsets[3]}]", r"data_offsets\[0\]"),
            "an end": (shape, f"[0,{text}]", r"data_offsets\[1\]"),
        }
        for place, (shape_text, offsets_text, where) in places.items():
            fields = entry(shape=shape_text, data_offsets=offsets_text)
            yield Case(
                f"{kind} in {place}",
                file_of(objects(member("a", fields)), data),
                BadField,
                HERE + where,
            )


def _fields(*members: str) -> bytes:
    return file_of(objects(member("a", objects(*members))), b"x")


DTYPE, SHAPE, OFFSETS = '"dtype":"U8"', '"shape":[1]', '"data_offsets":[0,1]'

FIELDS = (
    Case("dtype missing", _fields(SHAPE, OFFSETS), BadField, HERE + "dtype"),
    Case("shape missing", _fields(DTYPE, OFFSETS), BadField, HERE + "shape"),
    Case("data_offsets missing", _fields(DTYPE, SHAPE), BadField, HERE + "data_offsets"),
    Case("all fields missing", _fields(), BadField, HERE + "dtype"),
    Case("field in capitals", _fields('"Dtype":"U8"', SHAPE, OFFSETS), BadField, HERE + "Dtype"),
    Case(
        "unknown field",
        _fields(DTYPE, SHAPE, OFFSETS, '"strides":[1]'),
        BadField,
        HERE + "strides",
        stricter="the library skips unknown fields",
    ),
    Case(
        "unknown field that clears the screen",
        _fields(DTYPE, SHAPE, OFFSETS, r'"\u001b[2J":1'),
        BadField,
        HERE + r"\\x1b",
        stricter="the library skips unknown fields",
    ),
    Case(
        "unknown dtype that clears the screen",
        one_tensor(dtype=r'"\u001b[2J"'),
        UnknownDType,
        HERE + r"\\x1b",
    ),
    Case(
        "wrong field of a tensor that clears the screen",
        file_of(objects(member(r"\u001b[2J", "1"))),
        BadField,
        r"tensor '\\x1b",
    ),
    Case(
        "entry is an array",
        file_of('{"a":["U8",[1],[0,1]]}', b"x"),
        BadField,
        HERE + "object.*array",
        stricter="the library reads the fields by their order",
    ),
    Case("entry is a string", file_of('{"a":"U8"}'), BadField, HERE + "object.*str"),
    Case("entry is a number", file_of('{"a":1}'), BadField, HERE + "object.*int"),
    Case("entry is null", file_of('{"a":null}'), BadField, HERE + "object.*null"),
    Case("dtype is null", one_tensor(dtype="null"), BadField, HERE + "dtype"),
    Case("dtype is a number", one_tensor(dtype="8"), BadField, HERE + "dtype"),
    Case("dtype is an array", one_tensor(dtype='["U8"]'), BadField, HERE + "dtype"),
    Case("shape is null", one_tensor(shape="null"), BadField, HERE + "shape"),
    Case("shape is a number", one_tensor(shape="1"), BadField, HERE + "shape"),
    Case("shape is a string", one_tensor(shape='"1"'), BadField, HERE + "shape"),
    Case("shape is an object", one_tensor(shape='{"0":1}'), BadField, HERE + "shape"),
    Case("shape is an empty object", one_tensor(shape="{}"), BadField, HERE + "shape"),
    Case(
        "shape is an empty object, behind an escaped name",
        file_of(objects(member("\\u0061", entry(shape="{}"))), b"x"),
        BadField,
        "tensor 'a'.*shape",
    ),
    Case(
        "entry is a list of its fields",
        file_of('{"a":[["dtype","U8"],["shape",[1]],["data_offsets",[0,1]]]}', b"x"),
        BadField,
        HERE + "object.*array",
    ),
    Case("offsets are null", one_tensor(data_offsets="null"), BadField, HERE + "data_offsets"),
    Case("no offset", one_tensor(data_offsets="[]"), BadField, HERE + "data_offsets"),
    Case("one offset", one_tensor(data_offsets="[0]"), BadField, HERE + "data_offsets"),
    Case("three offsets", one_tensor(data_offsets="[0,1,1]"), BadField, HERE + "data_offsets"),
    Case(
        "wrong field in an entry whose name is escaped",
        file_of(objects(member("\\u0061", entry(shape="[1.0]"))), b"x"),
        BadField,
        r"tensor 'a'.*shape\[0\]",
    ),
    Case(
        "wrong field in the last of several tensors",
        file_of(
            objects(
                *(member(f"t{i}", entry(data_offsets=f"[{i},{i + 1}]")) for i in range(9)),
                member("a", entry(shape="[null]", data_offsets="[9,10]")),
            ),
            bytes(10),
        ),
        BadField,
        rf"tensor 'a' \(offset {9 + 9 * len(member('t0', entry()) + ',')}\).*shape\[0\]",
    ),
)

DTYPES = (
    Case("unknown dtype", one_tensor(dtype='"U7"'), UnknownDType, HERE + "dtype.*'U7'"),
    Case("lower-case dtype", one_tensor(dtype='"u8"'), UnknownDType, HERE + "dtype.*'u8'"),
    Case("empty dtype", one_tensor(dtype='""'), UnknownDType, HERE + "dtype.*''"),
    Case("dtype with a space", one_tensor(dtype='"U8 "'), UnknownDType, HERE + "dtype.*'U8 '"),
    Case("dtype of NumPy", one_tensor(dtype='"uint8"'), UnknownDType, HERE + "dtype.*'uint8'"),
    Case("dtype of no bits", one_tensor(dtype='"U0"', shape="[0]"), UnknownDType, HERE + "dtype"),
    Case(
        "unknown dtype of an empty tensor",
        file_of(objects(member("a", entry('"V8"', "[0]", "[0,0]")))),
        UnknownDType,
        HERE + "dtype.*'V8'",
    ),
    Case(
        "long dtype",
        one_tensor(dtype='"' + "U" * 10_000 + '"'),
        UnknownDType,
        HERE + "dtype.{1,200}$",
    ),
    Case(
        "dtype that only other libraries have",
        file_of(objects(member("a", entry('"C128"', "[1]", "[0,16]"))), bytes(16)),
        UnknownDType,
        HERE + "dtype.*'C128'",
    ),
)

HUGE = 2**60
WIDE = 2**32


def _empty(shape: str, dtype: str = '"U8"') -> bytes:
    return file_of(objects(member("a", entry(dtype, shape, "[0,0]"))))


SHAPES = (
    Case(
        "65 dimensions",
        one_tensor(shape=str([1] * 65)),
        BadField,
        HERE + "shape",
        stricter="no array has more than 64 dimensions",
    ),
    Case("a dimension of 2^60", one_tensor(shape=f"[{HUGE}]"), BadField, HERE + "shape"),
    Case("a dimension of 2^64", one_tensor(shape=f"[{2**64}]"), BadField, HERE + "shape"),
    Case(
        "elements beyond 2^64",
        one_tensor(shape=f"[{WIDE},{WIDE},{WIDE}]"),
        SizeMismatch,
        HERE + f"{WIDE}",
    ),
    Case("elements of just 2^64", _empty(f"[{WIDE},{WIDE}]"), SizeMismatch, HERE + f"{WIDE}"),
    Case("bytes of just 2^64", _empty(f"[{WIDE},{WIDE // 8}]", '"I64"'), SizeMismatch, HERE),
    Case("elements of 2^64 + 1", _empty(f"[{(2**64 + 1) // 274177},274177]"), SizeMismatch, HERE),
    Case(
        "64 dimensions of 2^59",
        _empty(str([2**59] * 64)),
        SizeMismatch,
        HERE,
    ),
    Case(
        "empty tensor, other dimensions absurd",
        _empty(f"[0,{2**59},{WIDE}]"),
        LimitExceeded,
        HERE + "shape",
        stricter="no array of any library can have this shape",
    ),
    Case(
        "empty tensor, zero behind absurd dimensions",
        _empty(f"[{2**59},{WIDE},0]"),
        LimitExceeded,
        HERE + "shape",
    ),
    Case(
        "empty tensor, one dimension absurd",
        _empty(f"[0,{2**59 + 1}]"),
        BadField,
        HERE + "shape",
        stricter="no array of any library can have this shape",
    ),
    Case("shape too small", one_tensor(shape="[0]"), SizeMismatch, HERE + r"\[0, 1\]"),
    Case("shape too large", one_tensor(shape="[2]"), SizeMismatch, HERE + r"\[0, 1\]"),
    Case("dtype too wide", one_tensor(dtype='"F64"'), SizeMismatch, HERE + "F64"),
    Case("no elements and no zero", _empty("[]"), SizeMismatch, HERE + r"\[0, 0\]"),
    Case("F4, half a byte", one_tensor(dtype='"F4"'), SizeMismatch, HERE + "F4.*4 bits"),
    Case("F4, 12 bits", one_tensor(dtype='"F4"', shape="[3]"), SizeMismatch, HERE + "12 bits"),
    Case(
        "F4, 12 bits in two bytes",
        file_of(objects(member("a", entry('"F4"', "[3]", "[0,2]"))), b"xy"),
        SizeMismatch,
        HERE + "12 bits",
    ),
    Case("F6, 6 bits", one_tensor(dtype='"F6_E2M3"'), SizeMismatch, HERE + "6 bits"),
    Case(
        "F6, 18 bits in three bytes",
        file_of(objects(member("a", entry('"F6_E3M2"', "[3]", "[0,3]"))), b"xyz"),
        SizeMismatch,
        HERE + "18 bits",
    ),
    Case(
        "size mismatch of a tensor that is called shape",
        file_of(
            objects(
                member("a", entry()), member("shape", entry(shape="[2]", data_offsets="[1,2]"))
            ),
            b"xy",
        ),
        SizeMismatch,
        rf"tensor 'shape' \(offset {9 + len(member('a', entry()) + ',')}\)",
    ),
    Case(
        "size mismatch of a tensor that is called as a metadata key",
        file_of('{"__metadata__":{"a":"a"},' + member("a", entry(shape="[2]")) + "}", b"x"),
        SizeMismatch,
        r"tensor 'a' \(offset 34\)",
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
    Case("begin after end", one_tensor(data_offsets="[1,0]"), SizeMismatch, HERE + "data_offsets"),
    Case(
        "begin after end, by the right size",
        file_of(objects(member("a", entry(shape="[2]", data_offsets="[2,0]"))), b"xy"),
        SizeMismatch,
        HERE + "data_offsets",
    ),
    Case("hole at the start", _two("1,2", "2,3", b"xyz"), BadRange, "'a'.*data_offsets.*hole"),
    Case("hole between", _two("0,1", "2,3", b"xyz"), BadRange, "'b'.*data_offsets.*hole"),
    Case("hole, in the other order", _two("2,3", "0,1", b"xyz"), BadRange, "'a'.*hole"),
    Case("overlap by a byte", _two("0,2", "1,3", b"xyz"), BadRange, "'b'.*data_offsets.*overlaps"),
    Case("same range twice", _two("0,2", "0,2", b"xy"), BadRange, "data_offsets.*overlaps"),
    Case("range inside another", _two("0,3", "1,2", b"xyz"), BadRange, "'b'.*overlaps"),
    Case("empty range inside another", _two("0,3", "1,1", b"xyz"), BadRange, "'b'.*overlaps"),
    Case("empty range behind a hole", _two("0,1", "2,2", b"xy"), BadRange, "'b'.*hole"),
    Case("empty range far outside", _two("0,1", "99,99", b"x"), BadRange, "'b'.*hole"),
    Case("a byte trails", _two("0,1", "1,2", b"xyz"), TrailingBytes, "1 bytes follow"),
    Case("a megabyte trails", _two("0,1", "1,2", bytes(1 << 20)), TrailingBytes, "1,048,574 bytes"),
    Case("a byte trails and there is no tensor", file_of("{}", b"x"), TrailingBytes, "1 bytes"),
    Case(
        "a byte trails and all tensors are empty",
        file_of(objects(member("a", entry(shape="[0]", data_offsets="[0,0]"))), b"x"),
        TrailingBytes,
        "1 bytes follow",
    ),
    Case("last byte missing", _two("0,1", "1,2", b"x"), TruncatedFile, "tensor 'b'.*1 bytes.*2"),
    Case("all data missing", _two("0,1", "1,2", b""), TruncatedFile, "tensor 'a'.*0 bytes.*1 of 2"),
    Case(
        "a petabyte missing",
        _two("0,1", f"1,{2**50}", b"x"),
        TruncatedFile,
        f"tensor 'b'.*{2**50:,}",
    ),
    Case(
        "offset of 2^59 behind a hole",
        _two("0,1", f"{2**59 - 1},{2**59}", b"x"),
        BadRange,
        "tensor 'b'.*hole",
    ),
    Case(
        "offset over 2^59",
        _two("0,1", f"{2**59},{2**59 + 1}", b"x"),
        BadField,
        r"tensor 'b'.*data_offsets\[1\]",
    ),
    Case(
        "offset of 2^63",
        one_tensor(data_offsets=f"[0,{2**63}]"),
        BadField,
        HERE + "data_offsets",
    ),
    Case(
        "offset of 2^64 + 1, which would wrap to 1",
        one_tensor(data_offsets=f"[0,{2**64 + 1}]"),
        BadField,
        HERE + "data_offsets",
    ),
)

LONG = "n" * 70_000

NAMES = (
    Case(
        "name of 70,000 bytes",
        file_of(objects(member(LONG, entry())), b"x"),
        LimitExceeded,
        "tensor 'n{40,250}.{0,9}.*name.*65,535",
        stricter="names are capped",
    ),
    Case(
        "name of 70,000 bytes in 35,000 letters",
        file_of(objects(member("é" * 35_000, entry())), b"x"),
        LimitExceeded,
        "tensor 'é{40,250}.{0,9}.*name.*65,535",
        stricter="names are capped",
    ),
    Case(
        "name of 65,536 bytes",
        file_of(objects(member("n" * 65_536, entry())), b"x"),
        LimitExceeded,
        "tensor 'n{40,250}.{0,9}.*name.*65,535",
        stricter="names are capped",
    ),
    Case(
        "long name before a hole",
        file_of(objects(member("n" * 60_000, entry(data_offsets="[1,2]"))), b"xy"),
        BadRange,
        "tensor 'n{40,250}[^n].*hole",
    ),
    Case(
        "long name and truncated",
        file_of(objects(member("n" * 60_000, entry()))),
        TruncatedFile,
        "tensor 'n{40,250}[^n]",
    ),
)

CASES = (*_wrong_sizes(), *FIELDS, *DTYPES, *SHAPES, *RANGES, *NAMES)
