"""The header of a `.sunc` file, 92 bytes, and the sections that follow from it.

It says what kind of tree was saved and how long each section of the payload is. Parsing checks
all that the header alone can show; the size of the file is not known here.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Mapping
from dataclasses import asdict, astuple, dataclass
from typing import Any, Final, Self

from standfast.errors import BadField, BadHeader, LimitExceeded, SizeMismatch, UnsupportedFile
from standfast.tensors import TensorSpec

SIZE: Final = 92
MAGIC: Final = b"SUNC"
VERSION: Final = 2
LITTLE: Final = 1
BIG: Final = 2
USIZE: Final = 8
"""The width of lengths and slots, in bytes."""
MAX_ND: Final = 8
MIN_BLOCK_SIZE: Final = 4
LINK: Final = b"LINK"
LINK_SIZE: Final = 20
"""The tag, num_blocks and links_per_block."""
MAX_GROUP: Final = 64
"""The largest N of an N × N link."""
MAX_BYTES: Final = 1 << 60
"""Of one section: no memory holds more, and no array, not even one with an empty dimension."""

_STRUCT: Final = struct.Struct("<4sIBBIQIIIQQQQdBB16s")
_RESERVED: Final = bytes(16)

PLACES: Final = {
    "nd": (9, 1),
    "block_size": (10, 4),
    "block_volume": (14, 8),
    "block_bytes": (22, 4),
    "field_bytes": (26, 4),
    "blocks_len": (34, 8),
    "field_slots_len": (42, 8),
    "arena_max_blocks": (50, 8),
    "arena_free_count": (58, 8),
    "base_spacing": (66, 8),
    "bits_per_dim": (74, 1),
    "max_level": (75, 1),
}
"""The offset and the width of each field that is not the same in all files, in bytes."""


@dataclass(frozen=True, slots=True)
class Header:
    """What a header says, but for what is the same in all files."""

    nd: int
    """How many dimensions there are."""
    block_size: int
    """Sites of a block along each dimension."""
    block_volume: int
    """Sites of a block."""
    block_bytes: int
    """The size of a block's record."""
    field_bytes: int
    """The size of the field at one site."""
    blocks_len: int
    field_slots_len: int
    arena_max_blocks: int
    """How many slots the arena has."""
    arena_free_count: int
    """How many of them are free: so many words of free_slots count, the rest is stale."""
    base_spacing: float
    """The distance of two sites at level 0."""
    bits_per_dim: int
    max_level: int

    @classmethod
    def parse(cls, data: bytes) -> Self:
        """The header in these 92 bytes; raises for every way in which it alone can be wrong."""
        magic, version, endian, *fields, reserved = _STRUCT.unpack(data)
        if magic != MAGIC:
            raise BadHeader(f"offset 0: expected {MAGIC!r}, found {magic!r}")
        if version != VERSION:
            raise UnsupportedFile(
                f"field version (offset 4): {version}; only version {VERSION} is known"
            )
        if endian == BIG:
            raise UnsupportedFile("field endian (offset 8): the file is big-endian")
        if endian != LITTLE:
            raise BadField(f"field endian (offset 8): expected {LITTLE} or {BIG}, found {endian}")
        usize = fields.pop(5)
        if usize == 4:
            raise UnsupportedFile("field usize_bytes (offset 30): a 32-bit machine wrote the file")
        if usize != USIZE:
            raise BadField(f"field usize_bytes (offset 30): expected {USIZE}, found {usize}")
        if reserved != _RESERVED:
            raise BadField(f"field reserved (offset 76): expected zeros, found {reserved.hex()}")
        header = cls(*fields)
        header.validate()
        return header

    def pack(self) -> bytes:
        """The 92 bytes of a valid header."""
        before, after = astuple(self)[:5], astuple(self)[5:]
        return _STRUCT.pack(MAGIC, VERSION, LITTLE, *before, USIZE, *after, _RESERVED)

    def validate(self) -> None:
        """Raise BadField, or LimitExceeded, unless the fields fit each other and the format."""
        check_widths(asdict(self))
        self._expect("nd", 1 <= self.nd <= MAX_ND, f"1 to {MAX_ND}")
        self._expect(
            "block_size",
            self.block_size >= MIN_BLOCK_SIZE and self.block_size.bit_count() == 1,
            f"a power of two from {MIN_BLOCK_SIZE} on",
        )
        self._expect_equal("block_volume", volume(self.block_size, self.nd), "block_size to the nd")
        self._expect_equal("block_bytes", record_size(self.nd), "8 · (nd + 3)")
        self._expect_equal("field_slots_len", self.blocks_len, "as blocks_len")
        self._expect(
            "arena_free_count",
            self.arena_free_count <= self.arena_max_blocks,
            f"at most arena_max_blocks, {self.arena_max_blocks:,}",
        )
        self._expect("base_spacing", math.isfinite(self.base_spacing), "a finite number")
        most = 64 // self.nd
        self._expect(
            "bits_per_dim",
            self.bits_per_dim + self.max_level <= most,
            f"with max_level ({self.max_level}) at most {most}",
        )
        self._refuse_impossible()

    def _refuse_impossible(self) -> None:
        """Sections that no memory can hold, before anything is computed from their size."""
        # The least that is counted for a site is a link for each dimension: with empty sections
        # it bounds the shapes too.
        site = max(self.field_bytes, 16 * self.nd)
        if max(1, self.arena_max_blocks) * self.block_volume * site > MAX_BYTES:
            raise LimitExceeded(
                f"field arena_max_blocks (offset 50): {self.arena_max_blocks:,} blocks of "
                f"{self.block_volume:,} sites of {self.field_bytes:,} bytes, more than any "
                "memory holds"
            )
        if self.blocks_len * self.block_bytes > MAX_BYTES:
            raise LimitExceeded(
                f"field blocks_len (offset 34): {self.blocks_len:,} blocks, more than any "
                "memory holds"
            )

    def _expect_equal(self, name: str, value: int, why: str) -> None:
        self._expect(name, getattr(self, name) == value, f"{value:,} ({why})")

    def _expect(self, name: str, holds: bool, expected: str) -> None:
        if not holds:
            raise BadField(
                f"field {name} (offset {PLACES[name][0]}): expected {expected}, "
                f"found {getattr(self, name):,}"
            )


def check_widths(fields: Mapping[str, Any]) -> None:
    """Raise BadField for a number that its field is too narrow for, however long it is."""
    for name, value in fields.items():
        offset, width = PLACES[name]
        if name != "base_spacing" and not 0 <= value < 1 << 8 * width:
            raise BadField(
                f"field {name} (offset {offset}): expected an unsigned number of {8 * width} bits"
            )


def volume(block_size: int, nd: int) -> int:
    """How many sites a block has."""
    return int(block_size**nd)


def record_size(nd: int) -> int:
    """How many bytes the record of a block takes."""
    return 8 * (nd + 3)


def payload_specs(header: Header) -> dict[str, TensorSpec]:
    """The sections of the payload, in the order of the file, as they are read."""
    dtype, width = "uint8", 1
    if header.field_bytes % 8 == 0:
        dtype, width = "float64", 8
    elif header.field_bytes % 4 == 0:
        dtype, width = "float32", 4
    site = header.field_bytes // width
    return {
        "blocks": TensorSpec("uint8", (header.blocks_len, header.block_bytes)),
        "field_slots": TensorSpec("uint64", (header.field_slots_len,)),
        "storage": TensorSpec(dtype, (header.arena_max_blocks, header.block_volume, site)),
        "free_slots": TensorSpec("uint64", (header.arena_max_blocks,)),
    }


def links_spec(header: Header, group: int) -> TensorSpec:
    """The links of all blocks, each a matrix of `group` rows and columns."""
    shape = (header.blocks_len, header.block_volume * header.nd, group, group)
    return TensorSpec("complex128", shape)


def link_header(header: Header) -> bytes:
    """What stands before the links."""
    counts = (header.blocks_len, header.block_volume * header.nd)
    return LINK + b"".join(count.to_bytes(8, "little") for count in counts)


def check_link_header(link: bytes, header: Header, at: int) -> None:
    """Raise BadField unless these bytes, which stand at `at`, count the links of this tree."""
    expected = link_header(header)
    for name, field in (("num_blocks", 4), ("links_per_block", 12)):
        found, wanted = (int.from_bytes(b[field : field + 8], "little") for b in (link, expected))
        if found != wanted:
            raise BadField(
                f"LINK field {name} (offset {at + field:,}): expected {wanted:,}, found {found:,}"
            )


def link_group(header: Header, begin: int, end: int) -> int:
    """The N of N × N links, which only the length of all links tells; 1 if there are none."""
    links = header.blocks_len * header.block_volume * header.nd
    squared, left = divmod(end - begin, 16 * links) if links else (1, end - begin)
    group = math.isqrt(squared)
    if left or group**2 != squared or not 1 <= group <= MAX_GROUP:
        raise SizeMismatch(
            f"section 'links' (offset {begin:,}): {end - begin:,} bytes are not {links:,} links of "
            f"16 · N · N bytes, with an N of 1 to {MAX_GROUP}"
        )
    return group
