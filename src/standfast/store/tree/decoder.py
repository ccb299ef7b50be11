"""JSON text → tree, strictly: the text comes out of a file."""

from __future__ import annotations

import json
import math
import re
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterable
from itertools import chain
from typing import Any, Final, NoReturn

import numpy as np

from standfast.errors import (
    BadField,
    DamagedFile,
    DuplicateKey,
    LimitExceeded,
    printable,
    shortened,
)
from standfast.store.tree.nodes import MAX_DEPTH, Path, Ranks, Ref, path_text
from standfast.store.tree.values import KEY_TYPES, VALUE_TAGS, is_small, read_value

MAX_JSON_DEPTH: Final = 3 * MAX_DEPTH + 3
"""A dict may be an object, a list and a pair, and a complex number an object in a list in one."""
MAX_SAME_HASH: Final = 1000
"""Keys of one hash in one dict: integers can be chosen so, and then each is compared with all."""

_SURROGATE: Final = re.compile(rb"\\u[dD][89a-fA-F]")
_ALL_BUT_BRACKETS: Final = bytes(set(range(256)) - set(b'[]{}"'))

_DIGITS: Final = bytes(ord("0") if byte in b"0123456789" else ord(" ") for byte in range(256))
_LONG_NUMBER: Final = b"0" * 19

_Pairs = list[tuple[str, Any]]
_BROKEN: Final = object()
"""Stands for what could not be read."""


def decode(text: bytes, tensors: int) -> Any:
    """The tree that a text was made of, with Refs to so many `tensors`.

    Raises BadField, DuplicateKey or LimitExceeded, with the path, for what `encode` never writes.
    """
    _check_text(text)
    values = _Values(tensors)
    # Python's own `int` takes a third of the time, and is safe where no number can be too long.
    integer = values.integer if _LONG_NUMBER in text.translate(_DIGITS) else int
    try:
        tree = _parse(text, values.object, integer, values.real, values.constant)
    except DamagedFile as error:
        # Values are made from the innermost out, none of which knows where in the tree it is.
        raise type(error)(f"{path_text(_path_of_broken(text, values))}: {error}") from None
    _check_depth(tree)
    return tree


def _check_text(text: bytes) -> None:
    """Refuse what the parser would let pass, or fall over."""
    if b"\\" in text:
        text = text.replace(b"\\\\", b"").replace(b'\\"', b"")
        if _SURROGATE.search(text):
            raise BadField("state: a surrogate is written as an escape; expected UTF-8")
    # What lies outside of strings is every other piece between quotes.
    pieces = text.translate(None, _ALL_BUT_BRACKETS).replace(b'""', b"").split(b'"')
    brackets = np.frombuffer(b"".join(pieces[::2]), np.uint8)
    opens = (brackets == ord("[")) | (brackets == ord("{"))
    depth = np.cumsum(np.where(opens, np.int32(1), np.int32(-1)))
    if depth.size and depth.max() > MAX_JSON_DEPTH:
        raise LimitExceeded(f"state: its JSON nests deeper than {MAX_JSON_DEPTH} levels")


def _parse(
    text: bytes,
    object: Callable[[_Pairs], Any],
    integer: Callable[[str], Any],
    real: Callable[[str], Any],
    constant: Callable[[str], Any],
) -> Any:
    try:
        return json.loads(
            text.decode(),
            object_pairs_hook=object,
            parse_int=integer,
            parse_float=real,
            parse_constant=constant,
        )
    except UnicodeDecodeError as error:
        raise BadField(f"not UTF-8 ({error.reason} at byte {error.start})") from error
    except json.JSONDecodeError as error:
        raise BadField(f"not JSON ({printable(str(error))})") from error
    except RecursionError as error:
        raise LimitExceeded("the program's own stack leaves no room to read it") from error


class _Values:
    """What the parser makes of each part of the JSON, the innermost first."""

    def __init__(self, tensors: int) -> None:
        self._tensors = tensors

    def integer(self, text: str) -> int:
        # No 64-bit integer is longer, and the time for one that is grows with its square.
        if len(text) > 20 or not is_small(number := int(text)):
            raise BadField(f"the integer {shortened(text)} has more than 64 bits")
        return number

    def real(self, text: str) -> float:
        number = float(text)
        if not math.isfinite(number):
            raise BadField(f"the number {shortened(text)} is too large for a float")
        return number

    def constant(self, name: str) -> NoReturn:
        raise BadField(f"{name} is not JSON; such a number stands under '$float'")

    def object(self, pairs: _Pairs) -> Any:
        if len(pairs) == 1 and pairs[0][0] == "$tensor":  # by far the most frequent
            number = pairs[0][1]
            if type(number) is int and 0 <= number < self._tensors:
                return Ref(number)
            raise BadField(
                f"expected the number of one of {self._tensors:,} tensors, found {_shown(number)}"
            )
        members = dict(pairs)
        if len(members) != len(pairs):
            raise DuplicateKey(f"the key {_most_common(key for key, _ in pairs)} stands twice")
        for key in members:
            if key[:1] == "$":
                return _tagged(members)
        return members


def _tagged(members: dict[str, Any]) -> Any:
    tag = next(iter(members))
    if tag == "$ordered" and members.keys() <= {"$ordered", "$metadata"}:
        ordered = OrderedDict(_pairs(members["$ordered"]))
        if "$metadata" in members:
            ordered._metadata = members["$metadata"]  # type: ignore[attr-defined]
        return ordered
    if len(members) != 1:
        names = ", ".join(printable(shortened(key)) for key in list(members)[:3])
        raise BadField(f"a key that begins with $ stands among others: {names}")
    content = members[tag]
    if tag in VALUE_TAGS:
        return read_value(tag, content)
    if tag == "$dict":
        return _pairs(content)
    if tag == "$counter":
        return Counter(_pairs(content))
    if tag == "$tuple" and type(content) is list:
        return tuple(content)
    if tag == "$ranks" and type(content) is list and content:
        return Ranks(content)
    if tag == "$complex" and type(content) is list and [*map(type, content)] == [float, float]:
        return complex(*content)
    raise BadField(f"{printable(shortened(tag))!r} with {_shown(content)} is no value")


def _pairs(pairs: Any) -> dict[Any, Any]:
    if type(pairs) is not list or not all(type(pair) is list and len(pair) == 2 for pair in pairs):
        raise BadField(f"expected a list of pairs of key and value, found {_shown(pairs)}")
    keys = [key for key, _ in pairs]
    if not KEY_TYPES.issuperset(map(type, keys)):
        raise BadField("expected keys that are str, int, float, bool or None, found another")
    large = [hash(key) for key in keys if type(key) is int and not is_small(key)]
    if len(large) > MAX_SAME_HASH and Counter(large).most_common(1)[0][1] > MAX_SAME_HASH:
        raise LimitExceeded(f"more than {MAX_SAME_HASH:,} keys of one dict have the same hash")
    members = dict(pairs)
    if len(members) != len(pairs):
        raise DuplicateKey(f"the key {_most_common(keys)} stands twice")
    return members


def _most_common(keys: Iterable[Any]) -> str:
    return _shown(Counter(keys).most_common(1)[0][0])


def _shown(value: Any) -> str:
    if type(value) is str or type(value) is float:
        return shortened(repr(value))
    return path_text((value,)) if type(value) is int else f"a {type(value).__name__}"


def _check_depth(tree: Any) -> None:
    level = [tree]
    for _ in range(MAX_DEPTH + 1):
        level = [node for node in level if type(node) in _CONTAINERS]
        if not level:
            return
        level = list(chain.from_iterable(map(_contents, level)))
    raise LimitExceeded(f"state: it is deeper than {MAX_DEPTH} levels")


_CONTAINERS: Final = frozenset({dict, OrderedDict, Counter, list, tuple, Ranks})


def _contents(node: Any) -> Iterable[Any]:
    """What lies in a container."""
    if type(node) is OrderedDict:
        return [*node.values(), *vars(node).values()]
    return node.values() if isinstance(node, dict) else node


def _keys(node: Any) -> Iterable[Any]:
    """The key, position or attribute of each thing that lies in a container."""
    if type(node) is OrderedDict:
        return [*node, *vars(node)]
    return node if isinstance(node, dict) else range(len(node))


def _path_of_broken(text: bytes, values: _Values) -> Path:
    """Where the first value is that cannot be read."""
    readers = (values.object, values.integer, values.real, values.constant)
    try:
        tree = _parse(text, *[_or_broken(reader) for reader in readers])
    except DamagedFile:
        return ()  # it is no JSON, and the message has the line and column
    open: list[tuple[Path, Any]] = [((), tree)]
    while open:
        path, node = open.pop()
        if node is _BROKEN:
            return path
        if type(node) in _CONTAINERS:
            members = zip(_keys(node), _contents(node), strict=True)
            open.extend(reversed([((*path, key), member) for key, member in members]))
    return ()


def _or_broken(reader: Callable[[Any], Any]) -> Callable[[Any], Any]:
    def read(part: Any) -> Any:
        try:
            return reader(part)
        except DamagedFile:
            return _BROKEN

    return read
