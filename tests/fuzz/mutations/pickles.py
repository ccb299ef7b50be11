"""Changes to a pickle, opcode by opcode."""

from __future__ import annotations

import pickletools
import struct
from itertools import pairwise
from random import Random

from tests.formats.torch.hostile_pickles import integer, list_of, name, storage, text, tuple_of

LARGEST = 1 << 14

GLOBALS = [
    *(name("torch._utils", "_rebuild_tensor_v2"), name("torch._utils", "_rebuild_parameter")),
    *(name("torch._utils", "_rebuild_tensor"), name("torch._utils", "_rebuild_tensor_v3")),
    *(name("torch", "FloatStorage"), name("torch", "ByteStorage"), name("torch", "Size")),
    *(name("torch", "float64"), name("torch", "device"), name("collections", "OrderedDict")),
    *(name("torch.storage", "UntypedStorage"), name("torch", "ComplexDoubleStorage")),
    *(name("builtins", "set"), name("builtins", "complex"), name("_codecs", "encode")),
    *(name("numpy", "dtype"), name("numpy", "ndarray"), name("numpy._core.multiarray", "scalar")),
    *(name("numpy._core.multiarray", "_reconstruct"), name("collections", "Counter")),
    *(name("os", "system"), name("builtins", "eval"), name("builtins", "getattr")),
]
VALUES = [
    *(b"N", b"\x88", b"\x89", b")", b"]", b"}", b"\x8f", b"K\x00", b"K\x01", b"K\x02"),
    *(integer(n) for n in (-1, 2**31, 2**32, 2**58, 2**62, 2**63, 2**64, 2**20000, -(2**70))),
    *(b"G" + struct.pack(">d", number) for number in (0.5, float("nan"), float("inf"))),
    *(text("a"), text(""), text("a.b"), text("\0\x1b[31m"), text("é" * 200), b"C\x02ab"),
    *(storage(), storage("1", b"K\x01"), tuple_of(b"K\x01", b"K\x02"), list_of(b"K\x01")),
    *(b"h\x00", b"h\x01", b"h\x02", b"h\x05", b"j\x01\x00\x00\x00"),
]
ACTIONS = [
    *(b"(", b"t", b"\x85", b"\x86", b"\x87", b"e", b"a", b"u", b"s", b"R", b"b", b"Q", b"\x81"),
    *(b"\x90", b"\x91", b"\x92", b"\x93", b"\x94", b"0", b"2", b".", b"q\x00", b"q\x01"),
]


def opcodes(pickle: bytes) -> list[bytes]:
    """The pickle in its opcodes, with their operands; what cannot be read is the last piece."""
    starts = []
    try:
        for _, _, at in pickletools.genops(pickle):
            starts.append(at or 0)
    except Exception:  # genops raises whatever comes
        pass
    ends = [*starts, len(pickle)]
    return [pickle[start:stop] for start, stop in pairwise([0, *ends[1:]])] if starts else [pickle]


def change_opcodes(random: Random, pickle: bytes) -> bytes:
    """The pickle with one or a few opcodes dropped, repeated, exchanged, put in or replaced."""
    pieces = opcodes(pickle[:LARGEST])
    for _ in range(random.choice((1, 1, 2, 4))):
        _change_one(random, pieces)
    return b"".join(pieces)


def _change_one(random: Random, pieces: list[bytes]) -> None:
    at, other = random.randrange(len(pieces)), random.randrange(len(pieces))
    match random.randrange(8):
        case 0 if len(pieces) > 1:
            del pieces[at]
        case 1:
            pieces.insert(other, pieces[at])
        case 2:
            pieces[at], pieces[other] = pieces[other], pieces[at]
        case 3:
            pieces.insert(at, random.choice(VALUES))
        case 4:
            pieces.insert(at, random.choice(ACTIONS))
        case 5:
            _replace(random, pieces, b"KMJ\x8a", VALUES)
        case 6:
            _replace(random, pieces, b"c", GLOBALS)
        case _:
            first, last = sorted((at, other))
            pieces[first:last] = pieces[first:last] * random.choice((0, 2, 3))


def _replace(random: Random, pieces: list[bytes], kinds: bytes, values: list[bytes]) -> None:
    """Another value in the place of one of these kinds."""
    places = [i for i, piece in enumerate(pieces) if piece[:1] in [bytes([k]) for k in kinds]]
    if places:
        pieces[random.choice(places)] = random.choice(values)


def set_small_number(random: Random, pickle: bytes) -> bytes:
    """One of the small integers, which are shapes, strides and offsets, a little different."""
    pieces = opcodes(pickle[:LARGEST])
    places = [i for i, piece in enumerate(pieces) if piece[:1] == b"K"]
    if places:
        at = random.choice(places)
        step = random.choice((-2, -1, 1, 2, 6))
        pieces[at] = b"K" + bytes([(pieces[at][1] + step) % 256])
    return b"".join(pieces)
