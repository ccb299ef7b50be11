"""The JSON header of a safetensors file: parsed quickly if it is sound, strictly if not."""

from __future__ import annotations

import json
import re
import sys
from typing import Annotated, Any, Final

import msgspec

from standfast.errors import BadField, BadHeader, DuplicateKey, printable, shortened
from standfast.formats.limits import MAX_NAME, MAX_RANK
from standfast.formats.metadata import (
    MAX_DEPTH,
    bounded_integer,
    is_nested_deeply,
    unique_pairs,
)

_Size = Annotated[int, msgspec.Meta(ge=0, le=1 << 59)]


class Entry(msgspec.Struct, forbid_unknown_fields=True, gc=False):
    """What the header says of one tensor."""

    dtype: str
    shape: Annotated[tuple[_Size, ...], msgspec.Meta(max_length=MAX_RANK)]
    data_offsets: tuple[_Size, _Size]


Entries = dict[str, Entry]


def parse_header(header: bytes) -> tuple[dict[str, str], Entries]:
    """The metadata and the entries; duplicate keys are refused at every level."""
    return _parse_fast(header) or _parse_strictly(header)


def _parse_fast(header: bytes) -> tuple[dict[str, str], Entries] | None:
    """What nearly every writer writes, quickly; None if only the strict way can be sure.

    Copies of a header of many megabytes are what takes the time, so there is only one.
    """
    strings: dict[str, str] = {}
    start = 8
    text = bytearray(header)
    try:
        if header.startswith(_METADATA, 8):
            start = _end_of_strings(header, 8 + len(_METADATA))
            if header[start : start + 2] != b',"':
                return None
            metadata = header[8 + len(_METADATA) : start].decode()
            msgspec.json.decode(metadata, type=dict[str, str])  # which never nests
            strings = json.loads(metadata, object_pairs_hook=unique_pairs)
            text[start] = ord("{")  # in the place of the comma
        if not 0 < sys.get_int_max_str_digits() < 10_000 and re.search(rb"\d{30}", header):
            return None  # Python's guard against endless numbers was taken away
        entries = msgspec.json.decode(memoryview(text)[start:], type=Entries)
    except (ValueError, RecursionError):
        return None
    # The decoder keeps the last of two equal keys silently. No entry lacks a field, so if each
    # field's name stands just once an entry, there was no second entry and no second field.
    # Only an escaped letter could hide one from this count.
    fields = (b'"dtype"', b'"shape"', b'"data_offsets"')
    once = all(text.count(field, start) == len(entries) for field in fields)
    # It also takes -0 for a size. (One letter is looked for ten times as fast as two.)
    rare = any(text.find(c, start) >= 0 and text.find(s, start) >= 0 for c, s in _RARE.items())
    if not once or rare or "__metadata__" in entries:
        return None
    return strings, entries


_METADATA: Final = b'{"__metadata__":'
_RARE: Final = {b"\\": b"\\u", b"-": b"-0"}


def _end_of_strings(header: bytes, start: int) -> int:
    """Where an object that holds only strings ends: after the first brace outside of them."""
    at, brace, inside = start, -1, False
    for _ in range(10_000):  # more quotes than that are quicker done by a real decoder
        if brace < at:
            brace = header.index(b"}", at)
        quote = header.find(b'"', at)
        if not inside and (quote < 0 or brace < quote):
            return brace + 1
        if quote < 0:
            break
        if not inside or not _is_escaped(header, quote):
            inside = not inside
        at = quote + 1
    raise ValueError


def _is_escaped(header: bytes, quote: int) -> bool:
    before = header[max(0, quote - 64) : quote]
    return (len(before) - len(before.rstrip(b"\\"))) % 2 == 1


class _Pairs(list[tuple[str, Any]]):
    """A JSON object as it stands in the text, each key as often as it does."""


def _parse_strictly(header: bytes) -> tuple[dict[str, str], Entries]:
    """The slow way, which sees every duplicate and can say what is wrong with which tensor."""
    members = _members(_decode(header), "")
    strings = members.pop("__metadata__", _Pairs())
    if not isinstance(strings, _Pairs):
        raise BadField(f"__metadata__: expected an object, found {type(strings).__name__}")
    strings = _members(strings, "__metadata__: ")
    _check_strings(strings)
    entries = {}
    for name, member in members.items():
        if not _is_unicode(name):
            raise BadHeader(f"{locate(name, header)}: the name is not valid Unicode")
        try:
            entries[name] = msgspec.convert(_fields(member), Entry)
        except DuplicateKey as error:
            raise DuplicateKey(f"{locate(name, header)}: {error}") from None
        except UnicodeEncodeError as error:
            raise BadHeader(f"{locate(name, header)}: a field is not valid Unicode") from error
        except msgspec.ValidationError as error:
            reason = shortened(printable(str(error).replace("`", "").replace("$.", "field ")))
            raise BadField(f"{locate(name, header)}: {reason}") from error
    return strings, entries


def _fields(member: Any) -> Any:
    """An entry's fields, each once; what else is an object inside becomes a plain one."""
    if not isinstance(member, _Pairs):
        return member
    fields = unique_pairs(member)
    return {key: dict(v) if isinstance(v, _Pairs) else v for key, v in fields.items()}


def _decode(header: bytes) -> _Pairs:
    try:
        text = header[8:].decode()
    except UnicodeDecodeError as error:
        raise BadHeader(f"offset {8 + error.start}: not UTF-8 ({error.reason})") from error
    if is_nested_deeply(header[8:]):
        raise BadHeader(f"the header nests deeper than {MAX_DEPTH} levels")
    try:
        decoded: _Pairs = json.loads(
            text, object_pairs_hook=_Pairs, parse_int=_integer, parse_constant=_no_constant
        )
    except json.JSONDecodeError as error:
        at = 8 + len(text[: error.pos].encode())
        raise BadHeader(f"offset {at}: the header is not JSON ({error.msg})") from error
    except (ValueError, RecursionError) as error:
        raise BadHeader(f"the header is not JSON ({error})") from error
    return decoded


def _integer(text: str) -> int | float:
    # -0 is none of our sizes: as a float it is refused where it stands.
    return -0.0 if text == "-0" else bounded_integer(text)


def _no_constant(name: str) -> Any:
    raise ValueError(f"it holds {name}")


def _members(pairs: _Pairs, where: str) -> dict[str, Any]:
    try:
        return unique_pairs(pairs)
    except DuplicateKey as error:
        raise DuplicateKey(f"{where}{error}") from None


def _check_strings(strings: dict[str, Any]) -> None:
    for key, value in strings.items():
        if not isinstance(value, str):
            raise BadField(
                f"__metadata__[{shortened(key)!r}]: expected a string, "
                f"found {'object' if isinstance(value, _Pairs) else type(value).__name__}"
            )
        if not (_is_unicode(key) and _is_unicode(value)):
            raise BadHeader(f"__metadata__[{shortened(key)!r}]: not valid Unicode")


def _is_unicode(text: str) -> bool:
    try:
        text.isascii() or text.encode()
    except UnicodeEncodeError:
        return False
    return True


def locate(name: str, header: bytes) -> str:
    """A tensor and the offset of its header entry, for a message."""
    if len(name) > MAX_NAME:
        return f"tensor {shortened(name)!r}"
    for behind in (rb"\s*:\s*\{\s*\"", rb"\s*:"):
        for ascii in (False, True):
            quoted = json.dumps(name, ensure_ascii=ascii).encode(errors="replace")
            if found := re.search(re.escape(quoted) + behind, header):
                return f"tensor {shortened(name)!r} (offset {found.start()})"
    return f"tensor {shortened(name)!r}"
