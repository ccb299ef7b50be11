"""Metadata: JSON values under string keys, and one rule for formats that hold only strings.

A string is stored as it is. Any other JSON value is stored as its JSON text, and its key is
listed, as JSON, under `standfast.json`. So `{"format": "pt", "step": 3}` is stored as
`{"format": "pt", "step": "3", "standfast.json": "[\\"step\\"]"}`, and `"3"` stays a string.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Any, Final, NoReturn

import numpy as np

from standfast.errors import (
    BadField,
    DuplicateKey,
    RefusedMetadata,
    TooNew,
    printable,
    shortened,
)

OWN: Final = "standfast."
"""Keys that start so are ours: users cannot set them and do not see them."""

TYPED: Final = OWN + "json"

NEEDS: Final = OWN + "needs"
"""What a reader must know in order to read the file; version 0.1 writes no such key."""

MAX_DEPTH: Final = 100
"""Nesting is bounded by this and not by the stack, which is not the same everywhere."""
MAX_DIGITS: Final = 4300
"""More than these Python itself does not turn into an integer, unless it is told to."""
_TOO_LONG: Final = 10**MAX_DIGITS
_PLAIN: Final = bytes(set(range(256)) - set(b'"[]{}'))


def check_metadata(metadata: Mapping[str, Any]) -> None:
    """Raise RefusedMetadata for keys that are ours and values that JSON does not have."""
    for key, value in metadata.items():
        _check_key(key, "metadata")
        if key.startswith(OWN):
            raise RefusedMetadata(
                f"metadata key {key!r}: keys that start with {OWN!r} are reserved"
            )
        _check(value, f"metadata[{key!r}]")


def to_json(metadata: Mapping[str, Any]) -> bytes:
    """Metadata as a JSON object; raises RefusedMetadata for what would not come back the same."""
    check_metadata(metadata)
    return json.dumps(dict(metadata), ensure_ascii=False, separators=(",", ":")).encode()


def from_json(text: bytes, where: str) -> dict[str, Any]:
    """A JSON object out of a file, strictly; `where` says of what it is."""
    try:
        value = _parse_json(text.decode(), where)
    except UnicodeDecodeError as error:
        raise BadField(f"{where}: not UTF-8 ({error.reason} at byte {error.start})") from error
    if not isinstance(value, dict):
        raise BadField(f"{where}: expected a JSON object, found {type(value).__name__}")
    return value


def to_strings(metadata: Mapping[str, Any], typed: bool = True) -> dict[str, str]:
    """Typed metadata as strings; raises RefusedMetadata for what would not come back the same.

    Without `typed` there is no key of ours to say which are no strings, so that all must be.
    """
    strings: dict[str, str] = {}
    others = []
    check_metadata(metadata)
    for key, value in metadata.items():
        if type(value) is str:
            strings[key] = value
        elif not typed:
            raise RefusedMetadata(
                f"metadata[{key!r}] is a {type(value).__name__}: without extras, this format "
                "holds only strings; cast=True writes it as one"
            )
        else:
            others.append(key)
            strings[key] = json.dumps(value, ensure_ascii=False, separators=(",", ":"))
    if others:
        strings[TYPED] = json.dumps(sorted(others), ensure_ascii=False, separators=(",", ":"))
    return strings


def from_strings(strings: Mapping[str, str]) -> dict[str, Any]:
    """The metadata that `to_strings` was given, or what another writer wrote, as strings."""
    check_needs(strings)
    metadata: dict[str, Any] = {k: v for k, v in strings.items() if not k.startswith(OWN)}
    typed = _parse_json(strings.get(TYPED, "[]"), f"metadata key {TYPED!r}")
    if not isinstance(typed, list) or not all(isinstance(key, str) for key in typed):
        raise BadField(f"metadata key {TYPED}: expected a list of keys")
    seen = set()
    for key in typed:
        if key not in metadata:
            raise BadField(f"metadata key {TYPED}: it lists {shortened(key)!r}, which is not there")
        if key in seen:
            raise DuplicateKey(f"metadata key {TYPED}: it lists {shortened(key)!r} twice")
        seen.add(key)
        metadata[key] = _parse_json(strings[key], f"metadata key {shortened(key)!r}")
    return metadata


def check_needs(own: Mapping[str, Any]) -> None:
    """Raise TooNew if the keys of ours in a file say that this version could misread it."""
    if NEEDS in own:
        raise TooNew(
            f"it needs {printable(shortened(str(own[NEEDS])))}, which this version of Standfast "
            "does not know: install a newer one"
        )


def _parse_json(text: str, where: str) -> Any:
    """Strict JSON: no duplicate keys, no NaN, no nesting beyond Python's stack."""
    if is_nested_deeply(text.encode()):
        raise BadField(f"{where}: it nests deeper than {MAX_DEPTH} levels")
    try:
        value = json.loads(
            text,
            object_pairs_hook=unique_pairs,
            parse_int=bounded_integer,
            parse_float=_finite_float,
            parse_constant=_no_constant,
        )
        if "\\u" in text:  # it may be half of a pair, which is no text
            _check(value, where)
    except DuplicateKey as error:
        raise DuplicateKey(f"{where}: {error}") from None
    except ValueError as error:
        raise BadField(f"{where}: not the JSON it should be ({printable(str(error))})") from error
    return value


def is_nested_deeply(text: bytes) -> bool:
    """Whether JSON nests deeper than MAX_DEPTH, found without a stack of any kind."""
    if text.count(b"[") + text.count(b"{") <= MAX_DEPTH:
        return False
    # What lies outside of strings is every other piece between quotes that are not escaped.
    # All but quotes and brackets is left out first: it is most of a long text.
    pieces = text.replace(b"\\\\", b"").replace(b'\\"', b"").translate(None, _PLAIN).split(b'"')
    outside = np.frombuffer(b"".join(pieces[::2]), np.uint8)
    opens = (outside == ord("[")) | (outside == ord("{"))
    closes = (outside == ord("]")) | (outside == ord("}"))
    depth = np.cumsum(opens.astype(np.int32) - closes)
    return bool(depth.size and depth.max() > MAX_DEPTH)


def unique_pairs(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """The members of a JSON object, each key once."""
    members: dict[str, Any] = {}
    for key, value in pairs:
        if key in members:
            raise DuplicateKey(f"the key {shortened(key)!r} stands twice in one JSON object")
        members[key] = value
    return members


def bounded_integer(text: str) -> int:
    """An integer out of JSON, if it has no more than MAX_DIGITS digits."""
    if len(text.lstrip("-")) > MAX_DIGITS:
        raise ValueError(f"an integer of {len(text):,} digits")
    return int(text)


def _finite_float(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        raise ValueError(f"{shortened(text)} is {value}, which JSON does not have")
    return value


def _no_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not JSON")


def _below(path: str, key: Any) -> str:
    """The path of a member, for a message; a long one is not made longer for each of a million."""
    return path if len(path) > 400 else f"{path}[{key}]"


def _check_key(key: Any, path: str) -> None:
    if type(key) is not str:
        raise RefusedMetadata(f"{path} has the key {key!r}: keys must be strings")
    _check_text(key, f"a key of {path}")


def _check_text(text: str, path: str) -> None:
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise RefusedMetadata(f"{path} is not valid Unicode text: {error}") from error


def _check(value: Any, path: str, depth: int = 0) -> None:
    if depth > MAX_DEPTH:
        raise RefusedMetadata(f"{path[:80]}… nests deeper than {MAX_DEPTH} levels")
    if type(value) is dict:
        for key, member in value.items():
            _check_key(key, path)
            _check(member, _below(path, repr(shortened(key))), depth + 1)
    elif type(value) is list:
        for i, member in enumerate(value):
            _check(member, _below(path, i), depth + 1)
    elif type(value) is int and abs(value) >= _TOO_LONG:
        raise RefusedMetadata(f"{path} is an integer of more than {MAX_DIGITS:,} digits")
    elif type(value) is str:
        _check_text(value, path)
    elif type(value) is float and not math.isfinite(value):
        raise RefusedMetadata(f"{path} is {value}, which JSON does not have: use None or a string")
    elif type(value) not in (int, float, bool, type(None)):
        raise RefusedMetadata(
            f"{path} is a {type(value).__name__}, which would not come back as one: "
            "use str, int, float, bool, None, list or dict"
        )
