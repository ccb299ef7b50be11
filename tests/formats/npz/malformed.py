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
from tests.formats.builders import Row, chunks
from tests.formats.torch.malformed import SEAL, deflated
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
    Row("empty file", b"", TruncatedFile),
    Row("no archive", b"PK\3\4 and no more", TruncatedFile),
    Row("cut", file_of(npy())[:-1], TruncatedFile),
    Row("goes on", file_of(npy()) + b"\0", TrailingBytes),
    Row("no array", archive(Piece(b"a.npy", npy()), Piece(b"b.txt", b"x")), BadField),
    Row(
        "the same name twice", archive(Piece(b"a.npy", npy()), Piece(b"a.npy", npy())), DuplicateKey
    ),
    Row(
        "an entry that is not listed",
        archive(Piece(b"a.npy", npy()), Piece(b"b.npy", npy(), listed=False)),
        BadField,
    ),
    Row(
        "ours and another that are not listed",
        archive(
            Piece(b"a.npy", npy()),
            Piece(b"standfast.json", own_entry(), listed=False),
            Piece(b"b.npy", npy(), listed=False),
        ),
        BadField,
    ),
    Row(
        "bytes that are no entry's",
        archive(Piece(b"a.npy", npy()), before_directory=b"hidden"),
        BadRange,
    ),
    Row(
        "ours among those that are listed",
        archive(Piece(b"a.npy", npy()), Piece(b"standfast.json", own_entry())),
        BadField,
    ),
    Row(
        "bzip2",
        archive(Piece(b"a.npy", npy(), local={"method": 12}, central={"method": 12})),
        UnsupportedFile,
    ),
)

HEADERS = (
    Row("entry empty", file_of(b""), TruncatedFile),
    Row("no magic", file_of(b"x" * 200), BadHeader),
    Row("header cut", file_of(npy()[:40]), TruncatedFile),
    Row("version 9", file_of(npy().replace(b"Y\1", b"Y\x09")), UnsupportedFile),
    Row("header of spaces", file_of(npy_of(b" " * 99)), BadHeader),
    Row("no shape", file_of(npy_of(b"{'descr': '<f4', 'fortran_order': False}")), BadField),
    Row(
        "a call in the header",
        file_of(npy_of(b"{'descr': __import__('os').system('touch x')}")),
        BadHeader,
    ),
    Row("fortran_order 1", file_of(npy(order="1")), BadField),
    Row("negative dimension", file_of(npy(shape="(-6,)")), BadField),
    Row("a number for a shape", file_of(npy(shape="(6)")), BadField),
)

DTYPES = (
    Row("objects", of_objects(), UnknownDType),
    Row("objects of no bytes", file_of(npy("'|O'", data=b"")), UnknownDType),
    Row("text of three bytes", file_of(npy("'|S3'", shape="(8,)")), UnknownDType),
    Row("text", file_of(npy("'<U1'")), UnknownDType),
    Row("times", file_of(npy("'<M8[ns]'", shape="(3,)")), UnknownDType),
    Row("void", file_of(npy("'|V4'")), UnknownDType),
    Row("records", file_of(npy("[('x', '<f4')]")), UnknownDType),
    Row("a subarray", file_of(npy("('<f4', (2,))", shape="(3,)")), UnknownDType),
    Row("float128", file_of(npy("'<f16'", shape="()")), UnknownDType),
    Row("escapes for a terminal", file_of(npy("'\x1b[31m'")), UnknownDType),
)

SIZES = (
    Row("element missing", file_of(npy(data=SIX[:-4])), SizeMismatch),
    Row("element too many", file_of(npy(data=SIX * 2)), SizeMismatch),
    Row("2^60 elements", file_of(npy(shape=f"({HUGE},)")), LimitExceeded),
    Row("2^59 - 1 elements", file_of(npy(shape=f"({HUGE // 2 - 1},)")), SizeMismatch),
    Row("2^62 bytes", file_of(npy(shape=f"({1 << 30}, {1 << 31})")), LimitExceeded),
    Row("empty and huge", file_of(npy(shape=f"(0, {1 << 58}, 99)", data=b"")), LimitExceeded),
    Row("65 dimensions", file_of(npy(shape=f"({'1, ' * 65})")), LimitExceeded),
    Row("4301 digits", file_of(npy(shape=f"({'9' * 4301},)")), LimitExceeded),
    Row("deflated, with a lie about its size", packed(npy(), size=len(npy()) - 4), SizeMismatch),
    Row("deflated to more than deflate can", packed(npy(), size=1 << 31), LimitExceeded),
    Row("a bomb that does not hide", packed(bomb()), SizeMismatch),
    Row(
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
    ),
)

OURS = (
    Row("entry is no JSON", sealed(b"{"), BadField),
    Row("entry is no object", sealed(b"7"), BadField),
    Row("a key missing", sealed(b'{"metadata":{}}'), BadField),
    Row("metadata a text", sealed(own_entry(metadata="x")), BadField),
    Row(
        "metadata with a key of ours", sealed(own_entry(metadata={"standfast.digest": 1})), BadField
    ),
    Row("another name", sealed(name=b"standfast.jsom"), BadField),
)

DIGESTS = (
    Row("comment alone", archive(Piece(b"a.npy", npy()), comment=SEAL), IndexMismatch, opens=True),
    Row("entry alone", sealed(seal=b"another.digest:"), IndexMismatch, opens=True),
    Row("comment altered", sealed()[:-3] + b"...", IndexMismatch, opens=True),
    Row(
        "metadata altered",
        sealed()
        .replace(b"step", b"stop")
        .replace(
            zlib.crc32(own_entry()).to_bytes(4, "little"),
            zlib.crc32(own_entry().replace(b"step", b"stop")).to_bytes(4, "little"),
        ),
        IndexMismatch,
        opens=True,
    ),
    Row("name altered", saved().replace(b"a.npy", b"b.npy"), IndexMismatch, opens=True),
    Row(
        "digests of two arrays",
        sealed(own_entry(**{"standfast.chunks": chunks(SIX, SIX)})),
        BadField,
        opens=True,
    ),
    Row(
        "digests that are null",
        sealed(own_entry(**{"standfast.chunks": None})),
        BadField,
        opens=True,
    ),
)

ROWS = (*ARCHIVES, *HEADERS, *DTYPES, *SIZES, *OURS, *DIGESTS)
