"""Damaged `.npz` files: a table row for each way in which one can be wrong."""

from __future__ import annotations

import io
import json
import zlib
from typing import Any

import numpy as np
from blake3 import blake3

import standfast
from standfast.errors import (
    BadArchive,
    BadField,
    BadHeader,
    BadRange,
    DuplicateKey,
    IndexMismatch,
    LimitExceeded,
    SizeMismatch,
    TrailingBytes,
    TruncatedFile,
    UnknownDType,
    UnsupportedFile,
)
from tests.formats.sunc.builders import Case
from tests.formats.torch.malformed import SEAL, chunks, deflated
from tests.formats.zip.builders import Piece, archive

SIX = np.arange(6, dtype="<f4").tobytes()
HUGE = 1 << 60


def npy(
    descr: str = "'<f4'", order: str = "False", shape: str = "(6,)", data: bytes = SIX
) -> bytes:
    """An array as its entry has it: fields as the text of Python's literals, and its elements."""
    text = f"{{'descr': {descr}, 'fortran_order': {order}, 'shape': {shape}, }}"
    return npy_of(text.encode(), data)


def npy_of(text: bytes, data: bytes = SIX) -> bytes:
    """An array with this text for a header, padded as NumPy does."""
    text = text.ljust(-(-(len(text) + 11) // 64) * 64 - 11) + b"\n"
    return b"\x93NUMPY\1\0" + len(text).to_bytes(2, "little") + text + data


def file_of(*entries: bytes) -> bytes:
    """A file of these arrays: a, b and so on."""
    return archive(*(Piece(b"%c.npy" % (97 + i), entry) for i, entry in enumerate(entries)))


def packed(entry: bytes, **lies: int) -> bytes:
    """A file of one array, compressed; fields that are given lie about it."""
    return archive(deflated("a.npy", entry, **lies))


def own_entry(**changes: Any) -> bytes:
    """Our entry; members that are given replace its own."""
    members: dict[str, Any] = {"standfast.chunks": chunks(SIX), "metadata": {"step": 3}}
    return json.dumps(members | changes).encode()


def sealed(own: bytes | None = None, name: bytes = b"standfast.json", seal: bytes = SEAL) -> bytes:
    """A file with our entry, which is not listed, and a right seal, whatever the entry says."""
    piece = Piece(name, own_entry() if own is None else own, listed=False)
    file = archive(Piece(b"a.npy", npy()), piece, comment=seal + b"0" * 64)
    at = file.index(SIX)
    return file[:-64] + blake3(file[:at] + file[at + len(SIX) :]).hexdigest().encode()


def saved() -> bytes:
    """The file that Standfast writes."""
    stream = io.BytesIO()
    standfast.save(stream, {"a": np.arange(6, dtype="<f4")}, {"step": 3}, format="npz")
    return stream.getvalue()


def of_objects() -> bytes:
    """An array of objects, as NumPy writes it: a pickle."""
    stream = io.BytesIO()
    np.savez(stream, a=np.array([{}, None], object))
    return stream.getvalue()


def bomb(size: int = 1 << 24) -> bytes:
    """Zeros, a thousand times shorter, behind the header of a small array."""
    return npy() + bytes(size)


ARCHIVES = (
    Case("empty file", b"", TruncatedFile, r"ends after 0 bytes"),
    Case("no archive", b"PK\3\4 and no more", TruncatedFile, r"without an end record"),
    Case("cut", file_of(npy())[:-1], TruncatedFile, r"end record"),
    Case("goes on", file_of(npy()) + b"\0", TrailingBytes, r"1 bytes follow"),
    Case(
        "no array",
        archive(Piece(b"a.npy", npy()), Piece(b"b.txt", b"x")),
        BadField,
        r"'b\.txt' \(offset \d+\): its name does not end in \.npy",
    ),
    Case(
        "the same name twice",
        archive(Piece(b"a.npy", npy()), Piece(b"a.npy", npy())),
        DuplicateKey,
        r"'a\.npy' .* this name too",
    ),
    Case(
        "an entry that is not listed",
        archive(Piece(b"a.npy", npy()), Piece(b"b.npy", npy(), listed=False)),
        BadField,
        r"none of them is ours",
    ),
    Case(
        "ours and another that are not listed",
        archive(
            Piece(b"a.npy", npy()),
            Piece(b"standfast.json", own_entry(), listed=False),
            Piece(b"b.npy", npy(), listed=False),
        ),
        BadField,
        r"none of them is ours",
    ),
    Case(
        "bytes that are no entry's",
        archive(Piece(b"a.npy", npy()), before_directory=b"hidden"),
        BadRange,
        r"6 bytes before the directory",
    ),
    Case(
        "ours among those that are listed",
        archive(Piece(b"a.npy", npy()), Piece(b"standfast.json", own_entry())),
        BadField,
        r"'standfast\.json' .* does not end in \.npy",
    ),
    Case(
        "bzip2",
        archive(Piece(b"a.npy", npy(), local={"method": 12}, central={"method": 12})),
        UnsupportedFile,
        r"compression method 12",
    ),
)

HEADERS = (
    Case("entry empty", file_of(b""), TruncatedFile, r"'a\.npy' .* no room for its header"),
    Case("no magic", file_of(b"x" * 200), BadHeader, r"offset 0: expected b'\\x93NUMPY'"),
    Case("header cut", file_of(npy()[:40]), TruncatedFile, r"header length \(offset 8\)"),
    Case("version 9", file_of(npy().replace(b"Y\1", b"Y\x09")), UnsupportedFile, r"version 9\.0"),
    Case("header of spaces", file_of(npy_of(b" " * 99)), BadHeader, r"expected '\{'"),
    Case("no shape", file_of(npy_of(b"{'descr': '<f4', 'fortran_order': False}")), BadField, "sh"),
    Case(
        "a call in the header",
        file_of(npy_of(b"{'descr': __import__('os').system('touch x')}")),
        BadHeader,
        r"expected field descr in quotes",
    ),
    Case("fortran_order 1", file_of(npy(order="1")), BadField, r"no boolean"),
    Case("negative dimension", file_of(npy(shape="(-6,)")), BadField, r"no dimension"),
    Case("a number for a shape", file_of(npy(shape="(6)")), BadField, r"Python has no tuple"),
)

DTYPES = (
    Case("objects", of_objects(), UnknownDType, r"'\|O': objects would need pickle"),
    Case("objects of no bytes", file_of(npy("'|O'", data=b"")), UnknownDType, r"'\|O'"),
    Case("text of three bytes", file_of(npy("'|S3'", shape="(8,)")), UnknownDType, r"'\|S3'"),
    Case("text", file_of(npy("'<U1'")), UnknownDType, r"'<U1'"),
    Case("times", file_of(npy("'<M8[ns]'", shape="(3,)")), UnknownDType, r"'<M8\[ns\]'"),
    Case("void", file_of(npy("'|V4'")), UnknownDType, r"'\|V4': bytes without a type"),
    Case("records", file_of(npy("[('x', '<f4')]")), UnknownDType, r"fields or subarrays"),
    Case("a subarray", file_of(npy("('<f4', (2,))", shape="(3,)")), UnknownDType, r"subarrays"),
    Case("float128", file_of(npy("'<f16'", shape="()")), UnknownDType, r"'<f16'"),
    Case("escapes for a terminal", file_of(npy("'\x1b[31m'")), UnknownDType, r"x1b"),
)

SIZES = (
    Case("element missing", file_of(npy(data=SIX[:-4])), SizeMismatch, r"'a\.npy' .* entry has"),
    Case("element too many", file_of(npy(data=SIX * 2)), SizeMismatch, r"shape \[6\]"),
    Case("2^60 elements", file_of(npy(shape=f"({HUGE},)")), LimitExceeded, r"a dimension of"),
    Case("2^59 - 1 elements", file_of(npy(shape=f"({HUGE // 2 - 1},)")), SizeMismatch, r"take"),
    Case("2^62 bytes", file_of(npy(shape=f"({1 << 30}, {1 << 31})")), LimitExceeded, r"no array"),
    Case("empty and huge", file_of(npy(shape=f"(0, {1 << 58}, 99)", data=b"")), LimitExceeded, ""),
    Case("65 dimensions", file_of(npy(shape=f"({'1, ' * 65})")), LimitExceeded, r"64 dimensions"),
    Case("4301 digits", file_of(npy(shape=f"({'9' * 4301},)")), LimitExceeded, r"4,301 digits"),
    Case(
        "deflated, with a lie about its size",
        packed(npy(), size=len(npy()) - 4),
        SizeMismatch,
        r"but the entry has",
    ),
    Case(
        "deflated to more than deflate can",
        packed(npy(), size=1 << 31),
        LimitExceeded,
        r"never inflate to",
    ),
    Case("a bomb that does not hide", packed(bomb()), SizeMismatch, r"but the entry has 16,777,3"),
    Case(
        "deflated nonsense",
        archive(
            Piece(
                b"a.npy",
                b"\xff" * 40,
                local={"method": 8, "size": len(npy())},
                central={"method": 8, "size": len(npy())},
            )
        ),
        BadArchive,
        r"cannot be inflated",
    ),
)

OURS = (
    Case("entry is no JSON", sealed(b"{"), BadField, r"'standfast\.json': not the JSON"),
    Case("entry is no object", sealed(b"7"), BadField, r"expected a JSON object, found int"),
    Case("a key missing", sealed(b'{"metadata":{}}'), BadField, r"the keys"),
    Case("metadata a text", sealed(own_entry(metadata="x")), BadField, r"the keys"),
    Case(
        "metadata with a key of ours",
        sealed(own_entry(metadata={"standfast.digest": 1})),
        BadField,
        r"'standfast\.digest', which no user can set",
    ),
    Case("another name", sealed(name=b"standfast.jsom"), BadField, r"none of them is ours"),
)

DIGESTS = tuple(
    Case(name, data, error, message, unchecked=True)
    for name, data, error, message in (
        ("comment alone", archive(Piece(b"a.npy", npy()), comment=SEAL), IndexMismatch, "gone"),
        ("entry alone", sealed(seal=b"another.digest:"), IndexMismatch, "gone"),
        ("comment altered", sealed()[:-3] + b"...", IndexMismatch, "does not match its own digest"),
        (
            "metadata altered",
            sealed()
            .replace(b"step", b"stop")
            .replace(
                zlib.crc32(own_entry()).to_bytes(4, "little"),
                zlib.crc32(own_entry().replace(b"step", b"stop")).to_bytes(4, "little"),
            ),
            IndexMismatch,
            "does not match its own digest",
        ),
        (
            "name altered",
            saved().replace(b"a.npy", b"b.npy"),
            IndexMismatch,
            "does not match its own digest",
        ),
        (
            "digests of two arrays",
            sealed(own_entry(**{"standfast.chunks": chunks(SIX, SIX)})),
            BadField,
            "64 bytes of digests for 1 chunks",
        ),
        (
            "digests that are null",
            sealed(own_entry(**{"standfast.chunks": None})),
            BadField,
            "expected text that starts",
        ),
    )
)

CASES = (*ARCHIVES, *HEADERS, *DTYPES, *SIZES, *OURS, *DIGESTS)
