"""Damaged `.pt` files: a row for each way in which one can be wrong around its pickle."""

from collections.abc import Callable
from dataclasses import replace

from standfast import errors
from tests.formats.builders import Row, chunks, rows, unchecked
from tests.formats.torch import hostile_pickles
from tests.formats.torch.builders import (
    ONE_TENSOR,
    SEAL,
    SIX,
    SYSTEM,
    deflated,
    dict_of,
    file_of,
    get,
    integer,
    list_of,
    own_entry,
    pickle_of,
    put,
    saved,
    sealed,
    storage,
    tensor,
    text,
    tree_file,
)
from tests.formats.zip.builders import Piece, archive

LEGACY = b"\x80\x02\x8a\x0al\xfc\x9cF\xf9 j\xa8P\x19.\x80\x02M\xe9\x03."
"""How a file of torch before 1.6 starts."""


def _shared(levels: int, width: int) -> bytes:
    """Lists of lists of lists, each of them once."""
    opcodes = list_of(*[b"N"] * width) + put(0)
    for i in range(levels):
        opcodes = list_of(opcodes, *[get(i)] * (width - 1)) + put(i + 1)
    return opcodes


def _around(row: Row) -> Callable[[], bytes] | bytes:
    def build() -> bytes:
        return file_of(pickle=row.content)

    return build if callable(row.data) else build()


ROWS = {
    ("w", errors.BadArchive): {"no storage": file_of(data=None)},
    ("w", errors.BadRange): {
        "storage too short": file_of(data=SIX[:-1]),
        "storage too long": file_of(data=SIX + b"\0"),
        "storage empty": file_of(data=b""),
    },
    ("w", errors.UnsupportedFile): {
        "storage compressed": file_of(deflated("archive/data/0", SIX), data=None)
    },
    errors.BadArchive: {
        "storage in a folder below": file_of(Piece(b"archive/x/data/0", SIX), data=None),
        "no pickle": file_of(pickle=None),
        "no folder": archive(Piece(b"data.pkl", ONE_TENSOR)),
        "two folders": file_of(Piece(b"other/data/1", SIX)),
        "an entry that is not listed": file_of(Piece(b"archive/x", b"x", listed=False)),
        "before 1.6, cut": LEGACY[:12],
        "a folder by its attributes": file_of(
            Piece(b"archive/data/0", SIX, central={"external": 16}), data=None
        ),
        "entry with another checksum": file_of(
            Piece(b"archive/standfast.json", own_entry(), local={"crc": 1}, central={"crc": 1})
        ),
    },
    errors.BadRange: {
        "tensor beyond its storage": tree_file(dict_of(text("w"), tensor(offset=b"K\x01"))),
        "beyond it by its strides": tree_file(dict_of(text("w"), tensor(steps=b"K\x04K\x01\x86"))),
        "something before it": b"x" + file_of(),
    },
    errors.BadPickle: {
        "storages that differ": tree_file(list_of(tensor(), tensor(storage(count=b"K\x07"))))
    },
    errors.DuplicateKey: {
        "duplicate entry": file_of(Piece(b"archive/data/0", SIX)),
        "two leaves of one path": tree_file(
            dict_of(text("a.b"), b"N", text("a"), dict_of(text("b"), b"N"))
        ),
        "duplicate key": sealed(b'{"metadata":{},"metadata":{}}'),
    },
    errors.UnsupportedFile: {
        "TorchScript": file_of(**{"constants.pkl": pickle_of(b")")}),
        "pickle compressed": file_of(deflated("archive/data.pkl", ONE_TENSOR), pickle=None),
        "before 1.6": LEGACY,
        "encrypted": archive(Piece(b"archive/data.pkl", ONE_TENSOR, flags=1)),
        "entry compressed": file_of(deflated("archive/standfast.json", own_entry())),
    },
    errors.TruncatedFile: {
        "empty file": b"",
        "cut": file_of()[:-1],
        "cut in half": file_of()[:200],
        "pickle empty": file_of(pickle=b""),
        "pickle cut": file_of(pickle=ONE_TENSOR[:-1]),
    },
    errors.TrailingBytes: {
        "trailing byte": file_of() + b"x",
        "trailing byte in the pickle": file_of(pickle=ONE_TENSOR + b"N"),
    },
    errors.BadField: {
        "byteorder empty": file_of(byteorder=b""),
        "byteorder middle": file_of(byteorder=b"middle"),
        "byteorder in capitals": file_of(byteorder=b"BIG"),
        "byteorder with a newline": file_of(byteorder=b"big\n"),
        "byteorder endless": file_of(byteorder=b"\x1b" * 5000),
        "entry is not JSON": sealed(b"{"),
        "entry is not an object": sealed(b"[]"),
        "entry is not UTF-8": sealed(b'{"\xff":1}'),
        "entry empty": sealed(b""),
        "no digests": sealed(own_entry(None)),
        "no metadata": sealed(own_entry(metadata=None)),
        "metadata a list": sealed(own_entry(metadata=[])),
        "metadata with a key of ours": sealed(own_entry(metadata={"standfast.x": 1})),
    },
    errors.LimitExceeded: {
        "an integer of 16,000 bits": tree_file(integer(1 << 16_000)),
        "101 levels": tree_file(b"]" * 102 + b"a" * 101),
        "a million leaves in 300 bytes": lambda: tree_file(_shared(5, 10)),
        "a million empty lists": lambda: tree_file(_shared(19, 2).replace(b"N", b"]")),
        "paths of gigabytes": lambda: tree_file(
            dict_of(text("k" * 100_000), list_of(*[b"N"] * 5000))
        ),
    },
    errors.RefusedPickle: {"code in the tree": tree_file(SYSTEM)},
    unchecked(errors.IndexMismatch): {
        "entry without a comment": file_of(own=own_entry()),
        "comment without an entry": file_of(comment=SEAL + b"0" * 64),
        "another comment": sealed(seal=b"standfast_digest:"),
        "comment cut": file_of(own=own_entry(), comment=SEAL),
        "comment altered": sealed()[:-1] + (b"0" if sealed()[-1:] != b"0" else b"1"),
        "comment in capitals": sealed()[:-64] + sealed()[-64:].upper(),
        "name altered": saved().replace(b"X\1\0\0\0w", b"X\1\0\0\0v"),
        "metadata altered": sealed(version=b"4\n")[:-64] + b"0" * 64,
    },
    unchecked(errors.BadField): {
        "digests of two tensors": sealed(own_entry(chunks(SIX, SIX))),
        "digests of none": sealed(own_entry(chunks())),
        "digests that are a number": sealed(own_entry(3)),
        "digests of another kind": sealed(own_entry("sha256:")),
        "digests that are not base64": sealed(own_entry("blake3:16777216:a")),
    },
}

PICKLES = tuple(replace(row, data=_around(row)) for row in rows(*hostile_pickles.TABLES))
"""Hostile pickles, each in a file of its own."""
