"""Typed metadata in formats that hold only strings, by one rule.

A string is stored as it is. Any other JSON value is stored as its JSON text, and its key is
listed, as JSON, under `holdfast.json`. So `{"format": "pt", "step": 3}` is stored as
`{"format": "pt", "step": "3", "holdfast.json": "[\\"step\\"]"}`, and `"3"` stays a string.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Any, Final, NoReturn

from holdfast.errors import BadField, DuplicateKey, RefusedMetadata

OWN: Final = "holdfast."
"""Keys that start so are ours: users cannot set them and do not see them."""

TYPED: Final = OWN + "json"


def to_strings(metadata: Mapping[str, Any]) -> dict[str, str]:
    """Typed metadata as strings; raises RefusedMetadata for what would not come back the same."""
    strings: dict[str, str] = {}
    typed = []
    for key, value in metadata.items():
        _check_key(key, "metadata")
        if key.startswith(OWN):
            raise RefusedMetadata(
                f"metadata key {key!r}: keys that start with {OWN!r} are reserved"
            )
        _check(value, f"metadata[{key!r}]")
        if type(value) is str:
            strings[key] = value
        else:
            typed.append(key)
            strings[key] = json.dumps(value, ensure_ascii=False, separators=(",", ":"))
    if typed:
        strings[TYPED] = json.dumps(typed, ensure_ascii=False, separators=(",", ":"))
    return strings


def from_strings(strings: Mapping[str, str]) -> dict[str, Any]:
    """The metadata that `to_strings` was given, or what another writer wrote, as strings."""
    metadata: dict[str, Any] = {k: v for k, v in strings.items() if not k.startswith(OWN)}
    typed = parse_json(strings.get(TYPED, "[]"), TYPED)
    if not isinstance(typed, list) or not all(isinstance(key, str) for key in typed):
        raise BadField(f"metadata key {TYPED}: expected a list of keys")
    for key in typed:
        if key not in metadata:
            raise BadField(f"metadata key {TYPED}: it lists {key!r}, which is not there")
        metadata[key] = parse_json(strings[key], key)
    return metadata


def parse_json(text: str, field: str) -> Any:
    """Strict JSON: no duplicate keys, no NaN, no nesting beyond Python's stack."""
    try:
        return json.loads(text, object_pairs_hook=unique_pairs, parse_constant=_no_constant)
    except (ValueError, RecursionError) as error:
        if isinstance(error, DuplicateKey):
            raise
        raise BadField(f"metadata key {field}: not the JSON it should be ({error})") from error


def unique_pairs(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """The members of a JSON object, each key once."""
    members = dict(pairs)
    if len(members) != len(pairs):
        keys = [key for key, _ in pairs]
        key = next(key for key in keys if keys.count(key) > 1)
        raise DuplicateKey(f"the key {key!r} stands twice in one JSON object")
    return members


def _no_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not JSON")


def _check_key(key: Any, path: str) -> None:
    if type(key) is not str:
        raise RefusedMetadata(f"{path} has the key {key!r}: keys must be strings")
    _check_text(key, f"a key of {path}")


def _check_text(text: str, path: str) -> None:
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise RefusedMetadata(f"{path} is not valid Unicode text: {error}") from error


def _check(value: Any, path: str) -> None:
    if type(value) is dict:
        for key, member in value.items():
            _check_key(key, path)
            _check(member, f"{path}[{key!r}]")
    elif type(value) is list:
        for i, member in enumerate(value):
            _check(member, f"{path}[{i}]")
    elif type(value) is str:
        _check_text(value, path)
    elif type(value) is float and not math.isfinite(value):
        raise RefusedMetadata(f"{path} is {value}, which JSON does not have: use None or a string")
    elif type(value) not in (int, float, bool, type(None)):
        raise RefusedMetadata(
            f"{path} is a {type(value).__name__}, which would not come back as one: "
            "use str, int, float, bool, None, list or dict"
        )
