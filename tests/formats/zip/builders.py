"""Builds zip archives byte by byte, right ones and wrong ones, for the tests of their reader."""

import struct
import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from standfast.formats.zip.archive import Archive, read_archive
from tests.formats.builders import reader_of

LOCAL = (
    "<4s5H3L2H",
    ("signature needed flags method time date crc stored_size size name_length extra_length"),
)
CENTRAL = (
    "<4s6H3L5H2L",
    (
        "signature made_by needed flags method time date crc stored_size size name_length "
        "extra_length comment_length disk internal external header_at"
    ),
)
END = (
    "<4s4H2LH",
    ("signature disk directory_disk here count directory_size directory_at comment_length"),
)
WIDE_END = (
    "<4sQ2H2L4Q",
    ("signature length made_by needed disk directory_disk here count directory_size directory_at"),
)
LOCATOR = "<4sLQL", "signature disk wide_at disks"

WITH_DESCRIPTOR = 1 << 3
UTF8 = 1 << 11

Fields = Mapping[str, int | bytes]


def record(kind: tuple[str, str], *right: int | bytes, **changes: int | bytes) -> bytes:
    """A record of the right values, and of others where they are given."""
    form, names = kind
    fields = dict(zip(names.split(), right, strict=True))
    assert changes.keys() <= fields.keys()
    return struct.pack(form, *(fields | changes).values())


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
    place = (count, count, len(directory), directory_at)
    if wide_end is not None or locator is not None:
        wide_at = len(out)
        out += record(WIDE_END, b"PK\6\6", 44, 45, 45, 0, 0, *place, **(wide_end or {}))
        out += record(LOCATOR, b"PK\6\7", 0, wide_at, 1, **(locator or {}))
    out += record(END, b"PK\5\6", 0, 0, *place, len(comment), **(end or {}))
    return bytes(out) + comment


def _local(piece: Piece) -> bytes:
    size = 0 if piece.flags & WITH_DESCRIPTOR else len(piece.data)
    crc = 0 if piece.flags & WITH_DESCRIPTOR else crc_of(piece.data)
    lies = dict(piece.local)
    name = lies.pop("name", piece.name)
    assert isinstance(name, bytes)
    right = (20, piece.flags, 0, 0, 33, crc, size, size, len(piece.name), len(piece.local_extra))
    return record(LOCAL, b"PK\3\4", *right, **lies) + name + piece.local_extra


def _central(piece: Piece, header_at: int) -> bytes:
    size, extra = len(piece.data), len(piece.central_extra)
    right = (20, 20, piece.flags, 0, 0, 33, crc_of(piece.data), size, size, len(piece.name), extra)
    fixed = record(CENTRAL, b"PK\1\2", *right, 0, 0, 0, 0, header_at, **piece.central)
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
