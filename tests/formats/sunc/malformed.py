"""Damaged `.sunc` files: a table row for each way in which one can be wrong."""

from __future__ import annotations

import math

from standfast.errors import (
    BadField,
    BadHeader,
    DuplicateKey,
    IndexMismatch,
    LimitExceeded,
    SizeMismatch,
    TruncatedFile,
    UnsupportedFile,
)
from tests.formats.builders import Row
from tests.formats.sunc.builders import (
    PAYLOAD_END,
    chunks,
    file_of,
    header,
    link_section,
    own_part,
    payload,
    sealed,
    sealed_file,
    sections_bytes,
)

HUGE = 1 << 60
RIGHT = chunks(*sections_bytes())

STARTS = (
    Row("empty file", b"", TruncatedFile),
    Row("magic alone", b"SUNC", TruncatedFile),
    Row("header one byte short", header()[:-1], TruncatedFile),
    Row("another magic", file_of(magic=b"SUNK"), BadHeader),
    Row("version 1", file_of(version=1), UnsupportedFile),
    Row("version 3", file_of(version=3), UnsupportedFile),
    Row("big-endian", file_of(endian=2), UnsupportedFile),
    Row("no endian", file_of(endian=0), BadField),
    Row("32-bit", file_of(usize_bytes=4), UnsupportedFile),
    Row("usize of 7 bytes", file_of(usize_bytes=7), BadField),
    Row("reserved 1", file_of(reserved=b"\0" * 15 + b"\1"), BadField),
)

FIELDS = (
    Row("no dimension", file_of(nd=0), BadField),
    Row("nine dimensions", file_of(nd=9), BadField),
    Row("block size 0", file_of(block_size=0), BadField),
    Row("block size 2", file_of(block_size=2), BadField),
    Row("block size 6", file_of(block_size=6), BadField),
    Row("block volume", file_of(block_volume=5), BadField),
    Row("volume beyond 64 bits", file_of(nd=8, block_size=1 << 31, block_bytes=88), BadField),
    Row("block bytes", file_of(block_bytes=40), BadField),
    Row("more blocks than slots", file_of(blocks_len=3), BadField),
    Row("more slots than blocks", file_of(field_slots_len=3), BadField),
    Row("more free slots than slots", file_of(arena_free_count=4), BadField),
    Row("NaN spacing", file_of(base_spacing=math.nan), BadField),
    Row("no finite spacing", file_of(base_spacing=-math.inf), BadField),
    Row("65 bits", file_of(bits_per_dim=63), BadField),
    Row("65 levels", file_of(max_level=61), BadField),
)

LENGTHS = (
    Row("2^60 blocks", file_of(blocks_len=HUGE, field_slots_len=HUGE), LimitExceeded),
    Row("2^64 - 1 blocks", file_of(blocks_len=2**64 - 1, field_slots_len=2**64 - 1), LimitExceeded),
    Row("2^60 slots", file_of(arena_max_blocks=HUGE), LimitExceeded),
    Row("2^40 slots", file_of(arena_max_blocks=1 << 40), TruncatedFile),
    Row(
        "2^60 sites and no slot",
        file_of(
            block_size=1 << 30,
            nd=2,
            block_volume=HUGE,
            block_bytes=40,
            arena_max_blocks=0,
            arena_free_count=0,
        ),
        LimitExceeded,
    ),
    Row("2^57 slots of no bytes", file_of(field_bytes=0, arena_max_blocks=1 << 57), LimitExceeded),
    Row("4 GiB at each site", file_of(field_bytes=2**32 - 1), TruncatedFile),
    Row("header alone", header(), TruncatedFile),
    Row("cut in the blocks", file_of()[:100], TruncatedFile),
    Row("cut in the slots", file_of()[:171], TruncatedFile),
    Row("cut in the storage", file_of()[:200], TruncatedFile),
    Row("one byte short", file_of()[:-1], TruncatedFile),
)

LINKS = (
    Row("LINK alone", file_of(b"LINK"), TruncatedFile),
    Row("half a LINK header", file_of(link_section()[:19]), TruncatedFile),
    Row("links of three blocks", file_of(link_section(blocks=3)), BadField),
    Row("2^64 - 1 links a block", file_of(link_section(links_per_block=2**64 - 1)), BadField),
    Row("no links", file_of(link_section()[:20]), SizeMismatch),
    Row("a link too few", file_of(link_section()[:-16]), SizeMismatch),
    Row("a byte behind the links", file_of(link_section() + b"x"), SizeMismatch),
    Row("links of two numbers", file_of(link_section() + link_section()[20:]), SizeMismatch),
    Row("links of 65 × 65", file_of(link_section(65)), SizeMismatch),
    Row(
        "links of no block",
        header(blocks_len=0, field_slots_len=0) + payload()[80:] + link_section(blocks=0),
        SizeMismatch,
    ),
    Row(
        "our extension within the LINK header",
        file_of(link_section()[:10] + sealed(RIGHT)),
        TruncatedFile,
    ),
)

WHOLE = sealed_file()
OWN = WHOLE[PAYLOAD_END:]
ENDS = (
    Row("tag of ours", file_of(b"HFDG"), BadHeader, opens=True),
    Row("half a tag of ours", file_of(b"HF"), TruncatedFile, opens=True),
    Row("our extension cut", WHOLE[:-1], TruncatedFile, opens=True),
    Row(
        "foreign bytes that end in our tag",
        file_of(b"any bytes of another program, HFDG"),
        BadHeader,
        opens=True,
    ),
    Row("last tag damaged", WHOLE[:-1] + b"?", BadHeader, opens=True),
    Row("first tag damaged", file_of(b"?" + OWN[1:]), BadHeader, opens=True),
    Row("last length too large", WHOLE[:-12] + b"\xff" * 8 + b"HFDG", BadHeader, opens=True),
    Row("first length another", file_of(b"HFDG" + b"\1" + OWN[5:]), BadHeader, opens=True),
    Row(
        "damaged end behind another extension",
        file_of(b"foreign" + OWN[:-1] + b"?"),
        BadHeader,
        opens=True,
    ),
)

TEXTS = (
    Row("no text", file_of(own_part("")), BadHeader),
    Row("a list", file_of(own_part("[]")), BadHeader),
    Row("a number", file_of(own_part('{"a":1}')), BadHeader),
    Row("an object", file_of(own_part('{"a":{}}')), BadHeader),
    Row("deep", file_of(own_part("[" * 200_000)), BadHeader),
    Row("no UTF-8", file_of(own_part(b'{"a":"\xff"}')), BadHeader),
    Row("surrogate", file_of(own_part(b'{"a":"\\ud800"}')), BadHeader),
    Row("two texts", file_of(own_part("{}{}")), BadHeader),
    Row("key twice", file_of(sealed(RIGHT + ',"a":"","a":""')), DuplicateKey),
    Row("header field", file_of(sealed(RIGHT + ',"nd":"1"')), BadField),
    Row("typed key missing", sealed_file(**{"standfast.json": '["a"]'}), BadField),
    Row("typed value no JSON", sealed_file(a="{", **{"standfast.json": '["a"]'}), BadField),
)

DIGESTS = (
    Row("no digest", file_of(own_part("{}")), IndexMismatch, opens=True),
    Row(
        "digest not first",
        file_of(own_part('{"a":"","standfast.digest":"' + "0" * 64 + '"}')),
        IndexMismatch,
        opens=True,
    ),
    Row("digest of another header", header(max_level=3) + WHOLE[92:], IndexMismatch, opens=True),
    Row(
        "digest of a file without LINK",
        file_of(link_section() + sealed(RIGHT)),
        IndexMismatch,
        opens=True,
    ),
    Row("no chunks", file_of(sealed("")), BadField, opens=True),
    Row(
        "chunks of three sections",
        file_of(sealed(chunks(*sections_bytes()[:3]))),
        BadField,
        opens=True,
    ),
)

ROWS = (*STARTS, *FIELDS, *LENGTHS, *LINKS, *ENDS, *TEXTS, *DIGESTS)
