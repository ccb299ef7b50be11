"""Damaged `.pt` files: a table row for each way in which one can be wrong around its pickle."""

from __future__ import annotations

import io
import json
import zlib
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
from blake3 import blake3

import standfast
from standfast.errors import (
    BadArchive,
    BadField,
    BadPickle,
    BadRange,
    DuplicateKey,
    IndexMismatch,
    LimitExceeded,
    RefusedPickle,
    TrailingBytes,
    TruncatedFile,
    UnsupportedFile,
)
from tests.formats.builders import Row, chunks
from tests.formats.torch import hostile_pickles
from tests.formats.torch.hostile_pickles import (
    SYSTEM,
    dict_of,
    get,
    integer,
    list_of,
    pickle_of,
    put,
    storage,
    tensor,
    text,
)
from tests.formats.zip.builders import Piece, archive, crc_of

SIX = np.arange(6, dtype="<f4").tobytes()
ONE_TENSOR = pickle_of(dict_of(text("w"), tensor()))
LEGACY = b"\x80\x02\x8a\x0al\xfc\x9cF\xf9 j\xa8P\x19.\x80\x02M\xe9\x03."
"""How a file of torch before 1.6 starts."""
SEAL = b"standfast.digest:"


def entries(changes: Mapping[str, bytes | None]) -> dict[str, bytes]:
    """The entries of a file of one tensor; None leaves one out."""
    own: dict[str, bytes | None] = {
        "data.pkl": ONE_TENSOR,
        "byteorder": b"little",
        "data/0": SIX,
        "version": b"3\n",
    }
    return {key: data for key, data in (own | dict(changes)).items() if data is not None}


def pieces(changes: Mapping[str, bytes | None] | None = None) -> list[Piece]:
    """The same as they lie in an archive."""
    return [
        Piece(f"archive/{name}".encode(), data) for name, data in entries(changes or {}).items()
    ]


def file_of(changes: Mapping[str, bytes | None] | None = None, comment: bytes = b"") -> bytes:
    """A file of one tensor; entries that are given replace its own."""
    return archive(*pieces(changes), comment=comment)


def tree_file(*opcodes: bytes) -> bytes:
    """A file whose tree these opcodes make."""
    return file_of({"data.pkl": pickle_of(*opcodes)})


def deflated(name: str, data: bytes, **lies: int) -> Piece:
    """A compressed entry."""
    deflater = zlib.compressobj(9, wbits=-15)
    packed = deflater.compress(data) + deflater.flush()
    fields = {"method": 8, "size": len(data), "crc": crc_of(data)} | lies
    return Piece(name.encode(), packed, local=fields, central=fields)


def own_entry(**changes: Any) -> bytes:
    """Our entry; members that are given replace its own, and None leaves one out."""
    members: dict[str, Any] = {"standfast.chunks": chunks(SIX), "metadata": {"step": 3}}
    return json.dumps({k: v for k, v in (members | changes).items() if v is not None}).encode()


def sealed(own: bytes | None = None, seal: bytes = SEAL, **changes: bytes | None) -> bytes:
    """A file with our entry and a right seal, whatever the entry says."""
    own = own_entry() if own is None else own
    file = file_of({**changes, "standfast.json": own}, comment=seal + b"0" * 64)
    at = file.index(SIX)
    digits = blake3(file[:at] + file[at + len(SIX) :]).hexdigest().encode()
    return file[:-64] + digits


def saved() -> bytes:
    """The file that Standfast writes."""
    stream = io.BytesIO()
    standfast.save(stream, {"w": np.arange(6, dtype="<f4")}, {"step": 3}, format="torch")
    return stream.getvalue()


def altered(file: bytes, old: bytes, new: bytes) -> bytes:
    """The file with some bytes exchanged for as many others."""
    assert file.count(old) >= 1
    assert len(old) == len(new)
    return file.replace(old, new)


def _shared(levels: int, width: int) -> bytes:
    """Lists of lists of lists, of which each stands there once."""
    opcodes = list_of(*[b"N"] * width) + put(0)
    for i in range(levels):
        opcodes = list_of(opcodes, *[get(i)] * (width - 1)) + put(i + 1)
    return opcodes


def _around(row: Row) -> Callable[[], bytes] | bytes:
    def build() -> bytes:
        return file_of({"data.pkl": row.content})

    return build if callable(row.data) else build()


STORAGES = (
    Row("no storage", file_of({"data/0": None}), BadArchive, tensor="w"),
    Row("storage too short", file_of({"data/0": SIX[:-1]}), BadRange, tensor="w"),
    Row("storage too long", file_of({"data/0": SIX + b"\0"}), BadRange, tensor="w"),
    Row("storage empty", file_of({"data/0": b""}), BadRange, tensor="w"),
    Row(
        "storage compressed",
        archive(*pieces({"data/0": None}), deflated("archive/data/0", SIX)),
        UnsupportedFile,
        tensor="w",
    ),
    Row(
        "storage in a folder below",
        archive(*pieces({"data/0": None}), Piece(b"archive/x/data/0", SIX)),
        BadArchive,
    ),
    Row(
        "tensor beyond its storage",
        tree_file(dict_of(text("w"), tensor(offset=b"K\x01"))),
        BadRange,
    ),
    Row(
        "tensor beyond its storage by its strides",
        tree_file(dict_of(text("w"), tensor(steps=b"K\x04K\x01\x86"))),
        BadRange,
    ),
    Row(
        "two tensors that differ about their storage",
        tree_file(list_of(tensor(), tensor(storage(count=b"K\x07")))),
        BadPickle,
    ),
)

ENTRIES = (
    Row("no pickle", file_of({"data.pkl": None}), BadArchive),
    Row("no folder", archive(Piece(b"data.pkl", ONE_TENSOR)), BadArchive),
    Row("two folders", archive(*pieces(), Piece(b"other/data/1", SIX)), BadArchive),
    Row("the same entry twice", archive(*pieces(), Piece(b"archive/data/0", SIX)), DuplicateKey),
    Row(
        "an entry that is not listed",
        archive(*pieces(), Piece(b"archive/x", b"x", listed=False)),
        BadArchive,
    ),
    Row("TorchScript", file_of({"constants.pkl": pickle_of(b")")}), UnsupportedFile),
    Row(
        "pickle compressed",
        archive(deflated("archive/data.pkl", ONE_TENSOR), *pieces({"data.pkl": None})),
        UnsupportedFile,
    ),
    Row("before 1.6", LEGACY, UnsupportedFile),
    Row("before 1.6, cut", LEGACY[:12], BadArchive),
    Row("empty file", b"", TruncatedFile),
    Row("cut", file_of()[:-1], TruncatedFile),
    Row("cut in half", file_of()[:200], TruncatedFile),
    Row("goes on", file_of() + b"x", TrailingBytes),
    Row("something before it", b"x" + file_of(), BadRange),
    Row(
        "a folder by its attributes",
        archive(*pieces({"data/0": None}), Piece(b"archive/data/0", SIX, central={"external": 16})),
        BadArchive,
    ),
    Row("encrypted", archive(Piece(b"archive/data.pkl", ONE_TENSOR, flags=1)), UnsupportedFile),
)

ORDERS = (
    Row("byteorder empty", file_of({"byteorder": b""}), BadField),
    Row("byteorder middle", file_of({"byteorder": b"middle"}), BadField),
    Row("byteorder in capitals", file_of({"byteorder": b"BIG"}), BadField),
    Row("byteorder with a newline", file_of({"byteorder": b"big\n"}), BadField),
    Row("byteorder endless", file_of({"byteorder": b"\x1b" * 5000}), BadField),
)

TREES = (
    Row("pickle empty", file_of({"data.pkl": b""}), TruncatedFile),
    Row("pickle cut", file_of({"data.pkl": ONE_TENSOR[:-1]}), TruncatedFile),
    Row("pickle goes on", file_of({"data.pkl": ONE_TENSOR + b"N"}), TrailingBytes),
    Row("an integer of 16,000 bits", tree_file(integer(1 << 16_000)), LimitExceeded),
    Row("code in the tree", tree_file(SYSTEM), RefusedPickle),
    Row(
        "two leaves of one path",
        tree_file(dict_of(text("a.b"), b"N", text("a"), dict_of(text("b"), b"N"))),
        DuplicateKey,
    ),
    Row("101 levels", tree_file(b"]" * 102 + b"a" * 101), LimitExceeded),
    Row("a million leaves in 300 bytes", lambda: tree_file(_shared(5, 10)), LimitExceeded),
    Row(
        "a million empty lists",
        lambda: tree_file(_shared(19, 2).replace(b"N", b"]")),
        LimitExceeded,
    ),
    Row(
        "paths of gigabytes",
        lambda: tree_file(dict_of(text("k" * 100_000), list_of(*[b"N"] * 5000))),
        LimitExceeded,
    ),
)

OURS = (
    Row("entry is no JSON", sealed(b"{"), BadField),
    Row("entry is no object", sealed(b"[]"), BadField),
    Row("entry is not UTF-8", sealed(b'{"\xff":1}'), BadField),
    Row("entry empty", sealed(b""), BadField),
    Row("no digests", sealed(own_entry(**{"standfast.chunks": None})), BadField),
    Row("no metadata", sealed(own_entry(metadata=None)), BadField),
    Row("metadata a list", sealed(own_entry(metadata=[])), BadField),
    Row("metadata with a key of ours", sealed(own_entry(metadata={"standfast.x": 1})), BadField),
    Row("a key twice", sealed(b'{"metadata":{},"metadata":{}}'), DuplicateKey),
    Row(
        "entry compressed",
        archive(*pieces(), deflated("archive/standfast.json", own_entry())),
        UnsupportedFile,
    ),
    Row(
        "entry with another checksum",
        archive(
            *pieces(),
            Piece(b"archive/standfast.json", own_entry(), local={"crc": 1}, central={"crc": 1}),
        ),
        BadArchive,
    ),
)

DIGESTS = (
    Row(
        "entry without a comment",
        file_of({"standfast.json": own_entry()}),
        IndexMismatch,
        opens=True,
    ),
    Row("comment without an entry", file_of(comment=SEAL + b"0" * 64), IndexMismatch, opens=True),
    Row("another comment", sealed(seal=b"standfast_digest:"), IndexMismatch, opens=True),
    Row("comment cut", file_of({"standfast.json": own_entry()}, SEAL), IndexMismatch, opens=True),
    Row(
        "comment altered",
        sealed()[:-1] + (b"0" if sealed()[-1:] != b"0" else b"1"),
        IndexMismatch,
        opens=True,
    ),
    Row("comment in capitals", sealed()[:-64] + sealed()[-64:].upper(), IndexMismatch, opens=True),
    Row("name altered", altered(saved(), b"X\1\0\0\0w", b"X\1\0\0\0v"), IndexMismatch, opens=True),
    Row("metadata altered", sealed(version=b"4\n")[:-64] + b"0" * 64, IndexMismatch, opens=True),
    Row(
        "digests of two tensors",
        sealed(own_entry(**{"standfast.chunks": chunks(SIX, SIX)})),
        BadField,
        opens=True,
    ),
    Row(
        "digests of none", sealed(own_entry(**{"standfast.chunks": chunks()})), BadField, opens=True
    ),
    Row(
        "digests that are a number",
        sealed(own_entry(**{"standfast.chunks": 3})),
        BadField,
        opens=True,
    ),
    Row(
        "digests of another kind",
        sealed(own_entry(**{"standfast.chunks": "sha256:"})),
        BadField,
        opens=True,
    ),
    Row(
        "digests that are no base64",
        sealed(own_entry(**{"standfast.chunks": "blake3:16777216:a"})),
        BadField,
        opens=True,
    ),
)

ROWS = (*STORAGES, *ENTRIES, *ORDERS, *TREES, *OURS, *DIGESTS)

PICKLES = tuple(replace(row, data=_around(row)) for row in hostile_pickles.ROWS)
"""Hostile pickles, each in a file of its own."""
