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
from tests.formats.safetensors.builders import Case, entry, file_of, member, objects, one_tensor

TENSOR = member("a", entry())
HEADER = objects(TENSOR)
END = 8 + len(HEADER)
"""The offset at which the header of the one-byte file ends."""
DEEP = "recursion|nest"

LENGTHS = (
    Case("empty file", b"", TruncatedFile, "0 bytes"),
    Case("one byte", b"\x02", TruncatedFile, "1 bytes"),
    Case("seven bytes", bytes(7), TruncatedFile, "7 bytes"),
    Case("header length zero", bytes(8), BadHeader, "offset 8"),
    Case("header length zero, then data", bytes(8) + b"{}", BadHeader, "offset 8"),
    Case("header length alone", file_of("", length=2), TruncatedFile, "header length.*offset 0"),
    Case("header length one beyond", file_of("{}", length=3), TruncatedFile, "offset 0.* 3,.* 2 "),
    Case(
        "header length at the limit in a short file",
        file_of("{}", length=100_000_000),
        TruncatedFile,
        "header length.*offset 0.*100,000,000",
    ),
    Case(
        "header length over the limit",
        file_of("{}", length=100_000_001),
        LimitExceeded,
        "header length.*offset 0.*100,000,001",
    ),
    Case(
        "header length of 64 ones",
        file_of("{}", length=2**64 - 1),
        LimitExceeded,
        "header length.*offset 0.*18,446,744,073,709,551,615",
    ),
    Case(
        "header length big-endian",
        len(HEADER).to_bytes(8, "big") + HEADER.encode() + b"x",
        LimitExceeded,
        "header length.*offset 0",
    ),
    Case("header length one short", file_of(HEADER, b"x", len(HEADER) - 1), BadHeader, "offset"),
    Case(
        "header length takes a data byte",
        file_of(HEADER, b"x", len(HEADER) + 1),
        BadHeader,
        f"offset {END}",
    ),
    Case(
        "header length takes a space of data",
        file_of(HEADER, b" ", len(HEADER) + 1),
        TruncatedFile,
        "tensor 'a'.* 0 bytes",
    ),
    Case("two files end to end", file_of("{}") * 2, TrailingBytes, "10 bytes follow"),
)

STARTS = (
    Case("header is an array", file_of("[]"), BadHeader, r"offset 8.*b'\['"),
    Case("header is a string", file_of('"{}"'), BadHeader, "offset 8"),
    Case("header is null", file_of("null"), BadHeader, "offset 8"),
    Case("header is a pickle", file_of(b"\x80\x04}."), BadHeader, "offset 8"),
    Case("header starts with a byte order mark", file_of("\ufeff{}"), BadHeader, "offset 8"),
    Case(
        "header starts with a space",
        file_of(" {}"),
        BadHeader,
        "offset 8.*b' '",
        stricter="the format's own page wants a brace first",
    ),
)

ENCODINGS = (
    Case("byte 0xff in a name", file_of(b'{"\xff":{}}'), BadHeader, "offset 10.*UTF-8"),
    Case("overlong NUL in a name", file_of(b'{"\xc0\x80":{}}'), BadHeader, "offset 10.*UTF-8"),
    Case("UTF-8 cut short", file_of(b'{"\xf0\x9f":{}}'), BadHeader, "offset 10.*UTF-8"),
    Case("surrogate as UTF-8", file_of('{"\ud800":{}}'), BadHeader, "offset 10.*UTF-8"),
    Case("UTF-16", file_of("{}".encode("utf-16-le")), BadHeader, "offset 9"),
    Case(
        "bad byte in the metadata",
        file_of(b'{"__metadata__":{"key":"\xff"},' + TENSOR.encode() + b"}", b"x"),
        BadHeader,
        "offset 32.*UTF-8",
    ),
    Case(
        "bad byte in the padding",
        file_of(HEADER.encode() + b"  \xa0", b"x"),
        BadHeader,
        f"offset {END + 2}.*UTF-8",
    ),
    Case(
        "lone surrogate in a name",
        file_of(objects(member("\\ud800", entry())), b"x"),
        BadHeader,
        r"tensor '\\ud800'",
    ),
    Case(
        "surrogates in the wrong order in a name",
        file_of(objects(member("\\udc00\\ud800", entry())), b"x"),
        BadHeader,
        r"tensor '\\udc00\\ud800'",
    ),
    Case(
        "lone surrogate in the name of a field",
        file_of(objects(member("a", entry()[:-1] + ',"\\ud800":1}')), b"x"),
        BadHeader,
        r"tensor 'a'",
    ),
    Case(
        "lone surrogate in a dtype",
        one_tensor(dtype='"\\ud800"'),
        UnknownDType,
        r"tensor 'a' \(offset 9\).*dtype.*\\ud800",
    ),
)

TEXTS = (
    Case("brace alone", file_of("{"), BadHeader, "offset 9"),
    Case("JSON cut short", file_of(HEADER[:-1], b"x"), BadHeader, f"offset {END - 1}"),
    Case("JSON cut in a string", file_of('{"a'), BadHeader, "offset 9"),
    Case("letter after the JSON", file_of(HEADER + "x", b"x"), BadHeader, f"offset {END}"),
    Case("NUL after the JSON", file_of(HEADER + "\0", b"x"), BadHeader, f"offset {END}"),
    Case("object after the JSON", file_of(HEADER + "{}", b"x"), BadHeader, f"offset {END}"),
    Case("comma at the end", file_of(f"{{{TENSOR},}}", b"x"), BadHeader, f"offset {END}"),
    Case("comma at the start", file_of(f"{{,{TENSOR}}}", b"x"), BadHeader, "offset 9"),
    Case("single quotes", file_of(HEADER.replace('"', "'"), b"x"), BadHeader, "offset 9"),
    Case("comment", file_of("{}/**/"), BadHeader, "offset 10"),
    Case("newline in a name", file_of('{"a\nb":{}}'), BadHeader, "offset 11"),
    Case("unknown escape in a name", file_of('{"a\\q":{}}'), BadHeader, "offset 11"),
    Case("short escape in a name", file_of('{"\\u12":{}}'), BadHeader, "offset 1[01]"),
    Case("number as a name", file_of("{1:{}}"), BadHeader, "offset 9"),
    Case("leading zero", one_tensor(shape="[01]"), BadHeader, "offset 37"),
    Case("plus sign", one_tensor(shape="[+1]"), BadHeader, "offset 36"),
    Case("hexadecimal", one_tensor(shape="[0x1]"), BadHeader, "offset 37"),
    Case("NaN in a shape", one_tensor(shape="[NaN]"), BadHeader, "NaN"),
    Case("Infinity in a shape", one_tensor(shape="[Infinity]"), BadHeader, "Infinity"),
    Case("-Infinity in offsets", one_tensor(data_offsets="[-Infinity,1]"), BadHeader, "-Infinity"),
    Case(
        "error behind a name of several bytes a letter",
        file_of('{"é😀":1x}'),
        BadHeader,
        "offset 19:",
    ),
    Case("100,000 arrays in each other", file_of('{"a":' + "[" * 100_000), BadHeader, DEEP),
    Case(
        "100,000 arrays in each other, closed",
        file_of('{"a":' + "[" * 100_000 + "]" * 100_000 + "}"),
        BadHeader,
        DEEP,
    ),
    Case("100,000 objects in each other", file_of('{"a":' * 100_000), BadHeader, DEEP),
    Case(
        "20 arrays in each other",
        file_of('{"a":' + "[" * 20 + "]" * 20 + "}"),
        BadField,
        r"tensor 'a' \(offset 9\)",
    ),
    Case("integer of 5,000 digits", one_tensor(shape=f"[{'9' * 5000}]"), BadHeader, "digits"),
    Case(
        "integer of 5,000 digits in the metadata",
        file_of(f'{{"__metadata__":{{"key":{"9" * 5000}}}}}'),
        BadHeader,
        "digits",
    ),
)

DUPLICATES = (
    Case(
        "tensor twice",
        file_of(objects(TENSOR, TENSOR), b"x"),
        DuplicateKey,
        "'a'",
        stricter="the library keeps the last of two tensors of one name",
    ),
    Case(
        "tensor twice, with other bytes",
        file_of(objects(TENSOR, member("a", entry(data_offsets="[1,2]"))), b"xy"),
        DuplicateKey,
        "'a'",
    ),
    Case(
        "tensor twice, once escaped",
        file_of(objects(TENSOR, member("\\u0061", entry())), b"x"),
        DuplicateKey,
        "'a'",
        stricter="the library keeps the last of two tensors of one name",
    ),
    Case(
        "tensor twice, once with an escaped slash",
        file_of(objects(member("a/b", entry()), member("a\\/b", entry())), b"x"),
        DuplicateKey,
        "'a/b'",
        stricter="the library keeps the last of two tensors of one name",
    ),
    Case(
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
        "'a'",
        stricter="the library keeps the last of two tensors of one name",
    ),
    *(
        Case(
            f"field {field} twice",
            file_of(objects(member("a", f"{entry()[:-1]},{member(field, value)}}}")), b"x"),
            DuplicateKey,
            f"tensor 'a'.*'{field}'",
        )
        for field, value in (("dtype", '"U8"'), ("shape", "[1]"), ("data_offsets", "[0,1]"))
    ),
    Case(
        "field twice, once escaped",
        file_of('{"a":' + entry()[:-1] + ',"d\\u0074ype":"U8"}}', b"x"),
        DuplicateKey,
        "tensor 'a'.*'dtype'",
    ),
    Case(
        "field twice in the second tensor",
        file_of(
            objects(TENSOR, member("b", entry(data_offsets="[1,2]")[:-1] + ',"shape":[1]}')), b"xy"
        ),
        DuplicateKey,
        "tensor 'b'.*'shape'",
    ),
    Case(
        "unknown field twice",
        file_of('{"a":' + entry()[:-1] + ',"more":1,"more":1}}', b"x"),
        DuplicateKey,
        "tensor 'a'.*'more'",
        stricter="the library skips unknown fields",
    ),
)

CASES = (*LENGTHS, *STARTS, *ENCODINGS, *TEXTS, *DUPLICATES)
