"""Damaged OXCK files: a table row for each way in which one can be wrong."""

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
    TrailingBytes,
    TruncatedFile,
    UnsupportedFile,
)
from tests.formats.builders import Row, chunks
from tests.formats.oxck.builders import file_of, floats, sealed_file, tensor

HUGE = 1 << 60
ONE = ("a", (1,), floats(1))
OWN = f'{{"standfast.chunks":"{chunks(floats(1))}","standfast.digest":"SEAL"}}'


def cut(name: str, data: bytes) -> Row:
    return Row(name, data, TruncatedFile)


def limit(name: str, data: bytes) -> Row:
    return Row(name, data, LimitExceeded)


def text(name: str, metadata: str | bytes) -> Row:
    """Metadata that the lenient rules do not allow."""
    return Row(name, file_of(metadata), BadField)


STARTS = (
    Row("version 0", file_of(version=0), UnsupportedFile),
    Row("version 2", file_of(version=2), UnsupportedFile),
    cut("header one byte short", file_of()[:27]),
    cut("magic alone", b"OXCK"),
    cut("metadata one byte short", file_of()[:-1]),
    cut("metadata of 200 MB", file_of(length=200_000_000)),
    limit("metadata of 4 GiB", file_of(length=2**32 - 1)),
    cut("a tensor that is not there", file_of(count=1)),
    cut("2^64 - 1 tensors", file_of(count=2**64 - 1)),
    Row("a byte behind the metadata", file_of() + b"x", TrailingBytes),
    Row("a tensor too many", file_of("{}", tensor("a"), tensor("b"), count=1), TrailingBytes),
)

TENSORS = (
    cut("name_len cut", file_of("{}", tensor())[:33]),
    cut("name cut", file_of("{}", tensor("abc"))[:35]),
    cut("shape cut", file_of("{}", tensor())[:43]),
    cut("elements cut", file_of("{}", tensor())[:-1]),
    limit("a long name", file_of("{}", tensor("n" * 65_536))),
    limit("a name of 4 GiB", file_of("{}", tensor(name_length=2**32 - 1))),
    limit("65 dimensions", file_of("{}", tensor("x", (1,) * 65))),
    limit("2^32 - 1 dimensions", file_of("{}", tensor(rank=2**32 - 1))),
    Row("a name that is not UTF-8", file_of("{}", tensor(b"\xff")), BadHeader),
    Row(
        "a name of a lone surrogate",
        file_of("{}", tensor("\ud800".encode("utf-8", "surrogatepass"))),
        BadHeader,
    ),
    Row(
        "too few elements", file_of("{}", tensor("x", (2, 3), floats(1, 2, 3, 4, 5))), SizeMismatch
    ),
    Row("too many elements", file_of("{}", tensor("x", (0,), floats(1))), SizeMismatch),
    Row(
        "a scalar of two elements",
        file_of("{}", tensor("x", (), floats(1, 2))),
        SizeMismatch,
        tensor="x",
    ),
    Row(
        "a shape that is right modulo 2^64",
        file_of("{}", tensor("x", (2**63, 2), b"", elements=0)),
        SizeMismatch,
    ),
    limit("an empty tensor of 2^120 rows", file_of("{}", tensor("x", (HUGE, HUGE, 0), b""))),
    cut("2^60 elements", file_of("{}", tensor("x", (HUGE,), b"", elements=HUGE))),
    cut("2^63 elements", file_of("{}", tensor("x", (2**63,), b"", elements=2**63))),
    cut("2^40 elements", file_of("{}", tensor("x", (2**40,), b"", elements=2**40))),
)

METADATA = (
    text("text", "metadata"),
    text("a list", "[]"),
    text("one brace", "{"),
    text("the other brace", "}"),
    text("no end", '{"a":"b"'),
    text("text behind it", "{}x"),
    text("a zero behind it", "{}\0"),
    text("a byte order mark", "\ufeff{}"),
    text("separators around", "\x1c{}\x1f"),
    text("not UTF-8", b'{"a":"\xff"}'),
    text("a lone surrogate", '{"\ud800":""}'.encode("utf-8", "surrogatepass")),
    text("a number", '{"a":1}'),
    text("null", '{"a":null,"b":"c"}'),
    text("an object", '{"a":{"b":"c"}}'),
    text("a key without quotes", "{a:1}"),
    text("a second key without quotes", '{"a":"b",c}'),
    text("no colon", '{"a" "b"}'),
    text("a comma for a colon", '{"a","b"}'),
    text("two colons", '{"a"::"b"}'),
    text("a colon alone", "{:}"),
    text("separators between", '{"a":"b"\x1d"c":"d"}'),
    text("no value", '{"a":}'),
    text("a key alone", '{"a"}'),
    text("a key without an end", '{"a}'),
    text("a value without an end", '{"a":"b}'),
    text("a quote that is escaped at the end", '{"a":"b\\"}'),
    text("a backslash at the end", '{"a":"b\\}'),
    text("an unknown escape", '{"a":"\\x"}'),
    text("a unicode escape", '{"a":"\\u0041"}'),
    text("an escaped slash", '{"\\/":"a"}'),
    text("an escape outside of strings", '{"a":"b",\\n}'),
    text("an escaped quote outside of strings", '{\\"a":"b"}'),
)

OURS = (
    Row("two tensors of one name", file_of("{}", tensor("a"), tensor("a")), DuplicateKey),
    Row("typed metadata that is not there", file_of('{"standfast.json":"[\\"a\\"]"}'), BadField),
    Row(
        "typed metadata that is no JSON",
        file_of('{"a":"x","standfast.json":"[\\"a\\"]"}'),
        BadField,
    ),
    Row(
        "digest of zeros",
        file_of(OWN.replace("SEAL", "0" * 64), tensor(*ONE)),
        IndexMismatch,
        opens=True,
    ),
    Row("digest alone", sealed_file('{"standfast.digest":"SEAL"}', ONE), BadField, opens=True),
    Row(
        "chunks alone",
        sealed_file(f'{{"standfast.chunks":"{chunks(floats(1))}"}}', ONE),
        IndexMismatch,
        opens=True,
    ),
    Row(
        "chunks of nothing",
        sealed_file(f'{{"standfast.chunks":"{chunks()}","standfast.digest":"SEAL"}}', ONE),
        BadField,
        opens=True,
    ),
    Row(
        "the digest twice",
        sealed_file(OWN[:-1] + ',"standfast.digest":"' + "0" * 64 + '"}', ONE),
        IndexMismatch,
        opens=True,
    ),
    Row(
        "the digest behind a space",
        sealed_file(OWN.replace('"standfast.digest"', ' "standfast.digest"'), ONE),
        IndexMismatch,
        opens=True,
    ),
)

MANY = 1_000_000


def large(
    name: str, text: Callable[[], str | bytes], error: type[StandfastError] | None = BadField
) -> Row:
    """Metadata made to take a reader's time or memory, built when it is needed."""
    return Row(f"large: {name}", lambda: file_of(text()), error)


LARGE = (
    large("quotes", lambda: '"' * MANY),
    large("quotes in braces", lambda: "{" + '"' * MANY + "}"),
    large("backslashes", lambda: '{"' + "\\" * MANY + "}"),
    large("an odd number of backslashes", lambda: '{"' + "\\" * (MANY + 1) + '"}'),
    large("a string of backslashes", lambda: '{"a":"' + "\\" * MANY + '"}', None),
    large("a string of quotes", lambda: '{"a":"' + '\\"' * (MANY // 2) + '"}', None),
    large("a string of newlines", lambda: '{"a":"' + "\\n" * (MANY // 2) + '"}', None),
    large("a long string", lambda: '{"a":"' + "x" * MANY + '"}', None),
    large("a string without an end", lambda: '{"a":"' + "x" * MANY + "}"),
    large("braces", lambda: "{" * MANY + "}" * MANY),
    large("nested objects", lambda: '{"a":' * (MANY // 5) + "}" * (MANY // 5)),
    large("spaces", lambda: "{" + " " * MANY + "}", None),
    large("spaces around", lambda: " " * MANY + "{}" + " " * MANY, None),
    large("spaces and text", lambda: " " * MANY + "x"),
    large("commas", lambda: "{" + "," * MANY + "}", None),
    large("commas and spaces and text", lambda: "{" + ", " * (MANY // 2) + "x}"),
    large("spaces before no colon", lambda: '{"a"' + " " * MANY + "}"),
    large("spaces around a colon", lambda: '{"a"' + " " * MANY + ":" + " " * MANY + "}"),
    large("colons", lambda: '{"a"' + ":" * MANY + "}"),
    large("one pair very often", lambda: "{" + '"a":"b"' * (MANY // 7) + "}", None),
    large("an escape in every string", lambda: "{" + '"\\n":"\\t"' * (MANY // 9) + "}", None),
    large(
        "spaces of every length",
        lambda: "{" + "".join(f'"a":"b"{" " * i}' for i in range(2400)) + "}",
        None,
    ),
    large("an error at the end of many pairs", lambda: "{" + '"a":"b",' * (MANY // 8) + "x}"),
)

ROWS = (*STARTS, *TENSORS, *METADATA, *OURS, *LARGE)

WITHOUT_MAGIC = (
    Row("nothing", b"", TruncatedFile),
    Row("another magic", file_of(magic=b"OXCL"), BadHeader),
    Row("four letters", b"NOPE", TruncatedFile),
)
"""Files that only their suffix makes files of this format."""
