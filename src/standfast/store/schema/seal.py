"""JSON objects that carry their own digest: run files, marks, the heads of records."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import msgspec

from standfast.errors import BadField, IndexMismatch, UnsupportedFile
from standfast.formats.seal import ZEROS, check_seal, sealed

DIGITS: Final = len(ZEROS)


def seal(format: str, fields: Mapping[str, Any]) -> bytes:
    """The fields as one line of JSON, without the line break, that begins with format and seal."""
    start = _start(format)
    text = b"".join((start, ZEROS, b'",', msgspec.json.encode(fields)[1:]))
    return sealed(text, len(start))


def unseal(text: bytes, format: str) -> dict[str, Any]:
    """The fields that were sealed; raises a DamagedFile that says what is wrong."""
    check_sealed(text, format)
    try:
        fields: dict[str, Any] = msgspec.json.decode(text)
        same = msgspec.json.encode(fields) == text
    except (ValueError, RecursionError) as error:
        raise BadField(f"it is no JSON ({error})") from error
    if not same:
        raise BadField("a key stands twice, or it is not in its shortest form")
    del fields["format"], fields["seal"]
    return fields


def check_sealed(text: bytes, format: str) -> None:
    """Raise a DamagedFile unless every byte is what was sealed, whatever it says."""
    start = _start(format)
    if not text.startswith(start):
        _refuse_version(text, format)
        raise BadField(f"it does not begin with {start.decode()!r}: found {text[:40]!r}")
    try:
        digits = text[len(start) : len(start) + DIGITS].decode("ascii")
        check_seal(digits, text, len(start))
    except (UnicodeDecodeError, IndexMismatch):
        raise IndexMismatch("it does not match its own digest (field seal)") from None


def _start(format: str) -> bytes:
    return b'{"format":"%b","seal":"' % format.encode()


def _refuse_version(text: bytes, format: str) -> None:
    name, _, version = format.rpartition(" ")
    start = _start(name)[: -len(b'","seal":"')] + b" "
    found = text[len(start) :].partition(b'"')[0]
    if text.startswith(start) and found.isdigit() and len(found) < 10 and int(found) > int(version):
        raise UnsupportedFile(
            f"it is a {name} of version {int(found)}, and this is a reader of version {version}: "
            "install a newer Standfast"
        )
