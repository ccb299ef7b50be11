"""Damaged `.sunc` files: a table row for each way in which one can be wrong."""

import math

from standfast import errors
from tests.formats.builders import cuts, each, texts, unchecked
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
HUGE_BLOCKS = {"nd": 2, "block_size": 1 << 30, "block_volume": HUGE, "block_bytes": 40}
RIGHT = chunks(*sections_bytes())

WHOLE = sealed_file()
OWN = WHOLE[PAYLOAD_END:]

ROWS = {
    errors.TruncatedFile: {
        **cuts(file_of(), 0, 4, 91, 92, 100, 171, 200, -1),
        **each(file_of, arena_max_blocks=[1 << 40], field_bytes=[2**32 - 1]),
        "LINK alone": file_of(b"LINK"),
        "half a LINK header": file_of(link_section()[:19]),
        "our extension within the LINK header": file_of(link_section()[:10] + sealed(RIGHT)),
    },
    errors.BadHeader: {
        "another magic": file_of(magic=b"SUNK"),
        "no text": file_of(own_part("")),
        **texts(lambda text: file_of(own_part(text)), "text")(r"""
            []  {"a":1}  {"a":{}}  {"a":"\ud800"}  {}{}
        """),
        "deep": file_of(own_part("[" * 200_000)),
        "no UTF-8": file_of(own_part(b'{"a":"\xff"}')),
    },
    errors.UnsupportedFile: each(file_of, version=[1, 3], endian=[2], usize_bytes=[4]),
    errors.BadField: {
        **each(file_of, endian=[0], usize_bytes=[7], reserved=[b"\0" * 15 + b"\1"], nd=[0, 9]),
        **each(file_of, block_size=[0, 2, 6], block_volume=[5], block_bytes=[40]),
        **each(file_of, blocks_len=[3], field_slots_len=[3], arena_free_count=[4]),
        **each(file_of, base_spacing=[math.nan, -math.inf], bits_per_dim=[63], max_level=[61]),
        "volume beyond 64 bits": file_of(nd=8, block_size=1 << 31, block_bytes=88),
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
        "2^60 sites and no slot": file_of(**HUGE_BLOCKS, arena_max_blocks=0, arena_free_count=0),
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
