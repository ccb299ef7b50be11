"""Damaged `.tenzor` files: a table row for each way in which one can be wrong."""

from __future__ import annotations

from collections.abc import Callable

from standfast.errors import (
    BadField,
    BadHeader,
    DuplicateKey,
    IndexMismatch,
    LimitExceeded,
    SizeMismatch,
    StandfastError,
    TooNew,
    TrailingBytes,
    TruncatedFile,
    UnknownDType,
    UnsupportedFile,
)
from tests.formats.builders import Row, chunks
from tests.formats.tenzor.builders import entry, file_of, fnv, own_text, reseal, trainer_text

HASH = "0xaf63dc4c8601ec8c"
B = fnv(b"b")


def sealed(names: str = '["a"]', of: str | None = None, more: str = "") -> bytes:
    """A file of ours that is wrong, and has the digest of what it is."""
    return reseal(file_of(own_text(names, of, more)))


STARTS = (
    Row("header one byte short", file_of()[:63], TruncatedFile),
    Row("magic alone", b"TENZOR\0\0", TruncatedFile),
    Row("version 0", file_of(version=0), UnsupportedFile),
    Row("version 2", file_of(version=2), UnsupportedFile),
    Row("a flag", file_of(flags=1 << 31), UnsupportedFile),
    Row("padding", file_of(padding=1), BadField),
    Row("reserved", file_of(reserved=b"\0" * 19 + b"\1"), BadField),
    Row("2^32 - 1 tensors", file_of(tensor_count=2**32 - 1), LimitExceeded),
    Row("metadata of 4 GiB", file_of(metadata_size=2**32 - 1), LimitExceeded),
    Row(
        "metadata of 100 MiB",
        file_of(metadata_size=100 << 20, index_offset=64 + (100 << 20), data_offset=104_861_696),
        TruncatedFile,
    ),
    Row("a million tensors", file_of(tensor_count=10**6, data_offset=48_001_024), TruncatedFile),
    Row("index too early", file_of(index_offset=64), BadField),
    Row("index too late", file_of(index_offset=80), BadField),
    Row("index far away", file_of(index_offset=2**64 - 8), BadField),
    Row("data too early", file_of(data_offset=0), BadField),
    Row("data too late", file_of(data_offset=8192), BadField),
    Row("no padding", file_of()[:4095], TruncatedFile),
    Row("bytes behind the metadata", file_of()[:66] + b"x" + file_of()[67:], BadField),
    Row("bytes behind the index", file_of()[:4095] + b"xx", BadField),
    Row("no data", file_of(data=b""), TruncatedFile),
    Row("more data", file_of(data=b"xx"), TrailingBytes),
    Row("data without tensors", file_of(entries=[], data=b"x"), TrailingBytes),
)

ENTRIES = (
    Row("dtype 12", file_of(entries=[entry(dtype=12)]), UnknownDType),
    Row("dtype 255", file_of(entries=[entry(dtype=255)]), UnknownDType),
    Row("six dimensions", file_of(entries=[entry(ndim=6)]), BadField),
    Row("255 dimensions", file_of(entries=[entry(ndim=255)]), BadField),
    Row("entry padding", file_of(entries=[entry(padding=b"\0\1")]), BadField),
    Row("a dimension behind the last", file_of(entries=[entry(ndim=1, shape=(1, 0, 7))]), BadField),
    Row("a scalar with a dimension", file_of(entries=[entry(ndim=0)]), BadField),
    Row("size 0", file_of(entries=[entry(size=0)]), SizeMismatch),
    Row("size 2", file_of(entries=[entry(size=2)], data=b"xx"), SizeMismatch),
    Row("size 2^64 - 1", file_of(entries=[entry(size=2**64 - 1)]), SizeMismatch),
    Row("wider dtype", file_of(entries=[entry(dtype=0)]), SizeMismatch),
    Row("a scalar of no bytes", file_of(entries=[entry(shape=(), size=0)]), SizeMismatch),
    Row(
        "a size that is right modulo 2^64",
        file_of(entries=[entry(shape=(2**32 - 1,) * 5, size=(2**32 - 1) ** 5 % 2**64)]),
        LimitExceeded,
    ),
    Row(
        "an empty tensor of 2^96 rows",
        file_of(entries=[entry(shape=(2**32 - 1, 2**32 - 1, 2**32 - 1, 0), size=0)], data=b""),
        LimitExceeded,
    ),
    Row("an offset", file_of(entries=[entry(offset=1)]), BadField),
    Row("a hole", file_of(entries=[entry(), entry(name_hash=B, offset=2)], data=b"xxx"), BadField),
    Row("an overlap", file_of(entries=[entry(), entry(name_hash=B, offset=0)]), BadField),
    Row(
        "the wrong order",
        file_of(entries=[entry(offset=1), entry(name_hash=B)], data=b"xx"),
        BadField,
    ),
    Row("2^60 bytes", file_of(entries=[entry(shape=(2**30, 2**30), size=2**60)]), TruncatedFile),
    Row(
        "sizes that add up to 2^64",
        file_of(
            entries=[
                entry(name_hash=i, shape=(2**31, 2**31), size=2**62, offset=(i << 62) % 2**64)
                for i in range(4)
            ],
            data=b"",
        ),
        TruncatedFile,
    ),
    Row(
        "an offset that is right in floating point",
        file_of(
            entries=[entry(shape=(2**30, 2**30), size=2**60), entry(name_hash=B, offset=2**60 + 1)]
        ),
        BadField,
    ),
    Row("one hash twice", file_of(entries=[entry(), entry(offset=1)], data=b"xx"), DuplicateKey),
)

METADATA = (
    Row("text", file_of("metadata"), BadField),
    Row("a list", file_of("[]"), BadField),
    Row("null", file_of("null"), BadField),
    Row("no end", file_of('{"a":1'), BadField),
    Row("a trailing comma", file_of('{"a":1,}'), BadField),
    Row("two objects", file_of("{}{}"), BadField),
    Row("a byte order mark", file_of("\ufeff{}"), BadField),
    Row("a zero behind it", file_of(b"{}\0"), BadField),
    Row("not UTF-8", file_of(b'{"a":"\xff"}'), BadField),
    Row("a lone surrogate", file_of('{"a":"\\ud800"}'), BadField),
    Row("NaN", file_of('{"a":NaN}'), BadField),
    Row("bare inf in another place", file_of('{"loss":inf}'), BadField),
    Row("a number beyond floats", file_of('{"a":1e999}'), BadField),
    Row("a key twice", file_of('{"a":1,"a":1}'), DuplicateKey),
    Row("a key twice, deeper", file_of('{"b":[{"a":1,"a":1}]}'), DuplicateKey),
    Row("deep nesting", file_of('{"a":' + "[" * 200 + "]" * 200 + "}"), BadField),
    Row("a long integer", file_of('{"a":' + "9" * 5000 + "}"), BadField),
    Row(
        "the original's text with digits of another script",
        file_of(
            '{"epoch":\u0663,"global_step":1,"best_val_loss":inf,"best_val_acc":0.5,"best_epoch":1,'
            '"learning_rate":0.1,"model_name":"","timestamp":1}'
        ),
        BadField,
    ),
)

OURS = (
    Row("names no list", sealed('"a"'), BadField),
    Row("names of numbers", sealed("[1]"), BadField),
    Row("names of names", sealed('[["a"]]'), BadField),
    Row("too few names", sealed("[]"), BadField),
    Row("too many names", sealed('["a","b"]'), BadField),
    Row("another name", sealed('["b"]'), BadField, tensor="b"),
    Row("a name twice", sealed('["a","a"]'), BadField),
    Row("a name that is no text", sealed('["\\ud800"]'), BadField),
    Row("a long name", sealed(f'["{"n" * 65_536}"]'), LimitExceeded),
    Row("a long name in bytes", sealed(f'["{"é" * 32_768}"]'), LimitExceeded),
    Row("names, no end", sealed('["a"'), BadField),
    Row("names and a comma", sealed(more=","), BadField),
    Row("names and text", sealed(more=" x"), BadField),
    Row("names twice", sealed(more=',"standfast.names":["a"]'), DuplicateKey),
    Row("names not UTF-8", sealed().replace(b'["a"]', b'["\xff"]'), BadField),
    Row("digest not UTF-8", file_of(own_text()).replace(b"0", b"\xff", 1), BadField),
    Row("names without digests", file_of('{"standfast.names":["b"]}'), BadField),
    Row("digest of zeros", file_of(own_text()), IndexMismatch, opens=True),
    Row(
        "digest in capitals",
        sealed()[:84] + sealed()[84:148].upper() + sealed()[148:],
        IndexMismatch,
        opens=True,
    ),
    Row("digest a number", file_of('{"standfast.digest":1}'), IndexMismatch, opens=True),
    Row(
        "chunks alone",
        file_of(f'{{"standfast.chunks":"{chunks(b"x")}"}}'),
        IndexMismatch,
        opens=True,
    ),
    Row(
        "the digest in another place",
        file_of(own_text().replace("{", "{ ", 1)),
        IndexMismatch,
        opens=True,
    ),
    Row("chunks of another kind", sealed(of="md5:1:"), TooNew, opens=True),
    Row("no chunks", sealed(of=chunks()), BadField, opens=True),
    Row("two chunks", sealed(of=chunks(b"", b"")), BadField, opens=True),
    Row("no base64", sealed(of=chunks(b"x") + "="), BadField, opens=True),
)

MANY = 1_000_000


def large(
    name: str, text: Callable[[], str | bytes], error: type[StandfastError] | None = BadField
) -> Row:
    """Metadata made to take a reader's time or memory, built when it is needed."""
    return Row(f"large: {name}", lambda: file_of(text()), error)


LARGE = (
    large("quotes", lambda: b'"' * MANY),
    large("quotes in braces", lambda: b"{" + b'"' * MANY + b"}"),
    large("backslashes", lambda: b'{"' + b"\\" * MANY + b"}"),
    large("a string of backslashes", lambda: b'{"a":"' + b"\\" * MANY + b'"}', None),
    large("a string of quotes", lambda: b'{"a":"' + b'\\"' * (MANY // 2) + b'"}', None),
    large("a string without an end", lambda: b'{"a":"' + b"x" * MANY),
    large("braces", lambda: b"{" * MANY + b"}" * MANY),
    large("nested objects", lambda: b'{"a":' * (MANY // 5)),
    large("spaces", lambda: b"{" + b" " * MANY + b"}", None),
    large("spaces alone", lambda: b" " * MANY, None),
    large("commas", lambda: b"{" + b"," * MANY + b"}"),
    large("one key very often", lambda: b"{" + b'"a":1,' * (MANY // 6) + b'"a":1}', DuplicateKey),
    large("digits", lambda: b'{"a":' + b"9" * MANY + b"}"),
    large("the trainer's text, cut", lambda: trainer_text("inf", "x" * MANY)[:-1].encode()),
    large(
        "the trainer's text, its end again and again",
        lambda: trainer_text("inf", '","timestamp":1' * (MANY // 15))[:-1].encode(),
    ),
    large("digits of the trainer", lambda: trainer_text("9" * MANY + "x").encode()),
    Row("large: names in brackets", lambda: sealed("[" * MANY), BadField),
    Row("large: names in brackets, closed", lambda: sealed("[" * MANY + "]" * MANY), BadField),
    Row("large: names and brackets", lambda: sealed('["a",' + "[" * MANY), BadField),
    Row("large: names of digits", lambda: sealed("[" + "9" * MANY + "]"), BadField),
    Row("large: a long name", lambda: sealed('["' + "n" * MANY + '"]'), LimitExceeded),
    Row(
        "large: one name very often", lambda: sealed("[" + '"a",' * (MANY // 4) + '"a"]'), BadField
    ),
    Row(
        "large: a name of escapes",
        lambda: sealed('["' + "\\u0041" * (MANY // 6) + '"]'),
        LimitExceeded,
    ),
)

ROWS = (*STARTS, *ENTRIES, *METADATA, *OURS, *LARGE)

WITHOUT_MAGIC = (
    Row("nothing", b"", TruncatedFile),
    Row("another magic", file_of(magic=b"TENZOR\0\1"), BadHeader),
    Row("letters", b"x" * 5000, BadHeader),
)
"""Files that only their suffix makes files of this format."""
