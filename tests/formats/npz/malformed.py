"""Damaged `.npz` files: a table row for each way in which one can be wrong."""

import io
import zlib
from functools import partial
from typing import Any

import numpy as np

from standfast import errors
from tests.formats import builders
from tests.formats.builders import chunks, texts, unchecked
from tests.formats.torch.builders import SEAL, SIX, deflated, own_entry, with_seal
from tests.formats.zip.builders import Piece, archive


def fields(descr: str = "'<f4'", order: str = "False", shape: str = "(3,)") -> str:
    """The text of a header, its fields as Python's literals."""
    return f"{{'descr': {descr}, 'fortran_order': {order}, 'shape': {shape}, }}"


def header_of(text: str | bytes, version: tuple[int, int] = (1, 0), end: bytes = b"\n") -> bytes:
    """A header of this text."""
    body = (text if isinstance(text, bytes) else text.encode()) + end
    length = len(body).to_bytes(2 if version == (1, 0) else 4, "little")
    return b"\x93NUMPY" + bytes(version) + length + body


def npy_of(text: str, data: bytes = SIX) -> bytes:
    """An array with this text for a header, padded as NumPy does."""
    return header_of(text.ljust(-(-(len(text) + 11) // 64) * 64 - 11)) + data


def npy(
    descr: str = "'<f4'", order: str = "False", shape: str = "(6,)", data: bytes = SIX
) -> bytes:
    """An array as its entry has it."""
    return npy_of(fields(descr, order, shape), data)


def file_of(*entries: bytes) -> bytes:
    """A file of these arrays: a, b and so on."""
    return archive(*(Piece(b"%c.npy" % (97 + i), entry) for i, entry in enumerate(entries)))


def packed(entry: bytes, **lies: int) -> bytes:
    """A file of one array, compressed; fields that are given lie about it."""
    return archive(deflated("a.npy", entry, **lies))


def with_own(*more: Piece, listed: bool = False) -> bytes:
    """An array and our entry, which should not be listed, and more."""
    return archive(A, Piece(b"standfast.json", own_entry(), listed=listed), *more)


def sealed(own: bytes = own_entry(), name: bytes = b"standfast.json", seal: bytes = SEAL) -> bytes:
    """A file with our entry, which is not listed, and a right seal, whatever the entry says."""
    return with_seal(archive(A, Piece(name, own, listed=False), comment=seal + b"0" * 64))


saved = partial(builders.saved, "npz", {"a": np.arange(6, dtype="<f4")}, {"step": 3})
"""The file that Standfast writes."""


def crc(data: bytes) -> bytes:
    return zlib.crc32(data).to_bytes(4, "little")


def of_objects() -> bytes:
    """An array of objects, as NumPy writes it: a pickle."""
    stream = io.BytesIO()
    np.savez(stream, a=np.array([{}, None], object))
    return stream.getvalue()


def bomb(size: int = 1 << 24) -> bytes:
    """Zeros, a thousand times shorter, behind the header of a small array."""
    return npy() + bytes(size)


A = Piece(b"a.npy", npy())
OTHER = own_entry().replace(b"step", b"stop")
NONSENSE: dict[str, Any] = {"method": 8, "size": len(npy())}
ROWS = {
    errors.TruncatedFile: {
        "empty file": b"",
        "no archive": b"PK\3\4 and no more",
        "cut": file_of(npy())[:-1],
        "entry empty": file_of(b""),
    },
    errors.TrailingBytes: {"trailing byte": file_of(npy()) + b"\0"},
    errors.BadField: {
        "no array": archive(A, Piece(b"b.txt", b"x")),
        "an entry that is not listed": archive(A, Piece(b"b.npy", npy(), listed=False)),
        "ours and another that are not listed": with_own(Piece(b"b.npy", npy(), listed=False)),
        "ours among those that are listed": with_own(listed=True),
        "no shape": file_of(npy_of("{'descr': '<f4', 'fortran_order': False}")),
        "negative dimension": file_of(npy(shape="(-6,)")),
        "entry is not JSON": sealed(b"{"),
        "entry is not an object": sealed(b"7"),
        "a key missing": sealed(b'{"metadata":{}}'),
        "metadata a text": sealed(own_entry(metadata="x")),
        "metadata with a key of ours": sealed(own_entry(metadata={"standfast.digest": 1})),
        "another name": sealed(name=b"standfast.jsom"),
    },
    errors.DuplicateKey: {"duplicate name": archive(A, A)},
    errors.BadRange: {"bytes of no entry": archive(A, before_directory=b"hidden")},
    errors.UnsupportedFile: {
        "bzip2": archive(Piece(b"a.npy", npy(), local={"method": 12}, central={"method": 12})),
        "version 9": file_of(npy().replace(b"Y\1", b"Y\x09")),
    },
    errors.BadHeader: {
        "no magic": file_of(b"x" * 200),
        "a call": file_of(npy_of("{'descr': __import__('os').system('touch x')}")),
    },
    errors.UnknownDType: {
        "objects": of_objects(),
        "objects of no bytes": file_of(npy("'|O'", data=b"")),
        "text of three bytes": file_of(npy("'|S3'", shape="(8,)")),
        "escapes for a terminal": file_of(npy("'\x1b[31m'")),
    },
    errors.SizeMismatch: {
        "element missing": file_of(npy(data=SIX[:-4])),
        "element too many": file_of(npy(data=SIX * 2)),
        "2^59 - 1 elements": file_of(npy(shape=f"({(1 << 59) - 1},)")),
        "deflated, with a lie about its size": packed(npy(), size=len(npy()) - 4),
        "a bomb that does not hide": packed(bomb()),
    },
    errors.LimitExceeded: {
        "2^60 elements": file_of(npy(shape=f"({1 << 60},)")),
        "2^62 bytes": file_of(npy(shape=f"({1 << 30}, {1 << 31})")),
        "deflated to more than deflate can": packed(npy(), size=1 << 31),
    },
    errors.BadArchive: {
        "deflated nonsense": archive(
            Piece(b"a.npy", b"\xff" * 40, local=NONSENSE, central=NONSENSE)
        )
    },
    unchecked(errors.IndexMismatch): {
        "comment alone": archive(A, comment=SEAL),
        "entry alone": sealed(seal=b"another.digest:"),
        "comment altered": sealed()[:-3] + b"...",
        "metadata altered": sealed()
        .replace(own_entry(), OTHER)
        .replace(crc(own_entry()), crc(OTHER)),
        "name altered": saved().replace(b"a.npy", b"b.npy"),
    },
    unchecked(errors.BadField): {
        "digests of two arrays": sealed(own_entry(chunks(SIX, SIX))),
        "digests that are null": sealed(b'{"standfast.chunks":null,"metadata":{}}'),
    },
}

header_of_each = texts(header_of, "header")
of_descr_each = texts(lambda text: header_of(fields(text)), "descr")
of_shape_each = texts(lambda text: header_of(fields(shape=text)), "shape")

HEADERS = {
    errors.BadHeader: {
        "no magic": b"\x93NUMPX\1\0",
        "a zip archive": b"PK\3\4" + bytes(100),
        "not UTF-8": header_of(fields("'\xff'").encode("latin-1"), (3, 0)),
        **header_of_each(r"""
            ('descr', )  {'descr': '<f4' 'fortran_order': False}  {'descr' '<f4'}  {'descr'}
            {descr: '<f4'}  {'descr: 1}
        """),
        "a line break first": header_of("\n" + fields()),
        "nothing": header_of(""),
        "no end": header_of(fields()[:-1]),
        "two commas": header_of(fields() + ","),
        "an escape": header_of(fields(r"'\x3cf4'")),
        **of_shape_each("(3.0,)  (0x3,)  (3+4,)"),
        "Python 2 in version 3": header_of(fields(shape="(3L,)"), (3, 0)),
        "no descr": header_of(fields("None")),
        **{
            f"end {end!r}": header_of(fields(), end=end)
            for end in (b"", b"  ", b"\n\n", b" # more\n", b"\0\n")
        },
    },
    errors.UnsupportedFile: {
        f"version {n!r}": b"\x93NUMPY" + n + bytes(100) for n in (b"\1\1", b"\4\0")
    },
    errors.LimitExceeded: {
        "a long header": b"\x93NUMPY\2\0\0\0\1\0",
        "4 GiB of header": b"\x93NUMPY\2\0" + b"\xff" * 4,
        "65 dimensions": header_of(fields(shape=f"({'1,' * 65})")),
        "2^59 rows": header_of(fields(shape=f"({2**59},)")),
        "2^59 rows of nothing": header_of(fields(shape=f"(0,{2**59})")),
        "60,000 digits": header_of(fields(shape=f"({'9' * 60_000},)")),
        "2^116 bytes": header_of(fields(shape=f"({2**57},{2**57})")),
        "2^62 and four bytes": header_of(fields(shape=f"({2**30},0,{2**30 + 1})")),
    },
    errors.BadField: {
        "an empty dict": header_of("{}"),
        "an unknown key": header_of(fields()[:-1] + "'more': 1}"),
        "a missing key": header_of("{'descr': '<f4', 'shape': ()}"),
        **texts(lambda text: header_of(fields(order=text)), "order")("0  None  Truest"),
        **of_shape_each("[3]  3  (3)  (,)  (-3,)  (True,)  (03,)  ((3,),)"),
    },
    errors.DuplicateKey: {"a key twice": header_of(fields()[:-1] + "'shape': ()}")},
    errors.UnknownDType: {
        **of_descr_each(r"""
            '|O'  'O8'  '<U3'  '|S3'  '|V2'  '<M8[ns]'  '<f16'  [('a', '<f4')]  ('<f4', (2,))
            ''
        """),
        "a long descr": header_of(fields(f"'{'f' * 10_000}'")),
        "control characters": header_of(fields("'\x1b[2J'")),
    },
}
"""Headers of arrays by themselves."""
