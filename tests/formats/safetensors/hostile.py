"""Headers of megabytes, made to take a reader's time or memory; built when they are needed."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass

from standfast.errors import (
    BadField,
    BadHeader,
    DamagedFile,
    DuplicateKey,
    LimitExceeded,
    SizeMismatch,
    UnknownDType,
)
from tests.formats.safetensors.builders import (
    entry,
    file_of,
    member,
    objects,
    strings_file,
    typed_file,
)

TENSOR = member("a", entry())
MEGABYTES = 5_000_000
MANY = 200_000


@dataclass(frozen=True)
class Hostile:
    """A large file, and how it is refused: None if it is legal and has to open."""

    name: str
    build: Callable[[], bytes]
    error: type[DamagedFile] | None


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


HOSTILE: tuple[Hostile, ...] = (
    Hostile("string of quotes", lambda: _string('\\"'), None),
    Hostile("string of backslashes", lambda: _string("\\\\"), None),
    Hostile("string of backslashes and quotes", lambda: _string('\\\\\\"'), None),
    Hostile("string of braces", lambda: _string("}"), None),
    Hostile("string of escaped letters", lambda: _string("\\u0041"), None),
    Hostile(
        "string without an end",
        lambda: file_of('{"__metadata__":{"key":"' + "x" * MEGABYTES),
        BadHeader,
    ),
    Hostile(
        "string of quotes without an end",
        lambda: file_of('{"__metadata__":{"key":"' + '\\"' * (MEGABYTES // 2)),
        BadHeader,
    ),
    Hostile("short strings", lambda: _strings(""), None),
    Hostile("short strings with braces", lambda: _strings("}"), None),
    Hostile("short strings with quotes", lambda: _strings('\\"'), None),
    Hostile("padding", lambda: file_of(objects(TENSOR).ljust(MEGABYTES), b"x"), None),
    Hostile("brackets", lambda: file_of('{"a":' + "[" * MEGABYTES), BadHeader),
    Hostile(
        "brackets, closed",
        lambda: file_of('{"a":' + "[" * MEGABYTES + "]" * MEGABYTES + "}"),
        BadHeader,
    ),
    Hostile("objects in each other", lambda: file_of('{"a":' * (MEGABYTES // 5)), BadHeader),
    Hostile("brackets in a typed value", lambda: typed_file("[" * MEGABYTES), BadField),
    Hostile(
        "empty objects", lambda: file_of('{"a":[' + "{}," * (MEGABYTES // 3) + "0]}"), BadField
    ),
    Hostile("one key very often", lambda: file_of("{" + '"a":0,' * MANY + '"a":0}'), DuplicateKey),
    Hostile(
        "many keys, the last one twice",
        lambda: file_of("{" + _distinct_keys() + f',"{MANY - 1}":"0"}}'),
        DuplicateKey,
    ),
    Hostile(
        "many metadata keys, the last one twice",
        lambda: _metadata("{" + _distinct_keys() + f',"{MANY - 1}":"0"}}'),
        DuplicateKey,
    ),
    Hostile(
        "many keys in a typed value, the last one twice",
        lambda: typed_file("{" + _distinct_keys() + f',"{MANY - 1}":"0"}}'),
        DuplicateKey,
    ),
    Hostile(
        "one typed key listed very often",
        lambda: typed_file(json.dumps([0] * MANY), json.dumps(["key"] * MANY)),
        DuplicateKey,
    ),
    Hostile(
        "many typed keys",
        lambda: strings_file(
            {
                **{str(i): "0" for i in range(MANY // 4)},
                "standfast.json": json.dumps([str(i) for i in range(MANY // 4)]),
            }
        ),
        None,
    ),
    Hostile("many empty tensors", lambda: _empty_tensors(MANY // 4), None),
    Hostile(
        "many empty tensors, then a wrong one",
        lambda: _empty_tensors(MANY // 4, member("a", entry(shape="[2]"))),
        SizeMismatch,
    ),
    Hostile("many tensors, then one whose size overflows", _tensors_and_one_overflow, SizeMismatch),
    Hostile("many unknown fields", _wide_object, BadField),
    Hostile(
        "many dimensions",
        lambda: file_of(objects(member("a", entry(shape="[" + "1," * MANY + "1]"))), b"x"),
        BadField,
    ),
    Hostile(
        "many digits before a point", lambda: file_of('{"a":' + "1" * MEGABYTES + ".0}"), BadField
    ),
    Hostile(
        "many digits of an exponent", lambda: file_of('{"a":1e' + "1" * MEGABYTES + "}"), BadField
    ),
    Hostile(
        "many digits of an integer", lambda: file_of('{"a":' + "1" * MEGABYTES + "}"), BadHeader
    ),
    Hostile(
        "long name", lambda: file_of(objects(member("n" * MEGABYTES, entry())), b"x"), LimitExceeded
    ),
    Hostile(
        "long name in escapes",
        lambda: file_of(objects(member("\\u0061" * (MEGABYTES // 6), entry())), b"x"),
        LimitExceeded,
    ),
    Hostile(
        "long name twice",
        lambda: file_of(objects(*2 * [member("n" * MEGABYTES, entry())]), b"x"),
        DuplicateKey,
    ),
    Hostile(
        "long unknown field",
        lambda: file_of(objects(member("a", objects(member("n" * MEGABYTES, "1"))))),
        BadField,
    ),
    Hostile(
        "long metadata key with a number",
        lambda: _metadata("{" + member("n" * MEGABYTES, "1") + "}"),
        BadField,
    ),
    Hostile(
        "long list as a metadata value",
        lambda: _metadata('{"key":[' + "0," * (MEGABYTES // 2) + "0]}"),
        BadField,
    ),
    Hostile(
        "long key among the typed ones, missing",
        lambda: typed_file("1", json.dumps(["n" * MEGABYTES])),
        BadField,
    ),
    Hostile(
        "long dtype",
        lambda: file_of(objects(member("a", entry('"' + "U" * MEGABYTES + '"'))), b"x"),
        UnknownDType,
    ),
    Hostile(
        "bad byte at the end", lambda: file_of(b'{"' + b"n" * MEGABYTES + b'\xff":0}'), BadHeader
    ),
)
