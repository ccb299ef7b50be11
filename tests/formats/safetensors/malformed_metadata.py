"""Damaged safetensors files: the metadata strings, the typed values, and Standfast's own keys."""

import json

from standfast import errors
from tests.formats.builders import chunks, texts, unchecked
from tests.formats.safetensors.builders import (
    DIGEST_LENGTH,
    entry,
    file_of,
    holding,
    member,
    objects,
    sealed_file,
    strings_file,
    tensor,
    typed_file,
    with_metadata,
)

TENSOR = tensor()
METADATA = member("__metadata__", '{"key":"value"}')
RIGHT = chunks(b"x")
RIGHT_MEMBER = member("standfast.chunks", json.dumps(RIGHT))
SEALED = sealed_file(RIGHT_MEMBER)
DIGEST = SEALED.partition(b'"standfast.digest":"')[2][:DIGEST_LENGTH].decode()
DIGEST_MEMBER = member("standfast.digest", f'"{DIGEST}"')
ESCAPED = f"\\u{ord(DIGEST[0]):04x}{DIGEST[1:]}"


def chunked(text: str) -> bytes:
    """A sealed header in which `standfast.chunks` alone is wrong."""
    return sealed_file(member("standfast.chunks", json.dumps(text)))


def unsealed(*strings: str) -> bytes:
    """The same file, but with these members in its metadata."""
    return with_metadata(objects(*strings))


def digested(digits: str) -> bytes:
    return SEALED.replace(DIGEST.encode(), digits.encode())


listed_each = texts(lambda keys: typed_file("1", keys), "typed keys")
typed_file_each = texts(typed_file, "typed file")
with_metadata_each = texts(with_metadata, "with metadata")

ROWS = {
    errors.BadField: {
        **with_metadata_each(r"""
            null  []  "text"  1  false  {"key":1}  {"key":null}  {"key":true}  {"key":[]}
            {"key":{}}  {"other":"text","key":1}
        """),
        "metadata is an entry": with_metadata(entry()),
        "metadata called by another case": with_metadata("{}").replace(b"meta", b"Meta"),
        "list of typed keys is empty text": typed_file("1", ""),
        **listed_each(r"""
            ["key"  key  "key"  {"key":1}  null  [1]  [["key"]]  ["key","other"]
            ["standfast.json"]
        """),
        "list of typed keys is nested deeply": typed_file("1", "[" * 100_000),
        "typed value is empty text": typed_file(""),
        **typed_file_each(r"""
            value  {"x":  1 2  NaN  [-Infinity]  1e999  {"x":[-1e999]}  "\ud800"  {"\ud800":1}
        """),
        "typed value is nested deeply": typed_file("[" * 100_000),
        "typed value is nested deeply, closed": typed_file("[" * 100_000 + "]" * 100_000),
        "typed value is objects in each other": typed_file('{"x":' * 100_000),
        "typed value has 5,000 digits": typed_file("9" * 5000),
        "typed value is no JSON, under a key that clears the screen": strings_file(
            {"\033[2J": "?", "standfast.json": '["\\u001b[2J"]'}
        ),
        "chunk digests are a number": sealed_file(member("standfast.chunks", "1")),
        "header digest is a number": unsealed('"standfast.digest":0', RIGHT_MEMBER),
    },
    errors.BadHeader: {
        "metadata value is NaN": with_metadata('{"key":NaN}'),
        "control character in metadata": with_metadata('{"key":"\n"}'),
        "lone surrogate in a metadata value": with_metadata('{"key":"\\ud800"}'),
        "lone surrogate in a metadata key": with_metadata('{"\\udfff":"value"}'),
        "metadata last, text behind the JSON": file_of(objects(TENSOR, METADATA) + "!", b"x"),
        "metadata first, nothing but a comma behind it": file_of("{" + METADATA + ",}"),
        "metadata first, cut behind it": file_of("{" + METADATA),
        "metadata first, cut inside it": file_of("{" + METADATA[:-3]),
    },
    errors.DuplicateKey: {
        "typed value has a key twice": typed_file('{"x":1,"x":1}'),
        "typed value has a key twice, deep inside": typed_file('[{"y":[{"x":1,"x":2}]}]'),
        "typed value has a key twice, once escaped": typed_file('{"x":1,"\\u0078":1}'),
        "metadata twice": holding(METADATA, METADATA, TENSOR),
        "metadata twice, first and last": holding(METADATA, TENSOR, METADATA),
        "metadata twice, once escaped": holding(
            METADATA, TENSOR, METADATA.replace("d", "\\u0064", 1)
        ),
        "metadata twice, once as a tensor": holding(METADATA, tensor("__metadata__")),
        "metadata key twice": with_metadata('{"key":"one","key":"two"}'),
        "metadata key twice, once escaped": with_metadata('{"key":"one","\\u006bey":"two"}'),
        "metadata key twice, metadata last": holding(
            TENSOR, member("__metadata__", '{"key":"one","key":"one"}')
        ),
        "metadata in the middle, the tensor before it again behind it": holding(
            TENSOR, METADATA, TENSOR
        ),
        "list of typed keys holds one twice": typed_file("1", '["key","key"]'),
        "chunk digests twice": sealed_file(RIGHT_MEMBER, RIGHT_MEMBER),
        "header digest twice": unsealed(DIGEST_MEMBER, DIGEST_MEMBER, RIGHT_MEMBER),
    },
    ("b", errors.UnknownDType): {
        "metadata in the middle, a wrong dtype behind it": holding(
            TENSOR, METADATA, tensor("b", '"?"', "[1]", "[1,2]"), data=b"xy"
        )
    },
    ("b", errors.BadField): {
        "metadata in the middle, a wrong shape behind it": holding(
            TENSOR, METADATA, tensor("b", '"U8"', "[-1]", "[1,2]"), data=b"xy"
        )
    },
    ("b", errors.BadRange): {
        "metadata in the middle, a hole behind it": holding(
            TENSOR, METADATA, tensor("b", '"U8"', "[1]", "[2,3]"), data=b"xyz"
        )
    },
    errors.TrailingBytes: {"metadata last, a byte trails": holding(TENSOR, METADATA, data=b"xy")},
    errors.SizeMismatch: {
        "metadata last, a wrong size before it": holding(tensor("a", shape="[2]"), METADATA)
    },
    unchecked(errors.BadField): {
        "chunk digests are empty text": chunked(""),
        "chunk digests without a tag": chunked(RIGHT.removeprefix("blake3:16777216:")),
        "chunk digests with the tag in capitals": chunked(RIGHT.replace("b", "B", 1)),
        "chunk digests with the tag alone": chunked("blake3:16777216:"),
        "chunk digests with a star": chunked(RIGHT[:-3] + "*" + RIGHT[-2:]),
        "chunk digests with a newline": chunked(RIGHT + "\n"),
        "chunk digests without their padding": chunked(RIGHT.rstrip("=")),
        "chunk digests with text behind the padding": chunked(RIGHT + "AAAA"),
        "chunk digests with a letter beyond ASCII": chunked(RIGHT[:-3] + "é" + RIGHT[-2:]),
        "chunk digests three bytes short": chunked(RIGHT[:-4]),
        "chunk digests of two tensors for one": chunked(chunks(b"x", b"y")),
        "chunk digests of one tensor for two": sealed_file(
            RIGHT_MEMBER, entries=(TENSOR, tensor("b", offsets="[1,2]")), data=b"xy"
        ),
        "chunk digests missing": sealed_file(),
    },
    unchecked(errors.TooNew): {
        "chunk digests of another hash": chunked(RIGHT.replace("blake3", "sha256")),
        "chunk digests of other chunks": chunked(RIGHT.replace("16777216", "16777215")),
    },
    unchecked(errors.IndexMismatch): {
        "header digest missing": unsealed(RIGHT_MEMBER),
        "header digest empty": unsealed('"standfast.digest":""', RIGHT_MEMBER),
        "header digest of zeros": digested("0" * 64),
        "header digest of another file": unsealed(DIGEST_MEMBER, RIGHT_MEMBER, '"k":"v"'),
        "header digest without hex": digested("z" * 64),
        "header digest in capitals": digested(DIGEST.upper()),
        "header digest cut short": unsealed(
            DIGEST_MEMBER.replace(DIGEST, DIGEST[:-1]), RIGHT_MEMBER
        ),
        "header digest alone, and wrong": unsealed(f'"standfast.digest":"{"0" * 64}"'),
        "header digest in second place": unsealed(RIGHT_MEMBER, DIGEST_MEMBER),
        "header digest behind a user's key": unsealed('"k":"v"', DIGEST_MEMBER, RIGHT_MEMBER),
        "header digest behind a space": file_of(b"{ " + SEALED[9:-1], b"x"),
        "header digest in metadata that comes last": holding(
            TENSOR, member("__metadata__", objects(DIGEST_MEMBER, RIGHT_MEMBER))
        ),
        "header digest with its letters escaped": unsealed(
            DIGEST_MEMBER.replace(DIGEST, ESCAPED), RIGHT_MEMBER
        ),
        "padding added behind a sealed header": file_of(SEALED[8:-1] + b" ", b"x"),
        "metadata added to a sealed header": unsealed(DIGEST_MEMBER, RIGHT_MEMBER, '"k":""'),
        "tensor renamed in a sealed header": SEALED.replace(b'"a"', b'"b"'),
        "dtype changed in a sealed header": SEALED.replace(b'"U8"', b'"I8"'),
        "shape changed in a sealed header": file_of(SEALED[8:-1].replace(b"[1]", b"[1,1]"), b"x"),
    },
}
