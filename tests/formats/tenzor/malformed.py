"""Damaged `.tenzor` files: a table row for each way in which one can be wrong."""

from __future__ import annotations

from standfast.errors import (
    BadField,
    BadHeader,
    DuplicateKey,
    IndexMismatch,
    LimitExceeded,
    SizeMismatch,
    TooNew,
    TrailingBytes,
    TruncatedFile,
    UnknownDType,
    UnsupportedFile,
)
from tests.formats.tenzor.builders import Case, chunks, entry, file_of, fnv, own_text, reseal

HASH = "0xaf63dc4c8601ec8c"
B = fnv(b"b")


def sealed(names: str = '["a"]', of: str | None = None, more: str = "") -> bytes:
    """A file of ours that is wrong, and has the digest of what it is."""
    return reseal(file_of(own_text(names, of, more)))


STARTS = (
    Case("header one byte short", file_of()[:63], TruncatedFile, r"header \(offset 0\): 64 .* 63"),
    Case("magic alone", b"TENZOR\0\0", TruncatedFile, r"header \(offset 0\): 64 .* after 8"),
    Case("version 0", file_of(version=0), UnsupportedFile, r"version \(offset 8\): 0;"),
    Case("version 2", file_of(version=2), UnsupportedFile, r"version \(offset 8\): 2;"),
    Case("a flag", file_of(flags=1 << 31), UnsupportedFile, r"flags \(offset 12\): 0x80000000"),
    Case("padding", file_of(padding=1), BadField, r"padding \(offset 20\)"),
    Case("reserved", file_of(reserved=b"\0" * 19 + b"\1"), BadField, r"reserved \(offset 44\)"),
    Case(
        "2^32 - 1 tensors", file_of(tensor_count=2**32 - 1), LimitExceeded, r"\(offset 16\): 4,294"
    ),
    Case(
        "metadata of 4 GiB",
        file_of(metadata_size=2**32 - 1),
        LimitExceeded,
        r"metadata_size \(offset 40\): 4,294,967,295",
    ),
    Case(
        "metadata of 100 MiB",
        file_of(metadata_size=100 << 20, index_offset=64 + (100 << 20), data_offset=104_861_696),
        TruncatedFile,
        r"metadata and the index of 1 tensors \(offset 0\): 104,861,696 .* after 4,097",
    ),
    Case(
        "a million tensors",
        file_of(tensor_count=10**6, data_offset=48_001_024),
        TruncatedFile,
        r"the index of 1,000,000 tensors",
    ),
    Case("index too early", file_of(index_offset=64), BadField, r"\(offset 24\): 64, expected 72"),
    Case("index too late", file_of(index_offset=80), BadField, r"\(offset 24\): 80, expected 72"),
    Case("index far away", file_of(index_offset=2**64 - 8), BadField, r"\(offset 24\): 18,446"),
    Case("data too early", file_of(data_offset=0), BadField, r"\(offset 32\): 0, expected 4,096"),
    Case("data too late", file_of(data_offset=8192), BadField, r"\(offset 32\): 8,192, exp.*4,096"),
    Case("no padding", file_of()[:4095], TruncatedFile, r"index of 1 .*: 4,096 .* after 4,095"),
    Case(
        "bytes behind the metadata", file_of()[:66] + b"x" + file_of()[67:], BadField, "offset 66"
    ),
    Case("bytes behind the index", file_of()[:4095] + b"xx", BadField, "offset 120: .*4,096"),
    Case("no data", file_of(data=b""), TruncatedFile, "last tensor ends at 4,097, .* 4,096"),
    Case("more data", file_of(data=b"xx"), TrailingBytes, "^1 bytes follow the last", stream=False),
    Case(
        "data without tensors",
        file_of(entries=[], data=b"x"),
        TrailingBytes,
        "^1 bytes follow the index",
        stream=False,
    ),
)

ENTRIES = (
    Case("dtype 12", file_of(entries=[entry(dtype=12)]), UnknownDType, f"entry 0 .*{HASH}.*: 12"),
    Case("dtype 255", file_of(entries=[entry(dtype=255)]), UnknownDType, "dtype: 255, over 11"),
    Case("six dimensions", file_of(entries=[entry(ndim=6)]), BadField, "ndim: 6, over 5"),
    Case("255 dimensions", file_of(entries=[entry(ndim=255)]), BadField, "ndim: 255, over 5"),
    Case("entry padding", file_of(entries=[entry(padding=b"\0\1")]), BadField, "field padding"),
    Case(
        "a dimension behind the last",
        file_of(entries=[entry(ndim=1, shape=(1, 0, 7))]),
        BadField,
        r"field shape: \[1, 0, 7, 0, 0\] has more than 1",
    ),
    Case("a scalar with a dimension", file_of(entries=[entry(ndim=0)]), BadField, "more than 0"),
    Case("size 0", file_of(entries=[entry(size=0)]), SizeMismatch, r"\[1\] takes 1 .*size says 0"),
    Case("size 2", file_of(entries=[entry(size=2)], data=b"xx"), SizeMismatch, "size says 2"),
    Case("size 2^64 - 1", file_of(entries=[entry(size=2**64 - 1)]), SizeMismatch, "says 18,446,7"),
    Case("wider dtype", file_of(entries=[entry(dtype=0)]), SizeMismatch, "float32 .* takes 4"),
    Case(
        "a scalar of no bytes", file_of(entries=[entry(shape=(), size=0)]), SizeMismatch, "says 0"
    ),
    Case(
        "a size that is right modulo 2^64",
        file_of(entries=[entry(shape=(2**32 - 1,) * 5, size=(2**32 - 1) ** 5 % 2**64)]),
        LimitExceeded,
        "no array can have",
    ),
    Case(
        "an empty tensor of 2^96 rows",
        file_of(entries=[entry(shape=(2**32 - 1, 2**32 - 1, 2**32 - 1, 0), size=0)], data=b""),
        LimitExceeded,
        r"no array can have \[4294967295, 4294967295, 4294967295, 0\]",
    ),
    Case("an offset", file_of(entries=[entry(offset=1)]), BadField, "data offset: 1, expected 0"),
    Case(
        "a hole",
        file_of(entries=[entry(), entry(name_hash=B, offset=2)], data=b"xxx"),
        BadField,
        r"entry 1 \(offset 120\), .*offset: 2, expected 1",
    ),
    Case(
        "an overlap",
        file_of(entries=[entry(), entry(name_hash=B, offset=0)]),
        BadField,
        r"entry 1 \(offset 120\), .*offset: 0, expected 1",
    ),
    Case(
        "the wrong order",
        file_of(entries=[entry(offset=1), entry(name_hash=B)], data=b"xx"),
        BadField,
        "entry 0 .*offset: 1, expected 0",
    ),
    Case(
        "2^60 bytes",
        file_of(entries=[entry(shape=(2**30, 2**30), size=2**60)]),
        TruncatedFile,
        "last tensor ends at 1,152,921,504,606,851,072, but",
    ),
    Case(
        "sizes that add up to 2^64",
        file_of(
            entries=[
                entry(name_hash=i, shape=(2**31, 2**31), size=2**62, offset=(i << 62) % 2**64)
                for i in range(4)
            ],
            data=b"",
        ),
        TruncatedFile,
        "more bytes than any file",
    ),
    Case(
        "an offset that is right in floating point",
        file_of(
            entries=[
                entry(shape=(2**30, 2**30), size=2**60),
                entry(name_hash=B, offset=2**60 + 1),
            ]
        ),
        BadField,
        "entry 1 .*: 1,152,921,504,606,846,977, expected 1,152,921,504,606,846,976",
    ),
    Case(
        "one hash twice",
        file_of(entries=[entry(), entry(offset=1)], data=b"xx"),
        DuplicateKey,
        f"name_hash: two tensors have {HASH}",
    ),
)

METADATA = (
    Case("text", file_of("metadata"), BadField, "the metadata: not the JSON"),
    Case("a list", file_of("[]"), BadField, "expected a JSON object, found list"),
    Case("null", file_of("null"), BadField, "expected a JSON object, found NoneType"),
    Case("no end", file_of('{"a":1'), BadField, "the metadata: not the JSON"),
    Case("a trailing comma", file_of('{"a":1,}'), BadField, "the metadata: not the JSON"),
    Case("two objects", file_of("{}{}"), BadField, "the metadata: not the JSON"),
    Case("a byte order mark", file_of("\ufeff{}"), BadField, "the metadata: not the JSON"),
    Case("a zero behind it", file_of(b"{}\0"), BadField, "the metadata: not the JSON"),
    Case("not UTF-8", file_of(b'{"a":"\xff"}'), BadField, "not UTF-8 .* at byte 6"),
    Case("a lone surrogate", file_of('{"a":"\\ud800"}'), BadField, "not valid Unicode"),
    Case("NaN", file_of('{"a":NaN}'), BadField, "NaN is not JSON"),
    Case("bare inf in another place", file_of('{"loss":inf}'), BadField, "not the JSON"),
    Case("a number beyond floats", file_of('{"a":1e999}'), BadField, "is inf"),
    Case("a key twice", file_of('{"a":1,"a":1}'), DuplicateKey, "the key 'a' stands twice"),
    Case("a key twice, deeper", file_of('{"b":[{"a":1,"a":1}]}'), DuplicateKey, "stands twice"),
    Case(
        "deep nesting", file_of('{"a":' + "[" * 200 + "]" * 200 + "}"), BadField, "deeper than 100"
    ),
    Case("a long integer", file_of('{"a":' + "9" * 5000 + "}"), BadField, "5,000 digits"),
    Case(
        "the original's text with digits of another script",
        file_of(
            '{"epoch":\u0663,"global_step":1,"best_val_loss":inf,"best_val_acc":0.5,"best_epoch":1,'
            '"learning_rate":0.1,"model_name":"","timestamp":1}'
        ),
        BadField,
        "not the JSON",
    ),
)

OURS = (
    Case("names no list", sealed('"a"'), BadField, "standfast.names: expected a list of names"),
    Case("names of numbers", sealed("[1]"), BadField, "standfast.names: expected a list of names"),
    Case("names of names", sealed('[["a"]]'), BadField, "expected a list of names"),
    Case("too few names", sealed("[]"), BadField, "standfast.names: 0 names for 1 tensors"),
    Case("too many names", sealed('["a","b"]'), BadField, "standfast.names: 2 names for 1 tensors"),
    Case("another name", sealed('["b"]'), BadField, f"'b' has not the hash {HASH}"),
    Case("a name twice", sealed('["a","a"]'), BadField, "standfast.names: "),
    Case("a name that is no text", sealed('["\\ud800"]'), BadField, "is not valid Unicode text"),
    Case("a long name", sealed(f'["{"n" * 65_536}"]'), LimitExceeded, "over 65,535 bytes"),
    Case("a long name in bytes", sealed(f'["{"é" * 32_768}"]'), LimitExceeded, "over 65,535 bytes"),
    Case("names, no end", sealed('["a"'), BadField, "the metadata: not the JSON"),
    Case("names and a comma", sealed(more=","), BadField, "the metadata: not the JSON"),
    Case("names and text", sealed(more=" x"), BadField, "the metadata: not the JSON"),
    Case("names twice", sealed(more=',"standfast.names":["a"]'), DuplicateKey, "'standfast.names'"),
    Case("names not UTF-8", sealed().replace(b'["a"]', b'["\xff"]'), BadField, "not UTF-8"),
    Case("digest not UTF-8", file_of(own_text()).replace(b"0", b"\xff", 1), BadField, "not UTF-8"),
    Case(
        "names without digests",
        file_of('{"standfast.names":["b"]}'),
        BadField,
        "standfast.names: 'b' has not the hash",
    ),
    Case("digest of zeros", file_of(own_text()), IndexMismatch, "standfast.digest", unchecked=True),
    Case(
        "digest in capitals",
        sealed()[:84] + sealed()[84:148].upper() + sealed()[148:],
        IndexMismatch,
        "standfast.digest",
        unchecked=True,
    ),
    Case(
        "digest a number",
        file_of('{"standfast.digest":1}'),
        IndexMismatch,
        "standfast.digest",
        unchecked=True,
    ),
    Case(
        "chunks alone",
        file_of(f'{{"standfast.chunks":"{chunks(b"x")}"}}'),
        IndexMismatch,
        "standfast.digest",
        unchecked=True,
    ),
    Case(
        "the digest in another place",
        file_of(own_text().replace("{", "{ ", 1)),
        IndexMismatch,
        "standfast.digest",
        unchecked=True,
    ),
    Case("chunks of another kind", sealed(of="md5:1:"), TooNew, "md5:1:", unchecked=True),
    Case("no chunks", sealed(of=chunks()), BadField, "0 bytes .* 1 chunks", unchecked=True),
    Case("two chunks", sealed(of=chunks(b"", b"")), BadField, "64 bytes .*for 1", unchecked=True),
    Case("no base64", sealed(of=chunks(b"x") + "="), BadField, "not base64", unchecked=True),
)

CASES = (*STARTS, *ENTRIES, *METADATA, *OURS)

WITHOUT_MAGIC = (
    Case("nothing", b"", TruncatedFile, r"header \(offset 0\): 64 .* after 0"),
    Case("another magic", file_of(magic=b"TENZOR\0\1"), BadHeader, r"\(offset 0\): .*\\x00\\x01'"),
    Case("text", b"x" * 5000, BadHeader, r"magic \(offset 0\): expected b'TENZOR"),
)
"""Files that only their suffix makes files of this format."""
