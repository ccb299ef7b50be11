"""Changes to a zip archive: to its entries, its directory, and the fields of its records."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from random import Random

from standfast.errors import StandfastError
from tests.formats.zip.builders import Piece, archive, archive_of, crc_of
from tests.fuzz.mutations.bytes import Part, bytewise, flip_bit, inside, set_numbers
from tests.fuzz.target import Mutation

NAMES = [
    *("a.npy", ".npy", "a", "a/b.npy", "../x.npy", "/x.npy", "a.npy/", "a\0.npy", "é.npy"),
    *("standfast.json", "archive/standfast.json", "archive/data.pkl", "archive/data/0"),
    *("archive/byteorder", "archive/version", "archive/constants.pkl", "other/data.pkl", "x" * 300),
]
FIELDS = {
    b"PK\3\4": ((4, 2), (6, 2), (8, 2), (14, 4), (18, 4), (22, 4), (26, 2), (28, 2)),
    b"PK\1\2": (
        *((4, 2), (6, 2), (8, 2), (10, 2), (16, 4), (20, 4), (24, 4), (28, 2), (30, 2)),
        *((32, 2), (34, 2), (38, 4), (42, 4)),
    ),
    b"PK\7\x08": ((4, 4), (8, 4), (12, 4), (16, 8)),
    b"PK\5\6": ((4, 2), (6, 2), (8, 2), (10, 2), (12, 4), (16, 4), (20, 2)),
    b"PK\6\6": ((4, 8), (12, 2), (16, 4), (20, 4), (24, 8), (32, 8), (40, 8), (48, 8)),
    b"PK\6\7": ((4, 4), (8, 8), (16, 4)),
}
"""The offsets and widths of the numbers of each record, by its signature."""


@dataclass(frozen=True)
class Content:
    """An entry as its writer saw it."""

    name: bytes
    data: bytes
    deflated: bool = False
    listed: bool = True

    def piece(self) -> Piece:
        """The entry as it lies in a file."""
        if not self.deflated:
            return Piece(self.name, self.data, listed=self.listed)
        deflater = zlib.compressobj(wbits=-15)
        fields = {"method": 8, "size": len(self.data), "crc": crc_of(self.data)}
        packed = deflater.compress(self.data) + deflater.flush()
        return Piece(self.name, packed, local=fields, central=fields, listed=self.listed)


def unpack(file: bytes) -> tuple[list[Content], bytes] | None:
    """The entries of an archive and its comment; None if it is one no more."""
    try:
        found = archive_of(file)
        contents = []
        for entry in (*found.entries, *found.unlisted):
            data = file[entry.data_at : entry.data_at + entry.stored_size]
            if entry.deflated:
                data = zlib.decompressobj(-15).decompress(data, 1 << 20)
            contents.append(
                Content(entry.name.encode(), data, entry.deflated, entry in found.entries)
            )
    except (StandfastError, AssertionError, zlib.error):
        return None
    if any(len(content.name) > 0xFFFF for content in contents):
        return None  # a name of one byte a letter is longer in UTF-8
    return contents, found.comment


def pack(contents: Sequence[Content], comment: bytes, wide: bool = False) -> bytes:
    """An archive of these entries, whose records all agree."""
    pieces = [content.piece() for content in contents]
    return archive(*pieces, comment=comment, wide_end={} if wide else None)


def entry_part(is_it: Callable[[str], bool]) -> Part:
    """One of the entries of such names."""

    def part(random: Random, file: bytes) -> tuple[bytes, Callable[[bytes], bytes]] | None:
        unpacked = unpack(file)
        if unpacked is None:
            return None
        contents, comment = unpacked
        places = [i for i, c in enumerate(contents) if is_it(c.name.decode(errors="replace"))]
        if not places:
            return None
        at, wide = random.choice(places), random.random() < 0.5

        def put(data: bytes) -> bytes:
            contents[at] = replace(contents[at], data=data)
            return pack(contents, comment, wide)

        return contents[at].data, put

    return part


def _entries(change: Callable[[Random, list[Content]], None]) -> Mutation:
    """A mutation that changes the list of entries."""

    def mutation(random: Random, file: bytes, others: Sequence[bytes]) -> bytes:
        unpacked = unpack(file)
        if unpacked is None or not unpacked[0]:
            return flip_bit(random, file, others)
        contents, comment = unpacked
        change(random, contents)
        return pack(contents, comment, random.random() < 0.5)

    return mutation


def _drop_entry(random: Random, contents: list[Content]) -> None:
    del contents[random.randrange(len(contents))]


def _repeat_entry(random: Random, contents: list[Content]) -> None:
    contents.insert(random.randrange(len(contents) + 1), random.choice(contents))


def _shuffle_entries(random: Random, contents: list[Content]) -> None:
    random.shuffle(contents)


def _rename_entry(random: Random, contents: list[Content]) -> None:
    at = random.randrange(len(contents))
    names = [*(content.name for content in contents), *(name.encode() for name in NAMES)]
    contents[at] = replace(contents[at], name=random.choice(names))


def _deflate_entry(random: Random, contents: list[Content]) -> None:
    at = random.randrange(len(contents))
    contents[at] = replace(contents[at], deflated=not contents[at].deflated)


def _unlist_entry(random: Random, contents: list[Content]) -> None:
    at = random.randrange(len(contents))
    contents[at] = replace(contents[at], listed=not contents[at].listed)


def _exchange_data(random: Random, contents: list[Content]) -> None:
    at, other = (random.randrange(len(contents)) for _ in range(2))
    contents[at] = replace(contents[at], data=contents[other].data)


def set_comment(random: Random, file: bytes, others: Sequence[bytes]) -> bytes:
    unpacked = unpack(file)
    if unpacked is None:
        return flip_bit(random, file, others)
    comments = (b"", b"x", b"standfast.digest:", b"standfast.digest:" + b"0" * 64, b"PK\5\6" * 6)
    return pack(unpacked[0], random.choice(comments))


def _record_numbers(file: bytes) -> list[tuple[int, int]]:
    """The numbers of all records, or of what looks like one."""
    places = []
    for signature, fields in FIELDS.items():
        at = file.find(signature)
        while at >= 0:
            places += [(at + offset, width) for offset, width in fields]
            at = file.find(signature, at + 1)
    return places


ZIP_MUTATIONS: tuple[Mutation, ...] = (
    *map(
        _entries,
        (
            *(_drop_entry, _repeat_entry, _shuffle_entries, _rename_entry),
            *(_deflate_entry, _unlist_entry, _exchange_data),
        ),
    ),
    *(set_comment, set_numbers(_record_numbers), set_numbers(_record_numbers)),
    inside(entry_part(lambda name: True), bytewise(flip_bit)),
)
