"""The metadata of an OXCK file: strings under strings, in a lenient kind of JSON."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

from holdfast.errors import BadField, shortened

_STRING: Final = re.compile(r'"((?:[^"\\]|\\.)*)"', re.DOTALL)
_BETWEEN: Final = re.compile(r"[\s,]*")
_COLON: Final = re.compile(r"\s*:\s*")
_ESCAPE: Final = re.compile(r"\\(.)", re.DOTALL)
_ESCAPES: Final = {'"': '"', "\\": "\\", "n": "\n", "r": "\r", "t": "\t"}


def to_text(strings: Mapping[str, str]) -> str:
    """Metadata as text: keys in the order of their bytes, only quotes and backslashes escaped."""
    pairs = sorted(strings.items(), key=lambda pair: pair[0].encode())
    return "{" + ",".join(f'"{_escaped(key)}":"{_escaped(value)}"' for key, value in pairs) + "}"


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"')


def from_text(text: bytes) -> dict[str, str]:
    """The metadata out of its text; raises BadField where the original raises MetadataParse.

    As in the original, commas may be missing, doubled or stray, of two equal keys the last
    wins, and no text at all is no metadata.
    """
    try:
        whole = text.decode().strip()
    except UnicodeDecodeError as error:
        raise BadField(
            f"the metadata is not UTF-8 ({error.reason} at its byte {error.start})"
        ) from error
    if not whole:
        return {}
    if len(whole) < 2 or not (whole.startswith("{") and whole.endswith("}")):
        raise BadField(f"the metadata is not in braces: {shortened(whole)!r}")
    strings = {}
    at, end = 1, len(whole) - 1
    while (at := _skip(_BETWEEN, whole, at, end)) < end:
        key, at = _string(whole, at, end, "a key")
        colon = _COLON.match(whole, at, end)
        if not colon:
            raise BadField(f"the metadata has no ':' after the key {shortened(key)!r}")
        strings[key], at = _string(whole, colon.end(), end, f"the value of {shortened(key)!r}")
    return strings


def _skip(pattern: re.Pattern[str], text: str, at: int, end: int) -> int:
    found = pattern.match(text, at, end)
    return found.end() if found else at


def _string(text: str, at: int, end: int, what: str) -> tuple[str, int]:
    found = _STRING.match(text, at, end)
    if not found:
        raise BadField(f"the metadata has no string as {what} (at its character {at})")
    body = found.group(1)
    if "\\" not in body:
        return body, found.end()
    for escape in _ESCAPE.finditer(body):
        if escape.group(1) not in _ESCAPES:
            raise BadField(f"the metadata has the unknown escape {escape.group(0)!r} in {what}")
    return _ESCAPE.sub(lambda escape: _ESCAPES[escape.group(1)], body), found.end()
