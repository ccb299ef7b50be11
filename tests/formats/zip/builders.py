"""Builds zip archives byte by byte, right ones and wrong ones, for the tests of their reader."""

from __future__ import annotations

import struct
import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from standfast.formats.zip.archive import Archive, read_archive
from tests.formats.builders import reader_of

LOCAL = "<4s5H3L2H"
CENTRAL = "<4s6H3L5H2L"
END = "<4s4H2LH"
WIDE_END = "<4sQ2H2L4Q"
LOCATOR = "<4sLQL"

WITH_DESCRIPTOR = 1 << 3
UTF8 = 1 << 11

Fields = Mapping[str, int | bytes]


@dataclass(frozen=True)
class Piece:
    """An entry; `local` and `central` are fields whose values lie, by their names below."""

    name: bytes = b"a"
    data: bytes = b"data"
    flags: int = 0
    local: Fields = field(default_factory=dict)
    central: Fields = field(default_factory=dict)
    local_extra: bytes = b""
    central_extra: bytes = b""
    behind: bytes = b""
    """What follows the data, such as a descriptor."""
    listed: bool = True


def crc_of(data: bytes) -> int:
    return zlib.crc32(data)


def extra(kind: int, content: bytes) -> bytes:
    return struct.pack("<2H", kind, len(content)) + content


def wide(*numbers: int) -> bytes:
    """A zip64 extra field."""
    return extra(1, struct.pack(f"<{len(numbers)}Q", *numbers))


def descriptor(data: bytes, form: str = "<3L", signature: bytes = b"PK\7\x08") -> bytes:
    return signature + struct.pack(form, crc_of(data), len(data), len(data))


def archive(
    *pieces: Piece,
    comment: bytes = b"",
    before_directory: bytes = b"",
    after_directory: bytes = b"",
    wide_end: Fields | None = None,
    locator: Fields | None = None,
    end: Fields | None = None,
) -> bytes:
    """A file of these entries; the zip64 end records are left out unless one is asked for."""
    out = bytearray()
    records = []
    for piece in pieces:
        header_at = len(out)
        out += _local(piece) + piece.data + piece.behind
        if piece.listed:
            records.append(_central(piece, header_at))
    out += before_directory
    directory_at, directory = len(out), b"".join(records)
    out += directory + after_directory
    count = len(records)
    if wide_end is not None or locator is not None:
        wide_at = len(out)
        fields: dict[str, int | bytes] = {
            "signature": b"PK\6\6",
            "length": 44,
            "made_by": 45,
            "needed": 45,
            "disk": 0,
            "directory_disk": 0,
            "here": count,
            "count": count,
            "directory_size": len(directory),
            "directory_at": directory_at,
        }
        out += struct.pack(WIDE_END, *(fields | dict(wide_end or {})).values())
        fields = {"signature": b"PK\6\7", "disk": 0, "wide_at": wide_at, "disks": 1}
        out += struct.pack(LOCATOR, *(fields | dict(locator or {})).values())
    fields = {
        "signature": b"PK\5\6",
        "disk": 0,
        "directory_disk": 0,
        "here": count,
        "count": count,
        "directory_size": len(directory),
        "directory_at": directory_at,
        "comment_length": len(comment),
    }
    out += struct.pack(END, *(fields | dict(end or {})).values()) + comment
    return bytes(out)


def _local(piece: Piece) -> bytes:
    open_sizes = piece.flags & WITH_DESCRIPTOR
    fields: dict[str, int | bytes] = {
        "signature": b"PK\3\4",
        "needed": 20,
        "flags": piece.flags,
        "method": 0,
        "time": 0,
        "date": 33,
        "crc": 0 if open_sizes else crc_of(piece.data),
        "stored_size": 0 if open_sizes else len(piece.data),
        "size": 0 if open_sizes else len(piece.data),
        "name_length": len(piece.name),
        "extra_length": len(piece.local_extra),
    }
    name = piece.local.get("name", piece.name)
    assert isinstance(name, bytes)
    lies = {key: value for key, value in piece.local.items() if key != "name"}
    return struct.pack(LOCAL, *(fields | lies).values()) + name + piece.local_extra


def _central(piece: Piece, header_at: int) -> bytes:
    fields: dict[str, int | bytes] = {
        "signature": b"PK\1\2",
        "made_by": 20,
        "needed": 20,
        "flags": piece.flags,
        "method": 0,
        "time": 0,
        "date": 33,
        "crc": crc_of(piece.data),
        "stored_size": len(piece.data),
        "size": len(piece.data),
        "name_length": len(piece.name),
        "extra_length": len(piece.central_extra),
        "comment_length": 0,
        "disk": 0,
        "internal": 0,
        "external": 0,
        "header_at": header_at,
    }
    fixed = struct.pack(CENTRAL, *(fields | dict(piece.central)).values())
    return fixed + piece.name + piece.central_extra


# Reading


def archive_of(data: bytes) -> Archive:
    return read_archive(reader_of(data), len(data))


def sparse_reader(parts: Sequence[tuple[int, bytes]]) -> Callable[[int, int], bytes]:
    """A `read` of a file that has these bytes at these offsets and zeros elsewhere."""

    def read(start: int, length: int) -> bytes:
        out = bytearray(length)
        for at, data in parts:
            first, last = max(start, at), min(start + length, at + len(data))
            if first < last:
                out[first - start : last - start] = data[first - at : last - at]
        return bytes(out)

    return read
