"""Damaged `.sunc` files: a table row for each way in which one can be wrong."""

import math

from standfast import errors
from tests.formats.builders import unchecked
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

WHOLE = sealed_file()
OWN = WHOLE[PAYLOAD_END:]

ROWS = {
    errors.TruncatedFile: {
        "empty file": b"",
        "magic alone": b"SUNC",
        "header one byte short": header()[:-1],
        "2^40 slots": file_of(arena_max_blocks=1 << 40),
        "4 GiB at each site": file_of(field_bytes=2**32 - 1),
        "header alone": header(),
        "cut in the blocks": file_of()[:100],
        "cut in the slots": file_of()[:171],
        "cut in the storage": file_of()[:200],
        "one byte short": file_of()[:-1],
        "LINK alone": file_of(b"LINK"),
        "half a LINK header": file_of(link_section()[:19]),
        "our extension within the LINK header": file_of(link_section()[:10] + sealed(RIGHT)),
    },
    errors.BadHeader: {
        "another magic": file_of(magic=b"SUNK"),
        "no text": file_of(own_part("")),
        "a list": file_of(own_part("[]")),
        "a number": file_of(own_part('{"a":1}')),
        "an object": file_of(own_part('{"a":{}}')),
        "deep": file_of(own_part("[" * 200_000)),
        "no UTF-8": file_of(own_part(b'{"a":"\xff"}')),
        "surrogate": file_of(own_part(b'{"a":"\\ud800"}')),
        "two texts": file_of(own_part("{}{}")),
    },
    errors.UnsupportedFile: {
        "version 1": file_of(version=1),
        "version 3": file_of(version=3),
        "big-endian": file_of(endian=2),
        "32-bit": file_of(usize_bytes=4),
    },
    errors.BadField: {
        "no endian": file_of(endian=0),
        "usize of 7 bytes": file_of(usize_bytes=7),
        "reserved 1": file_of(reserved=b"\0" * 15 + b"\1"),
        "no dimension": file_of(nd=0),
        "nine dimensions": file_of(nd=9),
        "block size 0": file_of(block_size=0),
        "block size 2": file_of(block_size=2),
        "block size 6": file_of(block_size=6),
        "block volume": file_of(block_volume=5),
        "volume beyond 64 bits": file_of(nd=8, block_size=1 << 31, block_bytes=88),
        "block bytes": file_of(block_bytes=40),
        "more blocks than slots": file_of(blocks_len=3),
        "more slots than blocks": file_of(field_slots_len=3),
        "more free slots than slots": file_of(arena_free_count=4),
        "NaN spacing": file_of(base_spacing=math.nan),
        "no finite spacing": file_of(base_spacing=-math.inf),
        "65 bits": file_of(bits_per_dim=63),
        "65 levels": file_of(max_level=61),
        "links of three blocks": file_of(link_section(blocks=3)),
        "2^64 - 1 links a block": file_of(link_section(links_per_block=2**64 - 1)),
        "header field": file_of(sealed(RIGHT + ',"nd":"1"')),
        "typed key missing": sealed_file(**{"standfast.json": '["a"]'}),
        "typed value no JSON": sealed_file(a="{", **{"standfast.json": '["a"]'}),
    },
    errors.LimitExceeded: {
        "2^60 blocks": file_of(blocks_len=HUGE, field_slots_len=HUGE),
        "2^64 - 1 blocks": file_of(blocks_len=2**64 - 1, field_slots_len=2**64 - 1),
        "2^60 slots": file_of(arena_max_blocks=HUGE),
        "2^60 sites and no slot": file_of(
            block_size=1 << 30,
            nd=2,
            block_volume=HUGE,
            block_bytes=40,
            arena_max_blocks=0,
            arena_free_count=0,
        ),
        "2^57 slots of no bytes": file_of(field_bytes=0, arena_max_blocks=1 << 57),
    },
    errors.SizeMismatch: {
        "no links": file_of(link_section()[:20]),
        "a link too few": file_of(link_section()[:-16]),
        "a byte behind the links": file_of(link_section() + b"x"),
        "links of two numbers": file_of(link_section() + link_section()[20:]),
        "links of 65 × 65": file_of(link_section(65)),
        "links of no block": header(blocks_len=0, field_slots_len=0)
        + payload()[80:]
        + link_section(blocks=0),
    },
    unchecked(errors.BadHeader): {
        "tag of ours": file_of(b"HFDG"),
        "foreign bytes that end in our tag": file_of(b"any bytes of another program, HFDG"),
        "last tag damaged": WHOLE[:-1] + b"?",
        "first tag damaged": file_of(b"?" + OWN[1:]),
        "last length too large": WHOLE[:-12] + b"\xff" * 8 + b"HFDG",
        "first length another": file_of(b"HFDG" + b"\1" + OWN[5:]),
        "damaged end behind another extension": file_of(b"foreign" + OWN[:-1] + b"?"),
    },
    unchecked(errors.TruncatedFile): {
        "half a tag of ours": file_of(b"HF"),
        "our extension cut": WHOLE[:-1],
    },
    errors.DuplicateKey: {"key twice": file_of(sealed(RIGHT + ',"a":"","a":""'))},
    unchecked(errors.IndexMismatch): {
        "no digest": file_of(own_part("{}")),
        "digest not first": file_of(own_part('{"a":"","standfast.digest":"' + "0" * 64 + '"}')),
        "digest of another header": header(max_level=3) + WHOLE[92:],
        "digest of a file without LINK": file_of(link_section() + sealed(RIGHT)),
    },
    unchecked(errors.BadField): {
        "no chunks": file_of(sealed("")),
        "chunks of three sections": file_of(sealed(chunks(*sections_bytes()[:3]))),
    },
}
