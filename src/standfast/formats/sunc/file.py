"""The `.sunc` format, a checkpoint of a tree of blocks, as sections that look like tensors.

`docs/formats/sunc.md` is the page of the bytes, of our own extension, and of what is refused.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from itertools import accumulate
from typing import Any, Final

import msgspec
import numpy as np

from standfast.errors import (
    BadField,
    BadHeader,
    DamagedFile,
    DuplicateKey,
    LimitExceeded,
    RefusedMetadata,
    TruncatedFile,
    UnsupportedDType,
    UnsupportedShape,
    UnsupportedTensor,
    printable,
    shortened,
)
from standfast.files.digests import DIGEST, chunk_counts
from standfast.files.layout import Form, Index, Late, Layout, Sums
from standfast.formats.limits import MAX_RANK, refuse
from standfast.formats.metadata import from_strings, to_strings, unique_pairs
from standfast.formats.reader import Options, Read, Start
from standfast.formats.seal import (
    CHUNKS_KEY,
    KEY,
    ZEROS,
    check_seal,
    chunks_size,
    chunks_text,
    parse_chunks,
    sealed,
)
from standfast.formats.sunc.header import (
    LINK,
    LINK_SIZE,
    MAGIC,
    MAX_GROUP,
    PLACES,
    SIZE,
    Header,
    check_link_header,
    check_widths,
    link_group,
    link_header,
    links_spec,
    payload_specs,
    record_size,
    volume,
)
from standfast.tensors import DTYPES as ALL_DTYPES
from standfast.tensors import TensorSpec

NAME: Final = "sunc"
SUFFIXES: Final = (".sunc",)
DTYPES: Final = frozenset(name for name, dtype in ALL_DTYPES.items() if not dtype.packed)
"""The field of a site may be of any of these; the other sections have a dtype of their own."""
STRINGS_ONLY: Final = False
BARE_KEYS: Final = frozenset(PLACES)
SEEKS: Final = True
RECORDS: Final = True
"""Blocks may be given as a structured array."""

_PAYLOAD: Final = ("blocks", "field_slots", "storage", "free_slots")
_SECTIONS: Final = (*_PAYLOAD, "links", "extension")
_DERIVED: Final = (
    *("block_volume", "block_bytes", "field_bytes"),
    *("blocks_len", "field_slots_len", "arena_max_blocks"),
)
_REQUIRED: Final = tuple(name for name in PLACES if name not in _DERIVED)


def recognises(head: bytes, size: int) -> bool:
    """Whether a file with these first bytes is meant to be one of this format."""
    return head.startswith(MAGIC)


def block_dtype(nd: int) -> np.dtype[Any]:
    """The record of a block of `nd` dimensions.

    The padding is a field, because NumPy leaves bytes between fields undefined when it copies.
    """
    return np.dtype(
        [
            ("origin", "<u8", (nd,)),
            ("spacing", "<f8"),
            ("block_index", "<u8"),
            ("level", "u1"),
            ("padding", "u1", (7,)),
        ],
        align=True,
    )


# Writing


def layout(
    tensors: Sequence[tuple[str, TensorSpec]], metadata: Mapping[str, Any], extras: bool
) -> Layout:
    """Where these sections go, in whatever order they are given.

    The metadata holds the fields of the header; those that follow from the sections may be left
    out. Further keys go into our own extension, and are refused where there is none.
    """
    refuse(tensors, NAME, DTYPES, MAX_RANK)
    given = dict(tensors)
    _check_names(given)
    fields = {name: metadata[name] for name in PLACES if name in metadata}
    further = {key: value for key, value in metadata.items() if key not in PLACES}
    if further and not extras:
        raise RefusedMetadata(
            f"metadata key {next(iter(further))!r:.80}: without extras, {NAME} holds only the "
            f"fields of its header, which are {', '.join(PLACES)}"
        )
    header = _header_of(given, fields)
    _check_sections(given, header, "field_bytes" in fields)

    order = sorted(range(len(tensors)), key=lambda i: _SECTIONS.index(tensors[i][0]))
    link = link_header(header) if "links" in given else b""
    payload, rest = order[: len(_PAYLOAD)], order[len(_PAYLOAD) :]
    body: list[bytes | int | Late] = [header.pack(), *payload, link, *rest]
    size = SIZE + len(link) + sum(spec.nbytes for spec in given.values())
    if extras:
        own = _Own(to_strings(further), [spec for _, spec in tensors], order, header.pack() + link)
        body.append(Late(own.size, own.make))
        size += own.size
    return Layout(body, size, digested=extras)


def _check_names(given: Mapping[str, TensorSpec]) -> None:
    for name in given:
        if name not in _SECTIONS:
            raise UnsupportedTensor(
                f"tensor {shortened(name)!r}: {NAME} has no such section; there are "
                f"{', '.join(_SECTIONS)}"
            )
    for name in _PAYLOAD:
        if name not in given:
            raise UnsupportedTensor(f"tensor {name!r} is missing: each {NAME} file has this one")
    if "links" in given and "extension" in given:
        raise UnsupportedTensor(
            f"tensor 'extension': {NAME} does not say where links end, so nothing can follow them"
        )


def _header_of(given: Mapping[str, TensorSpec], fields: Mapping[str, Any]) -> Header:
    """The header: what only the metadata can say, and what follows from it and the sections."""
    if missing := [name for name in _REQUIRED if name not in fields]:
        raise RefusedMetadata(f"metadata: {NAME} needs the keys {', '.join(missing)}")
    for name, value in fields.items():
        expected = float if name == "base_spacing" else int
        if type(value) is not expected:
            raise RefusedMetadata(
                f"metadata[{name!r}] is a {type(value).__name__}: it must be a {expected.__name__}"
            )
    for name in ("blocks", "storage"):
        if len(given[name].shape) < 2:
            raise UnsupportedShape(
                f"tensor {name!r}: shape {list(given[name].shape)}, at least 2 dimensions expected"
            )
    told = _told_by(given)
    try:
        check_widths(fields)
        for name, value in told.items():
            if fields.get(name, value) != value:
                raise RefusedMetadata(
                    f"metadata[{name!r}] is {fields[name]:,}, but the sections make it {value:,}"
                )
        nd, block_size = fields["nd"], fields["block_size"]
        computed = {"block_volume": volume(block_size, nd), "block_bytes": record_size(nd)}
        header = Header(**{**computed, **told, **fields})
        header.validate()
    except DamagedFile as error:
        raise RefusedMetadata(f"metadata: {error}") from error
    return header


def _told_by(given: Mapping[str, TensorSpec]) -> dict[str, int]:
    """The fields of the header that the sections tell."""
    blocks, storage = given["blocks"], given["storage"]
    return {
        "field_bytes": math.prod(storage.shape[2:]) * storage.kind.numpy.itemsize,
        "blocks_len": blocks.shape[0],
        "field_slots_len": blocks.shape[0],
        "arena_max_blocks": storage.shape[0],
    }


def _check_sections(given: Mapping[str, TensorSpec], header: Header, any_field: bool) -> None:
    """Each section must be as it will be read, but for fields whose size the caller has named."""
    expected = payload_specs(header)
    if any_field and given["storage"].shape[:2] == expected["storage"].shape[:2]:
        expected["storage"] = given["storage"]
    if "links" in given:
        expected["links"] = links_spec(header, _group_of(given["links"]))
    if "extension" in given:
        expected["extension"] = TensorSpec("uint8", (max(1, given["extension"].size),))
    for name, spec in expected.items():
        if given[name].dtype != spec.dtype:
            hint = ""
            if name == "storage":
                hint = f"; field_bytes={header.field_bytes} in the metadata saves it as it is"
            raise UnsupportedDType(
                f"tensor {name!r}: {given[name].dtype}, but {NAME} has {spec.dtype} there{hint}"
            )
        if given[name].shape != spec.shape:
            raise UnsupportedShape(
                f"tensor {name!r}: shape {list(given[name].shape)}, expected {list(spec.shape)}"
            )


def _group_of(links: TensorSpec) -> int:
    """The N of N × N links; 1 where there are none, because then no file can tell it."""
    fits = len(links.shape) == 4 and links.shape[0] and 1 <= links.shape[3] <= MAX_GROUP
    return links.shape[3] if fits else 1


# Our own extension, which ends the file: its tag, the length of its text, the text, and again the
# length and the tag, so that it is found from the end. The text is an object of strings.

OWN: Final = b"HFDG"
MAX_TEXT: Final = 100_000_000

_OWN_FRAME: Final = 2 * (len(OWN) + 8)
_OWN_START: Final = b'{"standfast.digest":"'
_DIGEST_AT: Final = len(OWN) + 8 + len(_OWN_START)


class _Own:
    """Our extension of a file that is about to be written, but for the digests."""

    def __init__(
        self,
        strings: Mapping[str, str],
        specs: Sequence[TensorSpec],
        order: Sequence[int],
        before: bytes,
    ) -> None:
        self._strings = msgspec.json.encode(strings)[1:-1]
        self._order = order
        self._before = before
        sizes = np.array([spec.nbytes for spec in specs], np.int64)
        self._first_chunks = [0, *np.cumsum(chunk_counts(sizes)).tolist()]
        self.size = len(self._part(b"0" * chunks_size(self._first_chunks[-1])))
        if self.size - _OWN_FRAME > MAX_TEXT:
            raise RefusedMetadata(
                f"the metadata and digests would take {self.size - _OWN_FRAME:,} bytes, over "
                f"{MAX_TEXT:,}"
            )

    def make(self, sums: Sums) -> bytes:
        """The whole extension; the digests follow the order of the file, not the order given."""
        digests, first = sums.digests(), self._first_chunks
        ranges = (digests[first[i] * DIGEST : first[i + 1] * DIGEST] for i in self._order)
        return sealed(self._part(chunks_text(b"".join(ranges))), _DIGEST_AT, before=[self._before])

    def _part(self, chunks: bytes) -> bytes:
        members = [b"".join((_OWN_START[1:], ZEROS, b'","standfast.chunks":"', chunks, b'"'))]
        if self._strings:
            members.append(self._strings)
        text = b"{%b}" % b",".join(members)
        length = len(text).to_bytes(8, "little")
        return b"".join((OWN, length, text, length, OWN))


def _own_start(read: Read, begin: int, end: int, verify: bool) -> int:
    """Where our extension starts, among the bytes after the payload; `end` if there is none.

    A tag, or a length that leads to one, is taken for ours: no damage to a few bytes may make
    the digests vanish silently.
    """
    tail = read(max(begin, end - 12), min(12, end - begin))
    length = int.from_bytes(tail[:8], "little")
    start = end - _OWN_FRAME - length
    front = read(start, 12) if start >= begin else b""
    if front == OWN + tail[:8] and tail[8:] == OWN:
        if length > MAX_TEXT:
            raise LimitExceeded(f"HFDG (offset {start:,}): a text of {length:,}, over {MAX_TEXT:,}")
        return start
    if verify and (tail.endswith(OWN) or front.startswith(OWN)):
        raise BadHeader(
            f"offset {end - len(tail):,}: the file ends in a Standfast extension (HFDG) that is "
            "damaged, or in one of another program that looks like it; verify=False opens it "
            "unchecked, with these bytes as an extension"
        )
    return end


def _read_own(
    read: Read, start: int, end: int, before: bytes, sizes: np.ndarray[Any, Any], verify: bool
) -> tuple[dict[str, Any], bytes | None]:
    """The metadata and the digests in our extension, if there is one, and if it is sound."""
    if start == end:
        return {}, None
    part = read(start, end - start)
    strings = _parse_own(part, start)
    digests = None
    if verify:
        digits = strings.get(KEY) if part.startswith(_OWN_START, len(OWN) + 8) else None
        check_seal(digits, part, _DIGEST_AT, before=[before])
        digests = parse_chunks(strings.get(CHUNKS_KEY), sizes)
    return from_strings(strings), digests


def _parse_own(part: bytes, at: int) -> dict[str, str]:
    """The strings in our extension, which starts at `at`."""
    text = part[len(OWN) + 8 : -len(OWN) - 8]
    try:
        msgspec.json.decode(text, type=dict[str, str])  # which never nests
        strings: dict[str, str] = json.loads(text, object_pairs_hook=unique_pairs)
    except DuplicateKey as error:
        raise DuplicateKey(f"HFDG (offset {at:,}): {error}") from None
    except ValueError as error:
        raise BadHeader(
            f"HFDG (offset {at:,}): its text is not a JSON object of strings "
            f"({printable(str(error))})"
        ) from error
    for key in PLACES:
        if key in strings:
            raise BadField(f"HFDG (offset {at:,}): the key {key!r} is a field of the header")
    return strings


# Reading


def read_index(read: Read, size: int | None, options: Options) -> Index:
    """The sections of a file of `size` bytes, or the payload alone of a stream.

    `verify=False` leaves out our digests, and takes a damaged extension of ours for a foreign
    one.
    """
    file = Start(read, size)
    first = file.take(0, SIZE, "header")
    header = Header.parse(first)
    specs = payload_specs(header)
    ends = list(accumulate((spec.nbytes for spec in specs.values()), initial=SIZE))
    for (name, spec), start in zip(specs.items(), ends, strict=False):
        file.check(start, spec.nbytes, f"section {name!r}")
    end = ends[-1] if size is None else size
    own = _own_start(read, ends[-1], end, options.verify)
    link = _read_link_header(read, header, ends[-1], own)
    begin = ends[-1] + len(link)
    if link:
        specs["links"] = links_spec(header, link_group(header, begin, own))
    elif begin < own:
        if own == end:
            _refuse_cut(read, begin, own, options.verify)
        specs["extension"] = TensorSpec("uint8", (own - begin,))
    sizes = np.array([spec.nbytes for spec in specs.values()], np.int64)
    further, digests = _read_own(read, own, end, first + link, sizes, options.verify)
    return Index(
        format=NAME,
        metadata=asdict(header) | further,
        rows={name: row for row, name in enumerate(specs)},
        dtypes=[spec.dtype for spec in specs.values()],
        shapes=[spec.shape for spec in specs.values()],
        starts=np.array([*ends[:-1], begin][: len(specs)], np.int64),
        sizes=sizes,
        end=end,
        digests=digests,
        forms={0: Form(record=block_dtype(header.nd))},
    )


def _read_link_header(read: Read, header: Header, begin: int, end: int) -> bytes:
    """What stands before the links; nothing if no LINK section follows the payload."""
    if end - begin < len(LINK) or read(begin, len(LINK)) != LINK:
        return b""
    link = Start(read, end).take(begin, LINK_SIZE, "LINK header")
    check_link_header(link, header, begin)
    return link


def _refuse_cut(read: Read, begin: int, end: int, verify: bool) -> None:
    """Raise if what follows the payload is the start of our extension, without its end."""
    if verify and OWN.startswith(read(begin, min(len(OWN), end - begin))):
        raise TruncatedFile(
            f"HFDG (offset {begin:,}): the file ends after {end - begin:,} bytes of it; "
            "verify=False opens it unchecked, with these bytes as an extension"
        )
