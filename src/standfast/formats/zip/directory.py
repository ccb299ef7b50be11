"""The end of a zip archive and its central directory, read strictly."""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

import numpy as np

from standfast.errors import (
    BadArchive,
    BadRange,
    DuplicateKey,
    LimitExceeded,
    StandfastError,
    TrailingBytes,
    TruncatedFile,
    UnsupportedFile,
    shortened,
)
from standfast.formats.reader import Read
from standfast.formats.zip.records import (
    CENTRAL,
    CENTRAL_SIGNATURE,
    DEFLATED,
    END,
    END_SIGNATURE,
    EXTRA,
    HAS_DESCRIPTOR,
    IS_UTF8,
    LOCAL_SIGNATURE,
    LOCATOR,
    LOCATOR_SIGNATURE,
    MAX_COUNT,
    MAX_NARROW,
    MAX_TEXT,
    STORED,
    UNICODE_NAME_EXTRA,
    WIDE_END,
    WIDE_END_SIGNATURE,
    WIDE_EXTRA,
)

MAX_DIRECTORY: Final = 256 << 20
MAX_ENTRIES: Final = 1 << 20
MAX_SIZE: Final = 1 << 61
"""No file is as long, and sums of two such numbers do not overflow."""
MAX_INFLATION: Final = 1032
"""Deflate gives at most 258 bytes for two bits."""
MAX_VERSION: Final = 63
"""6.3 of the zip format, the last one."""

_ALLOWED_FLAGS: Final = 0b110 | HAS_DESCRIPTOR | IS_UTF8
"""Bits 1 and 2 tell how hard the deflater tried."""

Column = np.ndarray[Any, Any]


def where(name: str, at: int) -> str:
    """How a message names an entry and the place of its trouble."""
    return f"entry {shortened(name)!r} (offset {at:,})"


# Reading the end of the file


class End(NamedTuple):
    """What the records at the end of the file say of the directory."""

    entry_count: int
    directory_size: int
    directory_at: int
    comment: bytes


def read_end(read: Read, size: int) -> End:
    """The end records of a file of `size` bytes, which fix the place of the directory."""
    tail_at = max(0, size - MAX_TEXT - END.size - LOCATOR.size - WIDE_END.size)
    tail = read(tail_at, size - tail_at)
    at = _find_end(read, tail, size)
    fields = END.unpack_from(tail, at)
    _, disk, directory_disk, here, count, directory_size, directory_at, _ = fields
    place = f"end record (offset {tail_at + at:,})"
    if disk or directory_disk or here != count:
        raise UnsupportedFile(f"{place}: the archive spans several disks")
    end = End(count, directory_size, directory_at, tail[at + END.size :])
    locator_at = at - LOCATOR.size
    if locator_at >= 0 and tail.startswith(LOCATOR_SIGNATURE, locator_at):
        end = _read_wide_end(tail, tail_at, locator_at, end)
        at = locator_at - WIDE_END.size
    if end.directory_size > MAX_DIRECTORY:
        raise LimitExceeded(
            f"{place}: a directory of {end.directory_size:,} bytes, over {MAX_DIRECTORY:,}"
        )
    if end.entry_count > MAX_ENTRIES:
        raise LimitExceeded(f"{place}: {end.entry_count:,} entries, over {MAX_ENTRIES:,}")
    if end.directory_at + end.directory_size != tail_at + at:
        raise BadRange(
            f"{place}: a directory of {end.directory_size:,} bytes at offset "
            f"{end.directory_at:,} does not end where the end records start, at {tail_at + at:,}"
        )
    return end


def _find_end(read: Read, tail: bytes, size: int) -> int:
    """Where in the tail the end record is; it must be the only one that could be meant."""
    signatures = list(_occurrences(tail, END_SIGNATURE))
    if not signatures:
        start = read(0, min(len(LOCAL_SIGNATURE), size))
        if LOCAL_SIGNATURE.startswith(start):
            raise TruncatedFile(f"the file ends after {size:,} bytes without an end record")
        raise BadArchive(f"no zip archive: it starts with {start!r} and has no end record")
    last = signatures[-1]
    place = f"end record (offset {size - len(tail) + last:,})"
    reaching = [at for at in signatures if _comment_stop(tail, at) == len(tail)]
    # Programs differ in which of several they take, and in whether a comment can hold one.
    if len(reaching) > 1 or (reaching and reaching[0] != last):
        raise BadArchive(f"{place}: another one stands before it, whose comment holds this one")
    missing = _comment_stop(tail, last) - len(tail)
    if missing > 0:
        raise TruncatedFile(f"{place}: the file ends {missing:,} bytes before its comment does")
    if missing < 0:
        raise TrailingBytes(f"{place}: {-missing:,} bytes follow it")
    return last


def _occurrences(data: bytes, what: bytes) -> Iterator[int]:
    at = data.find(what)
    while at >= 0:
        yield at
        at = data.find(what, at + 1)


def _comment_stop(tail: bytes, at: int) -> int:
    stop = at + END.size
    return stop + int.from_bytes(tail[stop - 2 : stop], "little") if stop <= len(tail) else stop


def _read_wide_end(tail: bytes, tail_at: int, locator_at: int, narrow: End) -> End:
    """The zip64 end record; the other one must say the same wherever it says something."""
    _, disk, wide_at, disks = LOCATOR.unpack_from(tail, locator_at)
    place = f"zip64 end locator (offset {tail_at + locator_at:,})"
    at = locator_at - WIDE_END.size
    if at < 0 or wide_at != tail_at + at or not tail.startswith(WIDE_END_SIGNATURE, at):
        raise BadArchive(
            f"{place}: the zip64 end record is not right before it, but at {wide_at:,}"
        )
    if disk or disks != 1:
        raise UnsupportedFile(f"{place}: the archive spans {disks:,} disks")
    place = f"zip64 end record (offset {wide_at:,})"
    _, length, _, _, disk, directory_disk, here, *directory = WIDE_END.unpack_from(tail, at)
    wide = End._make((*directory, narrow.comment))
    if length != WIDE_END.size - 12:
        raise BadArchive(f"{place}: its length is {length:,}, expected {WIDE_END.size - 12}")
    if disk or directory_disk or here != wide.entry_count:
        raise UnsupportedFile(f"{place}: the archive spans several disks")
    for own, other, unknown in zip(wide, narrow, (MAX_COUNT, MAX_NARROW, MAX_NARROW), strict=False):
        if other not in (own, unknown):
            raise BadArchive(f"{place}: it says {own} where the end record says {other}")
    return wide


# Reading the directory

IS_FOLDER: Final = 1 << 4
"""Among the attributes, as MS-DOS has it."""
_CENTRAL_FIELDS: Final = np.dtype(
    {
        "names": (
            "signature version flags method crc stored_size size lengths disk attributes "
            "header_at".split()
        ),
        "formats": ["<u4", "u1", "<u2", "<u2", "<u4", "<u4", "<u4", "<3u2", "<u2", "u1", "<u4"],
        "offsets": [0, 6, 8, 10, 16, 20, 24, 28, 34, 38, 42],
        "itemsize": CENTRAL.size,
    }
)
_ROW: Final = np.dtype(
    [
        ("flags", "u2"),
        ("method", "u2"),
        ("crc", "u4"),
        ("stored_size", "i8"),
        ("size", "i8"),
        ("header_at", "i8"),
    ]
)


@dataclass(frozen=True, slots=True)
class Listing:
    """What the directory says of its entries: names, and a row of numbers for each."""

    names: list[str]
    raw_names: list[bytes]
    rows: Column

    def __len__(self) -> int:
        return len(self.names)

    def __getitem__(self, rows: slice) -> Listing:
        return Listing(self.names[rows], self.raw_names[rows], self.rows[rows])

    def ordered(self) -> Listing:
        """The same entries in the order of the file."""
        order = np.argsort(self.rows["header_at"], kind="stable")
        names = [(self.names[row], self.raw_names[row]) for row in order.tolist()]
        return Listing([name for name, _ in names], [raw for _, raw in names], self.rows[order])

    def refuse(self, wrong: Column, error: type[StandfastError], message: str) -> None:
        """Raise the error for the first row that is wrong; the message may name its fields."""
        found = np.flatnonzero(wrong)
        if found.size:
            row = int(found[0])
            numbers = dict(zip(_ROW.names or (), self.rows[row].tolist(), strict=True))
            place = where(self.names[row], numbers["header_at"])
            raise error(f"{place}: {message.format(**numbers)}")


def read_directory(directory: bytes, end: End) -> Listing:
    """The entries that the directory lists, in the order of the file."""
    records_at = _record_offsets(directory, end)
    records = gather(directory, records_at, _CENTRAL_FIELDS)
    places = (end.directory_at + records_at).tolist()
    for row in np.flatnonzero(records["signature"] != number(CENTRAL_SIGNATURE)).tolist():
        raise BadArchive(f"directory record (offset {places[row]:,}): no such record is there")
    name_lengths, extra_lengths, _ = records["lengths"].T
    names_at = records_at + CENTRAL.size
    extras_at = names_at + name_lengths
    raw_names = slices(directory, names_at, extras_at)
    names = list(map(decode_name, raw_names, records["flags"].tolist(), places))
    rows = np.empty(len(names), _ROW)
    for field in _ROW.names or ():
        rows[field] = records[field]
    extras = slices(directory, extras_at, extras_at + extra_lengths)
    widen_rows((rows["size"], rows["stored_size"], rows["header_at"]), extras, names, places)
    listing = Listing(names, raw_names, rows)
    listing.refuse(records["disk"] > 0, UnsupportedFile, "it lies on another disk")
    # torch takes such an entry for a folder, and gives memory that was never written to.
    folder = records["attributes"] & IS_FOLDER > 0
    listing.refuse(folder, BadArchive, "by its attributes it is a folder")
    newer = records["version"] > MAX_VERSION
    listing.refuse(newer, UnsupportedFile, "it asks for a newer version of the zip format")
    _check_kinds(listing)
    _check_names(listing)
    return listing.ordered()


def _record_offsets(directory: bytes, end: End) -> Column:
    """Where in the directory the records start; they have to fill it."""
    if end.entry_count * CENTRAL.size > len(directory):
        raise BadArchive(f"a directory of {len(directory):,} bytes for {end.entry_count:,} entries")
    read_lengths = struct.Struct("<28x3H12x").unpack_from
    offsets = []
    at = 0
    try:
        for _ in range(end.entry_count):
            offsets.append(at)
            at += CENTRAL.size + sum(read_lengths(directory, at))
    except struct.error:
        at = len(directory) + 1
    if at > len(directory):
        place = end.directory_at + offsets[-1]
        raise BadArchive(f"directory record (offset {place:,}): the directory ends within it")
    if at < len(directory):
        raise BadArchive(
            f"the directory (offset {end.directory_at:,}) has {len(directory) - at:,} bytes more "
            f"than its {end.entry_count:,} entries"
        )
    return np.array(offsets, np.int64)


def _check_kinds(listing: Listing) -> None:
    """Each entry must be of a kind that is read, and its sizes possible."""
    flags, method = listing.rows["flags"], listing.rows["method"]
    size, stored_size = listing.rows["size"], listing.rows["stored_size"]
    refuse = listing.refuse
    refuse(flags & 1 > 0, UnsupportedFile, "it is encrypted (flags {flags:#06x})")
    unknown = flags & (0xFFFF - _ALLOWED_FLAGS) > 0
    refuse(unknown, UnsupportedFile, "it uses features that are not read (flags {flags:#06x})")
    unknown = (method != STORED) & (method != DEFLATED)
    refuse(
        unknown, UnsupportedFile, "compression method {method}: read are 0, none, and 8, deflate"
    )
    lying = (method == STORED) & (size != stored_size)
    refuse(lying, BadArchive, "not compressed, yet {stored_size:,} bytes stand for {size:,}")
    lying = -(-size // MAX_INFLATION) > stored_size
    refuse(lying, LimitExceeded, "{stored_size:,} bytes never inflate to {size:,}")


def _check_names(listing: Listing) -> None:
    if len(set(listing.names)) < len(listing.names):
        _, first = np.unique(np.array(listing.names, object), return_index=True)
        again = np.ones(len(listing.names), bool)
        again[first] = False
        listing.refuse(again, DuplicateKey, "another entry has this name too")


def decode_name(raw_name: bytes, flags: int, at: int) -> str:
    """The name of the entry whose record is at the offset `at`."""
    try:
        name = raw_name.decode("utf-8" if flags & IS_UTF8 or raw_name.isascii() else "cp437")
    except UnicodeDecodeError as error:
        raise BadArchive(f"entry {raw_name[:200]!r} (offset {at:,}): {error.reason}") from error
    if not name or "\0" in name:
        raise BadArchive(f"{where(name, at)}: the name is empty or holds a NUL")
    if name[-1] == "/":
        raise BadArchive(f"{where(name, at)}: a folder, which no writer of tensors writes")
    return name


def extra_fields(extra: bytes, name: str, at: int) -> list[tuple[int, bytes]]:
    """The ids and contents of the extra fields; they must fill the space they were given."""
    found = []
    start = 0
    while start < len(extra):
        content_at = start + EXTRA.size
        if content_at > len(extra):
            raise BadArchive(f"{where(name, at)}: extra fields: {extra[start:]!r} is none")
        kind, length = EXTRA.unpack_from(extra, start)
        start = content_at + length
        if start > len(extra):
            raise BadArchive(f"{where(name, at)}: extra field {kind:#06x}: it is cut off")
        found.append((kind, extra[content_at:start]))
    return found


def widen_rows(
    columns: Sequence[Column], extras: list[bytes], names: list[str], places: list[int]
) -> None:
    """Fill in the numbers that 32 bits cannot hold from the rows' zip64 extra fields."""
    numbers = list(zip(*(column.tolist() for column in columns), strict=True))
    for row, extra in enumerate(extras):
        if extra:
            for column, value in zip(
                columns, widen(extra, numbers[row], names[row], places[row]), strict=True
            ):
                column[row] = value


def widen(extra: bytes, narrow: Sequence[int], name: str, at: int) -> Sequence[int]:
    """The numbers, with those that 32 bits cannot hold taken from the zip64 extra field."""
    count = narrow.count(MAX_NARROW)
    wide = _wide_content(extra, name, at)
    if wide is None:
        return narrow
    if len(wide) != 8 * count:
        raise BadArchive(
            f"{where(name, at)}: zip64 extra field: {len(wide)} bytes for {count} numbers"
        )
    values = struct.unpack(f"<{count}Q", wide)
    if max(values, default=0) > MAX_SIZE:
        raise LimitExceeded(f"{where(name, at)}: zip64 extra field: {max(values):,} bytes")
    rest = iter(values)
    return [next(rest) if value == MAX_NARROW else value for value in narrow]


def _wide_content(extra: bytes, name: str, at: int) -> bytes | None:
    """The content of the zip64 extra field, if there is one."""
    wide = None
    for kind, content in extra_fields(extra, name, at):
        if kind == UNICODE_NAME_EXTRA:
            # Some programs take it for the name, some do not.
            raise UnsupportedFile(f"{where(name, at)}: a second name, in extra field 0x7075")
        if kind == WIDE_EXTRA:
            if wide is not None:
                raise BadArchive(f"{where(name, at)}: two zip64 extra fields")
            wide = content
    return wide


def gather(data: bytes, at: Column, record: np.dtype[Any]) -> Column:
    """The records that start at these places of the data."""
    if not at.size:
        return np.empty(0, record)
    array = np.frombuffer(data, np.uint8)
    windows = np.lib.stride_tricks.sliding_window_view(array, record.itemsize)
    return np.asarray(windows[at].view(record)[:, 0])


def slices(data: bytes, starts: Column, stops: Column) -> list[bytes]:
    """The bytes from each start to its stop."""
    return [data[a:b] for a, b in zip(starts.tolist(), stops.tolist(), strict=True)]


def number(signature: bytes) -> int:
    """A signature as it stands in a gathered record."""
    return int.from_bytes(signature, "little")
