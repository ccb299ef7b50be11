"""Files whose metadata is wrong: the strings, the typed values, and Standfast's own keys."""

from __future__ import annotations

import json

from standfast.errors import (
    BadField,
    BadHeader,
    BadRange,
    DuplicateKey,
    IndexMismatch,
    SizeMismatch,
    StandfastError,
    TooNew,
    TrailingBytes,
    UnknownDType,
)
from tests.formats.builders import Row, chunks
from tests.formats.safetensors.builders import (
    DIGEST_LENGTH,
    entry,
    file_of,
    member,
    objects,
    sealed_file,
    strings_file,
    typed_file,
)

TENSOR = member("a", entry())
METADATA = member("__metadata__", '{"key":"value"}')


def _with_metadata(text: str) -> bytes:
    return file_of(objects(member("__metadata__", text), TENSOR), b"x")


STRINGS = (
    Row("metadata is null", _with_metadata("null"), BadField),
    Row("metadata is an array", _with_metadata("[]"), BadField),
    Row("metadata is a string", _with_metadata('"text"'), BadField),
    Row("metadata is a number", _with_metadata("1"), BadField),
    Row("metadata is false", _with_metadata("false"), BadField),
    Row("metadata is an entry", _with_metadata(entry()), BadField),
    Row("metadata value is a number", _with_metadata('{"key":1}'), BadField),
    Row("metadata value is null", _with_metadata('{"key":null}'), BadField),
    Row("metadata value is true", _with_metadata('{"key":true}'), BadField),
    Row("metadata value is an array", _with_metadata('{"key":[]}'), BadField),
    Row("metadata value is an object", _with_metadata('{"key":{}}'), BadField),
    Row("second metadata value is a number", _with_metadata('{"other":"text","key":1}'), BadField),
    Row("metadata value is NaN", _with_metadata('{"key":NaN}'), BadHeader),
    Row("control character in metadata", _with_metadata('{"key":"\n"}'), BadHeader),
    Row("lone surrogate in a metadata value", _with_metadata('{"key":"\\ud800"}'), BadHeader),
    Row("lone surrogate in a metadata key", _with_metadata('{"\\udfff":"value"}'), BadHeader),
    Row("metadata twice", file_of(objects(METADATA, METADATA, TENSOR), b"x"), DuplicateKey),
    Row(
        "metadata twice, first and last",
        file_of(objects(METADATA, TENSOR, METADATA), b"x"),
        DuplicateKey,
    ),
    Row(
        "metadata twice, once escaped",
        file_of(objects(METADATA, TENSOR, METADATA.replace("d", "\\u0064", 1)), b"x"),
        DuplicateKey,
    ),
    Row(
        "metadata twice, once as a tensor",
        file_of(objects(METADATA, member("__metadata__", entry())), b"x"),
        DuplicateKey,
    ),
    Row("metadata key twice", _with_metadata('{"key":"one","key":"two"}'), DuplicateKey),
    Row(
        "metadata key twice, once escaped",
        _with_metadata('{"key":"one","\\u006bey":"two"}'),
        DuplicateKey,
    ),
    Row(
        "metadata key twice, metadata last",
        file_of(objects(TENSOR, member("__metadata__", '{"key":"one","key":"one"}')), b"x"),
        DuplicateKey,
    ),
    Row(
        "metadata called by another case", _with_metadata("{}").replace(b"meta", b"Meta"), BadField
    ),
)

PLACES = (
    Row(
        "metadata in the middle, a wrong dtype behind it",
        file_of(objects(TENSOR, METADATA, member("b", entry('"?"', "[1]", "[1,2]"))), b"xy"),
        UnknownDType,
        tensor="b",
    ),
    Row(
        "metadata in the middle, a wrong shape behind it",
        file_of(objects(TENSOR, METADATA, member("b", entry('"U8"', "[-1]", "[1,2]"))), b"xy"),
        BadField,
        tensor="b",
    ),
    Row(
        "metadata in the middle, a hole behind it",
        file_of(objects(TENSOR, METADATA, member("b", entry('"U8"', "[1]", "[2,3]"))), b"xyz"),
        BadRange,
        tensor="b",
    ),
    Row(
        "metadata in the middle, the tensor before it again behind it",
        file_of(objects(TENSOR, METADATA, TENSOR), b"x"),
        DuplicateKey,
    ),
    Row("metadata last, a byte trails", file_of(objects(TENSOR, METADATA), b"xy"), TrailingBytes),
    Row(
        "metadata last, text behind the JSON",
        file_of(objects(TENSOR, METADATA) + "!", b"x"),
        BadHeader,
    ),
    Row(
        "metadata last, a wrong size before it",
        file_of(objects(member("a", entry(shape="[2]")), METADATA), b"x"),
        SizeMismatch,
    ),
    Row("metadata first, nothing but a comma behind it", file_of("{" + METADATA + ",}"), BadHeader),
    Row("metadata first, cut behind it", file_of("{" + METADATA), BadHeader),
    Row("metadata first, cut inside it", file_of("{" + METADATA[:-3]), BadHeader),
)


def _typed(name: str, value: str) -> Row:
    return Row(name, typed_file(value), BadField)


def _listed(name: str, listed: str) -> Row:
    return Row(name, typed_file("1", listed), BadField)


TYPED = (
    _listed("list of typed keys is empty text", ""),
    _listed("list of typed keys is cut short", '["key"'),
    _listed("list of typed keys is no JSON", "key"),
    _listed("list of typed keys is a string", '"key"'),
    _listed("list of typed keys is an object", '{"key":1}'),
    _listed("list of typed keys is null", "null"),
    _listed("list of typed keys holds a number", "[1]"),
    _listed("list of typed keys holds a list", '[["key"]]'),
    _listed("list of typed keys holds a missing key", '["key","other"]'),
    _listed("list of typed keys holds an own key", '["standfast.json"]'),
    _listed("list of typed keys is nested deeply", "[" * 100_000),
    Row("list of typed keys holds one twice", typed_file("1", '["key","key"]'), DuplicateKey),
    _typed("typed value is empty text", ""),
    _typed("typed value is no JSON", "value"),
    _typed("typed value is cut short", '{"x":'),
    _typed("typed value has text behind it", "1 2"),
    _typed("typed value is NaN", "NaN"),
    _typed("typed value holds -Infinity", "[-Infinity]"),
    _typed("typed value is a float beyond all floats", "1e999"),
    _typed("typed value holds a float beyond all floats", '{"x":[-1e999]}'),
    _typed("typed value is nested deeply", "[" * 100_000),
    _typed("typed value is nested deeply, closed", "[" * 100_000 + "]" * 100_000),
    _typed("typed value is objects in each other", '{"x":' * 100_000),
    _typed("typed value has 5,000 digits", "9" * 5000),
    _typed("typed value holds a lone surrogate", '"\\ud800"'),
    _typed("typed value has a lone surrogate as a key", '{"\\ud800":1}'),
    Row(
        "typed value is no JSON, under a key that clears the screen",
        strings_file({"\033[2J": "?", "standfast.json": '["\\u001b[2J"]'}),
        BadField,
    ),
    *(
        Row(f"typed value has a key twice{where}", typed_file(value), DuplicateKey)
        for where, value in (
            ("", '{"x":1,"x":1}'),
            (", deep inside", '[{"y":[{"x":1,"x":2}]}]'),
            (", once escaped", '{"x":1,"\\u0078":1}'),
        )
    ),
)


def _chunks(name: str, text: str, error: type[StandfastError] = BadField) -> Row:
    """A sealed header in which `standfast.chunks` alone is wrong."""
    file = sealed_file(member("standfast.chunks", json.dumps(text)))
    return Row(name, file, error, opens=True)


RIGHT = chunks(b"x")
RIGHT_MEMBER = member("standfast.chunks", json.dumps(RIGHT))

CHUNKS = (
    _chunks("chunk digests are empty text", ""),
    _chunks("chunk digests without a tag", RIGHT.removeprefix("blake3:16777216:")),
    _chunks("chunk digests of another hash", RIGHT.replace("blake3", "sha256"), TooNew),
    _chunks("chunk digests of other chunks", RIGHT.replace("16777216", "16777215"), TooNew),
    _chunks("chunk digests with the tag in capitals", RIGHT.replace("b", "B", 1)),
    _chunks("chunk digests with the tag alone", "blake3:16777216:"),
    _chunks("chunk digests with a star", RIGHT[:-3] + "*" + RIGHT[-2:]),
    _chunks("chunk digests with a newline", RIGHT + "\n"),
    _chunks("chunk digests without their padding", RIGHT.rstrip("=")),
    _chunks("chunk digests with text behind the padding", RIGHT + "AAAA"),
    _chunks("chunk digests with a letter beyond ASCII", RIGHT[:-3] + "é" + RIGHT[-2:]),
    _chunks("chunk digests three bytes short", RIGHT[:-4]),
    _chunks("chunk digests of two tensors for one", chunks(b"x", b"y")),
    Row(
        "chunk digests of one tensor for two",
        sealed_file(
            RIGHT_MEMBER, entries=(TENSOR, member("b", entry(data_offsets="[1,2]"))), data=b"xy"
        ),
        BadField,
        opens=True,
    ),
    Row("chunk digests missing", sealed_file(), BadField, opens=True),
    Row("chunk digests twice", sealed_file(RIGHT_MEMBER, RIGHT_MEMBER), DuplicateKey),
    Row("chunk digests are a number", sealed_file(member("standfast.chunks", "1")), BadField),
)


def _digest(name: str, file: bytes) -> Row:
    return Row(name, file, IndexMismatch, opens=True)


SEALED = sealed_file(RIGHT_MEMBER)
DIGEST = SEALED.partition(b'"standfast.digest":"')[2][:DIGEST_LENGTH].decode()
DIGEST_MEMBER = member("standfast.digest", f'"{DIGEST}"')


def _unsealed(*strings: str) -> bytes:
    """The same file, but with these members in its metadata."""
    return file_of(objects(member("__metadata__", objects(*strings)), TENSOR), b"x")


DIGESTS = (
    _digest("header digest missing", _unsealed(RIGHT_MEMBER)),
    _digest("header digest empty", _unsealed('"standfast.digest":""', RIGHT_MEMBER)),
    _digest("header digest of zeros", SEALED.replace(DIGEST.encode(), b"0" * DIGEST_LENGTH)),
    _digest("header digest of another file", _unsealed(DIGEST_MEMBER, RIGHT_MEMBER, '"k":"v"')),
    _digest("header digest without hex", SEALED.replace(DIGEST.encode(), b"z" * DIGEST_LENGTH)),
    _digest("header digest in capitals", SEALED.replace(DIGEST.encode(), DIGEST.upper().encode())),
    _digest(
        "header digest cut short",
        _unsealed(DIGEST_MEMBER.replace(DIGEST, DIGEST[:-1]), RIGHT_MEMBER),
    ),
    _digest("header digest alone, and wrong", _unsealed(f'"standfast.digest":"{"0" * 64}"')),
    _digest("header digest in second place", _unsealed(RIGHT_MEMBER, DIGEST_MEMBER)),
    _digest("header digest behind a user's key", _unsealed('"k":"v"', DIGEST_MEMBER, RIGHT_MEMBER)),
    _digest("header digest behind a space", file_of(b"{ " + SEALED[9:-1], b"x")),
    _digest(
        "header digest in metadata that comes last",
        file_of(
            objects(TENSOR, member("__metadata__", objects(DIGEST_MEMBER, RIGHT_MEMBER))), b"x"
        ),
    ),
    _digest(
        "header digest with its letters escaped",
        _unsealed(
            DIGEST_MEMBER.replace(DIGEST, f"\\u{ord(DIGEST[0]):04x}{DIGEST[1:]}"), RIGHT_MEMBER
        ),
    ),
    Row("header digest twice", _unsealed(DIGEST_MEMBER, DIGEST_MEMBER, RIGHT_MEMBER), DuplicateKey),
    Row("header digest is a number", _unsealed('"standfast.digest":0', RIGHT_MEMBER), BadField),
    _digest("padding added behind a sealed header", file_of(SEALED[8:-1] + b" ", b"x")),
    _digest("metadata added to a sealed header", _unsealed(DIGEST_MEMBER, RIGHT_MEMBER, '"k":""')),
    _digest("tensor renamed in a sealed header", SEALED.replace(b'"a"', b'"b"')),
    _digest("dtype changed in a sealed header", SEALED.replace(b'"U8"', b'"I8"')),
    _digest(
        "shape changed in a sealed header", file_of(SEALED[8:-1].replace(b"[1]", b"[1,1]"), b"x")
    ),
)

ROWS = (*STRINGS, *PLACES, *TYPED, *CHUNKS, *DIGESTS)
