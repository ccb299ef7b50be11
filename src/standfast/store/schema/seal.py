"""Sealed JSON: objects that carry their own digest, and outlive the version that wrote them.

Run files, marks, the heads of records and the other small files of a store are sealed. A reader
ignores members that it does not know and keeps them when it writes the object again. What it must
know is named by the version in `format` and by the member `needs`: see docs/format.md, "Versions".
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, TypeVar

import msgspec

from standfast.errors import (
    BadField,
    DamagedFile,
    IndexMismatch,
    TooNew,
    TrailingBytes,
    TruncatedFile,
    printable,
    shortened,
)
from standfast.formats.seal import ZEROS, check_seal, sealed
from standfast.store.backends.backend import Reads

DIGITS: Final = len(ZEROS)


class Sealed(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A sealed object; a member that has its default value is not written."""

    others: dict[str, Any] = {}
    """Members that this version does not know; they are written back as they were."""


Object = TypeVar("Object", bound=Sealed)


def encode(format: str, value: Sealed) -> bytes:
    """The object as one line of JSON, without the line break."""
    return seal(format, members(value))


def members(value: Sealed) -> dict[str, Any]:
    """The members of an object, those that this version does not know among them."""
    fields: dict[str, Any] = msgspec.to_builtins(value)
    others: dict[str, Any] = fields.pop("others", {})
    return fields | others


def decode(text: bytes, format: str, kind: type[Object]) -> Object:
    """The object in a line; raises TooNew, or a DamagedFile that says what is wrong."""
    return of_members(unseal(text, format), kind)


def of_members(fields: Mapping[str, Any], kind: type[Object]) -> Object:
    """The object with these members; raises TooNew or BadField."""
    known = set(kind.__struct_fields__) - {"others"}
    others = {key: value for key, value in fields.items() if key not in known}
    check_needs(others.get("needs", []))
    try:
        value = msgspec.convert({key: fields[key] for key in fields.keys() & known}, kind)
    except msgspec.ValidationError as error:
        raise BadField(printable(shortened(str(error)))) from error
    return msgspec.structs.replace(value, others=others) if others else value


def read(backend: Reads, path: str, format: str, kind: type[Object], limit: int) -> Object:
    """The object in a small file; raises MissingFile, TooNew or a DamagedFile, with the path."""
    text = backend.read(path, limit)
    try:
        return decode(line_of(text, format), format, kind)
    except (DamagedFile, TooNew) as error:
        error.args = (f"{path}: {error}", *error.args[1:])
        raise


def line_of(text: bytes, format: str) -> bytes:
    """The one line of a file that is a sealed object; raises a DamagedFile if it is not one.

    Raises TooNew if it begins as a file of a newer version, which may have more lines.
    """
    line, end, rest = text.partition(b"\n")
    if not end:
        raise TruncatedFile("it ends without a line break")
    if rest:
        check_sealed(line, format)
        raise TrailingBytes(f"{len(rest):,} bytes after its line")
    return line


def check_needs(needs: Any) -> None:
    """Raise TooNew if something is needed: this version knows nothing by such a name."""
    if not isinstance(needs, list) or not all(isinstance(each, str) for each in needs):
        raise BadField("field needs: expected a list of strings")
    if needs:
        raise TooNew(
            f"it needs {printable(shortened(', '.join(needs)))}, which this version of Standfast "
            "does not know: install a newer one"
        )


def seal(format: str, fields: Mapping[str, Any]) -> bytes:
    """The fields as one line of JSON, without the line break, that begins with format and seal."""
    start = _start(format)
    members = msgspec.json.encode(fields)[1:]
    text = b"".join((start, ZEROS, b'",' if fields else b'"', members))
    return sealed(text, len(start))


def unseal(text: bytes, format: str) -> dict[str, Any]:
    """The fields that were sealed; raises TooNew, or a DamagedFile that says what is wrong."""
    check_sealed(text, format)
    try:
        fields: dict[str, Any] = msgspec.json.decode(text)
        same = msgspec.json.encode(fields) == text
    except (ValueError, RecursionError) as error:
        raise BadField(f"not valid JSON ({error})") from error
    if not same:
        raise BadField("a duplicate key, or JSON that is not in its shortest form")
    del fields["format"], fields["seal"]
    return fields


def check_sealed(text: bytes, format: str) -> None:
    """Raise TooNew or a DamagedFile unless every byte is what was sealed, whatever it says."""
    start = _start(format)
    newer = None if text.startswith(start) else _newer(text, format)
    if newer is not None:
        start = _start(newer)
    elif not text.startswith(start):
        raise BadField(f"it does not begin with {start.decode()!r}: found {text[:40]!r}")
    try:
        digits = text[len(start) : len(start) + DIGITS].decode("ascii")
        check_seal(digits, text, len(start))
    except (UnicodeDecodeError, IndexMismatch):
        raise IndexMismatch("it does not match its own digest (field seal)") from None
    if newer is not None:
        raise TooNew(f"it is a {newer}, and this version reads {format}: install a newer Standfast")


def _start(format: str) -> bytes:
    return b'{"format":"%b","seal":"' % format.encode()


def _newer(text: bytes, format: str) -> str | None:
    """The format of a text, if it is a later version of this one."""
    name, _, version = format.rpartition(" ")
    start = b'{"format":"%b ' % name.encode()
    found = text[len(start) :].partition(b'"')[0]
    is_newer = (
        text.startswith(start)
        and found.isdigit()
        and not found.startswith(b"0")
        and len(found) < 10
        and int(found) > int(version)
    )
    return f"{name} {found.decode()}" if is_newer else None
