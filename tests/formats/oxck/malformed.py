"""Damaged OXCK files: a table row for each way in which one can be wrong."""

from __future__ import annotations

from standfast.errors import (
    BadField,
    BadHeader,
    DuplicateKey,
    IndexMismatch,
    LimitExceeded,
    SizeMismatch,
    TrailingBytes,
    TruncatedFile,
    UnsupportedFile,
)
from standfast.oxck import InvalidMagic, MetadataParse, TruncatedData, UnsupportedVersion
from tests.formats.oxck.builders import Case, chunks, file_of, floats, sealed_file, tensor

HUGE = 1 << 60
ONE = ("a", (1,), floats(1))
OWN = f'{{"standfast.chunks":"{chunks(floats(1))}","standfast.digest":"SEAL"}}'


def cut(name: str, data: bytes, message: str) -> Case:
    return Case(name, data, TruncatedFile, message, TruncatedData)


def limit(name: str, data: bytes, message: str) -> Case:
    return Case(name, data, LimitExceeded, message, LimitExceeded)


def text(name: str, metadata: str | bytes, message: str) -> Case:
    """Metadata that the lenient rules do not allow."""
    return Case(name, file_of(metadata), BadField, message, MetadataParse)


STARTS = (
    Case("version 0", file_of(version=0), UnsupportedFile, r"\(offset 4\): 0;", UnsupportedVersion),
    Case("version 2", file_of(version=2), UnsupportedFile, r"\(offset 4\): 2;", UnsupportedVersion),
    cut("header one byte short", file_of()[:27], r"header \(offset 0\): 28 .* after 27"),
    cut("magic alone", b"OXCK", r"header \(offset 0\): 28 .* after 4"),
    cut("metadata one byte short", file_of()[:-1], r"metadata \(offset 28\): 2 .* after 1"),
    cut("metadata of 200 MB", file_of(length=200_000_000), r"\(offset 28\): 200,000,000 bytes"),
    limit("metadata of 4 GiB", file_of(length=2**32 - 1), r"\(offset 24\): 4,294,967,295"),
    cut(
        "a tensor that is not there", file_of(count=1), r"tensor 0 of 1 \(offset 30\): field name_"
    ),
    cut("2^64 - 1 tensors", file_of(count=2**64 - 1), "tensor 0 of 18,446,744,073,709,551,615"),
    Case(
        "a byte behind the metadata",
        file_of() + b"x",
        TrailingBytes,
        "1 bytes follow the metadata",
        TrailingBytes,
        stream=False,
    ),
    Case(
        "a tensor too many",
        file_of("{}", tensor("a"), tensor("b"), count=1),
        TrailingBytes,
        "29 bytes follow the last tensor",
        TrailingBytes,
        stream=False,
    ),
)

TENSORS = (
    cut("name_len cut", file_of("{}", tensor())[:33], r"name_len \(offset 30\): 4 .* after 3"),
    cut(
        "name cut", file_of("{}", tensor("abc"))[:35], r"name and field ndim \(offset 34\): 7 .* 1"
    ),
    cut(
        "shape cut", file_of("{}", tensor())[:43], r"shape and field data_len \(offset 39\): 16 .*4"
    ),
    cut("elements cut", file_of("{}", tensor())[:-1], r"elements \(offset 55\): 4 .* after 3"),
    limit("a long name", file_of("{}", tensor("n" * 65_536)), r"name_len: 65,536, over 65,535"),
    limit("a name of 4 GiB", file_of("{}", tensor(name_length=2**32 - 1)), "name_len: 4,294"),
    limit("65 dimensions", file_of("{}", tensor("x", (1,) * 65)), "ndim of 'x': 65, over 64"),
    limit("2^32 - 1 dimensions", file_of("{}", tensor(rank=2**32 - 1)), "ndim of 'a': 4,294"),
    Case(
        "a name that is not UTF-8",
        file_of("{}", tensor(b"\xff")),
        BadHeader,
        r"tensor 0 of 1 \(offset 30\): the name is not UTF-8",
        MetadataParse,
    ),
    Case(
        "a name of a lone surrogate",
        file_of("{}", tensor("\ud800".encode("utf-8", "surrogatepass"))),
        BadHeader,
        "the name is not UTF-8",
        MetadataParse,
    ),
    Case(
        "too few elements",
        file_of("{}", tensor("x", (2, 3), floats(1, 2, 3, 4, 5))),
        SizeMismatch,
        r"shape \[2, 3\] of 'x' has 6 elements, but field data_len says 5",
        SizeMismatch,
    ),
    Case(
        "too many elements",
        file_of("{}", tensor("x", (0,), floats(1))),
        SizeMismatch,
        r"shape \[0\] of 'x' has 0 elements, but field data_len says 1",
        SizeMismatch,
    ),
    Case(
        "a scalar of two elements",
        file_of("{}", tensor("x", (), floats(1, 2))),
        SizeMismatch,
        "'x' is a scalar, but field data_len says 2",
        SizeMismatch,
    ),
    Case(
        "a shape that is right modulo 2^64",
        file_of("{}", tensor("x", (2**63, 2), b"", elements=0)),
        SizeMismatch,
        "has 18,446,744,073,709,551,616 elements",
        SizeMismatch,
    ),
    limit(
        "an empty tensor of 2^120 rows",
        file_of("{}", tensor("x", (HUGE, HUGE, 0), b"")),
        r"no array can have the shape \[1152921504606846976, 1152921504606846976, 0\] of 'x'",
    ),
    cut("2^60 elements", file_of("{}", tensor("x", (HUGE,), b"", elements=HUGE)), "the elements"),
    cut("2^63 elements", file_of("{}", tensor("x", (2**63,), b"", elements=2**63)), "the elements"),
    cut("2^40 elements", file_of("{}", tensor("x", (2**40,), b"", elements=2**40)), "the elements"),
)

METADATA = (
    text("text", "metadata", "not in braces: 'metadata'"),
    text("a list", "[]", r"not in braces: '\[\]'"),
    text("one brace", "{", "not in braces: '{'"),
    text("the other brace", "}", "not in braces: '}'"),
    text("no end", '{"a":"b"', "not in braces"),
    text("text behind it", "{}x", "not in braces"),
    text("a zero behind it", "{}\0", "not in braces"),
    text("a byte order mark", "\ufeff{}", "not in braces"),
    text("separators around", "\x1c{}\x1f", "not in braces"),
    text("not UTF-8", b'{"a":"\xff"}', "not UTF-8 .* at its byte 6"),
    text("a lone surrogate", '{"\ud800":""}'.encode("utf-8", "surrogatepass"), "not UTF-8"),
    text("a number", '{"a":1}', "has ':1' behind the key 'a', where ':' and a value"),
    text("null", '{"a":null,"b":"c"}', "has ':null,' behind the key 'a'"),
    text("an object", '{"a":{"b":"c"}}', "has ':{' behind the key 'a'"),
    text("a key without quotes", "{a:1}", "has 'a:1' where a key in quotes belongs"),
    text("a second key without quotes", '{"a":"b",c}', "has ',c' where a key in quotes belongs"),
    text("no colon", '{"a" "b"}', "has ' ' behind the key 'a', where ':' and a value"),
    text("a comma for a colon", '{"a","b"}', "has ',' behind the key 'a'"),
    text("two colons", '{"a"::"b"}', "has '::' behind the key 'a'"),
    text("a colon alone", "{:}", "has ':' where a key in quotes belongs"),
    text("separators between", '{"a":"b"\x1d"c":"d"}', r"has '\\x1d' where a key"),
    text("no value", '{"a":}', "has no value under the key 'a'"),
    text("a key alone", '{"a"}', "has '' behind the key 'a'"),
    text("a key without an end", '{"a}', "a string without an end: 'a'"),
    text("a value without an end", '{"a":"b}', "a string without an end: 'b'"),
    text("a quote that is escaped at the end", '{"a":"b\\"}', "a string without an end"),
    text("a backslash at the end", '{"a":"b\\}', r"unknown escape '\\\\'"),
    text("an unknown escape", '{"a":"\\x"}', r"unknown escape '\\\\x'"),
    text("a unicode escape", '{"a":"\\u0041"}', r"unknown escape '\\\\u'"),
    text("an escaped slash", '{"\\/":"a"}', r"unknown escape '\\\\/'"),
    text("an escape outside of strings", '{"a":"b",\\n}', r"has ',\\\\n' where a key"),
    text("an escaped quote outside of strings", '{\\"a":"b"}', "where a key in quotes belongs"),
)

OURS = (
    Case(
        "two tensors of one name",
        file_of("{}", tensor("a"), tensor("a")),
        DuplicateKey,
        r"tensor 'a' \(offset 59\): a second one of this name; "
        r"standfast.oxck.Checkpoint keeps both",
        None,
    ),
    Case(
        "typed metadata that is not there",
        file_of('{"standfast.json":"[\\"a\\"]"}'),
        BadField,
        "it lists 'a', which is not there",
        None,
    ),
    Case(
        "typed metadata that is no JSON",
        file_of('{"a":"x","standfast.json":"[\\"a\\"]"}'),
        BadField,
        "metadata key 'a': not the JSON",
        None,
    ),
    Case(
        "digest of zeros",
        file_of(OWN.replace("SEAL", "0" * 64), tensor(*ONE)),
        IndexMismatch,
        "standfast.digest",
        IndexMismatch,
    ),
    Case(
        "digest alone",
        sealed_file('{"standfast.digest":"SEAL"}', ONE),
        BadField,
        "standfast.chunks: expected text that starts",
        BadField,
    ),
    Case(
        "chunks alone",
        sealed_file(f'{{"standfast.chunks":"{chunks(floats(1))}"}}', ONE),
        IndexMismatch,
        "standfast.digest",
        IndexMismatch,
    ),
    Case(
        "chunks of nothing",
        sealed_file(f'{{"standfast.chunks":"{chunks()}","standfast.digest":"SEAL"}}', ONE),
        BadField,
        "0 bytes of digests for 1 chunks",
        BadField,
    ),
    Case(
        "the digest twice",
        sealed_file(OWN[:-1] + ',"standfast.digest":"' + "0" * 64 + '"}', ONE),
        IndexMismatch,
        "standfast.digest",
        IndexMismatch,
    ),
    Case(
        "the digest behind a space",
        sealed_file(OWN.replace('"standfast.digest"', ' "standfast.digest"'), ONE),
        IndexMismatch,
        "standfast.digest",
        IndexMismatch,
    ),
)

CASES = (*STARTS, *TENSORS, *METADATA, *OURS)

WITHOUT_MAGIC = (
    Case("nothing", b"", TruncatedFile, r"header \(offset 0\): 28 .* after 0", TruncatedData),
    Case(
        "another magic", file_of(magic=b"OXCL"), BadHeader, r"\(offset 0\): .*b'OXCL'", InvalidMagic
    ),
    Case("four letters", b"NOPE", TruncatedFile, r"header \(offset 0\): 28 .* 4", InvalidMagic),
)
"""Files that only their suffix makes files of this format."""
