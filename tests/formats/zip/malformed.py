"""Damaged zip archives: a table row for each way in which one can be wrong."""

from dataclasses import replace
from typing import Any

from standfast import errors
from tests.formats.builders import each
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


def two(*more: Piece, **fields: Any) -> bytes:
    """Two entries, and more; fields that are given replace those of the end."""
    return archive(*TWO, *more, **fields)


def unlisted(data: bytes = b"data", **fields: Any) -> bytes:
    """Two entries, and one that the directory does not list."""
    return two(Piece(b"u", data, listed=False, **fields))


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
BOTH = {"size": NARROW, "stored_size": NARROW}
THREE = {"size": 3, "stored_size": 3}

ROWS = {
    errors.TruncatedFile: {"no bytes": b"", "a comment too short": two(comment=b"abc")[:-1]},
    errors.BadArchive: {
        "another format": b"\x93NUMPY" * 20,
        "a whole archive as comment": two(comment=FAKE_END),
        "an end as comment": two(comment=b"--" + FAKE_END),
        "an end in the comment, and more": two(comment=FAKE_END + b"--"),
        "a bare signature in the comment": two(comment=b"PK\5\6"),
        "an end in an entry": archive(Piece(b"a", FAKE_END[:-2] + b"\x45\0")),
        "one entry too many": two(end={"count": 3, "here": 3}),
        "one entry too few": two(end={"count": 1, "here": 1}),
        "no entry counted": two(end={"count": 0, "here": 0}),
        "a locator to nowhere": two(locator={"wide_at": 2**63}),
        "a locator to the start": two(locator={"wide_at": 0}),
        "a locator alone": two(wide_end={"signature": b"PK\6\5"}),
        "a locator and no more": b"PK\6\7" + bytes(16) + FAKE_END,
        "a longer zip64 end": two(wide_end={"length": 45}),
        "two counts": two(wide_end={"here": 3, "count": 3}),
        **each(lying, signature=[b"PK\1\3"], comment_length=[1, 5000], name_length=[0xFFFF]),
        **each(lying, size=[5]),
        "no name": archive(Piece(b"")),
        "NUL in a name": archive(Piece(b"a\0b")),
        "a folder": archive(Piece(b"a/", b"")),
        "not UTF-8": archive(Piece(b"\xff", flags=UTF8)),
        "half a surrogate": archive(Piece(b"\xed\xa0\x80", flags=UTF8)),
        "three bytes of extra": archive(Piece(central_extra=b"abc")),
        "extra too short": archive(Piece(central_extra=b"\2\0\2\0a")),
        "zip64 for nothing": lying_wide(4),
        "zip64 too short": lying_wide(4, size=NARROW, stored_size=NARROW),
        "zip64 too long": lying_wide(4, 4, size=NARROW),
        "zip64 twice": archive(Piece(central={"size": NARROW}, central_extra=wide(4) + wide(4))),
        "one byte too few": lying(size=3, stored_size=3),
        **each(lying_locally, "local", name=[b"lye"], flags=[2], method=[8], crc=[1]),
        **each(lying_locally, "local", size=[5, NARROW]),
        "a shorter name": lying_locally(name_length=2, extra_length=1),
        "no size": lying_locally(size=0, stored_size=0),
        "a local extra cut off": archive(Piece(local_extra=b"FB\1\0")),
        "the same before a descriptor": archive(replace(DESCRIBED, local_extra=b"FB\1\0")),
        "a local zip64 lie": archive(Piece(local=BOTH, local_extra=wide(5, 4))),
        "another size before a descriptor": archive(replace(DESCRIBED, local={"size": 9})),
        "no descriptor at the end": described(b""),
        "a descriptor of others": described(descriptor(b"Data"), *TWO),
        "the same at the end": described(descriptor(b"Data")),
        "half of one at the end": described(descriptor(b"data")[:11]),
        "another signature": described(descriptor(b"data", signature=b"PK\7\7")),
        "a hole behind": described(descriptor(b"data") + b"-"),
        "unlisted and encrypted": unlisted(flags=1),
        "unlisted of two sizes": unlisted(local={"size": 3}),
        "unlisted without a name": archive(Piece(b"", listed=False)),
    },
    errors.TrailingBytes: {
        "a byte behind the end": PLAIN + b"\0",
        "a comment too long": two(comment=b"abc") + b"d",
    },
    errors.BadRange: {
        "another archive behind": PLAIN + PLAIN,
        "bytes before the first entry": b"#!/bin/sh\n" + PLAIN,
        "an entry before the first": archive(Piece(b"x", b"", listed=False), *TWO),
        "a directory too far": two(end={"directory_at": 5000}),
        "a directory too near": two(end={"directory_at": 0}),
        "a directory too short": two(end={"directory_size": 46}),
        "bytes behind the directory": two(after_directory=b"-"),
        "a directory at 2^63": two(wide_end={"directory_at": 2**63}, end={"directory_at": NARROW}),
        "2^61 bytes at 2^61": lying_wide(
            2**61, 2**61, 2**61, size=NARROW, stored_size=NARROW, header_at=NARROW
        ),
        **each(lying, header_at=[NARROW, 1, 0]),
        "more bytes than there are": lying(size=500, stored_size=500),
        "one byte too many": lying(size=5, stored_size=5),
        "a hole between": archive(Piece(b"a", behind=b"-"), TWO[0]),
        "a wide hole": archive(Piece(b"a", behind=bytes(200_000)), TWO[0]),
        "a hole at the end": two(before_directory=b"-"),
        "an entry unlisted between": archive(Piece(listed=False), *TWO),
        "only a hole": archive(before_directory=b"-"),
        **each(lying_locally, extra_length=[1, 0xFFFF]),
        "a descriptor unasked": archive(Piece(behind=descriptor(b"data")), *TWO),
        "half a descriptor": described(descriptor(b"data")[:11], *TWO),
        "more than one": described(descriptor(b"data") * 2, *TWO),
        "unlisted, one byte less": unlisted(local=THREE),
        "unlisted with a long name": unlisted(local={"name_length": 0xFFFF}),
    },
    errors.UnsupportedFile: {
        "several disks": two(end={"disk": 1}),
        "some entries elsewhere": two(end={"here": 1}),
        "two disks": two(locator={"disks": 2}),
        "zip64 disks": two(wide_end={"disk": 1}),
        **{f"encrypted, {flag}": archive(Piece(flags=flag)) for flag in (1, 1 << 6, 1 << 13)},
        "a second name": archive(Piece(central_extra=extra(0x7075, b"\1" + bytes(4) + b"b"))),
    },
    errors.LimitExceeded: {
        "a directory too long": two(end={"directory_size": 300 << 20}),
        "2^63 entries": two(
            wide_end={"here": 2**63, "count": 2**63}, end={"count": 0xFFFF, "here": 0xFFFF}
        ),
        "2^63 bytes of directory": two(
            wide_end={"directory_size": 2**63}, end={"directory_size": NARROW}
        ),
        "a bomb": lying(method=8, size=4 * 1032 + 1),
        "2^63 bytes": lying_wide(2**63, size=NARROW),
        "2^64 bytes": lying_wide(2**64 - 1, size=NARROW),
        "at 2^63": lying_wide(2**63, header_at=NARROW),
        "a local zip64 lie of 2^63": archive(Piece(local=BOTH, local_extra=wide(2**63, 4))),
        "unlisted with 2^63 bytes": archive(
            Piece(local=BOTH, local_extra=wide(2**63, 2**63), listed=False)
        ),
        "too many unlisted": archive(
            *(Piece(str(i).encode(), b"", listed=False) for i in range(65))
        ),
    },
    ("lie", errors.UnsupportedFile): {**each(lying, method=[12], needed=[64], disk=[1])},
    errors.DuplicateKey: {
        "a name twice": archive(TWO[0], TWO[0]),
        "unlisted and listed": two(Piece(b"one", listed=False)),
    },
    ("lie", errors.BadRange): {
        "at 2^61": lying_wide(2**61, header_at=NARROW),
        "one byte too few in both": archive(
            TWO[0], Piece(b"lie", central=THREE, local=THREE), TWO[1]
        ),
    },
    ("lie", errors.BadArchive): {"no header": lying_locally(signature=b"PK\3\5")},
    ("d", errors.BadArchive): {"no descriptor": described(b"", *TWO)},
    ("u", errors.BadArchive): {
        "unlisted with a descriptor": unlisted(flags=WITH_DESCRIPTOR, behind=descriptor(b"data")),
        "unlisted and deflated": unlisted(local={"method": 8}),
    },
    ("u", errors.BadRange): {"unlisted and long": unlisted(local={"size": 99, "stored_size": 99})},
    ("u", errors.DuplicateKey): {"unlisted twice": archive(*2 * [Piece(b"u", listed=False)])},
}
