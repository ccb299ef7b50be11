"""Damaged `.pt` files: a table row for each way in which one can be wrong around its pickle."""

from __future__ import annotations

import base64
import io
import json
import zlib
from collections.abc import Mapping
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
from tests.formats.sunc.builders import Case
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


def chunks(*tensors: bytes) -> str:
    """What `standfast.chunks` holds for these tensors, each of one chunk."""
    digests = b"".join(blake3(data).digest() for data in tensors)
    return "blake3:16777216:" + base64.b64encode(digests).decode()


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


STORAGES = (
    Case("no storage", file_of({"data/0": None}), BadArchive, r"'w': .* no entry archive/data/0"),
    Case("storage too short", file_of({"data/0": SIX[:-1]}), BadRange, r"'w': .* 24 .* has 23"),
    Case("storage too long", file_of({"data/0": SIX + b"\0"}), BadRange, r"'w': .* 24 .* has 25"),
    Case("storage empty", file_of({"data/0": b""}), BadRange, r"'w': .* 24 .* has 0"),
    Case(
        "storage compressed",
        archive(*pieces({"data/0": None}), deflated("archive/data/0", SIX)),
        UnsupportedFile,
        r"'w': entry 'archive/data/0' is compressed",
    ),
    Case(
        "storage in a folder below",
        archive(*pieces({"data/0": None}), Piece(b"archive/x/data/0", SIX)),
        BadArchive,
        r"no entry archive/data/0",
    ),
    Case(
        "tensor beyond its storage",
        tree_file(dict_of(text("w"), tensor(offset=b"K\x01"))),
        BadRange,
        r"storage '0': .* too small",
    ),
    Case(
        "tensor beyond its storage by its strides",
        tree_file(dict_of(text("w"), tensor(steps=b"K\x04K\x01\x86"))),
        BadRange,
        r"storage '0': .* too small",
    ),
    Case(
        "two tensors that differ about their storage",
        tree_file(list_of(tensor(), tensor(storage(count=b"K\x07")))),
        BadPickle,
        r"storage '0'",
    ),
)

ENTRIES = (
    Case("no pickle", file_of({"data.pkl": None}), BadArchive, r"no entry data\.pkl"),
    Case("no folder", archive(Piece(b"data.pkl", ONE_TENSOR)), BadArchive, r"in no folder"),
    Case(
        "two folders",
        archive(*pieces(), Piece(b"other/data/1", SIX)),
        BadArchive,
        r"'other/data/1' \(offset \d+\): .* in the folder 'archive'",
    ),
    Case(
        "the same entry twice",
        archive(*pieces(), Piece(b"archive/data/0", SIX)),
        DuplicateKey,
        r"'archive/data/0' .* this name too",
    ),
    Case(
        "an entry that is not listed",
        archive(*pieces(), Piece(b"archive/x", b"x", listed=False)),
        BadArchive,
        r"'archive/x' is not in the directory",
    ),
    Case(
        "TorchScript",
        file_of({"constants.pkl": pickle_of(b")")}),
        UnsupportedFile,
        r"TorchScript .* state_dict",
    ),
    Case(
        "pickle compressed",
        archive(deflated("archive/data.pkl", ONE_TENSOR), *pieces({"data.pkl": None})),
        UnsupportedFile,
        r"'archive/data\.pkl' is compressed",
    ),
    Case("before 1.6", LEGACY, UnsupportedFile, r"torch before 1\.6"),
    Case("before 1.6, cut", LEGACY[:12], BadArchive, r"no zip archive"),
    Case("empty file", b"", TruncatedFile, r"ends after 0 bytes"),
    Case("cut", file_of()[:-1], TruncatedFile, r"end record"),
    Case("cut in half", file_of()[:200], TruncatedFile, r"without an end record"),
    Case("goes on", file_of() + b"x", TrailingBytes, r"1 bytes follow"),
    Case("something before it", b"x" + file_of(), BadRange, r"directory"),
    Case(
        "a folder by its attributes",
        archive(*pieces({"data/0": None}), Piece(b"archive/data/0", SIX, central={"external": 16})),
        BadArchive,
        r"'archive/data/0' .* by its attributes it is a folder",
    ),
    Case(
        "encrypted",
        archive(Piece(b"archive/data.pkl", ONE_TENSOR, flags=1)),
        UnsupportedFile,
        r"encrypted",
    ),
)

ORDERS = (
    Case("byteorder empty", file_of({"byteorder": b""}), BadField, r"byteorder.*found b''"),
    Case("byteorder middle", file_of({"byteorder": b"middle"}), BadField, r"found b'middle'"),
    Case("byteorder in capitals", file_of({"byteorder": b"BIG"}), BadField, r"found b'BIG'"),
    Case("byteorder with a newline", file_of({"byteorder": b"big\n"}), BadField, r"b'big\\n'"),
    Case("byteorder endless", file_of({"byteorder": b"\x1b" * 5000}), BadField, r"byteorder"),
)

TREES = (
    Case("pickle empty", file_of({"data.pkl": b""}), TruncatedFile, r"the pickle ends"),
    Case("pickle cut", file_of({"data.pkl": ONE_TENSOR[:-1]}), TruncatedFile, r"STOP"),
    Case("pickle goes on", file_of({"data.pkl": ONE_TENSOR + b"N"}), TrailingBytes, r"1 bytes"),
    Case("an integer of 16,000 bits", tree_file(integer(1 << 16_000)), LimitExceeded, r"integer"),
    Case("code in the tree", tree_file(SYSTEM), RefusedPickle, r"os\.system .* tensors_only"),
    Case(
        "two leaves of one path",
        tree_file(dict_of(text("a.b"), b"N", text("a"), dict_of(text("b"), b"N"))),
        DuplicateKey,
        r"the path 'a\.b'",
    ),
    Case("101 levels", tree_file(b"]" * 102 + b"a" * 101), LimitExceeded, r"100 levels"),
    Case(
        "a million leaves in 300 bytes",
        tree_file(_shared(5, 10)),
        LimitExceeded,
        r"again and again",
    ),
    Case(
        "a million empty lists",
        tree_file(_shared(19, 2).replace(b"N", b"]")),
        LimitExceeded,
        r"again and again",
    ),
    Case(
        "paths of gigabytes",
        tree_file(dict_of(text("k" * 100_000), list_of(*[b"N"] * 5000))),
        LimitExceeded,
        r"'kkk.*: the paths of all leaves are too long",
    ),
)

OURS = (
    Case("entry is no JSON", sealed(b"{"), BadField, r"'archive/standfast\.json': not the JSON"),
    Case("entry is no object", sealed(b"[]"), BadField, r"expected a JSON object, found list"),
    Case("entry is not UTF-8", sealed(b'{"\xff":1}'), BadField, r"not UTF-8"),
    Case("entry empty", sealed(b""), BadField, r"not the JSON"),
    Case("no digests", sealed(own_entry(**{"standfast.chunks": None})), BadField, r"the keys"),
    Case("no metadata", sealed(own_entry(metadata=None)), BadField, r"the keys"),
    Case("metadata a list", sealed(own_entry(metadata=[])), BadField, r"the keys"),
    Case(
        "metadata with a key of ours",
        sealed(own_entry(metadata={"standfast.x": 1})),
        BadField,
        r"'standfast\.x', which no user can set",
    ),
    Case(
        "a key twice",
        sealed(b'{"metadata":{},"metadata":{}}'),
        DuplicateKey,
        r"'metadata' stands twice",
    ),
    Case(
        "entry compressed",
        archive(*pieces(), deflated("archive/standfast.json", own_entry())),
        UnsupportedFile,
        r"'archive/standfast\.json' is compressed",
    ),
    Case(
        "entry with another checksum",
        archive(
            *pieces(),
            Piece(b"archive/standfast.json", own_entry(), local={"crc": 1}, central={"crc": 1}),
        ),
        BadArchive,
        r"'archive/standfast\.json': its CRC-32 is not 00000001",
    ),
)

DIGESTS = tuple(
    Case(name, data, error, message, unchecked=True)
    for name, data, error, message in (
        (
            "entry without a comment",
            file_of({"standfast.json": own_entry()}),
            IndexMismatch,
            "gone",
        ),
        ("comment without an entry", file_of(comment=SEAL + b"0" * 64), IndexMismatch, "gone"),
        ("another comment", sealed(seal=b"standfast_digest:"), IndexMismatch, "gone"),
        ("comment cut", file_of({"standfast.json": own_entry()}, SEAL), IndexMismatch, "match"),
        (
            "comment altered",
            sealed()[:-1] + (b"0" if sealed()[-1:] != b"0" else b"1"),
            IndexMismatch,
            "does not match its own digest",
        ),
        (
            "comment in capitals",
            sealed()[:-64] + sealed()[-64:].upper(),
            IndexMismatch,
            "does not match",
        ),
        ("name altered", altered(saved(), b"X\1\0\0\0w", b"X\1\0\0\0v"), IndexMismatch, "match"),
        ("metadata altered", sealed(version=b"4\n")[:-64] + b"0" * 64, IndexMismatch, "match"),
        (
            "digests of two tensors",
            sealed(own_entry(**{"standfast.chunks": chunks(SIX, SIX)})),
            BadField,
            "64 bytes of digests for 1 chunks",
        ),
        (
            "digests of none",
            sealed(own_entry(**{"standfast.chunks": chunks()})),
            BadField,
            "0 bytes of digests for 1 chunks",
        ),
        (
            "digests that are a number",
            sealed(own_entry(**{"standfast.chunks": 3})),
            BadField,
            "expected text that starts",
        ),
        (
            "digests of another kind",
            sealed(own_entry(**{"standfast.chunks": "sha256:"})),
            BadField,
            "expected text that starts",
        ),
        (
            "digests that are no base64",
            sealed(own_entry(**{"standfast.chunks": "blake3:16777216:a"})),
            BadField,
            "not base64",
        ),
    )
)

CASES = (*STORAGES, *ENTRIES, *ORDERS, *TREES, *OURS, *DIGESTS)
