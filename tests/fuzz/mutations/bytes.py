"""Changes to bytes, whatever they mean."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from random import Random

from tests.fuzz.target import Mutation

BYTES = b'\x00\x01\x09\x0a\x20\x22\x2c\x2d\x30\x5c\x7b\x7d\x7f\x80\xc0\xed\xff{}[]":,\\'

Part = Callable[[Random, bytes], tuple[bytes, Callable[[bytes], bytes]] | None]
"""Finds a part of a file, and gives it with a function that puts another in its place.

What surrounds the part, its length above all, is made to fit.
"""


def inside(part: Part, change: Callable[[Random, bytes], bytes]) -> Mutation:
    """A mutation that changes a part; where there is none, a bit of the file is flipped."""

    def mutation(random: Random, file: bytes, others: Sequence[bytes]) -> bytes:
        found = part(random, file)
        if found is None:
            return flip_bit(random, file, others)
        old, put = found
        return put(change(random, old))

    return mutation


def bytewise(mutation: Mutation) -> Callable[[Random, bytes], bytes]:
    """A mutation of whole files as a change of a part."""
    return lambda random, part: mutation(random, part, [part])


def flip_bit(random: Random, file: bytes, others: Sequence[bytes]) -> bytes:
    if not file:
        return file
    at = random.randrange(len(file))
    return file[:at] + bytes([file[at] ^ 1 << random.randrange(8)]) + file[at + 1 :]


def set_byte(random: Random, file: bytes, others: Sequence[bytes]) -> bytes:
    at = random.randrange(len(file) + 1)
    return file[:at] + bytes([random.choice(BYTES)]) + file[at + 1 :]


def cut(random: Random, file: bytes, others: Sequence[bytes]) -> bytes:
    return file[: random.randrange(len(file) + 1)]


def grow(random: Random, file: bytes, others: Sequence[bytes]) -> bytes:
    return file + random.randbytes(random.choice((1, 2, 8)))


def remove_slice(random: Random, file: bytes, others: Sequence[bytes]) -> bytes:
    start, stop = _slice(random, file)
    return file[:start] + file[stop:]


def repeat_slice(random: Random, file: bytes, others: Sequence[bytes]) -> bytes:
    start, stop = _slice(random, file)
    return file[:stop] + file[start:stop] * random.choice((1, 1, 2, 50)) + file[stop:]


def splice(random: Random, file: bytes, others: Sequence[bytes]) -> bytes:
    other = random.choice(others)
    start, stop = _slice(random, other)
    at, until = _slice(random, file)
    return file[:at] + other[start:stop] + file[random.choice((at, until)) :]


def _slice(random: Random, file: bytes) -> tuple[int, int]:
    start = random.randrange(len(file) + 1)
    return start, min(len(file), start + random.choice((1, 1, 2, 4, 8, 16, 64)))


ANYWHERE: tuple[Mutation, ...] = (
    *(flip_bit, set_byte, cut, grow),
    *(remove_slice, repeat_slice, splice),
)


# Numbers of a fixed width

Places = Callable[[bytes], Sequence[tuple[int, int]]]
"""The offsets and widths of the little-endian numbers of a file, as far as they can be found."""

EDGES = [
    *(0, 1, 2, 3, 4, 5, 7, 8, 15, 16, 63, 64, 65, 0xFF, 0xFFFF, 0x10000),
    *(2**n + more for n in (31, 32, 48, 53, 58, 59, 60, 61, 62, 63, 64) for more in (-1, 0, 1)),
]


def set_numbers(places: Places) -> Mutation:
    """A mutation that gives some of these numbers another value: an edge, or one close by."""

    def mutation(random: Random, file: bytes, others: Sequence[bytes]) -> bytes:
        found = [(at, width) for at, width in places(file) if at + width <= len(file)]
        if not found:
            return flip_bit(random, file, others)
        for _ in range(random.choice((1, 1, 1, 2))):
            at, width = random.choice(found)
            old = int.from_bytes(file[at : at + width], "little")
            value = _another(random, old, len(file)) % (1 << 8 * width)
            file = file[:at] + value.to_bytes(width, "little") + file[at + width :]
        return file

    return mutation


def _another(random: Random, old: int, size: int) -> int:
    near = old + random.choice((-64, -8, -2, -1, 1, 2, 8, 64))
    far = random.choice((random.choice(EDGES), size, size - 1, old * 2, old // 2))
    return random.choice((near, far))
