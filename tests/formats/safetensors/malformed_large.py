"""Headers of megabytes, made to take a reader's time or memory; built when they are needed."""

from __future__ import annotations

import json

from standfast.errors import (
    BadField,
    BadHeader,
    DuplicateKey,
    LimitExceeded,
    SizeMismatch,
    UnknownDType,
)
from tests.formats.builders import Row
from tests.formats.safetensors.builders import (
    entry,
    file_of,
    member,
    objects,
    strings_file,
    typed_file,
)

TENSOR = member("a", entry())
MEGABYTES = 1_000_000
MANY = 40_000


def _metadata(text: str) -> bytes:
    """A file with this text as its metadata."""
    return file_of(objects(member("__metadata__", text), TENSOR), b"x")


def _string(unit: str) -> bytes:
    """A file whose metadata is one string, of this unit again and again."""
    return _metadata('{"key":"' + unit * (MEGABYTES // len(unit)) + '"}')


def _strings(unit: str) -> bytes:
    """A file of very many metadata strings, each with this unit in its key and its value."""
    return _metadata("{" + ",".join(f'"{unit}{i}":"{unit}"' for i in range(MANY)) + "}")


def _empty_tensors(count: int, *more: str) -> bytes:
    empty = entry(shape="[0]", data_offsets="[0,0]")
    return file_of(objects(*(member(str(i), empty) for i in range(count)), *more))


def _distinct_keys() -> str:
    return ",".join(f'"{i}":"0"' for i in range(MANY))


def _tensors_and_one_overflow() -> bytes:
    """Tensors that are right, and one last whose size fits no integer of the machine."""
    right = (member(str(i), entry(data_offsets=f"[{i},{i + 1}]")) for i in range(MANY // 4))
    wrong = member("last", entry(shape=f"[{2**59},{2**59}]"))
    return file_of(objects(*right, wrong), bytes(MANY // 4))


def _wide_object() -> bytes:
    """A tensor entry of very many fields, all unknown."""
    return file_of('{"a":{' + _distinct_keys() + "}}")


ROWS = (
    Row("string of quotes", lambda: _string('\\"'), None),
    Row("string of backslashes", lambda: _string("\\\\"), None),
    Row("string of backslashes and quotes", lambda: _string('\\\\\\"'), None),
    Row("string of braces", lambda: _string("}"), None),
    Row("string of escaped letters", lambda: _string("\\u0041"), None),
    Row(
        "string without an end",
        lambda: file_of('{"__metadata__":{"key":"' + "x" * MEGABYTES),
        BadHeader,
    ),
    Row(
        "string of quotes without an end",
        lambda: file_of('{"__metadata__":{"key":"' + '\\"' * (MEGABYTES // 2)),
        BadHeader,
    ),
    Row("short strings", lambda: _strings(""), None),
    Row("short strings with braces", lambda: _strings("}"), None),
    Row("short strings with quotes", lambda: _strings('\\"'), None),
    Row("padding", lambda: file_of(objects(TENSOR).ljust(MEGABYTES), b"x"), None),
    Row("brackets", lambda: file_of('{"a":' + "[" * MEGABYTES), BadHeader),
    Row(
        "brackets, closed",
        lambda: file_of('{"a":' + "[" * MEGABYTES + "]" * MEGABYTES + "}"),
        BadHeader,
    ),
    Row("objects in each other", lambda: file_of('{"a":' * (MEGABYTES // 5)), BadHeader),
    Row("brackets in a typed value", lambda: typed_file("[" * MEGABYTES), BadField),
    Row("empty objects", lambda: file_of('{"a":[' + "{}," * (MEGABYTES // 10) + "0]}"), BadField),
    Row("one key very often", lambda: file_of("{" + '"a":0,' * MANY + '"a":0}'), DuplicateKey),
    Row(
        "many keys, the last one twice",
        lambda: file_of("{" + _distinct_keys() + f',"{MANY - 1}":"0"}}'),
        DuplicateKey,
    ),
    Row(
        "many metadata keys, the last one twice",
        lambda: _metadata("{" + _distinct_keys() + f',"{MANY - 1}":"0"}}'),
        DuplicateKey,
    ),
    Row(
        "many keys in a typed value, the last one twice",
        lambda: typed_file("{" + _distinct_keys() + f',"{MANY - 1}":"0"}}'),
        DuplicateKey,
    ),
    Row(
        "one typed key listed very often",
        lambda: typed_file(json.dumps([0] * MANY), json.dumps(["key"] * MANY)),
        DuplicateKey,
    ),
    Row(
        "many typed keys",
        lambda: strings_file(
            {
                **{str(i): "0" for i in range(MANY // 4)},
                "standfast.json": json.dumps([str(i) for i in range(MANY // 4)]),
            }
        ),
        None,
    ),
    Row("very many empty tensors", lambda: _empty_tensors(MANY // 4), None),
    Row(
        "many empty tensors, then a wrong one",
        lambda: _empty_tensors(MANY // 4, member("a", entry(shape="[2]"))),
        SizeMismatch,
    ),
    Row("many tensors, then one whose size overflows", _tensors_and_one_overflow, SizeMismatch),
    Row("many unknown fields", _wide_object, BadField),
    Row(
        "many dimensions",
        lambda: file_of(objects(member("a", entry(shape="[" + "1," * MANY + "1]"))), b"x"),
        BadField,
    ),
    Row("many digits before a point", lambda: file_of('{"a":' + "1" * MEGABYTES + ".0}"), BadField),
    Row("many digits of an exponent", lambda: file_of('{"a":1e' + "1" * MEGABYTES + "}"), BadField),
    Row("many digits of an integer", lambda: file_of('{"a":' + "1" * MEGABYTES + "}"), BadHeader),
    Row(
        "long name", lambda: file_of(objects(member("n" * MEGABYTES, entry())), b"x"), LimitExceeded
    ),
    Row(
        "long name in escapes",
        lambda: file_of(objects(member("\\u0061" * (MEGABYTES // 6), entry())), b"x"),
        LimitExceeded,
    ),
    Row(
        "long name twice",
        lambda: file_of(objects(*2 * [member("n" * MEGABYTES, entry())]), b"x"),
        DuplicateKey,
    ),
    Row(
        "long unknown field",
        lambda: file_of(objects(member("a", objects(member("n" * MEGABYTES, "1"))))),
        BadField,
    ),
    Row(
        "long metadata key with a number",
        lambda: _metadata("{" + member("n" * MEGABYTES, "1") + "}"),
        BadField,
    ),
    Row(
        "long list as a metadata value",
        lambda: _metadata('{"key":[' + "0," * (MEGABYTES // 2) + "0]}"),
        BadField,
    ),
    Row(
        "long key among the typed ones, missing",
        lambda: typed_file("1", json.dumps(["n" * MEGABYTES])),
        BadField,
    ),
    Row(
        "very long dtype",
        lambda: file_of(objects(member("a", entry('"' + "U" * MEGABYTES + '"'))), b"x"),
        UnknownDType,
    ),
    Row("bad byte at the end", lambda: file_of(b'{"' + b"n" * MEGABYTES + b'\xff":0}'), BadHeader),
)
