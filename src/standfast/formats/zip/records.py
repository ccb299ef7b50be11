"""The records of a zip archive, byte by byte, and how Standfast builds them.

An archive is its entries one after the other, each a local header, its bytes and perhaps a
descriptor; then the central directory, which lists them; then the records that end the file.
Numbers beyond 32 bits stand in zip64 records and extra fields, the wide ones here. Headers go
out before the bytes did, so they leave the checksum to a descriptor.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from standfast.errors import BadName, RefusedMetadata, shortened

MAX_TEXT: Final = 0xFFFF
MAX_COUNT: Final = 0xFFFF
MAX_NARROW: Final = 0xFFFFFFFF
"""In the place of a size or an offset it says that the wide record has it."""
MAX_ALIGN: Final = 1 << 15
"""The padding has to go into an extra field of less than 64 KiB."""

LOCAL: Final = struct.Struct("<4s5H3L2H")
CENTRAL: Final = struct.Struct("<4s6H3L5H2L")
END: Final = struct.Struct("<4s4H2LH")
WIDE_END: Final = struct.Struct("<4sQ2H2L4Q")
LOCATOR: Final = struct.Struct("<4sLQL")
EXTRA: Final = struct.Struct("<2H")

LOCAL_SIGNATURE: Final = b"PK\3\4"
CENTRAL_SIGNATURE: Final = b"PK\1\2"
DESCRIPTOR_SIGNATURE: Final = b"PK\7\x08"
END_SIGNATURE: Final = b"PK\5\6"
WIDE_END_SIGNATURE: Final = b"PK\6\6"
LOCATOR_SIGNATURE: Final = b"PK\6\7"

HAS_DESCRIPTOR: Final = 1 << 3
IS_UTF8: Final = 1 << 11
STORED: Final = 0
DEFLATED: Final = 8
WIDE_EXTRA: Final = 0x0001
UNICODE_NAME_EXTRA: Final = 0x7075
PADDING_EXTRA: Final = int.from_bytes(b"FB", "little")


@dataclass(frozen=True, slots=True)
class Entry:
    """One entry of an archive, and where it lies in the file."""

    name: str
    header_at: int
    """The offset of its local header."""
    data_at: int
    """The offset of its bytes."""
    stored_size: int
    """How many bytes it takes in the file."""
    size: int
    """How many bytes it has once inflated; the same for one that is not deflated."""
    crc: int
    deflated: bool


_NO_DATE: Final = 1 << 5 | 1
"""1980-01-01, so that equal content gives equal bytes."""
_VERSION: Final = 45
"""4.5, which brought zip64; NumPy too asks for it always."""


def local_header(name: str, size: int, at: int, align: int = 1) -> bytes:
    """What stands before an entry's `size` bytes, if it starts at the offset `at`.

    The bytes will start at a multiple of `align`, at most MAX_ALIGN; a descriptor has to follow.
    """
    encoded = _encode(name)
    # Readers tell the width of the descriptor by this field: so both depend on the size alone.
    extra = _wide_extra(size, size) if size >= MAX_NARROW else b""
    if align > 1:
        padding = -(at + LOCAL.size + len(encoded) + len(extra) + EXTRA.size) % align
        extra += EXTRA.pack(PADDING_EXTRA, padding) + b"Z" * padding
    return _local(encoded, HAS_DESCRIPTOR | IS_UTF8, (0, 0, 0), extra)


def descriptor(crc: int, size: int) -> bytes:
    """What stands behind the bytes of an entry with a `local_header`."""
    sizes = "<L2Q" if size >= MAX_NARROW else "<3L"
    return DESCRIPTOR_SIGNATURE + struct.pack(sizes, crc, size, size)


def whole_entry(name: str, data: bytes, at: int, align: int = 1) -> bytes:
    """An entry whose bytes are at hand, from its local header to its descriptor."""
    header = local_header(name, len(data), at, align)
    return b"".join((header, data, descriptor(zlib.crc32(data), len(data))))


def unlisted_header(name: str, crc: int, size: int) -> bytes:
    """The header of an entry that the directory will not list; nothing follows its bytes."""
    if size < MAX_NARROW:
        return _local(_encode(name), IS_UTF8, (crc, size, size), b"")
    numbers = (crc, MAX_NARROW, MAX_NARROW)
    return _local(_encode(name), IS_UTF8, numbers, _wide_extra(size, size))


def central_directory(entries: Sequence[Entry], at: int, comment: bytes = b"") -> bytes:
    """The end of an archive from the offset `at` on, for entries with a `local_header`."""
    if len(comment) > MAX_TEXT or END_SIGNATURE in comment:
        raise RefusedMetadata(
            f"the archive's comment, of {len(comment):,} bytes: at most {MAX_TEXT:,} can stand "
            f"there, and not {END_SIGNATURE!r}, which ends an archive"
        )
    records = b"".join(map(_central, entries))
    counts = 2 * (len(entries),)
    place = (len(records), at)
    # The wide records are always there, as torch has it: a small file goes the way of a large one.
    kind = (WIDE_END.size - 12, _VERSION, _VERSION, 0, 0)
    wide = WIDE_END.pack(WIDE_END_SIGNATURE, *kind, *counts, *place)
    locator = LOCATOR.pack(LOCATOR_SIGNATURE, 0, at + len(records), 1)
    narrow_counts = (min(count, MAX_COUNT) for count in counts)
    narrow_place = (min(value, MAX_NARROW) for value in place)
    end = END.pack(END_SIGNATURE, 0, 0, *narrow_counts, *narrow_place, len(comment))
    if not at:  # a reader knows an empty archive by its first bytes, which are the end record's
        return end + comment
    return b"".join((records, wide, locator, end, comment))


def _local(encoded: bytes, flags: int, numbers: tuple[int, int, int], extra: bytes) -> bytes:
    kind = (_VERSION, flags, STORED, 0, _NO_DATE)
    return LOCAL.pack(LOCAL_SIGNATURE, *kind, *numbers, len(encoded), len(extra)) + encoded + extra


def _central(entry: Entry) -> bytes:
    encoded = entry.name.encode()
    stored_size, size, header_at = entry.stored_size, entry.size, entry.header_at
    wide: list[int] = []
    if size >= MAX_NARROW or stored_size >= MAX_NARROW:
        wide += (size, stored_size)
        size = stored_size = MAX_NARROW
    if header_at >= MAX_NARROW:
        wide.append(header_at)
        header_at = MAX_NARROW
    extra = _wide_extra(*wide) if wide else b""
    method = DEFLATED if entry.deflated else STORED
    kind = (_VERSION, _VERSION, HAS_DESCRIPTOR | IS_UTF8, method, 0, _NO_DATE)
    numbers = (entry.crc, stored_size, size, len(encoded), len(extra), 0, 0, 0, 0, header_at)
    return CENTRAL.pack(CENTRAL_SIGNATURE, *kind, *numbers) + encoded + extra


def _wide_extra(*numbers: int) -> bytes:
    return EXTRA.pack(WIDE_EXTRA, 8 * len(numbers)) + struct.pack(f"<{len(numbers)}Q", *numbers)


def _encode(name: str) -> bytes:
    try:
        encoded = name.encode()
    except UnicodeEncodeError as error:
        raise BadName(f"entry {shortened(name)!r}: not valid Unicode ({error.reason})") from error
    if not 0 < len(encoded) <= MAX_TEXT:
        raise BadName(
            f"entry {shortened(name)!r}: a name of {len(encoded):,} bytes; "
            f"a zip archive has names of 1 to {MAX_TEXT:,} bytes"
        )
    if b"\0" in encoded or encoded.endswith(b"/"):
        raise BadName(f"entry {shortened(name)!r}: the name holds a NUL, or ends with '/'")
    return encoded
