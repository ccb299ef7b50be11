"""Damaged zip archives: a table row for each way in which one can be wrong."""

from __future__ import annotations

from standfast.errors import (
    BadArchive,
    BadRange,
    DuplicateKey,
    LimitExceeded,
    TrailingBytes,
    TruncatedFile,
    UnsupportedFile,
)
from tests.formats.builders import Row
from tests.formats.zip.builders import (
    UTF8,
    WITH_DESCRIPTOR,
    Piece,
    archive,
    descriptor,
    extra,
    wide,
)

TWO = (Piece(b"one", b"1111"), Piece(b"two", b"2222"))
PLAIN = archive(*TWO)
WITH_WIDE_END = archive(*TWO, wide_end={})
DESCRIBED = Piece(b"d", b"data", WITH_DESCRIPTOR, behind=descriptor(b"data"))
FAKE_END = archive()


def described(behind: bytes, *more: Piece) -> bytes:
    return archive(Piece(b"d", b"data", WITH_DESCRIPTOR, behind=behind), *more)


def lying(**central: int | bytes) -> bytes:
    """An archive whose directory lies about the second of three entries."""
    return archive(TWO[0], Piece(b"lie", central=central), TWO[1])


def lying_locally(**local: int | bytes) -> bytes:
    return archive(TWO[0], Piece(b"lie", local=local), TWO[1])


def lying_wide(*numbers: int, **central: int | bytes) -> bytes:
    return archive(TWO[0], Piece(b"lie", central=central, central_extra=wide(*numbers)), TWO[1])


NARROW = 0xFFFFFFFF

ROWS = (
    # The end of the file
    Row("no bytes", b"", TruncatedFile),
    Row("another format", b"\x93NUMPY" * 20, BadArchive),
    Row("a byte behind the end", PLAIN + b"\0", TrailingBytes),
    Row("another archive behind", PLAIN + PLAIN, BadRange),
    Row("bytes before the first entry", b"#!/bin/sh\n" + PLAIN, BadRange),
    Row(
        "bytes before the first entry, counted in",
        archive(Piece(b"x", b"", listed=False), *TWO),
        BadRange,
    ),
    Row("a comment too short", archive(*TWO, comment=b"abc")[:-1], TruncatedFile),
    Row("a comment too long", archive(*TWO, comment=b"abc") + b"d", TrailingBytes),
    Row("a whole archive as comment", archive(*TWO, comment=FAKE_END), BadArchive),
    Row("an end as comment", archive(*TWO, comment=b"--" + FAKE_END), BadArchive),
    Row(
        "an end in the comment that does not reach the end",
        archive(*TWO, comment=FAKE_END + b"--"),
        BadArchive,
    ),
    Row("a bare signature in the comment", archive(*TWO, comment=b"PK\5\6"), BadArchive),
    Row(
        "an end in an entry, whose comment is the rest",
        archive(Piece(b"a", FAKE_END[:-2] + (22 + 47 + 0).to_bytes(2, "little"))),
        BadArchive,
    ),
    Row("several disks", archive(*TWO, end={"disk": 1}), UnsupportedFile),
    Row("some entries elsewhere", archive(*TWO, end={"here": 1}), UnsupportedFile),
    Row("a directory too far", archive(*TWO, end={"directory_at": 5000}), BadRange),
    Row("a directory too near", archive(*TWO, end={"directory_at": 0}), BadRange),
    Row("a directory too long", archive(*TWO, end={"directory_size": 300 << 20}), LimitExceeded),
    Row("a directory too short", archive(*TWO, end={"directory_size": 46}), BadRange),
    Row("bytes behind the directory", archive(*TWO, after_directory=b"-"), BadRange),
    Row("one entry too many", archive(*TWO, end={"count": 3, "here": 3}), BadArchive),
    Row("one entry too few", archive(*TWO, end={"count": 1, "here": 1}), BadArchive),
    Row("no entry counted", archive(*TWO, end={"count": 0, "here": 0}), BadArchive),
    # The zip64 end of the file
    Row("a locator to nowhere", archive(*TWO, locator={"wide_at": 2**63}), BadArchive),
    Row("a locator to the start", archive(*TWO, locator={"wide_at": 0}), BadArchive),
    Row("two disks", archive(*TWO, locator={"disks": 2}), UnsupportedFile),
    Row("a locator alone", archive(*TWO, wide_end={"signature": b"PK\6\5"}), BadArchive),
    Row("a locator and no more", b"PK\6\7" + bytes(16) + FAKE_END, BadArchive),
    Row("a longer zip64 end", archive(*TWO, wide_end={"length": 45}), BadArchive),
    Row("zip64 disks", archive(*TWO, wide_end={"disk": 1}), UnsupportedFile),
    Row("two counts", archive(*TWO, wide_end={"here": 3, "count": 3}), BadArchive),
    Row(
        "2^63 entries",
        archive(
            *TWO, wide_end={"here": 2**63, "count": 2**63}, end={"count": 0xFFFF, "here": 0xFFFF}
        ),
        LimitExceeded,
    ),
    Row(
        "2^63 bytes of directory",
        archive(*TWO, wide_end={"directory_size": 2**63}, end={"directory_size": NARROW}),
        LimitExceeded,
    ),
    Row(
        "a directory at 2^63",
        archive(*TWO, wide_end={"directory_at": 2**63}, end={"directory_at": NARROW}),
        BadRange,
    ),
    # The directory
    Row("no record", lying(signature=b"PK\1\3"), BadArchive),
    Row("a record cut off", lying(comment_length=5000), BadArchive),
    Row("a record one byte longer", lying(comment_length=1), BadArchive),
    Row("a name too long", lying(name_length=0xFFFF), BadArchive),
    Row("encryption", archive(Piece(flags=1)), UnsupportedFile),
    Row("strong encryption", archive(Piece(flags=1 << 6)), UnsupportedFile),
    Row("masked headers", archive(Piece(flags=1 << 13)), UnsupportedFile),
    Row("bzip2", lying(method=12), UnsupportedFile, tensor="lie"),
    Row("a newer version", lying(needed=64), UnsupportedFile, tensor="lie"),
    Row("another disk", lying(disk=1), UnsupportedFile, tensor="lie"),
    Row("stored, but smaller", lying(size=5), BadArchive),
    Row("a bomb", lying(method=8, size=4 * 1032 + 1), LimitExceeded),
    Row("a name twice", archive(TWO[0], TWO[0]), DuplicateKey),
    Row("no name", archive(Piece(b"")), BadArchive),
    Row("NUL in a name", archive(Piece(b"a\0b")), BadArchive),
    Row("a folder", archive(Piece(b"a/", b"")), BadArchive),
    Row("not UTF-8", archive(Piece(b"\xff", flags=UTF8)), BadArchive),
    Row("half a surrogate", archive(Piece(b"\xed\xa0\x80", flags=UTF8)), BadArchive),
    Row(
        "a second name",
        archive(Piece(central_extra=extra(0x7075, b"\1" + bytes(4) + b"b"))),
        UnsupportedFile,
    ),
    Row("three bytes of extra", archive(Piece(central_extra=b"abc")), BadArchive),
    Row("extra too short", archive(Piece(central_extra=b"\2\0\2\0a")), BadArchive),
    Row("zip64 for nothing", lying_wide(4), BadArchive),
    Row("zip64 too short", lying_wide(4, size=NARROW, stored_size=NARROW), BadArchive),
    Row("zip64 too long", lying_wide(4, 4, size=NARROW), BadArchive),
    Row(
        "zip64 twice",
        archive(Piece(central={"size": NARROW}, central_extra=wide(4) + wide(4))),
        BadArchive,
    ),
    Row("2^63 bytes", lying_wide(2**63, size=NARROW), LimitExceeded),
    Row("2^64 bytes", lying_wide(2**64 - 1, size=NARROW), LimitExceeded),
    Row("at 2^63", lying_wide(2**63, header_at=NARROW), LimitExceeded),
    Row("at 2^61", lying_wide(2**61, header_at=NARROW), BadRange, tensor="lie"),
    Row(
        "2^61 bytes at 2^61",
        lying_wide(2**61, 2**61, 2**61, size=NARROW, stored_size=NARROW, header_at=NARROW),
        BadRange,
    ),
    Row("zip64 without its field", lying(header_at=NARROW), BadRange),
    # Places
    Row("an entry inside another", lying(header_at=1), BadRange),
    Row("two entries in one place", lying(header_at=0), BadRange),
    Row("more bytes than there are", lying(size=500, stored_size=500), BadRange),
    Row("one byte too many", lying(size=5, stored_size=5), BadRange),
    Row("one byte too few", lying(size=3, stored_size=3), BadArchive),
    Row(
        "one byte too few in both",
        archive(
            TWO[0],
            Piece(
                b"lie", central={"size": 3, "stored_size": 3}, local={"size": 3, "stored_size": 3}
            ),
            TWO[1],
        ),
        BadRange,
        tensor="lie",
    ),
    Row("a hole between", archive(Piece(b"a", behind=b"-"), TWO[0]), BadRange),
    Row("a wide hole", archive(Piece(b"a", behind=bytes(200_000)), TWO[0]), BadRange),
    Row("a hole at the end", archive(*TWO, before_directory=b"-"), BadRange),
    Row("an entry unlisted between", archive(Piece(listed=False), *TWO), BadRange),
    Row("only a hole", archive(before_directory=b"-"), BadRange),
    # Local headers
    Row("no header", lying_locally(signature=b"PK\3\5"), BadArchive, tensor="lie"),
    Row("another name", lying_locally(name=b"lye"), BadArchive),
    Row("a shorter name", lying_locally(name_length=2, extra_length=1), BadArchive),
    Row("other flags", lying_locally(flags=2), BadArchive),
    Row("another method", lying_locally(method=8), BadArchive),
    Row("another checksum", lying_locally(crc=1), BadArchive),
    Row("another size", lying_locally(size=5), BadArchive),
    Row("no size", lying_locally(size=0, stored_size=0), BadArchive),
    Row("a size of 32 ones", lying_locally(size=NARROW), BadArchive),
    Row("a header into the bytes", lying_locally(extra_length=1), BadRange),
    Row("a header far beyond", lying_locally(extra_length=0xFFFF), BadRange),
    Row("a local extra cut off", archive(Piece(local_extra=b"FB\1\0")), BadArchive),
    Row(
        "a local extra cut off before a descriptor",
        archive(
            Piece(
                data=b"data",
                flags=WITH_DESCRIPTOR,
                local_extra=b"FB\1\0",
                behind=descriptor(b"data"),
            )
        ),
        BadArchive,
    ),
    Row(
        "a local zip64 lie",
        archive(Piece(local={"size": NARROW, "stored_size": NARROW}, local_extra=wide(5, 4))),
        BadArchive,
    ),
    Row(
        "a local zip64 lie of 2^63",
        archive(Piece(local={"size": NARROW, "stored_size": NARROW}, local_extra=wide(2**63, 4))),
        LimitExceeded,
    ),
    Row(
        "a wrong size before a descriptor",
        archive(
            Piece(b"d", b"data", WITH_DESCRIPTOR, local={"size": 9}, behind=descriptor(b"data"))
        ),
        BadArchive,
    ),
    # Descriptors
    Row("no descriptor", described(b"", *TWO), BadArchive, tensor="d"),
    Row("no descriptor at the end", described(b""), BadArchive),
    Row("a descriptor unasked", archive(Piece(behind=descriptor(b"data")), *TWO), BadRange),
    Row("a descriptor of others", described(descriptor(b"Data"), *TWO), BadArchive),
    Row("the same at the end", described(descriptor(b"Data")), BadArchive),
    Row("half a descriptor", described(descriptor(b"data")[:11], *TWO), BadRange),
    Row("half of one at the end", described(descriptor(b"data")[:11]), BadArchive),
    Row("more than one", described(descriptor(b"data") * 2, *TWO), BadRange),
    Row("another signature", described(descriptor(b"data", signature=b"PK\7\7")), BadArchive),
    Row("a hole behind", described(descriptor(b"data") + b"-"), BadArchive),
    # Unlisted entries
    Row(
        "unlisted with a descriptor",
        archive(*TWO, Piece(b"u", flags=WITH_DESCRIPTOR, behind=descriptor(b"data"), listed=False)),
        BadArchive,
        tensor="u",
    ),
    Row(
        "unlisted and deflated",
        archive(*TWO, Piece(b"u", local={"method": 8}, listed=False)),
        BadArchive,
        tensor="u",
    ),
    Row("unlisted and encrypted", archive(Piece(b"u", flags=1, listed=False)), BadArchive),
    Row(
        "unlisted of two sizes",
        archive(*TWO, Piece(b"u", local={"size": 3}, listed=False)),
        BadArchive,
    ),
    Row(
        "unlisted beyond the directory",
        archive(*TWO, Piece(b"u", local={"size": 99, "stored_size": 99}, listed=False)),
        BadRange,
        tensor="u",
    ),
    Row(
        "unlisted, one byte less",
        archive(*TWO, Piece(b"u", local={"size": 3, "stored_size": 3}, listed=False)),
        BadRange,
    ),
    Row(
        "unlisted with a long name",
        archive(*TWO, Piece(b"u", local={"name_length": 0xFFFF}, listed=False)),
        BadRange,
    ),
    Row("unlisted twice", archive(*2 * [Piece(b"u", listed=False)]), DuplicateKey, tensor="u"),
    Row("unlisted and listed", archive(*TWO, Piece(b"one", listed=False)), DuplicateKey),
    Row("unlisted without a name", archive(Piece(b"", listed=False)), BadArchive),
    Row(
        "unlisted with 2^63 bytes",
        archive(
            Piece(
                local={"size": NARROW, "stored_size": NARROW},
                local_extra=wide(2**63, 2**63),
                listed=False,
            )
        ),
        LimitExceeded,
    ),
    Row(
        "too many unlisted",
        archive(*(Piece(str(i).encode(), b"", listed=False) for i in range(65))),
        LimitExceeded,
    ),
)
