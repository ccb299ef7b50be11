"""The zip archive that torch's .pt files and NumPy's .npz files are, read strictly.

The directory, the local headers and the places of all bytes must tell the same story, so that no
two programs can see different content in a file that is accepted here.

Refused are, beside what is damaged: bytes that belong to nothing, before, between or behind the
entries; entries for folders, which neither torch nor NumPy writes; encryption, several disks, and
methods other than stored and deflated. Names never become paths, so `..` in one is harmless.

There is one exception: complete, stored entries between the last listed one and the directory.
These are the `unlisted` ones, which other programs pass over.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Final

import numpy as np

from standfast.errors import BadArchive, BadRange, DuplicateKey, LimitExceeded
from standfast.formats.reader import Read
from standfast.formats.zip.directory import (
    Column,
    Listing,
    decode_name,
    extra_fields,
    gather,
    number,
    read_directory,
    read_end,
    slices,
    where,
    widen,
    widen_rows,
)
from standfast.formats.zip.records import (
    DEFLATED,
    DESCRIPTOR_SIGNATURE,
    EXTRA,
    HAS_DESCRIPTOR,
    IS_UTF8,
    LOCAL,
    LOCAL_SIGNATURE,
    MAX_NARROW,
    MAX_TEXT,
    STORED,
    Entry,
)

__all__ = ["Archive", "Entry", "other_ranges", "read_archive"]

MAX_UNLISTED: Final = 64

_NEAR: Final = 4 << 10
"""Reading so many bytes between two headers is cheaper than another read."""
_BATCH: Final = 4 << 20
"""About so many bytes with headers in them are read and checked at once."""

_LOCAL_FIELDS: Final = np.dtype(
    {
        "names": "signature flags method crc stored_size size name_length extra_length".split(),
        "formats": ["<u4", "<u2", "<u2", "<u4", "<u4", "<u4", "<u2", "<u2"],
        "offsets": [0, 6, 8, 14, 18, 22, 26, 28],
        "itemsize": LOCAL.size,
    }
)
_EXTRA_FIELDS: Final = np.dtype([("kind", "<u2"), ("length", "<u2")])
_DESCRIPTORS: Final = {
    12: np.dtype([("crc", "<u4"), ("stored_size", "<u4"), ("size", "<u4")]),
    16: np.dtype([("signature", "<u4"), ("crc", "<u4"), ("stored_size", "<u4"), ("size", "<u4")]),
    20: np.dtype([("crc", "<u4"), ("stored_size", "<i8"), ("size", "<i8")]),
    24: np.dtype([("signature", "<u4"), ("crc", "<u4"), ("stored_size", "<i8"), ("size", "<i8")]),
}
"""The forms of a descriptor by their length: with or without a signature, narrow or wide."""
_LONGEST_DESCRIPTOR: Final = max(_DESCRIPTORS)


@dataclass(frozen=True, slots=True)
class Archive:
    """What lies where in a zip file."""

    entries: list[Entry]
    """Those that the directory lists, in the order of the file."""
    unlisted: list[Entry]
    comment: bytes
    directory_at: int


def read_archive(read: Read, size: int) -> Archive:
    """The archive in a file of `size` bytes; `read(start, length)` gives its bytes.

    The entries' own bytes are not read, so their checksums are left to the caller.
    """
    end = read_end(read, size)
    listing = read_directory(read(end.directory_at, end.directory_size), end)
    entries, at = _read_entries(read, listing, end.directory_at)
    unlisted = _read_unlisted(read, at, end.directory_at, set(listing.names))
    return Archive(entries, unlisted, end.comment, end.directory_at)


def other_ranges(
    archive: Archive, size: int, covered: Sequence[tuple[int, int]]
) -> list[tuple[int, int]]:
    """The byte ranges of the file outside of the `covered` (start, stop) ranges, in order."""
    ranges = []
    at = 0
    for start, stop in sorted(span for span in covered if span[0] < span[1]):
        if start > at:
            ranges.append((at, start))
        at = max(at, stop)
    if at < size:
        ranges.append((at, size))
    return ranges


# The listed entries


def _read_entries(read: Read, listing: Listing, directory_at: int) -> tuple[list[Entry], int]:
    """The entries with the places of their bytes, and where the last of them ends."""
    if not len(listing):
        return [], 0
    rows = listing.rows
    stops = _header_stops(listing, directory_at)
    data_at = np.empty(len(listing), np.int64)
    for batch, buffer, headers_at in _batches(read, rows["header_at"], stops):
        data_at[batch] = _check_headers(listing[batch], buffer, headers_at, stops[batch])
        # An entry's descriptor stands before the next header, and so perhaps in the next batch.
        start = max(batch.start, 1)
        before = slice(start - 1, batch.stop - 1)
        ends = data_at[before] + rows["stored_size"][before]
        gaps = rows["header_at"][start : batch.stop] - ends
        _check_gaps(listing[before], gaps, buffer, headers_at[start - batch.start :])
    columns = (rows["header_at"], data_at, rows["stored_size"], rows["size"], rows["crc"])
    deflated = rows["method"] == DEFLATED
    lists = [column.tolist() for column in (*columns, deflated)]
    end = int(data_at[-1] + rows["stored_size"][-1])
    return list(map(Entry, listing.names, *lists)), _end_of_last(read, listing, end, directory_at)


def _header_stops(listing: Listing, directory_at: int) -> Column:
    """Where each header ends at the latest: the entry's bytes have to fit in behind it."""
    header_at, stored_size = listing.rows["header_at"], listing.rows["stored_size"]
    shortest = header_at + LOCAL.size + np.fromiter(map(len, listing.raw_names), np.int64)
    stops = np.append(header_at[1:], directory_at) - stored_size
    overlaps = shortest > stops
    message = "with {stored_size:,} bytes it runs into the next entry, or into the directory at "
    listing.refuse(overlaps, BadRange, f"{message}{directory_at:,}")
    listing.refuse(header_at[:1] > 0, BadRange, "the first entry does not start the file")
    return np.asarray(np.minimum(stops, shortest + MAX_TEXT))


def _batches(read: Read, header_at: Column, stops: Column) -> Iterator[tuple[slice, bytes, Column]]:
    """Rows, bytes with their headers, and where in these bytes each of the headers starts.

    In front of each header the descriptor of the entry before has its place. Headers that lie
    close together take one read; of others, many are put together to be checked at once.
    """
    starts = np.maximum(header_at - _LONGEST_DESCRIPTOR, 0)
    apart = (starts[1:] - stops[:-1] > _NEAR) | (np.diff(starts // _BATCH) > 0)
    borders = [0, *(np.flatnonzero(apart) + 1).tolist(), len(stops)]
    pieces: list[bytes] = []
    positions: list[Column] = []
    first = size = 0
    for row, next_row in pairwise(borders):
        start = int(starts[row])
        pieces.append(read(start, int(stops[next_row - 1]) - start))
        positions.append(header_at[row:next_row] - start + size)
        size += len(pieces[-1])
        if size >= _BATCH or next_row == len(stops):
            yield slice(first, next_row), b"".join(pieces), np.concatenate(positions)
            pieces, positions, first, size = [], [], next_row, 0


def _check_headers(listing: Listing, buffer: bytes, headers_at: Column, stops: Column) -> Column:
    """Compare local headers with the directory; returns the offsets of the entries' bytes."""
    headers = gather(buffer, headers_at, _LOCAL_FIELDS)
    wrong = headers["signature"] != number(LOCAL_SIGNATURE)
    listing.refuse(wrong, BadArchive, "no local header stands there")
    for field in ("flags", "method"):
        wrong = headers[field] != listing.rows[field]
        message = f"the local header has other {field} than the directory, with {{{field}}}"
        listing.refuse(wrong, BadArchive, message)
    names_at = headers_at + LOCAL.size
    extras_at = names_at + headers["name_length"]
    names = zip(slices(buffer, names_at, extras_at), listing.raw_names, strict=True)
    wrong = np.array([name != raw_name for name, raw_name in names])
    listing.refuse(wrong, BadArchive, "the local header has another name than the directory")
    data_at = listing.rows["header_at"] + (extras_at - headers_at) + headers["extra_length"]
    listing.refuse(data_at > stops, BadRange, "its header leaves no room for its bytes")
    sizes = _read_extras(listing, headers, buffer, extras_at)
    _check_numbers(listing, {"crc": headers["crc"], **sizes})
    return np.asarray(data_at)


def _read_extras(
    listing: Listing, headers: Column, buffer: bytes, extras_at: Column
) -> dict[str, Column]:
    """The sizes in local headers, which may have them in their extra fields."""
    sizes = {field: headers[field].astype(np.int64) for field in ("size", "stored_size")}
    lengths = headers["extra_length"]
    with_descriptor = listing.rows["flags"] & HAS_DESCRIPTOR > 0
    # Nearly always it is one field of padding, which 100,000 entries can have checked at once.
    likely = np.flatnonzero(with_descriptor & (lengths >= EXTRA.size))
    first = gather(buffer, extras_at[likely], _EXTRA_FIELDS)
    unread = lengths > 0
    unread[likely[first["length"] == lengths[likely] - EXTRA.size]] = False
    extras = slices(buffer, extras_at, extras_at + np.where(unread, lengths, 0))
    places = listing.rows["header_at"].tolist()
    for row in np.flatnonzero(unread & with_descriptor).tolist():
        # The zip64 field that torch writes here follows rules of its own, and says no more than
        # the descriptor.
        extra_fields(extras[row], listing.names[row], places[row])
        extras[row] = b""
    widen_rows(tuple(sizes.values()), extras, listing.names, places)
    return sizes


def _check_numbers(listing: Listing, found: dict[str, Column]) -> None:
    """Local headers say what the directory says, or leave it to the descriptor."""
    with_descriptor = listing.rows["flags"] & HAS_DESCRIPTOR > 0
    for field, column in found.items():
        left_open = column == 0
        if field != "crc":
            left_open |= column == MAX_NARROW
        wrong = (column != listing.rows[field]) & ~(with_descriptor & left_open)
        message = f"the local header has another {field} than the directory, with {{{field}:,}}"
        listing.refuse(wrong, BadArchive, message)


# Between the entries


def _check_gaps(listing: Listing, gaps: Column, buffer: bytes, next_headers_at: Column) -> None:
    """Between an entry's bytes and the next header is its descriptor, if it has one, or nothing."""
    with_descriptor = listing.rows["flags"] & HAS_DESCRIPTOR > 0
    listing.refuse(with_descriptor & (gaps == 0), BadArchive, "its descriptor is missing")
    sound = np.where(with_descriptor, np.isin(gaps, list(_DESCRIPTORS)), gaps == 0)
    listing.refuse(
        ~sound, BadRange, "a hole is between its {stored_size:,} bytes and the next entry"
    )
    same = gaps == 0
    for length in set(gaps[with_descriptor].tolist()):
        rows = np.flatnonzero(gaps == length)
        at = next_headers_at[rows] - length
        same[rows] = _same_descriptors(buffer, at, length, listing.rows[rows])
    listing.refuse(~same, BadArchive, _WRONG_DESCRIPTOR)


_WRONG_DESCRIPTOR: Final = (
    "its descriptor does not match the directory: checksum {crc:#010x}, {stored_size:,} bytes "
    "stored, {size:,} outside"
)


def _same_descriptors(buffer: bytes, at: Column, length: int, rows: Column) -> Column:
    """Whether descriptors of this length say what the directory does."""
    found = gather(buffer, at, _DESCRIPTORS[length])
    same = np.ones(len(rows), bool)
    for field in found.dtype.names or ():
        same &= found[field] == (
            number(DESCRIPTOR_SIGNATURE) if field == "signature" else rows[field]
        )
    return same


def _end_of_last(read: Read, listing: Listing, at: int, directory_at: int) -> int:
    """Where the last entry ends, descriptor included, if its bytes end at `at`."""
    last = listing[-1:]
    if not last.rows["flags"][0] & HAS_DESCRIPTOR:
        return at
    rest = read(at, min(_LONGEST_DESCRIPTOR + len(LOCAL_SIGNATURE), directory_at - at))
    lengths = [
        length
        for length in _DESCRIPTORS
        if at + length == directory_at or rest.startswith(LOCAL_SIGNATURE, length)
        if _same_descriptors(rest, np.zeros(1, np.int64), length, last.rows).all()
    ]
    last.refuse(np.array([not lengths]), BadArchive, _WRONG_DESCRIPTOR)
    return at + lengths[0]


# The unlisted entries


def _read_unlisted(read: Read, at: int, stop: int, names: set[str]) -> list[Entry]:
    """The entries between the last listed one and the directory."""
    entries: list[Entry] = []
    while at < stop:
        if len(entries) == MAX_UNLISTED:
            raise LimitExceeded(f"offset {at:,}: over {MAX_UNLISTED} entries that are not listed")
        entry = _read_unlisted_entry(read, at, stop)
        if entry.name in names:
            raise DuplicateKey(f"{where(entry.name, at)}: another entry has this name too")
        names.add(entry.name)
        entries.append(entry)
        at = entry.data_at + entry.size
    return entries


def _read_unlisted_entry(read: Read, at: int, stop: int) -> Entry:
    header = read(at, min(LOCAL.size, stop - at))
    if len(header) < LOCAL.size or not header.startswith(LOCAL_SIGNATURE):
        raise BadRange(f"offset {at:,}: {stop - at:,} bytes before the directory are no entry's")
    fields = LOCAL.unpack(header)
    _, _, flags, method, _, _, crc, stored_size, size, name_length, extra_length = fields
    name_at = at + LOCAL.size
    data_at = name_at + name_length + extra_length
    if data_at > stop:
        raise BadRange(f"unlisted entry (offset {at:,}): its header runs into the directory")
    rest = read(name_at, name_length + extra_length)
    name = decode_name(rest[:name_length], flags, at)
    size, stored_size = widen(rest[name_length:], (size, stored_size), name, at)
    if flags & ~IS_UTF8 or method != STORED or size != stored_size:
        raise BadArchive(
            f"{where(name, at)}: flags {flags:#06x}, method {method}, sizes {stored_size:,} and "
            f"{size:,}: only a stored entry with its sizes in its header may be left unlisted"
        )
    if data_at + size > stop:
        raise BadRange(f"{where(name, at)}: with {size:,} bytes it runs into the directory")
    return Entry(name, at, data_at, size, size, crc, deflated=False)
