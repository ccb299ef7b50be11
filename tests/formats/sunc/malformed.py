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
from tests.formats.sunc.builders import (
    PAYLOAD_END,
    Case,
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
    Case("empty file", b"", TruncatedFile, r"header \(offset 0\): 92 .* after 0"),
    Case("magic alone", b"SUNC", TruncatedFile, r"header .* after 4"),
    Case("header one byte short", header()[:-1], TruncatedFile, r"header .* after 91"),
    Case("another magic", file_of(magic=b"SUNK"), BadHeader, r"offset 0: .*b'SUNC'.*b'SUNK'"),
    Case("version 1", file_of(version=1), UnsupportedFile, r"version \(offset 4\): 1;"),
    Case("version 3", file_of(version=3), UnsupportedFile, r"version \(offset 4\): 3;"),
    Case("big-endian", file_of(endian=2), UnsupportedFile, r"endian \(offset 8\).*big-endian"),
    Case("no endian", file_of(endian=0), BadField, r"endian \(offset 8\): .* found 0"),
    Case("32-bit", file_of(usize_bytes=4), UnsupportedFile, r"usize_bytes \(offset 30\)"),
    Case("usize of 7 bytes", file_of(usize_bytes=7), BadField, r"\(offset 30\): .*8, found 7"),
    Case("reserved 1", file_of(reserved=b"\0" * 15 + b"\1"), BadField, r"reserved \(offset 76\)"),
)

FIELDS = (
    Case("no dimension", file_of(nd=0), BadField, r"nd \(offset 9\): expected 1 to 8, found 0"),
    Case("nine dimensions", file_of(nd=9), BadField, r"nd \(offset 9\): .* found 9"),
    Case("block size 0", file_of(block_size=0), BadField, r"block_size \(offset 10\).*found 0"),
    Case("block size 2", file_of(block_size=2), BadField, r"block_size \(offset 10\).*found 2"),
    Case("block size 6", file_of(block_size=6), BadField, r"block_size \(offset 10\).*found 6"),
    Case("block volume", file_of(block_volume=5), BadField, r"\(offset 14\): .*4 .*found 5"),
    Case(
        "volume beyond 64 bits",
        file_of(nd=8, block_size=1 << 31, block_bytes=88),
        BadField,
        r"block_volume \(offset 14\)",
    ),
    Case("block bytes", file_of(block_bytes=40), BadField, r"\(offset 22\): .*32 .*found 40"),
    Case("more blocks than slots", file_of(blocks_len=3), BadField, r"\(offset 42\): .*3 .*2"),
    Case("more slots than blocks", file_of(field_slots_len=3), BadField, r"\(offset 42\).*2 .*3"),
    Case(
        "more free slots than slots",
        file_of(arena_free_count=4),
        BadField,
        r"arena_free_count \(offset 58\): .*3, found 4",
    ),
    Case("NaN spacing", file_of(base_spacing=math.nan), BadField, r"\(offset 66\).*found nan"),
    Case("no finite spacing", file_of(base_spacing=-math.inf), BadField, r"\(offset 66\).*-inf"),
    Case("65 bits", file_of(bits_per_dim=63), BadField, r"\(offset 74\): .*\(2\).*64, found 63"),
    Case("65 levels", file_of(max_level=61), BadField, r"\(offset 74\): .*\(61\).*64, found 4"),
)

LENGTHS = (
    Case(
        "2^60 blocks",
        file_of(blocks_len=HUGE, field_slots_len=HUGE),
        LimitExceeded,
        r"blocks_len \(offset 34\): 1,152,921,504,606,846,976",
    ),
    Case(
        "2^64 - 1 blocks",
        file_of(blocks_len=2**64 - 1, field_slots_len=2**64 - 1),
        LimitExceeded,
        r"blocks_len \(offset 34\)",
    ),
    Case("2^60 slots", file_of(arena_max_blocks=HUGE), LimitExceeded, r"\(offset 50\)"),
    Case("2^40 slots", file_of(arena_max_blocks=1 << 40), TruncatedFile, r"'storage' \(offset 172"),
    Case(
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
        r"arena_max_blocks \(offset 50\): 0 blocks",
    ),
    Case(
        "2^57 slots of no bytes",
        file_of(field_bytes=0, arena_max_blocks=1 << 57),
        LimitExceeded,
        r"arena_max_blocks \(offset 50\)",
    ),
    Case(
        "4 GiB at each site", file_of(field_bytes=2**32 - 1), TruncatedFile, r"'storage' .* after"
    ),
    Case("header alone", header(), TruncatedFile, r"section 'blocks' \(offset 92\): 64 .* after 0"),
    Case("cut in the blocks", file_of()[:100], TruncatedFile, r"'blocks' \(offset 92\).*after 8"),
    Case("cut in the slots", file_of()[:171], TruncatedFile, r"'field_slots' \(offset 156\)"),
    Case("cut in the storage", file_of()[:200], TruncatedFile, r"'storage' \(offset 172\)"),
    Case("one byte short", file_of()[:-1], TruncatedFile, r"'free_slots' \(offset 268\).*after 23"),
)

LINKS = (
    Case(
        "LINK alone", file_of(b"LINK"), TruncatedFile, r"LINK header \(offset 292\): 20 .*after 4"
    ),
    Case("half a LINK header", file_of(link_section()[:19]), TruncatedFile, "LINK header"),
    Case(
        "links of three blocks",
        file_of(link_section(blocks=3)),
        BadField,
        r"num_blocks \(offset 296\): expected 2, found 3",
    ),
    Case(
        "2^64 - 1 links a block",
        file_of(link_section(links_per_block=2**64 - 1)),
        BadField,
        r"links_per_block \(offset 304\): expected 4, found 18,446,744,073,709,551,615",
    ),
    Case("no links", file_of(link_section()[:20]), SizeMismatch, r"'links' \(offset 312\): 0 "),
    Case("a link too few", file_of(link_section()[:-16]), SizeMismatch, r"112 bytes .* 8 links"),
    Case("a byte behind the links", file_of(link_section() + b"x"), SizeMismatch, "129 bytes"),
    Case(
        "links of two numbers", file_of(link_section() + link_section()[20:]), SizeMismatch, "256"
    ),
    Case(
        "links of 65 × 65",
        file_of(link_section(65)),
        SizeMismatch,
        r"540,800 bytes .* an N of 1 to 64",
    ),
    Case(
        "links of no block",
        header(blocks_len=0, field_slots_len=0) + payload()[80:] + link_section(blocks=0),
        SizeMismatch,
        "128 bytes are not 0 links",
    ),
    Case(
        "our extension within the LINK header",
        file_of(link_section()[:10] + sealed(RIGHT)),
        TruncatedFile,
        "LINK header .* after 10",
    ),
)

WHOLE = sealed_file()
OWN = WHOLE[PAYLOAD_END:]
ENDS = (
    Case("tag of ours", file_of(b"HFDG"), BadHeader, "offset 292: .*HFDG", unchecked=True),
    Case(
        "half a tag of ours", file_of(b"HF"), TruncatedFile, r"HFDG \(offset 292\)", unchecked=True
    ),
    Case("our extension cut", WHOLE[:-1], TruncatedFile, r"HFDG \(offset 292\)", unchecked=True),
    Case(
        "foreign bytes that end in our tag",
        file_of(b"any bytes of another program, HFDG"),
        BadHeader,
        r"offset 314: .*HFDG.*looks like it; verify=False",
        unchecked=True,
    ),
    Case("last tag damaged", WHOLE[:-1] + b"?", BadHeader, "HFDG.*damaged", unchecked=True),
    Case("first tag damaged", file_of(b"?" + OWN[1:]), BadHeader, "HFDG", unchecked=True),
    Case(
        "last length too large",
        WHOLE[:-12] + b"\xff" * 8 + b"HFDG",
        BadHeader,
        "HFDG",
        unchecked=True,
    ),
    Case(
        "first length another",
        file_of(b"HFDG" + b"\1" + OWN[5:]),
        BadHeader,
        "HFDG",
        unchecked=True,
    ),
    Case(
        "damaged end behind another extension",
        file_of(b"foreign" + OWN[:-1] + b"?"),
        BadHeader,
        "HFDG",
        unchecked=True,
    ),
)

TEXTS = (
    Case("no text", file_of(own_part("")), BadHeader, r"HFDG \(offset 292\): .*JSON"),
    Case("a list", file_of(own_part("[]")), BadHeader, "JSON object of strings"),
    Case("a number", file_of(own_part('{"a":1}')), BadHeader, "JSON object of strings"),
    Case("an object", file_of(own_part('{"a":{}}')), BadHeader, "JSON object of strings"),
    Case("deep", file_of(own_part("[" * 200_000)), BadHeader, "JSON object of strings"),
    Case("no UTF-8", file_of(own_part(b'{"a":"\xff"}')), BadHeader, "JSON object of strings"),
    Case("surrogate", file_of(own_part(b'{"a":"\\ud800"}')), BadHeader, "JSON object of strings"),
    Case("two texts", file_of(own_part("{}{}")), BadHeader, "JSON object of strings"),
    Case("key twice", file_of(sealed(RIGHT + ',"a":"","a":""')), DuplicateKey, "HFDG.*'a'"),
    Case("header field", file_of(sealed(RIGHT + ',"nd":"1"')), BadField, "HFDG.*'nd'"),
    Case(
        "typed key missing", sealed_file(**{"standfast.json": '["a"]'}), BadField, "standfast.json"
    ),
    Case("typed value no JSON", sealed_file(a="{", **{"standfast.json": '["a"]'}), BadField, "'a'"),
)

DIGESTS = (
    Case("no digest", file_of(own_part("{}")), IndexMismatch, "standfast.digest", unchecked=True),
    Case(
        "digest not first",
        file_of(own_part('{"a":"","standfast.digest":"' + "0" * 64 + '"}')),
        IndexMismatch,
        "standfast.digest",
        unchecked=True,
    ),
    Case(
        "digest of another header",
        header(max_level=3) + WHOLE[92:],
        IndexMismatch,
        "standfast.digest",
        unchecked=True,
    ),
    Case(
        "digest of a file without LINK",
        file_of(link_section() + sealed(RIGHT)),
        IndexMismatch,
        "standfast.digest",
        unchecked=True,
    ),
    Case("no chunks", file_of(sealed("")), BadField, "standfast.chunks", unchecked=True),
    Case(
        "chunks of three sections",
        file_of(sealed(chunks(*sections_bytes()[:3]))),
        BadField,
        "standfast.chunks: 96 bytes .* 4 chunks",
        unchecked=True,
    ),
)

CASES = (*STARTS, *FIELDS, *LENGTHS, *LINKS, *ENDS, *TEXTS, *DIGESTS)
