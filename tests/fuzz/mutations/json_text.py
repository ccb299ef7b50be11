"""Changes to text, above all to JSON: to its letters, its numbers, its members."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from copy import deepcopy
from random import Random
from typing import Any

from tests.fuzz.mutations.bytes import Part, flip_bit, inside
from tests.fuzz.target import Mutation

NUMBERS = [
    *(str(n) for n in (0, 1, 2, 3, 4, 7, 8, 16, 63, 64, 65, 255, 4096, 65536)),
    *(str(2**n + more) for n in (31, 32, 53, 58, 59, 60, 61, 62, 63, 64) for more in (-1, 0, 1)),
    *("-1", "-0", "0.0", "1.0", "1e0", "1E2", "1e999", "-1e-999", "NaN", "Infinity", "01", "+1"),
    *("9" * 4300, "9" * 4301, "1" + "0" * 40, "true", "null", '"1"', "[]", "{}"),
]
STRINGS = [
    *("", "a", "b", "dtype", "shape", "data_offsets", "__metadata__", "U8", "F4", "F64", "u8"),
    *("standfast.digest", "standfast.chunks", "standfast.json", "standfast.names", "metadata"),
    *('["a"]', '{"x":1,"x":1}', "1e999", "\\ud800", "\\udc00\\ud800", "\\ud83d\\ude00"),
    *("\\u0061", "d\\u0074ype", "\\/", "\\\\", '\\"', "\\u0000", "é", "😀", "\\n", "n" * 70),
    *('\\"\\\\ud800\\"', '[\\"a\\"]', "blake3:16777216:", "blake3:16777216:AAAA"),
]
TEXTS = [
    *("{", "}", "[", "]", ",", ":", '"', "\\", " ", "\n", "\t", "\0", "\ufeff", "//", "'", "-"),
    *('"a":', ',"a":{}', ',"__metadata__":{}', '"__metadata__":{"a":"b"},', "{}", "[[[[", "]]]]"),
    *(',"dtype":"U8"', ',"shape":[]', ',"data_offsets":[0,0]', "\\u0061", "\\ud800", "NaN"),
]


# The text


def replace_one(
    random: Random, text: bytes, pattern: bytes, replacement: Callable[[bytes], bytes]
) -> bytes:
    found = list(re.finditer(pattern, text))
    if not found:
        return text
    match = random.choice(found)
    return text[: match.start()] + replacement(match.group()) + text[match.end() :]


def set_number(random: Random, text: bytes) -> bytes:
    return replace_one(random, text, rb"\d+", lambda old: random.choice(NUMBERS).encode())


def move_number(random: Random, text: bytes) -> bytes:
    step = random.choice((-8, -1, 1, 1, 8))
    # Numbers of thousands of digits are left as they are.
    return replace_one(random, text, rb"\b\d{1,30}\b", lambda old: str(int(old) + step).encode())


def set_string(random: Random, text: bytes) -> bytes:
    quoted = rb'"(?:[^"\\]|\\.)*"'
    return replace_one(
        random, text, quoted, lambda old: b'"' + random.choice(STRINGS).encode() + b'"'
    )


def escape_letter(random: Random, text: bytes) -> bytes:
    return replace_one(random, text, rb"[a-zA-Z_]", lambda old: b"\\u%04x" % ord(old))


def insert_text(random: Random, text: bytes) -> bytes:
    at = random.randrange(len(text) + 1)
    return text[:at] + random.choice(TEXTS).encode() + text[at:]


def insert_space(random: Random, text: bytes) -> bytes:
    space = random.choice((b" ", b"\n", b"\t", b"\r", b"\0", b"\x0c", b"\xc2\xa0"))
    return replace_one(random, text, rb'[{}\[\]:,"]', lambda old: old + space)


def nest(random: Random, text: bytes) -> bytes:
    """Arrays or objects in each other, around Python's limit of a thousand too."""
    depth = random.choice((1, 10, 99, 100, 101, 127, 128, 500, 900, 960, 980, 1000, 2000))
    start, stop = random.choice(((b"[", b"]"), (b'{"x":', b"}")))
    value = start * depth + b"0" + stop * random.choice((depth, depth, depth - 1))
    if random.random() < 0.5:
        value = json.dumps(value.decode()).encode()
    return replace_one(random, text, rb'\d+|"[^"]*"|\[[^\]]*\]', lambda old: value)


# The JSON


class Members(list[Any]):
    """An object as a list of its members, so that one can stand in it twice."""


class Text(str):
    """JSON as it is to be written."""

    __slots__ = ()


def of_json(change: Callable[[Random, Any], None]) -> Callable[[Random, bytes], bytes]:
    """A change of a tree as a change of its text."""

    def change_text(random: Random, text: bytes) -> bytes:
        try:
            tree = json.loads(text, object_pairs_hook=_members)
            change(random, tree)
            return _write(tree).encode("utf-8", "surrogatepass")
        except (ValueError, RecursionError):
            return flip_bit(random, text, [text])  # it is JSON no more

    return change_text


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


TEXT_CHANGES = (
    *(set_number, set_number, move_number, move_number, set_string, set_string),
    *(escape_letter, insert_text, insert_space, nest),
)
TREE_CHANGES = (
    *(drop_member, repeat_member, shuffle_members, copy_member, rename_member),
    *(set_value, set_value),
)


def json_mutations(part: Part) -> tuple[Mutation, ...]:
    """All mutations of this file, for the JSON that is a part of another."""
    changes = (*TEXT_CHANGES, *map(of_json, TREE_CHANGES))
    return tuple(inside(part, change) for change in changes)
