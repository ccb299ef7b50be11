"""Changes to a file: to its bytes, to the text of its header, and to the JSON of it."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Sequence
from copy import deepcopy
from random import Random
from typing import Any

from tests.formats.builders import file_of, header_end, reseal

Mutation = Callable[[Random, bytes, Sequence[bytes]], bytes]
"""Takes a file, and others to borrow from; returns another file."""

LARGEST = 1 << 16
NUMBERS = [
    *(str(n) for n in (0, 1, 2, 3, 4, 7, 8, 16, 63, 64, 65, 255, 4096, 65536)),
    *(str(2**n + more) for n in (31, 32, 53, 58, 59, 60, 61, 62, 63, 64) for more in (-1, 0, 1)),
    *("-1", "-0", "0.0", "1.0", "1e0", "1E2", "1e999", "-1e-999", "NaN", "Infinity", "01", "+1"),
    *("9" * 4300, "9" * 4301, "1" + "0" * 40, "true", "null", '"1"', "[]", "{}"),
]
STRINGS = [
    *("", "a", "b", "dtype", "shape", "data_offsets", "__metadata__", "U8", "F4", "F64", "u8"),
    *("holdfast.digest", "holdfast.chunks", "holdfast.json", '["a"]', '{"x":1,"x":1}', "1e999"),
    *(
        "\\ud800",
        "\\udc00\\ud800",
        "\\ud83d\\ude00",
        "\\u0061",
        "d\\u0074ype",
        "\\/",
        "\\\\",
        '\\"',
    ),
    *("\\u0000", "é", "😀", "\\n", "n" * 70, '\\"\\\\ud800\\"', '[\\"a\\"]', "blake3:16777216:"),
]
TEXTS = [
    *("{", "}", "[", "]", ",", ":", '"', "\\", " ", "\n", "\t", "\0", "\ufeff", "//", "'", "-"),
    *('"a":', ',"a":{}', ',"__metadata__":{}', '"__metadata__":{"a":"b"},', "{}", "[[[[", "]]]]"),
    *(',"dtype":"U8"', ',"shape":[]', ',"data_offsets":[0,0]', "\\u0061", "\\ud800", "NaN"),
]
BYTES = b'\x00\x01\x09\x0a\x20\x22\x2c\x2d\x30\x5c\x7b\x7d\x7f\x80\xc0\xed\xff{}[]":,\\'


def mutate(random: Random, file: bytes, others: Sequence[bytes]) -> bytes:
    """The file with one or a few changes; most often with a digest that fits its header again."""
    for _ in range(random.choice((1, 1, 1, 2, 2, 3, 5))):
        file = random.choice(MUTATIONS)(random, file, others)[:LARGEST]
    return reseal(file) if random.random() < 0.8 else file


# Bytes


def flip_bit(random: Random, file: bytes, others: Sequence[bytes]) -> bytes:
    if not file:
        return file
    at = random.randrange(len(file))
    return file[:at] + bytes([file[at] ^ 1 << random.randrange(8)]) + file[at + 1 :]


def flip_data_bit(random: Random, file: bytes, others: Sequence[bytes]) -> bytes:
    end = header_end(file)
    return file[:end] + flip_bit(random, file[end:], others)


def set_byte(random: Random, file: bytes, others: Sequence[bytes]) -> bytes:
    at = random.randrange(len(file) + 1)
    return file[:at] + bytes([random.choice(BYTES)]) + file[at + 1 :]


def cut(random: Random, file: bytes, others: Sequence[bytes]) -> bytes:
    return file[: random.randrange(len(file) + 1)]


def grow(random: Random, file: bytes, others: Sequence[bytes]) -> bytes:
    return file + random.randbytes(random.choice((1, 2, 8)))


def remove_slice(random: Random, file: bytes, others: Sequence[bytes]) -> bytes:
    start, stop = _slice(random, file)
    return file[:start] + file[stop:]


def repeat_slice(random: Random, file: bytes, others: Sequence[bytes]) -> bytes:
    start, stop = _slice(random, file)
    return file[:stop] + file[start:stop] * random.choice((1, 1, 2, 50)) + file[stop:]


def splice(random: Random, file: bytes, others: Sequence[bytes]) -> bytes:
    other = random.choice(others)
    start, stop = _slice(random, other)
    at, until = _slice(random, file)
    return file[:at] + other[start:stop] + file[random.choice((at, until)) :]


def set_length(random: Random, file: bytes, others: Sequence[bytes]) -> bytes:
    length = int.from_bytes(file[:8], "little")
    near = length + random.choice((-8, -2, -1, 1, 2, 8))
    far = random.choice((0, 1, 2, len(file) - 8, len(file), 10**8, 10**8 + 1, 2**31, 2**63))
    length = random.choice((near, far)) % 2**64
    return length.to_bytes(8, "little") + file[8:]


def _slice(random: Random, file: bytes) -> tuple[int, int]:
    start = random.randrange(len(file) + 1)
    return start, min(len(file), start + random.choice((1, 1, 2, 4, 8, 16, 64)))


# The text of the header; its length is made to fit


def _with_text(change: Callable[[Random, bytes], bytes]) -> Mutation:
    def mutation(random: Random, file: bytes, others: Sequence[bytes]) -> bytes:
        end = header_end(file)
        return file_of(change(random, file[8:end]), file[end:])

    return mutation


def _replace_one(
    random: Random, text: bytes, pattern: bytes, replacement: Callable[[bytes], bytes]
) -> bytes:
    found = list(re.finditer(pattern, text))
    if not found:
        return text
    match = random.choice(found)
    return text[: match.start()] + replacement(match.group()) + text[match.end() :]


def set_number(random: Random, text: bytes) -> bytes:
    return _replace_one(random, text, rb"\d+", lambda old: random.choice(NUMBERS).encode())


def move_number(random: Random, text: bytes) -> bytes:
    step = random.choice((-8, -1, 1, 1, 8))
    # Numbers of thousands of digits are left as they are.
    return _replace_one(random, text, rb"\b\d{1,30}\b", lambda old: str(int(old) + step).encode())


def set_string(random: Random, text: bytes) -> bytes:
    quoted = rb'"(?:[^"\\]|\\.)*"'
    return _replace_one(
        random, text, quoted, lambda old: b'"' + random.choice(STRINGS).encode() + b'"'
    )


def escape_letter(random: Random, text: bytes) -> bytes:
    return _replace_one(random, text, rb"[a-zA-Z_]", lambda old: b"\\u%04x" % ord(old))


def insert_text(random: Random, text: bytes) -> bytes:
    at = random.randrange(len(text) + 1)
    return text[:at] + random.choice(TEXTS).encode() + text[at:]


def insert_space(random: Random, text: bytes) -> bytes:
    space = random.choice((b" ", b"\n", b"\t", b"\r", b"\0", b"\x0c", b"\xc2\xa0"))
    return _replace_one(random, text, rb'[{}\[\]:,"]', lambda old: old + space)


def nest(random: Random, text: bytes) -> bytes:
    """Arrays or objects in each other, around Python's limit of a thousand too."""
    depth = random.choice((1, 10, 127, 128, 500, 900, 960, 980, 1000, 2000))
    start, stop = random.choice(((b"[", b"]"), (b'{"x":', b"}")))
    value = start * depth + b"0" + stop * random.choice((depth, depth, depth - 1))
    if random.random() < 0.5:
        value = json.dumps(value.decode()).encode()
    return _replace_one(random, text, rb'\d+|"[^"]*"|\[[^\]]*\]', lambda old: value)


# The JSON of the header


class Members(list[Any]):
    """An object as a list of its members, so that one can stand in it twice."""


class Text(str):
    """JSON as it is to be written."""

    __slots__ = ()


def _with_json(change: Callable[[Random, Any], None]) -> Mutation:
    def mutation(random: Random, file: bytes, others: Sequence[bytes]) -> bytes:
        end = header_end(file)
        try:
            tree = json.loads(file[8:end], object_pairs_hook=_members)
            change(random, tree)
            text = _write(tree).encode("utf-8", "surrogatepass")
        except (ValueError, RecursionError):
            return flip_bit(random, file, others)  # it is JSON no more
        return file_of(text, file[end:])

    return mutation


def _members(pairs: list[tuple[str, Any]]) -> Members:
    return Members([name, value] for name, value in pairs)


def _write(tree: Any) -> str:
    if isinstance(tree, Members):
        return "{" + ",".join(f"{json.dumps(name)}:{_write(value)}" for name, value in tree) + "}"
    if isinstance(tree, list):
        return "[" + ",".join(map(_write, tree)) + "]"
    return tree if isinstance(tree, Text) else json.dumps(tree, ensure_ascii=False)


def _containers(tree: Any) -> Iterator[list[Any]]:
    """All objects and arrays that are not empty."""
    todo = [tree]
    while todo:
        node = todo.pop()
        if isinstance(node, Members):
            todo.extend(value for _, value in node)
        elif isinstance(node, list):
            todo.extend(node)
        if isinstance(node, list) and node:
            yield node


def _container(random: Random, tree: Any) -> list[Any]:
    return random.choice(list(_containers(tree)) or [[0]])


def _entry(random: Random, tree: Any) -> list[Any]:
    """The fields of a tensor, or of the metadata."""
    members = tree if isinstance(tree, Members) else []
    return random.choice([value for _, value in members if isinstance(value, Members)] or [[]])


def drop_member(random: Random, tree: Any) -> None:
    node = _container(random, tree)
    del node[random.randrange(len(node))]


def repeat_member(random: Random, tree: Any) -> None:
    node = _container(random, tree)
    node.insert(random.randrange(len(node) + 1), random.choice(node))


def shuffle_members(random: Random, tree: Any) -> None:
    random.shuffle(_container(random, tree))


def copy_member(random: Random, tree: Any) -> None:
    """From one place to another: a field into the metadata, a tensor into a shape."""
    source, target = _container(random, tree), _container(random, tree)
    taken = deepcopy(random.choice(source))
    if isinstance(target, Members) and not isinstance(source, Members):
        taken = [random.choice(STRINGS), taken]
    elif isinstance(source, Members) and not isinstance(target, Members):
        taken = taken[1]
    target.insert(random.randrange(len(target) + 1), taken)


def rename_member(random: Random, tree: Any) -> None:
    node = _container(random, tree)
    if isinstance(node, Members):
        names = [name for name, _ in node] + STRINGS
        node[random.randrange(len(node))][0] = random.choice(names)


def set_value(random: Random, tree: Any) -> None:
    node = _container(random, tree)
    at = random.randrange(len(node))
    value = Text(random.choice((random.choice(NUMBERS), f'"{random.choice(STRINGS)}"')))
    if isinstance(node, Members):
        node[at][1] = value
    else:
        node[at] = value


def empty_a_tensor(random: Random, tree: Any) -> None:
    """Make a tensor empty where it begins; what follows it then lies behind a hole."""
    for field in _entry(random, tree):
        if field[0] == "shape":
            field[1] = [*field[1], 0] if isinstance(field[1], list) else [0]
        if field[0] == "data_offsets" and isinstance(field[1], list) and field[1]:
            field[1] = [field[1][0], field[1][0]]


def reshape_a_tensor(random: Random, tree: Any) -> None:
    """Another shape of as many elements."""
    for field in _entry(random, tree):
        if field[0] == "shape" and isinstance(field[1], list):
            field[1] = random.choice(
                ([*field[1], 1], [1, *field[1]], field[1][::-1], [1] * 60 + field[1])
            )


MUTATIONS: tuple[Mutation, ...] = (
    *(flip_bit, flip_data_bit, set_byte, cut, grow, remove_slice, repeat_slice, splice, set_length),
    *map(
        _with_text,
        (
            *(set_number, set_number, move_number, move_number, set_string, set_string),
            *(escape_letter, insert_text, insert_space, nest),
        ),
    ),
    *map(
        _with_json,
        (
            *(drop_member, repeat_member, shuffle_members, copy_member, rename_member),
            *(set_value, set_value, empty_a_tensor, reshape_a_tensor, reshape_a_tensor),
        ),
    ),
)
