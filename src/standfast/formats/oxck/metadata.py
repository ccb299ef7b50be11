"""The metadata of an OXCK file: strings under strings, in a lenient kind of JSON."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

from standfast.errors import BadField, shortened

_WHITE: Final = (
    "\t\n\v\f\r \x85\xa0\u1680\u2000\u2001\u2002\u2003\u2004\u2005\u2006\u2007\u2008\u2009\u200a"
    "\u2028\u2029\u202f\u205f\u3000"
)
"""White space to the original: Unicode's, and so without U+001C to U+001F, which Python adds."""
_BETWEEN: Final = re.compile(f"[{_WHITE},]*")
_COLON: Final = re.compile(f"[{_WHITE}]*:[{_WHITE}]*")
_UNKNOWN_ESCAPE: Final = re.compile(r"\\(?![nrt]).?", re.DOTALL)

# No text that was UTF-8 holds these two, so they can stand for what is escaped.
_BACKSLASH: Final = "\ud800"
_QUOTE: Final = "\ud801"


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
        whole = text.decode().strip(_WHITE)
    except UnicodeDecodeError as error:
        raise BadField(
            f"the metadata is not UTF-8 ({error.reason} at its byte {error.start})"
        ) from error
    if not whole:
        return {}
    if len(whole) < 2 or not (whole.startswith("{") and whole.endswith("}")):
        raise BadField(f"the metadata is not in braces: {shortened(whole)!r}")
    marked = whole[1:-1].replace("\\\\", _BACKSLASH).replace('\\"', _QUOTE)
    if unknown := _UNKNOWN_ESCAPE.search(marked):
        raise BadField(f"the metadata has the unknown escape {_plain(unknown.group(0))!r}")
    # The quotes that are left stand around strings, so every other piece between them is one:
    # what precedes a key, the key, the colon, the value, and so on.
    pieces = marked.split('"')
    _check_structure(pieces)
    keys, values = pieces[1::4], pieces[3::4]
    if "\\" in marked or _BACKSLASH in marked or _QUOTE in marked:
        return dict(zip(map(_unescaped, keys), map(_unescaped, values), strict=True))
    return dict(zip(keys, values, strict=True))


def _check_structure(pieces: list[str]) -> None:
    """Raise unless what lies outside of strings is what may lie there."""
    # Each different piece is looked at once: there may be millions of equal ones.
    before_keys = {piece for piece in set(pieces[::4]) if not _BETWEEN.fullmatch(piece)}
    before_values = {piece for piece in set(pieces[2::4]) if not _COLON.fullmatch(piece)}
    if before_keys or before_values:
        _explain(pieces, before_keys, before_values)
    if len(pieces) % 2 == 0:
        raise BadField(f"the metadata has a string without an end: {_shown(pieces[-1])}")
    if len(pieces) % 4 == 3:
        raise BadField(f"the metadata has no value under the key {_shown(pieces[-2])}")


def _explain(pieces: list[str], before_keys: set[str], before_values: set[str]) -> None:
    """Raise for the first piece that is wrong in its place."""
    for number, piece in enumerate(pieces):
        if number % 4 == 0 and piece in before_keys:
            raise BadField(f"the metadata has {_shown(piece)} where a key in quotes belongs")
        if number % 4 == 2 and piece in before_values:
            raise BadField(
                f"the metadata has {_shown(piece)} behind the key {_shown(pieces[number - 1])}, "
                "where ':' and a value in quotes belong"
            )


def _shown(piece: str) -> str:
    return repr(_plain(shortened(piece)))


def _plain(marked: str) -> str:
    """A marked text as it stands in the file."""
    return marked.replace(_QUOTE, '\\"').replace(_BACKSLASH, "\\\\")


def _unescaped(marked: str) -> str:
    for escape, letter in (("\\n", "\n"), ("\\r", "\r"), ("\\t", "\t")):
        marked = marked.replace(escape, letter)
    return marked.replace(_QUOTE, '"').replace(_BACKSLASH, "\\")
