"""Files whose header is not the text it should be: its length, its encoding, its JSON."""

from __future__ import annotations

from standfast.errors import (
    BadField,
    BadHeader,
    DuplicateKey,
    LimitExceeded,
    TrailingBytes,
    TruncatedFile,
    UnknownDType,
)
from tests.formats.builders import Row
from tests.formats.safetensors.builders import entry, file_of, member, objects, one_tensor

TENSOR = member("a", entry())
HEADER = objects(TENSOR)

LENGTHS = (
    Row("empty file", b"", TruncatedFile),
    Row("one byte", b"\x02", TruncatedFile),
    Row("seven bytes", bytes(7), TruncatedFile),
    Row("header length zero", bytes(8), BadHeader),
    Row("header length zero, then data", bytes(8) + b"{}", BadHeader),
    Row("header length alone", file_of("", length=2), TruncatedFile),
    Row("header length one beyond", file_of("{}", length=3), TruncatedFile),
    Row(
        "header length at the limit in a short file",
        file_of("{}", length=100_000_000),
        TruncatedFile,
    ),
    Row("header length over the limit", file_of("{}", length=100_000_001), LimitExceeded),
    Row("header length of 64 ones", file_of("{}", length=2**64 - 1), LimitExceeded),
    Row(
        "header length big-endian",
        len(HEADER).to_bytes(8, "big") + HEADER.encode() + b"x",
        LimitExceeded,
    ),
    Row("header length one short", file_of(HEADER, b"x", len(HEADER) - 1), BadHeader),
    Row("header length takes a data byte", file_of(HEADER, b"x", len(HEADER) + 1), BadHeader),
    Row(
        "header length takes a space of data", file_of(HEADER, b" ", len(HEADER) + 1), TruncatedFile
    ),
    Row("two files end to end", file_of("{}") * 2, TrailingBytes),
)

STARTS = (
    Row("header is an array", file_of("[]"), BadHeader),
    Row("header is a string", file_of('"{}"'), BadHeader),
    Row("header is null", file_of("null"), BadHeader),
    Row("header is a pickle", file_of(b"\x80\x04}."), BadHeader),
    Row("header starts with a byte order mark", file_of("\ufeff{}"), BadHeader),
    Row("header starts with a space", file_of(" {}"), BadHeader),
)

ENCODINGS = (
    Row("byte 0xff in a name", file_of(b'{"\xff":{}}'), BadHeader),
    Row("overlong NUL in a name", file_of(b'{"\xc0\x80":{}}'), BadHeader),
    Row("UTF-8 cut short", file_of(b'{"\xf0\x9f":{}}'), BadHeader),
    Row("surrogate as UTF-8", file_of('{"\ud800":{}}'), BadHeader),
    Row("UTF-16", file_of("{}".encode("utf-16-le")), BadHeader),
    Row(
        "bad byte in the metadata",
        file_of(b'{"__metadata__":{"key":"\xff"},' + TENSOR.encode() + b"}", b"x"),
        BadHeader,
    ),
    Row("bad byte in the padding", file_of(HEADER.encode() + b"  \xa0", b"x"), BadHeader),
    Row("lone surrogate in a name", file_of(objects(member("\\ud800", entry())), b"x"), BadHeader),
    Row(
        "surrogates in the wrong order in a name",
        file_of(objects(member("\\udc00\\ud800", entry())), b"x"),
        BadHeader,
    ),
    Row(
        "lone surrogate in the name of a field",
        file_of(objects(member("a", entry()[:-1] + ',"\\ud800":1}')), b"x"),
        BadHeader,
    ),
    Row("lone surrogate in a dtype", one_tensor(dtype='"\\ud800"'), UnknownDType),
)

TEXTS = (
    Row("brace alone", file_of("{"), BadHeader),
    Row("JSON cut short", file_of(HEADER[:-1], b"x"), BadHeader),
    Row("JSON cut in a string", file_of('{"a'), BadHeader),
    Row("letter after the JSON", file_of(HEADER + "x", b"x"), BadHeader),
    Row("NUL after the JSON", file_of(HEADER + "\0", b"x"), BadHeader),
    Row("object after the JSON", file_of(HEADER + "{}", b"x"), BadHeader),
    Row("comma at the end", file_of(f"{{{TENSOR},}}", b"x"), BadHeader),
    Row("comma at the start", file_of(f"{{,{TENSOR}}}", b"x"), BadHeader),
    Row("single quotes", file_of(HEADER.replace('"', "'"), b"x"), BadHeader),
    Row("comment", file_of("{}/**/"), BadHeader),
    Row("newline in a name", file_of('{"a\nb":{}}'), BadHeader),
    Row("unknown escape in a name", file_of('{"a\\q":{}}'), BadHeader),
    Row("short escape in a name", file_of('{"\\u12":{}}'), BadHeader),
    Row("number as a name", file_of("{1:{}}"), BadHeader),
    Row("leading zero", one_tensor(shape="[01]"), BadHeader),
    Row("plus sign", one_tensor(shape="[+1]"), BadHeader),
    Row("hexadecimal", one_tensor(shape="[0x1]"), BadHeader),
    Row("NaN in a shape", one_tensor(shape="[NaN]"), BadHeader),
    Row("Infinity in a shape", one_tensor(shape="[Infinity]"), BadHeader),
    Row("-Infinity in offsets", one_tensor(data_offsets="[-Infinity,1]"), BadHeader),
    Row("error behind a name of several bytes a letter", file_of('{"é😀":1x}'), BadHeader),
    Row("100,000 arrays in each other", file_of('{"a":' + "[" * 100_000), BadHeader),
    Row(
        "100,000 arrays in each other, closed",
        file_of('{"a":' + "[" * 100_000 + "]" * 100_000 + "}"),
        BadHeader,
    ),
    Row("100,000 objects in each other", file_of('{"a":' * 100_000), BadHeader),
    Row("20 arrays in each other", file_of('{"a":' + "[" * 20 + "]" * 20 + "}"), BadField),
    Row("integer of 5,000 digits", one_tensor(shape=f"[{'9' * 5000}]"), BadHeader),
    Row(
        "integer of 5,000 digits in the metadata",
        file_of(f'{{"__metadata__":{{"key":{"9" * 5000}}}}}'),
        BadHeader,
    ),
)

DUPLICATES = (
    Row("tensor twice", file_of(objects(TENSOR, TENSOR), b"x"), DuplicateKey),
    Row(
        "tensor twice, with other bytes",
        file_of(objects(TENSOR, member("a", entry(data_offsets="[1,2]"))), b"xy"),
        DuplicateKey,
    ),
    Row(
        "tensor twice, once escaped",
        file_of(objects(TENSOR, member("\\u0061", entry())), b"x"),
        DuplicateKey,
    ),
    Row(
        "tensor twice, once with an escaped slash",
        file_of(objects(member("a/b", entry()), member("a\\/b", entry())), b"x"),
        DuplicateKey,
    ),
    Row(
        "tensor twice among others",
        file_of(
            objects(
                member("b", entry(data_offsets="[1,2]")),
                TENSOR,
                member("c", entry(data_offsets="[2,3]")),
                TENSOR,
            ),
            b"xyz",
        ),
        DuplicateKey,
    ),
    *(
        Row(
            f"field {field} twice",
            file_of(objects(member("a", f"{entry()[:-1]},{member(field, value)}}}")), b"x"),
            DuplicateKey,
        )
        for field, value in (("dtype", '"U8"'), ("shape", "[1]"), ("data_offsets", "[0,1]"))
    ),
    Row(
        "field twice, once escaped",
        file_of('{"a":' + entry()[:-1] + ',"d\\u0074ype":"U8"}}', b"x"),
        DuplicateKey,
    ),
    Row(
        "field twice in the second tensor",
        file_of(
            objects(TENSOR, member("b", entry(data_offsets="[1,2]")[:-1] + ',"shape":[1]}')), b"xy"
        ),
        DuplicateKey,
        tensor="b",
    ),
    Row(
        "unknown field twice",
        file_of('{"a":' + entry()[:-1] + ',"more":1,"more":1}}', b"x"),
        DuplicateKey,
    ),
)

ROWS = (*LENGTHS, *STARTS, *ENCODINGS, *TEXTS, *DUPLICATES)
