"""Changes of files: a part is cut in pieces, which are dropped, repeated, moved and replaced."""

import pickletools
import re
import struct
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from random import Random
from typing import TypeVar

from standfast.errors import StandfastError
from tests.formats.torch.builders import deflated, integer, name, storage, text
from tests.formats.zip.builders import Piece, archive, archive_of

Pieces = TypeVar("Pieces")
Found = tuple[bytes, Callable[[bytes], bytes]]
"""A part of a file, and a function that puts another in its place, and makes all else fit."""


@dataclass(frozen=True)
class Part:
    """A part of files, how it is cut in pieces, and what can take the place of a piece."""

    find: Callable[[Random, bytes], Found | None]
    split: Callable[[Random, bytes], list[bytes]]
    tokens: Sequence[bytes]


def mutate(random: Random, file: bytes, parts: Sequence[Part], others: Sequence[bytes]) -> bytes:
    """The file with one or a few changes, or with a piece of another."""
    for _ in range(random.choice((1, 1, 1, 2, 3))):
        part = random.choice(parts)
        old, put = part.find(random, file) or (file, bytes)
        if random.random() < 0.05:
            other = random.choice(others)
            start, at = random.randrange(len(other) + 1), random.randrange(len(file) + 1)
            file = file[:at] + other[start:] if random.random() < 0.5 else file[:at]
        else:
            file = put(b"".join(rearranged(random, part.split(random, old), part.tokens)))
    return file


def rearranged(random: Random, pieces: Sequence[Pieces], tokens: Sequence[Pieces]) -> list[Pieces]:
    """The pieces, with one or a few of them dropped, repeated, moved, put in or replaced."""
    pieces = list(pieces)
    for _ in range(random.choice((1, 1, 1, 2, 4))):
        at, to = (random.randrange(len(pieces) + 1) for _ in range(2))
        some = pieces[at : at + random.choice((1, 1, 1, 2, 4, 8))]
        match random.randrange(6):
            case 0:
                del pieces[at : at + len(some)]
            case 1:
                pieces[to:to] = some * random.choice((1, 1, 1, 2, 50))
            case 2:
                pieces[at : at + len(some)], pieces[to:to] = [], some
            case 3:
                pieces.insert(at, random.choice(tokens))
            case 4:
                pieces[at : at + 1] = [random.choice(tokens)]
            case _ if some:
                pieces[at] = near(random, some[0])
    return pieces


def near(random: Random, piece: Pieces) -> Pieces:
    """A number close by, or one bit flipped."""
    if not isinstance(piece, bytes) or not piece:
        return piece
    step = random.choice((-64, -8, -2, -1, 1, 2, 8, 64))
    if piece.isdigit() and len(piece) < 30:
        return b"%d" % (int(piece) + step)  # type: ignore[return-value]
    number = int.from_bytes(piece, "little")
    number = number ^ 1 << random.randrange(8 * len(piece)) if step < 0 else number + step
    return (number % (1 << 8 * len(piece))).to_bytes(len(piece), "little")  # type: ignore[return-value]


EDGES = [
    *(0, 1, 2, 3, 4, 5, 7, 8, 15, 16, 63, 64, 65, 0xFF, 0xFFFF, 0x10000),
    *(2**n + more for n in (31, 32, 48, 53, 58, 59, 60, 61, 62, 63, 64) for more in (-1, 0, 1)),
]


def fields(random: Random, data: bytes) -> list[bytes]:
    width = random.choice((1, 1, 2, 4, 8))
    return [data[at : at + width] for at in range(0, len(data), width)]


WHOLE = Part(
    lambda random, file: (file, bytes),
    fields,
    [(n % (1 << 8 * width)).to_bytes(width, "little") for n in EDGES for width in (1, 2, 4, 8)],
)

TOKENS = [
    *(str(n) for n in (0, 1, 2, 4, 16, 63, 64, 65, 255, 4096, 65536)),
    *(str(2**n + more) for n in (31, 32, 53, 58, 59, 60, 61, 62, 63, 64) for more in (-1, 0, 1)),
    *("-1", "-0", "1.0", "1e0", "1e999", "-1e-999", "NaN", "Infinity", "01", "+1", "true", "null"),
    *("9" * 4300, "9" * 4301, "[" * 100, "]" * 100, '{"x":' * 100, "[" * 1000, "0" + "]" * 1000),
    *("{", "}", "[", "]", ",", ":", '"', "\\", " ", "\n", "\t", "\0", "\ufeff", "{}", "[]", "'"),
    *('"a":', ',"a":{}', ',"__metadata__":{}', '"__metadata__":{"a":"b"},', '"x":1,"x":1'),
    *(',"dtype":"U8"', ',"shape":[]', ',"data_offsets":[0,0]', '"F4"', '"F64"', '"C64"', '"?"'),
    *('""', '"a"', '"standfast.digest"', '"standfast.chunks"', '"standfast.json"', '"metadata"'),
    *('"standfast.names"', '"["a"]"', '"\\ud800"', '"\\udc00\\ud800"', '"\\ud83d\\ude00"'),
    *('"\\u0061"', '"d\\u0074ype"', '"\\/"', '"\\\\"', '"\\""', '"\\u0000"', '"é"', '"😀"'),
    *("'<f4'", "'>f8'", "'|b1'", "'<c16'", "'|O'", "'<U4'", "'|V2'", "True", "False", "()"),
    *("(1,)", "(2, 3)", "(1)", "None", "0x1", '"blake3:16777216:"', "n" * 70, "\\n"),
]


def words(random: Random, data: bytes) -> list[bytes]:
    return re.findall(rb'"(?:[^"\\]|\\.)*"|\w+|\s+|.', data, re.DOTALL)


JSON_TOKENS = [token.encode() for token in TOKENS]


def text_part(find: Callable[[Random, bytes], Found | None]) -> Part:
    return Part(find, words, JSON_TOKENS)


GLOBALS = [
    *(f"torch._utils._rebuild_{what}" for what in ("tensor", "tensor_v3", "parameter")),
    *(f"torch.{what}" for what in ("FloatStorage", "ByteStorage", "Size", "float64", "device")),
    *(f"builtins.{what}" for what in ("set", "complex", "eval", "getattr")),
    *("numpy.dtype", "numpy.ndarray", "_codecs.encode", "os.system", "collections.Counter"),
    *(f"numpy._core.multiarray.{what}" for what in ("scalar", "_reconstruct")),
    "torch.storage.UntypedStorage",
]
OPCODES = [
    *map(name, GLOBALS),
    *(integer(n) for n in (-1, 2**31, 2**58, 2**62, 2**63, 2**20000, -(2**70))),
    *(b"G" + struct.pack(">d", number) for number in (0.5, float("nan"), float("inf"))),
    *(text("a"), text(""), text("a.b"), text("\0\x1b[31m"), text("é" * 200), b"C\x02ab"),
    *(storage(), storage("1", b"K\x01"), b"K\x00", b"K\x01", b"K\x02", b"h\x00", b"h\x01"),
    *(b"%c" % byte for byte in b"N\x88\x89)]}\x8f(t\x85\x86\x87eausRbQ\x81\x90\x91\x92\x93\x9402."),
    *(b"q\x00", b"q\x01", b"h\x02", b"h\x05", b"j\x01\x00\x00\x00"),
]


def opcodes(random: Random, data: bytes) -> list[bytes]:
    """A pickle in its opcodes, with their operands; what cannot be read is the last piece."""
    starts = [0]
    try:
        for _, _, at in pickletools.genops(data[: 1 << 14]):
            starts.append(at or 0)
    except Exception:  # genops raises whatever comes
        pass
    return [data[start:stop] for start, stop in pairwise([*starts, len(data)])]


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
        packed = deflated("", self.data)
        return replace(packed, name=self.name, listed=self.listed)


NAMES = [
    *("a.npy", ".npy", "a", "a/b.npy", "../x.npy", "/x.npy", "a.npy/", "a\0.npy", "é.npy"),
    *("standfast.json", "archive/standfast.json", "archive/data.pkl", "archive/data/0"),
    *("archive/byteorder", "archive/constants.pkl", "other/data.pkl", "x" * 300),
]


def unpack(file: bytes) -> tuple[list[Content], bytes] | None:
    """The entries of an archive and its comment; None if it is one no more."""
    try:
        found = archive_of(file)
        contents = []
        for entry in (*found.entries, *found.unlisted):
            data = file[entry.data_at : entry.data_at + entry.stored_size]
            if entry.deflated:
                data = zlib.decompressobj(-15).decompress(data, 1 << 20)
            name = entry.name.encode()
            contents.append(Content(name, data, entry.deflated, entry in found.entries))
    except (StandfastError, AssertionError, zlib.error):
        return None
    if any(len(content.name) > 0xFFFF for content in contents):
        return None  # a name of one byte a letter is longer in UTF-8
    return contents, found.comment


def entry_part(
    ends: str, split: Callable[[Random, bytes], list[bytes]], tokens: Sequence[bytes]
) -> Part:
    """One of the entries whose names end so; one time in four their order, names and forms."""

    def find(random: Random, file: bytes) -> Found | None:
        contents, comment = unpack(file) or ([], b"")
        places = [at for at, each in enumerate(contents) if each.name.endswith(ends.encode())]
        if not places:
            return None
        at, wide = random.choice(places), {} if random.random() < 0.5 else None
        if random.random() < 0.25:
            other = contents[at]
            forms = [replace(other, deflated=not other.deflated), replace(other, listed=False)]
            forms += [replace(other, name=random.choice(NAMES).encode())]
            contents = rearranged(random, contents, forms)
            file = archive(*(each.piece() for each in contents), comment=comment, wide_end=wide)
            return b"", lambda data: file

        def put(data: bytes) -> bytes:
            contents[at] = replace(contents[at], data=data)
            pieces = (each.piece() for each in contents)
            return archive(*pieces, comment=comment, wide_end=wide)

        return contents[at].data, put

    return Part(find, split, tokens)
