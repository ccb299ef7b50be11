"""Builds `.sunc` files byte by byte, right ones and wrong ones, and takes them apart again."""

import io
import json
import math
import struct
from collections.abc import Mapping
from functools import partial
from typing import Any

import numpy as np

from standfast.files.forms import as_array
from standfast.files.layout import Index
from standfast.files.writer import write_stream
from standfast.formats.sunc import file as sunc
from standfast.tensors import source_of
from tests import GOLDEN
from tests.formats import builders
from tests.formats.builders import Array, with_digest

FIELDS = {
    "magic": (b"SUNC", "4s"),
    "version": (2, "I"),
    "endian": (1, "B"),
    "nd": (1, "B"),
    "block_size": (4, "I"),
    "block_volume": (4, "Q"),
    "block_bytes": (32, "I"),
    "field_bytes": (8, "I"),
    "usize_bytes": (8, "I"),
    "blocks_len": (2, "Q"),
    "field_slots_len": (2, "Q"),
    "arena_max_blocks": (3, "Q"),
    "arena_free_count": (1, "Q"),
    "base_spacing": (0.5, "d"),
    "bits_per_dim": (4, "B"),
    "max_level": (2, "B"),
    "reserved": (bytes(16), "16s"),
}
"""A small tree of one dimension: two blocks of four sites, three slots; 92 bytes of header."""

PAYLOAD_END = 92 + 2 * 32 + 2 * 8 + 3 * 4 * 8 + 3 * 8
LINKS = 2 * 4
"""How many links the small tree has."""
DIGEST_AT = len('HFDG........{"standfast.digest":"')


def header(**changes: Any) -> bytes:
    """The header of the small tree; fields that are given replace its own."""
    format = "<" + "".join(letter for _, letter in FIELDS.values())
    return struct.pack(format, *({**{k: v for k, (v, _) in FIELDS.items()}, **changes}.values()))


def payload() -> bytes:
    """The payload of the small tree, with bytes of no meaning in the padding of its blocks."""
    blocks = b"".join(
        struct.pack("<QdQB7s", 4 * i, 0.5, i, 0, b"padding") for i in range(FIELDS["blocks_len"][0])
    )
    slots = struct.pack("<2Q", 0, 1)
    storage = np.arange(12, dtype="<f8").tobytes()
    return blocks + slots + storage + struct.pack("<3Q", 2, 1, 0)


def file_of(rest: bytes = b"", **changes: Any) -> bytes:
    """The file of the small tree, and what follows its payload."""
    return header(**changes) + payload() + rest


def link_section(group: int = 1, blocks: int = 2, links_per_block: int = 4) -> bytes:
    """The links of the small tree, each a matrix of so many rows and columns."""
    links = np.arange(2 * LINKS * group**2, dtype="<f8")
    return b"LINK" + struct.pack("<2Q", blocks, links_per_block) + links.tobytes()


def own_part(text: str | bytes) -> bytes:
    """An extension of ours with this text."""
    text = text if isinstance(text, bytes) else text.encode()
    length = struct.pack("<Q", len(text))
    return b"HFDG" + length + text + length + b"HFDG"


def sealed(text: str) -> bytes:
    """An extension of ours with this text behind its digest, which is right."""
    part = own_part('{"standfast.digest":"' + "0" * 64 + '"' + text + "}")
    return with_digest(part, DIGEST_AT, header() + part[:DIGEST_AT], part[DIGEST_AT + 64 :])


def chunks(*sections: bytes) -> str:
    """The member that holds the chunk digests of these sections, each of one chunk."""
    return f',"standfast.chunks":"{builders.chunks(*sections)}"'


def sections_bytes() -> tuple[bytes, ...]:
    """The sections of the small tree as bytes."""
    data = payload()
    return data[:64], data[64:80], data[80:176], data[176:]


def sealed_file(**strings: str) -> bytes:
    """The small tree in a file that is right, with an extension of ours."""
    further = "".join(f",{json.dumps(k)}:{json.dumps(v)}" for k, v in strings.items())
    return file_of(sealed(chunks(*sections_bytes()) + further))


index_of = partial(builders.index_of, "sunc")


def section_bytes(data: bytes, index: Index) -> dict[str, bytes]:
    """The bytes of each section."""
    return {
        name: data[int(index.starts[row]) : int(index.starts[row] + index.sizes[row])]
        for name, row in index.rows.items()
    }


def sections_of(data: bytes, verify: bool = True) -> dict[str, Array]:
    """The sections as users see them, out of a file that lies in memory as a mapped one does."""
    index = index_of(data, verify)
    whole = np.frombuffer(data, np.uint8)
    return {
        name: as_array(whole[start : start + size], index.spec(row), index.forms.get(row))
        for (name, row), start, size in zip(
            index.rows.items(), index.starts, index.sizes, strict=True
        )
    }


def written(
    sections: Mapping[str, Array], metadata: Mapping[str, Any], extras: bool = True
) -> bytes:
    """The bytes that the writer makes of these sections."""
    sources = [source_of(_rows(array)) for array in sections.values()]
    specs = [(name, source.spec) for name, source in zip(sections, sources, strict=True)]
    layout = sunc.layout(specs, metadata, extras)
    stream = io.BytesIO()
    write_stream(stream, layout, sources)
    assert len(stream.getvalue()) == layout.size
    return stream.getvalue()


def _rows(array: Array) -> Array:
    """A structured array as rows of bytes; any other as it is."""
    if array.dtype.names is None:
        return array
    return np.ascontiguousarray(array).view(np.uint8).reshape(len(array), array.dtype.itemsize)


def small_sections() -> dict[str, Array]:
    """The small tree, to be saved."""
    return sections_of(file_of())


def small_metadata(**changes: Any) -> dict[str, Any]:
    """What the metadata of the small tree must hold; a key that is given as None is left out."""
    keys = ("nd", "block_size", "arena_free_count", "base_spacing", "bits_per_dim", "max_level")
    metadata = {key: FIELDS[key][0] for key in keys} | changes
    return {key: value for key, value in metadata.items() if value is not None}


def golden(name: str) -> bytes:
    """A file that the first implementation wrote."""
    return (GOLDEN / f"sunc_{name}_2d.sunc").read_bytes()


def what_the_original_reads(data: bytes) -> bytes:
    """The part of a file that its first implementation looks at, by the lengths of the header."""
    _, _, volume, block, field, _, blocks, slots, arena = struct.unpack_from("<BIQIIIQQQ", data, 9)
    return data[: 92 + blocks * block + slots * 8 + arena * volume * field + arena * 8]


def tree(
    seed: int, nd: int, blocks: int, slots: int, field: str, rest: str
) -> tuple[dict[str, Array], dict[str, Any]]:
    """Sections of random bytes, and their metadata."""
    random = np.random.default_rng(seed)
    volume = 4**nd
    site = np.dtype(field)
    numbers, shape = site.base, site.shape or (1,)

    def filled(dtype: Any, *shape: int) -> Array:
        size = math.prod(shape) * np.dtype(dtype).itemsize
        return random.integers(0, 256, size, np.uint8).view(dtype).reshape(shape)

    sections = {
        "blocks": filled(sunc.block_dtype(nd), blocks),
        "field_slots": filled("<u8", blocks),
        "storage": filled(numbers, slots, volume, *shape),
        "free_slots": filled("<u8", slots),
    }
    if rest == "extension":
        sections["extension"] = filled("u1", 50)
    elif rest:
        group = int(rest[-2]) if blocks else 1
        sections["links"] = filled("<c16", blocks, volume * nd, group, group)
    metadata = small_metadata(nd=nd, arena_free_count=slots)
    return sections, metadata


def whole_files() -> dict[str, bytes]:
    """The small tree as Standfast saves it, with each kind of extension before its own."""
    further = {"step": 3, "name": "run"}
    linked = small_sections() | {"links": sections_of(file_of(link_section(2)))["links"]}
    foreign = small_sections() | {"extension": np.frombuffer(b"foreign", np.uint8)}
    metadata = {**small_metadata(), **further}
    return {
        "plain": written(small_sections(), metadata),
        "linked": written(linked, metadata),
        "foreign": written(foreign, metadata),
    }
