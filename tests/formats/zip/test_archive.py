"""Zip archives: read as zipfile, NumPy, torch and zip write them; built so that these read them."""

from __future__ import annotations

import io
import os
import random
import re
import shutil
import subprocess
import time
import zipfile
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from standfast.errors import (
    BadArchive,
    BadName,
    BadRange,
    DuplicateKey,
    LimitExceeded,
    RefusedMetadata,
    StandfastError,
    TrailingBytes,
    TruncatedFile,
    UnsupportedFile,
)
from standfast.formats.zip.archive import Archive, Entry, other_ranges, read_archive
from standfast.formats.zip.records import (
    central_directory,
    local_header,
    unlisted_header,
    whole_entry,
)
from standfast.formats.zip.records import descriptor as own_descriptor
from tests.formats.zip.builders import (
    UTF8,
    WITH_DESCRIPTOR,
    Piece,
    archive,
    archive_of,
    crc_of,
    descriptor,
    extra,
    reader_of,
    sparse_reader,
    wide,
)
from tests.fuzz.limits import processor_limit

GIB = 1 << 30


def content(data: bytes, entry: Entry) -> bytes:
    stored = data[entry.data_at : entry.data_at + entry.stored_size]
    return zlib.decompress(stored, -15) if entry.deflated else stored


def agrees_with_zipfile(data: bytes) -> Archive:
    """Read an archive, and compare all of it with what Python's own module sees."""
    found = archive_of(data)
    with zipfile.ZipFile(io.BytesIO(data)) as theirs:
        expected = sorted(theirs.infolist(), key=lambda info: info.header_offset)
        assert [
            (e.name, e.header_at, e.stored_size, e.size, e.crc, e.deflated) for e in found.entries
        ] == [
            (i.filename, i.header_offset, i.compress_size, i.file_size, i.CRC, i.compress_type == 8)
            for i in expected
        ]
        assert found.comment == theirs.comment
        for entry in found.entries:
            assert content(data, entry) == theirs.read(entry.name)
    return found


# What others write


class Unseekable(io.RawIOBase):
    """A stream that only goes forward."""

    def __init__(self) -> None:
        self.data = bytearray()

    def writable(self) -> bool:
        return True

    def write(self, data: Any) -> int:
        self.data += bytes(data)
        return len(bytes(data))


@pytest.mark.parametrize("method", [zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED])
@pytest.mark.parametrize("force_zip64", [False, True])
@pytest.mark.parametrize("seekable", [False, True])
def test_what_zipfile_writes_is_read(method: int, force_zip64: bool, seekable: bool) -> None:
    target: Any = io.BytesIO() if seekable else Unseekable()
    with zipfile.ZipFile(target, "w", method) as file:
        for name in ("a", "döner.npy", "../up", "empty"):
            with file.open(name, "w", force_zip64=force_zip64) as entry:
                entry.write(name.encode() * 100 if name != "empty" else b"")
        file.comment = b"a comment"
    data = target.getvalue() if seekable else bytes(target.data)
    assert len(agrees_with_zipfile(data).entries) == 4


@pytest.mark.parametrize("save", [np.savez, np.savez_compressed])
def test_what_numpy_writes_is_read(save: Callable[..., None]) -> None:
    target = io.BytesIO()
    save(target, a=np.arange(3), b=np.zeros((2, 2)), c=np.zeros(0))
    found = agrees_with_zipfile(target.getvalue())
    assert [entry.name for entry in found.entries] == ["a.npy", "b.npy", "c.npy"]
    target = io.BytesIO()
    save(target)
    assert archive_of(target.getvalue()) == Archive([], [], b"", 0)


@pytest.mark.parametrize("with_checksums", [True, False])
def test_what_torch_writes_is_read(with_checksums: bool) -> None:
    target = io.BytesIO()
    torch.serialization.set_crc32_options(with_checksums)
    try:
        torch.save({f"t{i}": torch.arange(i) for i in range(200)}, target)
    finally:
        torch.serialization.set_crc32_options(True)
    data = target.getvalue()
    found = agrees_with_zipfile(data) if with_checksums else archive_of(data)
    assert "archive/data/199" in {entry.name for entry in found.entries}
    assert all(entry.crc == 0 for entry in found.entries) == (not with_checksums)


def test_what_torch_writes_beyond_4_gib_is_read(tmp_path: Path) -> None:
    path = tmp_path / "big.pt"
    with open(tmp_path / "zeros", "wb") as zeros:
        zeros.truncate(5 * GIB)
    big = torch.from_numpy(np.memmap(zeros.name, np.uint8, "r+"))
    with torch.serialization.skip_data():
        torch.save({"first": torch.ones(3), "big": big, "last": torch.ones(5)}, path)
    with open(path, "rb") as file:
        found = read_archive(
            lambda start, length: os.pread(file.fileno(), length, start), path.stat().st_size
        )
    with zipfile.ZipFile(path) as theirs:
        expected = {info.filename: info.header_offset for info in theirs.infolist()}
    assert {entry.name: entry.header_at for entry in found.entries} == expected
    sizes = {entry.name: entry.size for entry in found.entries}
    assert sizes["big/data/1"] == 5 * GIB
    assert sizes["big/data/2"] == 20
    assert all(entry.data_at % 64 == 0 for entry in found.entries)


@pytest.mark.skipif(not shutil.which("zip"), reason="there is no zip command")
@pytest.mark.parametrize(
    ("options", "piped"),
    # -fz into a pipe gives an end record that even unzip refuses.
    [*product(["", "-0", "-9", "-X", "-fd", "-X -0 -fd"], [False, True]), ("-fz", False)],
)
def test_what_zip_writes_is_read(options: str, piped: bool, tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("hello")
    (tmp_path / "b.txt").write_text("numbers\n" * 10_000)
    target = "-" if piped else "out.zip"
    command = ["zip", "-q", "-D", *options.split(), target, "a.txt", "b.txt"]
    result = subprocess.run(command, cwd=tmp_path, stdout=subprocess.PIPE, check=True)
    data = result.stdout if piped else (tmp_path / "out.zip").read_bytes()
    assert len(agrees_with_zipfile(data).entries) == 2


def test_entries_are_listed_in_the_order_of_the_file() -> None:
    data = archive(Piece(b"one"), Piece(b"two"))
    at = data.index(b"PK\1\2")
    length = len(data) - 22 - at
    turned = data[:at] + data[at + length // 2 : -22] + data[at : at + length // 2] + data[-22:]
    assert agrees_with_zipfile(turned) == agrees_with_zipfile(data)


@pytest.mark.parametrize("form", ["<3L", "<L2Q"])
@pytest.mark.parametrize("signature", [b"", b"PK\7\x08"])
@pytest.mark.parametrize("unlisted", [0, 1, 2])
def test_each_form_of_a_descriptor_is_read(form: str, signature: bytes, unlisted: int) -> None:
    pieces = [
        Piece(name, data, WITH_DESCRIPTOR, behind=descriptor(data, form, signature))
        for name, data in ((b"a", b""), (b"b", b"some"), (b"c", b"more"))
    ]
    hidden = [Piece(f"hidden {i}".encode(), bytes(i), listed=False) for i in range(unlisted)]
    data = archive(*pieces, *hidden)
    found = agrees_with_zipfile(data)
    assert [content(data, entry) for entry in found.entries] == [b"", b"some", b"more"]
    assert [entry.name for entry in found.unlisted] == [f"hidden {i}" for i in range(unlisted)]


def test_names_are_decoded_as_zipfile_does() -> None:
    data = archive(Piece("é".encode(), flags=UTF8), Piece("é".encode("cp437")), Piece(b"\x1f"))
    # Two spellings of one name are told apart by their bytes, and refused as one name.
    with pytest.raises(DuplicateKey):
        archive_of(data)
    data = archive(Piece("é".encode(), flags=UTF8), Piece("ü".encode("cp437")), Piece(b"\x1f"))
    assert [entry.name for entry in agrees_with_zipfile(data).entries] == ["é", "ü", "\x1f"]


# What is refused


@dataclass(frozen=True)
class Case:
    name: str
    data: bytes
    error: type[StandfastError]
    message: str = ""


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

CASES = [
    # The end of the file
    Case("no bytes", b"", TruncatedFile, "0 bytes"),
    Case("another format", b"\x93NUMPY" * 20, BadArchive, "starts with"),
    Case("a byte behind the end", PLAIN + b"\0", TrailingBytes, "1 bytes follow"),
    Case("another archive behind", PLAIN + PLAIN, BadRange, "end records start"),
    Case("bytes before the first entry", b"#!/bin/sh\n" + PLAIN, BadRange),
    Case(
        "bytes before the first entry, counted in",
        archive(Piece(b"x", b"", listed=False), *TWO),
        BadRange,
        "'one'.*first entry does not start the file",
    ),
    Case(
        "a comment too short", archive(*TWO, comment=b"abc")[:-1], TruncatedFile, "1 bytes before"
    ),
    Case("a comment too long", archive(*TWO, comment=b"abc") + b"d", TrailingBytes),
    Case("a whole archive as comment", archive(*TWO, comment=FAKE_END), BadArchive, "another one"),
    Case("an end as comment", archive(*TWO, comment=b"--" + FAKE_END), BadArchive, "another one"),
    Case(
        "an end in the comment that does not reach the end",
        archive(*TWO, comment=FAKE_END + b"--"),
        BadArchive,
        "another one",
    ),
    Case("a bare signature in the comment", archive(*TWO, comment=b"PK\5\6"), BadArchive),
    Case(
        "an end in an entry, whose comment is the rest",
        archive(Piece(b"a", FAKE_END[:-2] + (22 + 47 + 0).to_bytes(2, "little"))),
        BadArchive,
        "another one",
    ),
    Case("several disks", archive(*TWO, end={"disk": 1}), UnsupportedFile, "several disks"),
    Case("some entries elsewhere", archive(*TWO, end={"here": 1}), UnsupportedFile),
    Case("a directory too far", archive(*TWO, end={"directory_at": 5000}), BadRange, "5,000"),
    Case("a directory too near", archive(*TWO, end={"directory_at": 0}), BadRange),
    Case("a directory too long", archive(*TWO, end={"directory_size": 300 << 20}), LimitExceeded),
    Case("a directory too short", archive(*TWO, end={"directory_size": 46}), BadRange),
    Case("bytes behind the directory", archive(*TWO, after_directory=b"-"), BadRange),
    Case("one entry too many", archive(*TWO, end={"count": 3, "here": 3}), BadArchive, "3 entries"),
    Case("one entry too few", archive(*TWO, end={"count": 1, "here": 1}), BadArchive, "more than"),
    Case("no entry counted", archive(*TWO, end={"count": 0, "here": 0}), BadArchive, "more than"),
    # The zip64 end of the file
    Case("a locator to nowhere", archive(*TWO, locator={"wide_at": 2**63}), BadArchive, "locator"),
    Case("a locator to the start", archive(*TWO, locator={"wide_at": 0}), BadArchive, "locator"),
    Case("two disks", archive(*TWO, locator={"disks": 2}), UnsupportedFile, "2 disks"),
    Case("a locator alone", archive(*TWO, wide_end={"signature": b"PK\6\5"}), BadArchive),
    Case("a locator and no more", b"PK\6\7" + bytes(16) + FAKE_END, BadArchive, "locator"),
    Case("a longer zip64 end", archive(*TWO, wide_end={"length": 45}), BadArchive, "length is 45"),
    Case("zip64 disks", archive(*TWO, wide_end={"disk": 1}), UnsupportedFile, "several disks"),
    Case(
        "two counts",
        archive(*TWO, wide_end={"here": 3, "count": 3}),
        BadArchive,
        "says 3 where the end record says 2",
    ),
    Case(
        "2^63 entries",
        archive(
            *TWO, wide_end={"here": 2**63, "count": 2**63}, end={"count": 0xFFFF, "here": 0xFFFF}
        ),
        LimitExceeded,
        "entries",
    ),
    Case(
        "2^63 bytes of directory",
        archive(*TWO, wide_end={"directory_size": 2**63}, end={"directory_size": NARROW}),
        LimitExceeded,
    ),
    Case(
        "a directory at 2^63",
        archive(*TWO, wide_end={"directory_at": 2**63}, end={"directory_at": NARROW}),
        BadRange,
    ),
    # The directory
    Case("no record", lying(signature=b"PK\1\3"), BadArchive, "no such record"),
    Case("a record cut off", lying(comment_length=5000), BadArchive, "ends within"),
    Case("a record one byte longer", lying(comment_length=1), BadArchive, "directory"),
    Case("a name too long", lying(name_length=0xFFFF), BadArchive, "directory"),
    Case("encryption", archive(Piece(flags=1)), UnsupportedFile, "'a'.*encrypted"),
    Case("strong encryption", archive(Piece(flags=1 << 6)), UnsupportedFile, "0x0040"),
    Case("masked headers", archive(Piece(flags=1 << 13)), UnsupportedFile, "0x2000"),
    Case("bzip2", lying(method=12), UnsupportedFile, "'lie'.*method 12"),
    Case("a newer version", lying(needed=64), UnsupportedFile, "'lie'.*newer version"),
    Case("another disk", lying(disk=1), UnsupportedFile, "'lie'.*another disk"),
    Case("stored, but smaller", lying(size=5), BadArchive, "4 bytes stand for 5"),
    Case("a bomb", lying(method=8, size=4 * 1032 + 1), LimitExceeded, "never inflate to 4,129"),
    Case("a name twice", archive(TWO[0], TWO[0]), DuplicateKey, "'one'"),
    Case("no name", archive(Piece(b"")), BadArchive, "empty"),
    Case("NUL in a name", archive(Piece(b"a\0b")), BadArchive, "NUL"),
    Case("a folder", archive(Piece(b"a/", b"")), BadArchive, "folder"),
    Case("not UTF-8", archive(Piece(b"\xff", flags=UTF8)), BadArchive, "invalid start byte"),
    Case("half a surrogate", archive(Piece(b"\xed\xa0\x80", flags=UTF8)), BadArchive),
    Case(
        "a second name",
        archive(Piece(central_extra=extra(0x7075, b"\1" + bytes(4) + b"b"))),
        UnsupportedFile,
        "second name",
    ),
    Case("three bytes of extra", archive(Piece(central_extra=b"abc")), BadArchive, "is none"),
    Case("extra too short", archive(Piece(central_extra=b"\2\0\2\0a")), BadArchive, "cut off"),
    Case("zip64 for nothing", lying_wide(4), BadArchive, "8 bytes for 0 numbers"),
    Case("zip64 too short", lying_wide(4, size=NARROW, stored_size=NARROW), BadArchive, "8 bytes"),
    Case("zip64 too long", lying_wide(4, 4, size=NARROW), BadArchive, "16 bytes for 1"),
    Case(
        "zip64 twice",
        archive(Piece(central={"size": NARROW}, central_extra=wide(4) + wide(4))),
        BadArchive,
        "two zip64",
    ),
    Case("2^63 bytes", lying_wide(2**63, size=NARROW), LimitExceeded, "9,223,372,036,854,775,808"),
    Case("2^64 bytes", lying_wide(2**64 - 1, size=NARROW), LimitExceeded),
    Case("at 2^63", lying_wide(2**63, header_at=NARROW), LimitExceeded),
    Case("at 2^61", lying_wide(2**61, header_at=NARROW), BadRange, "'lie'.*runs into"),
    Case(
        "2^61 bytes at 2^61",
        lying_wide(2**61, 2**61, 2**61, size=NARROW, stored_size=NARROW, header_at=NARROW),
        BadRange,
    ),
    Case("zip64 without its field", lying(header_at=NARROW), BadRange),
    # Places
    Case("an entry inside another", lying(header_at=1), BadRange),
    Case("two entries in one place", lying(header_at=0), BadRange, "runs into"),
    Case("more bytes than there are", lying(size=500, stored_size=500), BadRange, "runs into"),
    Case("one byte too many", lying(size=5, stored_size=5), BadRange, "runs into|no room"),
    Case("one byte too few", lying(size=3, stored_size=3), BadArchive, "another stored_size|size"),
    Case(
        "one byte too few in both",
        archive(
            TWO[0],
            Piece(
                b"lie", central={"size": 3, "stored_size": 3}, local={"size": 3, "stored_size": 3}
            ),
            TWO[1],
        ),
        BadRange,
        "'lie'.*hole",
    ),
    Case("a hole between", archive(Piece(b"a", behind=b"-"), TWO[0]), BadRange, "'a'.*hole"),
    Case("a wide hole", archive(Piece(b"a", behind=bytes(200_000)), TWO[0]), BadRange, "'a'.*hole"),
    Case("a hole at the end", archive(*TWO, before_directory=b"-"), BadRange, "1 bytes before"),
    Case("an entry unlisted between", archive(Piece(listed=False), *TWO), BadRange),
    Case("only a hole", archive(before_directory=b"-"), BadRange, "no entry"),
    # Local headers
    Case("no header", lying_locally(signature=b"PK\3\5"), BadArchive, "'lie'.*no local header"),
    Case("another name", lying_locally(name=b"lye"), BadArchive, "another name"),
    Case(
        "a shorter name", lying_locally(name_length=2, extra_length=1), BadArchive, "another name"
    ),
    Case("other flags", lying_locally(flags=2), BadArchive, "other flags"),
    Case("another method", lying_locally(method=8), BadArchive, "other method"),
    Case("another checksum", lying_locally(crc=1), BadArchive, "another crc"),
    Case("another size", lying_locally(size=5), BadArchive, "another size"),
    Case("no size", lying_locally(size=0, stored_size=0), BadArchive, "another"),
    Case("a size of 32 ones", lying_locally(size=NARROW), BadArchive, "another size"),
    Case("a header into the bytes", lying_locally(extra_length=1), BadRange, "no room"),
    Case("a header far beyond", lying_locally(extra_length=0xFFFF), BadRange, "no room"),
    Case("a local extra cut off", archive(Piece(local_extra=b"FB\1\0")), BadArchive, "cut off"),
    Case(
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
        "cut off",
    ),
    Case(
        "a local zip64 lie",
        archive(Piece(local={"size": NARROW, "stored_size": NARROW}, local_extra=wide(5, 4))),
        BadArchive,
        "another size",
    ),
    Case(
        "a local zip64 lie of 2^63",
        archive(Piece(local={"size": NARROW, "stored_size": NARROW}, local_extra=wide(2**63, 4))),
        LimitExceeded,
    ),
    Case(
        "a wrong size before a descriptor",
        archive(
            Piece(b"d", b"data", WITH_DESCRIPTOR, local={"size": 9}, behind=descriptor(b"data"))
        ),
        BadArchive,
        "another size",
    ),
    # Descriptors
    Case("no descriptor", described(b"", *TWO), BadArchive, "'d'.*missing"),
    Case("no descriptor at the end", described(b""), BadArchive, "does not match"),
    Case(
        "a descriptor unasked", archive(Piece(behind=descriptor(b"data")), *TWO), BadRange, "hole"
    ),
    Case("a descriptor of others", described(descriptor(b"Data"), *TWO), BadArchive, "not match"),
    Case("the same at the end", described(descriptor(b"Data")), BadArchive, "not match"),
    Case("half a descriptor", described(descriptor(b"data")[:11], *TWO), BadRange, "hole"),
    Case("half of one at the end", described(descriptor(b"data")[:11]), BadArchive, "not match"),
    Case("more than one", described(descriptor(b"data") * 2, *TWO), BadRange, "hole"),
    Case("another signature", described(descriptor(b"data", signature=b"PK\7\7")), BadArchive),
    Case("a hole behind", described(descriptor(b"data") + b"-"), BadArchive),
    # Unlisted entries
    Case(
        "unlisted with a descriptor",
        archive(*TWO, Piece(b"u", flags=WITH_DESCRIPTOR, behind=descriptor(b"data"), listed=False)),
        BadArchive,
        "'u'.*unlisted",
    ),
    Case(
        "unlisted and deflated",
        archive(*TWO, Piece(b"u", local={"method": 8}, listed=False)),
        BadArchive,
        "'u'.*unlisted",
    ),
    Case("unlisted and encrypted", archive(Piece(b"u", flags=1, listed=False)), BadArchive),
    Case(
        "unlisted of two sizes",
        archive(*TWO, Piece(b"u", local={"size": 3}, listed=False)),
        BadArchive,
    ),
    Case(
        "unlisted beyond the directory",
        archive(*TWO, Piece(b"u", local={"size": 99, "stored_size": 99}, listed=False)),
        BadRange,
        "'u'.*runs into",
    ),
    Case(
        "unlisted, one byte less",
        archive(*TWO, Piece(b"u", local={"size": 3, "stored_size": 3}, listed=False)),
        BadRange,
        "1 bytes before",
    ),
    Case(
        "unlisted with a long name",
        archive(*TWO, Piece(b"u", local={"name_length": 0xFFFF}, listed=False)),
        BadRange,
        "header runs into",
    ),
    Case("unlisted twice", archive(*2 * [Piece(b"u", listed=False)]), DuplicateKey, "'u'"),
    Case("unlisted and listed", archive(*TWO, Piece(b"one", listed=False)), DuplicateKey, "'one'"),
    Case("unlisted without a name", archive(Piece(b"", listed=False)), BadArchive, "empty"),
    Case(
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
    Case(
        "too many unlisted",
        archive(*(Piece(str(i).encode(), b"", listed=False) for i in range(65))),
        LimitExceeded,
        "over 64",
    ),
]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_it_is_refused_by_its_own_error(case: Case) -> None:
    with pytest.raises(StandfastError) as refused:
        archive_of(case.data)
    assert type(refused.value) is case.error, refused.value
    message = str(refused.value)
    assert re.search(case.message, message), message
    assert message.isprintable()
    assert len(message) < 1000


def test_each_case_has_a_name_of_its_own() -> None:
    assert len({case.name for case in CASES}) == len(CASES)


def small_archives() -> dict[str, bytes]:
    target = io.BytesIO()
    torch.save({"a": torch.ones(2)}, target)
    return {
        "plain": PLAIN,
        "zip64": WITH_WIDE_END,
        "comment": archive(DESCRIBED, Piece(b"u", listed=False), comment=b"a comment"),
        "torch": target.getvalue(),
    }


@pytest.mark.parametrize("kind", ["plain", "zip64", "comment", "torch"])
def test_a_file_cut_anywhere_is_truncated(kind: str) -> None:
    data = small_archives()[kind]
    archive_of(data)
    for size in range(len(data)):
        with pytest.raises(TruncatedFile):
            archive_of(data[:size])


@pytest.mark.parametrize("kind", ["plain", "zip64", "comment"])
def test_no_changed_byte_makes_it_read_otherwise_than_zipfile_does(kind: str) -> None:
    data = small_archives()[kind]
    accepted = 0
    for at in range(len(data)):
        for value in {0, 1, 0xFF, data[at] ^ 0x80, data[at] + 1 & 0xFF}:
            changed = data[:at] + bytes((value,)) + data[at + 1 :]
            try:
                found = archive_of(changed)
            except StandfastError:
                continue
            accepted += 1
            with zipfile.ZipFile(io.BytesIO(changed)) as theirs:
                sizes = {info.filename: info.file_size for info in theirs.infolist()}
            assert {entry.name: entry.size for entry in found.entries} == sizes
    assert accepted > len(data)


def test_random_damage_raises_no_other_error() -> None:
    random_source = random.Random(1)
    seeds = list(small_archives().values())
    outcomes = set()
    for _ in range(3000):
        data = bytearray(random_source.choice(seeds))
        for _ in range(random_source.randint(1, 4)):
            at = random_source.randrange(len(data))
            length = random_source.choice((1, 1, 2, 4, 8))
            data[at : at + length] = random_source.choice(
                (b"", random_source.randbytes(length), b"\xff" * length, bytes(length))
            )
        try:
            archive_of(bytes(data))
            outcomes.add("accepted")
        except StandfastError as error:
            outcomes.add(type(error).__name__)
    assert {"accepted", "BadArchive", "BadRange", "LimitExceeded", "UnsupportedFile"} <= outcomes


# How much is read


def counted(data: bytes) -> tuple[Callable[[int, int], bytes], list[int]]:
    lengths: list[int] = []
    read = reader_of(data)

    def count(start: int, length: int) -> bytes:
        lengths.append(length)
        return read(start, length)

    return count, lengths


def test_a_directory_beyond_the_limit_is_not_read() -> None:
    size = 2 * GIB
    directory = 300 << 20
    end = archive(end={"directory_size": directory, "directory_at": size - 22 - directory})
    lengths = []

    def read(start: int, length: int) -> bytes:
        lengths.append(length)
        return sparse_reader([(size - 22, end)])(start, length)

    with pytest.raises(LimitExceeded):
        read_archive(read, size)
    assert len(lengths) == 1
    assert lengths[0] < 70_000


def test_100_000_entries_take_few_reads_and_little_time() -> None:
    with processor_limit(5):
        data = built({f"archive/data/{i}": bytes(16) for i in range(100_000)}, align=64)
    read, lengths = counted(data)
    begun = time.process_time()
    found = read_archive(read, len(data))
    assert time.process_time() - begun < 3  # and about a third of a second on a quiet machine
    assert len(found.entries) == 100_000
    assert len(lengths) < 20
    with zipfile.ZipFile(io.BytesIO(data)) as theirs:
        assert len(theirs.namelist()) == 100_000


def test_entries_that_lie_apart_take_a_small_read_each() -> None:
    data = built({f"tensor {i}": bytes(100_000) for i in range(50)}, align=4096)
    read, lengths = counted(data)
    assert len(read_archive(read, len(data)).entries) == 50
    assert len(lengths) < 56
    assert sum(sorted(lengths)[:-1]) < 50 * 5000


# What is built


def built(
    contents: dict[str, bytes],
    align: int = 1,
    unlisted: dict[str, bytes] | None = None,
    comment: bytes = b"",
) -> bytes:
    out = bytearray()
    entries = []
    for name, data in contents.items():
        at = len(out)
        out += whole_entry(name, data, at, align)
        data_at = at + len(local_header(name, len(data), at, align))
        entries.append(Entry(name, at, data_at, len(data), len(data), crc_of(data), False))
    for name, data in (unlisted or {}).items():
        out += unlisted_header(name, crc_of(data), len(data)) + data
    return bytes(out) + central_directory(entries, len(out), comment)


names = st.text(st.characters(codec="utf-8", exclude_characters="\0"), min_size=1, max_size=20)
names = names.filter(lambda name: name != "hidden\t" and not name.endswith("/"))


@given(
    st.dictionaries(names, st.binary(max_size=200), max_size=5),
    st.sampled_from([1, 2, 64, 4096, 1 << 15]),
    st.binary(max_size=20).filter(lambda comment: b"PK\5\6" not in comment),
)
@settings(max_examples=100, deadline=None)
def test_zipfile_and_we_read_what_we_build(
    contents: dict[str, bytes], align: int, comment: bytes
) -> None:
    data = built(contents, align, {"hidden\t": b"x"}, comment)
    found = agrees_with_zipfile(data)
    assert {entry.name: content(data, entry) for entry in found.entries} == contents
    assert all(entry.data_at % align == 0 for entry in found.entries)
    assert [content(data, entry) for entry in found.unlisted] == [b"x"]
    assert found.comment == comment
    assert built(contents, align, {"hidden\t": b"x"}, comment) == data


def test_numpy_reads_what_we_build_and_does_not_see_what_is_unlisted() -> None:
    def saved(array: np.ndarray[Any, Any]) -> bytes:
        target = io.BytesIO()
        np.save(target, array)
        return target.getvalue()

    arrays = {"a": np.arange(5), "b": np.ones((2, 3), np.float32)}
    data = built(
        {f"{name}.npy": saved(array) for name, array in arrays.items()}, 64, {"digests": b"12345"}
    )
    with np.load(io.BytesIO(data)) as loaded:
        assert loaded.files == ["a", "b"]
        assert all(np.array_equal(loaded[name], array) for name, array in arrays.items())
    assert content(data, archive_of(data).unlisted[0]) == b"12345"


@pytest.mark.skipif(not shutil.which("unzip"), reason="there is no unzip command")
@pytest.mark.parametrize("unlisted", [{}, {"hidden": b"12345"}])
def test_unzip_finds_no_fault_in_what_we_build(unlisted: dict[str, bytes], tmp_path: Path) -> None:
    path = tmp_path / "built.zip"
    contents = {"a": b"some", "sub/b": bytes(1000), "empty": b""}
    path.write_bytes(built(contents, 64, unlisted, b"a comment"))
    result = subprocess.run(["unzip", "-t", path], capture_output=True, text=True, check=True)
    assert "No errors detected" in result.stdout


def test_more_entries_than_16_bits_count_are_right() -> None:
    data = built({str(i): b"" for i in range(65_536)})
    assert len(agrees_with_zipfile(data).entries) == 65_536


@pytest.mark.parametrize("size", [NARROW - 1, NARROW, NARROW + 1])
def test_sizes_and_offsets_around_4_gib_are_right(size: int) -> None:
    header = local_header("big", size, 0, 64)
    big = Entry("big", 0, len(header), size, size, 7, False)
    behind = own_descriptor(7, size)
    at = len(header) + size + len(behind)
    small = whole_entry("small", b"data", at, 64)
    small_at = at + len(local_header("small", 4, at, 64))
    entries = [big, Entry("small", at, small_at, 4, 4, crc_of(b"data"), False)]
    hidden_at = at + len(small)
    hidden = unlisted_header("hidden", 9, size)
    directory_at = hidden_at + len(hidden) + size
    end = central_directory(entries, directory_at)
    parts = [
        (0, header),
        (len(header) + size, behind + small),
        (hidden_at, hidden),
        (directory_at, end),
    ]
    found = read_archive(sparse_reader(parts), directory_at + len(end))
    assert found.entries == entries
    assert found.unlisted == [
        Entry("hidden", hidden_at, hidden_at + len(hidden), size, size, 9, False)
    ]
    assert len(behind) == (16 if size < NARROW else 24)
    assert big.data_at % 64 == small_at % 64 == 0


def test_zipfile_and_torch_open_a_file_of_5_gib_that_we_build(tmp_path: Path) -> None:
    with open(tmp_path / "zeros", "wb") as zeros:
        zeros.truncate(5 * GIB)
    tensors = {
        "first": torch.arange(3.0),
        "big": torch.from_numpy(np.memmap(zeros.name, np.uint8, "r+")),
        "last": torch.arange(5.0),
    }
    pattern = tmp_path / "pattern.pt"
    with torch.serialization.skip_data():
        torch.save(tensors, pattern)
    path = tmp_path / "built.pt"
    with open(pattern, "rb") as source, open(path, "wb") as target:

        def read(start: int, length: int) -> bytes:
            return os.pread(source.fileno(), length, start)

        entries = []
        for entry in read_archive(read, pattern.stat().st_size).entries:
            at = target.tell()
            data_at = at + target.write(local_header(entry.name, entry.size, at, 64))
            if entry.size > GIB:
                crc = 0  # of five billion zeros; nobody checks it here
                target.seek(entry.size, os.SEEK_CUR)
            else:
                last = entry.name.rpartition("/")[2]
                data = {
                    "0": tensors["first"].numpy().tobytes(),
                    "2": tensors["last"].numpy().tobytes(),
                }.get(last, read(entry.data_at, entry.size))
                crc = crc_of(data)
                target.write(data)
            target.write(own_descriptor(crc, entry.size))
            entries.append(Entry(entry.name, at, data_at, entry.size, entry.size, crc, False))
        target.write(central_directory(entries, target.tell()))
    loaded = torch.load(path, mmap=True, weights_only=True)
    assert loaded["big"].shape == (5 * GIB,)
    assert loaded["first"].tolist() == [0, 1, 2]
    assert loaded["last"].tolist() == [0, 1, 2, 3, 4]
    with zipfile.ZipFile(path) as file:
        assert file.getinfo(entries[5].name).file_size == 5 * GIB
        assert file.read(entries[6].name) == tensors["last"].numpy().tobytes()


@pytest.mark.parametrize("name", ["", "a\0", "folder/", "é" * 40_000, "\ud800"])
def test_a_name_that_would_not_come_back_is_refused(name: str) -> None:
    with pytest.raises(BadName):
        local_header(name, 0, 0)


@pytest.mark.parametrize("comment", [bytes(65_536), b"PK\5\6"])
def test_a_comment_that_would_not_come_back_is_refused(comment: bytes) -> None:
    with pytest.raises(RefusedMetadata):
        central_directory([], 0, comment)


def test_other_ranges_are_what_is_not_covered() -> None:
    empty = Archive([], [], b"", 0)
    assert other_ranges(empty, 10, []) == [(0, 10)]
    assert other_ranges(empty, 0, []) == []
    assert other_ranges(empty, 10, [(5, 7), (0, 2)]) == [(2, 5), (7, 10)]
    assert other_ranges(empty, 10, [(2, 6), (4, 10), (3, 3)]) == [(0, 2)]
    assert other_ranges(empty, 10, [(5, 5)]) == [(0, 10)]
